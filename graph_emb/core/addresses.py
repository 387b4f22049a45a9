"""Arrays of several jobs of one compiled loop: of each job its own, found by address where the loop comes to it.

numba compiles a function for the types of its arguments, so arrays of any number of jobs cannot be arguments of one
function; their addresses can.

Legend: J jobs, A arrays of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from graph_emb.core.compiled import njit

Columns = tuple[np.ndarray | None, ...]
"""The arrays of a job, contiguous, of one or two dimensions; None where it has none at this place."""


class Kind(NamedTuple):
    """What the code of a loop depends on; one call runs jobs of one kind.

    Attributes:
        arrays: The letter of numpy's type and the dimensions of each array, None where there is none.
        flags: Choices that are made when the loop is compiled.
    """

    arrays: tuple[tuple[str, int] | None, ...]
    flags: tuple[bool, ...]


def kind_of(arrays: Columns, flags: tuple[bool, ...] = ()) -> Kind:
    """The kind of a job."""
    return Kind(tuple(None if array is None else (array.dtype.char, array.ndim) for array in arrays), flags)


class KindType(types.Opaque):
    """A kind as the type of an argument: it has no value, and its name, as numba compares types, is all of it."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        arrays = "".join("n" if like is None else f"{like[0]}{like[1]}" for like in kind.arrays)
        super().__init__(f"Kind_{arrays}_{''.join('yn'[not flag] for flag in kind.flags)}")


register_model(KindType)(models.OpaqueModel)


class Loop:
    """A loop over jobs, in a form for each kind, whose parts run beside each other.

    Each form is a plain function that one parallel loop, the same for all, calls by address: numba (0.68) builds what
    is inside a parallel loop four times over, which doubles the time that a form takes to compile.
    """

    def __init__(self, function: Any, **options: Any) -> None:
        """Take the loop.

        Args:
            function: Of (kind, where, jobs, part, parts), which ``array_at`` and ``flag`` read. It returns nothing.
            options: Of ``njit``.
        """
        self._compiled = njit(cache=True, nogil=True, no_cpython_wrapper=True, **options)(function)
        self._addresses: dict[Kind, int] = {}

    def run(self, kind: Kind, jobs: Sequence[Columns], parts: int) -> None:
        """Run the loop over jobs of a kind, whose parts numba's threads share."""
        address = self._addresses.get(kind)
        if address is None:
            address = self._addresses[kind] = self._address(kind)
        found = [_NOWHERE if array is None else _where(array) for arrays in jobs for array in arrays]
        where = np.array(found, np.int64)
        _in_parts(address, where.__array_interface__["data"][0], len(jobs), parts)

    def _address(self, kind: Kind) -> int:
        signature = (KindType(kind), *[types.int64] * 4)
        self._compiled.compile(signature)
        made = self._compiled.overloads[signature]
        return made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)


_NOWHERE = (0, 0, 0)


def _where(array: np.ndarray) -> tuple[int, int, int]:
    shape = array.shape
    return array.__array_interface__["data"][0], shape[0], shape[-1]


def _emit_call(typingctx: Any, address: Any, where: Any, jobs: Any, part: Any, parts: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, number = cgutils.voidptr_t, ir.IntType(64)  # as numba's function for C takes them; it returns None
        function = ir.FunctionType(cgutils.voidptr_t, [kind, *[number] * 4])
        builder.call(builder.inttoptr(args[0], function.as_pointer()), [kind(None), *args[1:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


_call: Any = intrinsic(_emit_call)


@njit(parallel=True, cache=True, nogil=True)
def _in_parts(address, where, jobs, parts):  # type: ignore[no-untyped-def]
    for part in prange(parts):
        _call(address, where, jobs, np.int64(part), parts)


def _emit_array(typingctx: Any, kind: Any, where: Any, j: Any, k: Any) -> Any:
    """Array k, a constant, of job j, inside a loop; None where the kind has none."""
    place, count = k.literal_value, len(kind.kind.arrays)
    like = kind.kind.arrays[place]
    if like is None:
        return types.none(kind, where, j, k), lambda context, *_: context.get_dummy_value()
    made = types.Array(from_dtype(np.dtype(like[0])), like[1], "C")

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number, word = ir.IntType(64), np.dtype(np.int64).itemsize
        first = builder.mul(builder.add(builder.mul(args[2], number(count)), number(place)), number(3))
        start = builder.gep(builder.inttoptr(args[1], number.as_pointer()), [first])
        address, rows, width = (builder.load(builder.gep(start, [number(n)]), align=word) for n in range(3))
        item = number(made.dtype.bitwidth // 8)
        array = context.make_array(made)(context, builder)
        populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=[rows, width][: made.ndim],
            strides=[builder.mul(width, item), item][-made.ndim :],
            itemsize=item,
            meminfo=None,
        )
        return array._getvalue()

    return made(kind, types.int64, types.int64, k), generate


def _emit_flag(typingctx: Any, kind: Any, k: Any) -> Any:
    """Flag k, a constant, as an argument by which numba drops branches: None where it does not hold."""
    if kind.kind.flags[k.literal_value]:
        return types.boolean(kind, k), lambda context, *_: context.get_constant(types.boolean, True)
    return types.none(kind, k), lambda context, *_: context.get_dummy_value()


array_at: Any = intrinsic(prefer_literal=True)(_emit_array)
flag: Any = intrinsic(prefer_literal=True)(_emit_flag)
