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
FLAGS = 3
"""Choices that a loop over rows takes as its last arguments, each None or something else: numba (0.68) drops a branch
at compile time where an argument, and nothing but an argument, is None."""


class Kind(NamedTuple):
    """What the code of a loop depends on; one call runs jobs of one kind.

    Attributes:
        arrays: The letter of numpy's type and the dimensions of each array, None where there is none.
        flags: Choices that are made when the loop is compiled; at most ``FLAGS``, and of a loop over rows alone.
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
            function: Of (kind, where, jobs, part, parts), which ``array_at`` reads. It returns nothing.
            options: Of ``njit``.
        """
        self._compiled = njit(cache=True, nogil=True, no_cpython_wrapper=True, **options)(function)
        self._addresses: dict[Kind, int] = {}

    def run(self, kind: Kind, jobs: Sequence[Columns], parts: int) -> None:
        """Run the loop over jobs of a kind, whose parts numba's threads share."""
        where = _table(jobs)
        _in_parts(self._address(kind), where.__array_interface__["data"][0], len(jobs), parts)

    def _address(self, kind: Kind) -> int:
        known = self._addresses.get(kind)
        if known is None:
            signature = (KindType(kind), *[types.int64] * 4, *self._flags(kind))
            self._compiled.compile(signature)
            made = self._compiled.overloads[signature]
            known = self._addresses[kind] = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
        return known

    def _flags(self, kind: Kind) -> list[Any]:
        return []


class RowLoop(Loop):
    """A loop over some rows of a job; all rows of all jobs are shared among the parts.

    The function is one of (kind, where, j, low, high, *flags): of job j the rows [low, high), and ``FLAGS`` flags.
    """

    def __init__(self, function: Any, counted: int, **options: Any) -> None:
        """Take the loop; a job has as many rows as its array at the place ``counted``."""
        super().__init__(function, **options)
        self._counted = counted

    def run(self, kind: Kind, jobs: Sequence[Columns], parts: int) -> None:
        """Run the loop over the rows of jobs of a kind; numba's threads share the parts."""
        where = _table(jobs)
        rows = np.ascontiguousarray(where[self._counted :: len(kind.arrays), 1])
        _in_shares(self._address(kind), where.__array_interface__["data"][0], rows, int(rows.sum()), parts)

    def _flags(self, kind: Kind) -> list[Any]:
        flags = (*kind.flags, *[False] * (FLAGS - len(kind.flags)))
        return [types.voidptr if chosen else types.none for chosen in flags]


def _table(jobs: Sequence[Columns]) -> np.ndarray:
    """Where the arrays of all jobs are, (J A, 3): address, length, width."""
    return np.array([_NOWHERE if array is None else _where(array) for arrays in jobs for array in arrays], np.int64)


_NOWHERE = (0, 0, 0)


def _where(array: np.ndarray) -> tuple[int, int, int]:
    shape = array.shape
    return array.__array_interface__["data"][0], shape[0], shape[-1]


def _calling(flags: int) -> Any:
    """A call of a loop's function by address, with this many flags."""

    def emit(typingctx: Any, address: Any, where: Any, first: Any, second: Any, third: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind, number = cgutils.voidptr_t, ir.IntType(64)  # as numba's function for C takes them; it returns None
            function = ir.FunctionType(kind, [kind, *[number] * 4, *[kind] * flags])
            given = [kind(None), *args[1:], *[kind(None)] * flags]
            builder.call(builder.inttoptr(args[0], function.as_pointer()), given)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return intrinsic(emit)


_call: Any = _calling(0)
_call_with_flags: Any = _calling(FLAGS)


@njit(inline="always")
def share(part, parts, num):  # type: ignore[no-untyped-def]
    """The rows [low, high) of one of several equal shares."""
    return part * num // parts, (part + 1) * num // parts


@njit(parallel=True, cache=True, nogil=True)
def _in_parts(address, where, jobs, parts):  # type: ignore[no-untyped-def]
    for part in prange(parts):
        _call(address, where, jobs, np.int64(part), parts)


@njit(parallel=True, cache=True, nogil=True)
def _in_shares(address, where, rows, num, parts):  # type: ignore[no-untyped-def]
    """Call the function for the rows of each job, counted from its first, that lie in a part's share of all rows."""
    for part in prange(parts):
        low, high = share(np.int64(part), parts, num)
        before = np.int64(0)
        for j in range(len(rows)):
            start, stop = max(low, before) - before, min(high, before + rows[j]) - before
            before += rows[j]
            if start < stop:
                _call_with_flags(address, where, np.int64(j), start, stop)


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


array_at: Any = intrinsic(prefer_literal=True)(_emit_array)
