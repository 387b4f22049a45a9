"""Memory of rows: where it begins, and how compiled loops ask for it ahead and copy it by address."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from graph_emb.core.errors import ConfigError

LINE = 64  # bytes of a cache line


def aligned(num_bytes: int) -> np.ndarray:
    """Uninitialised memory, uint8, whose rows meet no more cache lines than they fill.

    numpy allocates, because it asks the kernel for huge pages: random rows of a table of gigabytes then cost fewer
    misses of the address cache than in torch's own memory. It begins at a cache line, at a page where it is as long.
    """
    unit = mmap.PAGESIZE if num_bytes >= mmap.PAGESIZE else LINE
    block = np.empty(num_bytes + unit, dtype=np.uint8)
    start = -block.ctypes.data % unit
    return block[start : start + num_bytes]


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, table: str) -> Tensor:
    """Uninitialised memory of a table, or an error that names the table and the bytes it asked for.

    On the CPU ``aligned`` memory.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        if device.type == "cpu" and num_bytes:  # torch cannot view an empty buffer as another dtype
            return torch.from_numpy(aligned(num_bytes)).view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
        reason, more = "", ""
        if device.type != "cpu":
            reason, more = f" ({str(error).partition(chr(10))[0]})", ", or a device of this machine"
        raise ConfigError(
            f"table {table!r}: cannot allocate {num_bytes:,} bytes for shape {shape} of {dtype} on {device}{reason}; "
            f"use fewer rows, a smaller embedding_dim, or a row-wise optimizer{more}"
        ) from error


def _ask_for_lines(builder: Any, pointer: Any, num_bytes: Any, to_write: int) -> None:
    """Ask for the cache lines of num_bytes from a pointer on."""
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    step = num_bytes.type(LINE)
    with cgutils.for_range_slice(builder, num_bytes.type(0), num_bytes, step, intp=num_bytes.type) as (offset, _):
        builder.call(function, [builder.gep(pointer, [offset]), i32(to_write), i32(3), i32(1)])


def _emit_prefetch(array: Any, row: Any, to_write: int) -> Any:
    """Ask for the cache lines of array[row] (of one or two dimensions, C order)."""
    signature = types.void(array, row)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = context.make_array(sig.args[0])(context, builder, args[0])
        shape = cgutils.unpack_tuple(builder, value.shape)
        width = shape[1] if len(shape) == 2 else args[1].type(1)
        start = builder.gep(value.data, [builder.mul(args[1], width)])
        pointer = builder.bitcast(start, ir.IntType(8).as_pointer())
        _ask_for_lines(builder, pointer, builder.mul(width, width.type(array.dtype.bitwidth // 8)), to_write)
        return context.get_dummy_value()

    return signature, generate


def _emit_write(typingctx: Any, array: Any, row: Any) -> Any:
    return _emit_prefetch(array, row, 1)


def _emit_read(typingctx: Any, array: Any, row: Any) -> Any:
    return _emit_prefetch(array, row, 0)


prefetch: Any = intrinsic(_emit_write)
"""``prefetch(array, row)`` inside a compiled function asks for the row's memory, to be written."""
prefetch_to_read: Any = intrinsic(_emit_read)
"""As ``prefetch``, without the ownership that writing needs."""


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


def _emit_number_at(typingctx: Any, address: Any, k: Any) -> Any:
    """The k-th int64 from an address on."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        numbers = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(numbers, [args[1]]))

    return types.int64(types.int64, types.int64), generate


def _emit_ask_at(typingctx: Any, address: Any, num_bytes: Any) -> Any:
    """Ask for memory, to be read."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _ask_for_lines(builder, _pointer(builder, args[0]), args[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _emit_copy_at(typingctx: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy memory."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, _pointer(builder, args[0]), _pointer(builder, args[1]), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _emit_equal_in_line(typingctx: Any, address: Any, word: Any) -> Any:
    """Eight comparisons at once, in a bit each."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word64, lane, eight = ir.IntType(64), ir.IntType(32), ir.VectorType(ir.IntType(64), 8)
        line = builder.load(builder.inttoptr(args[0], eight.as_pointer()), align=LINE)
        any_ = ir.Constant(eight, ir.Undefined)
        one = builder.insert_element(any_, args[1], lane(0))
        words = builder.shuffle_vector(one, any_, ir.Constant(ir.VectorType(lane, 8), [0] * 8))
        return builder.zext(builder.bitcast(builder.icmp_signed("==", line, words), ir.IntType(8)), word64)

    return types.int64(types.int64, types.int64), generate


def _emit_lowest_bit(typingctx: Any, bits: Any) -> Any:
    return types.int64(types.int64), lambda context, builder, sig, args: builder.cttz(args[0], ir.IntType(1)(1))


number_at: Any = intrinsic(_emit_number_at)
ask_at: Any = intrinsic(_emit_ask_at)
copy_at: Any = intrinsic(_emit_copy_at)
equal_in_line: Any = intrinsic(_emit_equal_in_line)
"""``equal_in_line(address, word)``: which int64 of the cache line at an address equal a word, the k-th in bit k."""
lowest_bit: Any = intrinsic(_emit_lowest_bit)
"""``lowest_bit(bits)``: the position of the lowest one of an int64 that is not 0."""


def _emit_uncounted(typingctx: Any, array: Any) -> Any:
    """The array without an owner."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = context.make_array(sig.args[0])(context, builder, args[0])
        made.meminfo = cgutils.get_null_value(made.meminfo.type)
        return made._getvalue()

    return array(array), generate


def _emit_keep_alive(typingctx: Any, array: Any) -> Any:
    return types.void(array), lambda context, *_: context.get_dummy_value()


uncounted: Any = intrinsic(_emit_uncounted)
"""``uncounted(array)`` inside a compiled function is the array, and nobody counts references to it or its views:
counting takes two locked operations a call, and with many calls more than the work on a row. ``keep_alive`` ends it."""
keep_alive: Any = intrinsic(_emit_keep_alive)
"""``keep_alive(array)`` inside a compiled function: the memory stays until here."""
