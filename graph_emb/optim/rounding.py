"""Rows of 16 bits in compiled loops, and stochastic rounding to them.

Random bits belong to (seed, step, original id, column), not to a process.

Legend: R rows, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, INSIDE, mix64, njit

FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
UPPER = np.uint32(0xFFFF0000)
DIGITS = {torch.bfloat16: (8, -133), torch.float16: (11, -24)}
"""Binary digits of a number, and the exponent of the smallest step between two, by dtype."""


@njit(forceinline=True, error_model="numpy")
def row_key(seed: Any, step: Any, id: Any) -> Any:
    """The random stream of a row in a step."""
    return mix64(mix64(mix64(seed + GOLDEN) + np.uint64(step)) ^ (np.uint64(id) * GOLDEN))


def memory_of(rows: Tensor) -> np.ndarray:
    """Rows on the CPU as compiled loops take them: bfloat16 as uint16, float16 as int16, which tells the two apart."""
    if rows.dtype not in DIGITS:
        return rows.detach().numpy()
    words = rows.detach().view(torch.int16).numpy()
    return words.view(np.uint16) if rows.dtype is torch.bfloat16 else words


@njit(forceinline=True, error_model="numpy")
def widened(word: Any) -> Any:
    """The float32 of a bfloat16, as uint16."""
    return np.uint32(np.uint32(word) << np.uint32(16)).view(np.float32)


@njit(forceinline=True, error_model="numpy")
def bits_of(number: Any) -> Any:
    """The bits of a float32, as uint32."""
    return np.float32(number).view(np.uint32)


@njit(forceinline=True, error_model="numpy")
def float_of(bits: Any) -> Any:
    """The float32 of these bits."""
    return np.uint32(bits).view(np.float32)


@njit(forceinline=True, error_model="numpy")
def _raised(bits: Any) -> Any:
    """A float32, as uint32, whose upper half is the nearest bfloat16; ties to even. Not of NaN with lower digits."""
    return np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))


@njit(forceinline=True, error_model="numpy")
def _doubled(word: Any) -> Any:
    """The float32 of a float16, as int16. No branches."""
    size = np.uint32((np.uint32(word) & np.uint32(0x7FFF)) << np.uint32(13))
    raised = np.float32(size.view(np.float32) * np.float32(2.0**112))  # the difference of the exponents' biases
    bits = np.uint32(raised.view(np.uint32))
    bits = np.uint32(bits | np.uint32(0x7F800000)) if bits >= np.uint32(0x47800000) else bits  # infinity and NaN
    return np.uint32(bits | ((np.uint32(word) & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)


@njit(forceinline=True, error_model="numpy")
def _nearest_bfloat(bits: Any) -> Any:
    """The bfloat16, as uint16, nearest to a float32, as uint32; ties to even. No branches: loops are vectors."""
    found = _raised(bits) >> np.uint32(16)
    return np.uint16(np.uint32(0x7FC0) if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000) else found)  # NaN


@njit(forceinline=True, error_model="numpy")
def _bfloat_by_chance(bits: Any, draw: Any) -> Any:
    """``round_stochastically`` of one float32, as uint32, to bfloat16, as uint16, by 64 random bits. No branches."""
    rest, chance = np.uint32(bits << np.uint32(16)), np.uint32(draw >> np.uint64(32))
    flipped = np.uint32(np.uint32(0) - (bits >> np.uint32(31)))  # below zero the upper neighbour is the shorter one
    away = np.uint32(1) if np.uint32(chance ^ flipped) < rest else np.uint32(0)
    found = np.uint16(np.uint32(bits >> np.uint32(16)) + away)
    return _nearest_bfloat(bits) if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F7F0000) else found  # no neighbours


@njit(forceinline=True, error_model="numpy")
def _half_below(bits: Any) -> Any:
    """The float16 next to a finite float32, as uint32, towards zero, and the digits it drops in units of 2^-32.

    Those digits as an integer, and whether there are more.
    """
    size = np.uint64(bits & np.uint32(0x7FFFFFFF))
    if size >= np.uint64(0x38800000):  # 2^-14, the least number with all digits
        return (size - np.uint64(112 << 23)) >> np.uint64(13), (size & np.uint64(0x1FFF)) << np.uint64(19), False
    exponent = size >> np.uint64(23)
    digits = size & np.uint64(0x7FFFFF)
    if exponent > 0:
        digits |= np.uint64(0x800000)
    shift = np.uint64(126) - max(exponent, np.uint64(1))  # 14 or more
    if shift >= np.uint64(56):
        return np.uint64(0), np.uint64(0), digits > 0
    if shift > np.uint64(32):
        less = shift - np.uint64(32)
        return np.uint64(0), digits >> less, (digits & ((np.uint64(1) << less) - np.uint64(1))) > 0
    rest = digits & ((np.uint64(1) << shift) - np.uint64(1))
    return digits >> shift, rest << (np.uint64(32) - shift), False


@njit(forceinline=True, error_model="numpy")
def _signed(size: Any, bits: Any) -> Any:
    """A float16 without its sign as int16, with the sign of a float32, as uint32."""
    return np.int16(np.int64(size) - (np.int64(bits >> np.uint32(31)) << 15))


@njit(forceinline=True, error_model="numpy")
def _nearest_half(bits: Any) -> Any:
    """The float16, as int16, nearest to a float32, as uint32; ties to even. No branches, so that loops are vectors."""
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    odd = (size >> np.uint32(13)) & np.uint32(1)
    found = np.uint32(size - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    # numbers from 0.5 to 1 are multiples of 2^-24, float16's smallest step
    raised = np.float32(np.uint32(size).view(np.float32) + np.float32(0.5))
    small = np.uint32(np.float32(raised).view(np.uint32) - np.uint32(0x3F000000))
    found = small if size < np.uint32(0x38800000) else found  # 2^-14, the least number with all digits
    found = np.uint32(0x7C00) if size >= np.uint32(0x47800000) else found  # 65536 or more: infinity
    return _signed(np.uint32(0x7E00) if size > np.uint32(0x7F800000) else found, bits)


@njit(forceinline=True, error_model="numpy")
def _half_by_chance(bits: Any, draw: Any) -> Any:
    """``round_stochastically`` of one float32, as uint32, to float16, as int16, by 64 random bits."""
    if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x477FE000):
        return _nearest_half(bits)  # beyond the largest number
    found, rest, more = _half_below(bits)
    chance, below_zero = draw >> np.uint64(32), bits >> np.uint32(31)
    away = chance + rest >= np.uint64(1 << 32) if below_zero else (chance < rest or (chance == rest and more))
    return _signed(found + np.uint64(away), bits)


def row_of(weight, r):
    """Row r as a view, of one number where the rows are numbers."""


@overload(row_of, inline="always")
def _row_of(weight, r):
    if weight.ndim == 1:
        return lambda weight, r: weight[r : r + 1]
    return lambda weight, r: weight[r]


def number_at(row, d):
    """Number d of a row, as float32 where the row has 16 bits."""


@overload(number_at, inline="always")
def _number_at(row, d):
    if row.dtype == types.uint16:
        return lambda row, d: widened(row[d])
    if row.dtype == types.int16:
        return lambda row, d: _doubled(row[d])
    return lambda row, d: row[d]


def put_number(row, d, number):
    """Write number d of a row, rounded to the nearest where the row has 16 bits."""


@overload(put_number, inline="always")
def _put_number(row, d, number):
    if row.dtype == types.uint16:
        return lambda row, d, number: _put_bits(row, d, _nearest_bfloat(np.float32(number).view(np.uint32)))
    if row.dtype == types.int16:
        return lambda row, d, number: _put_bits(row, d, _nearest_half(np.float32(number).view(np.uint32)))
    return lambda row, d, number: _put_bits(row, d, number)


@njit(forceinline=True, error_model="numpy")
def _put_bits(row: Any, d: int, number: Any) -> None:
    row[d] = number


def _pairs_of(context, builder, array, row, p):
    """The address of two numbers of 16 bits of a row, as one of 32; views of numpy cost more than the loop."""
    data = context.make_array(array)(context, builder, row).data
    return builder.gep(builder.bitcast(data, ir.IntType(32).as_pointer()), [p])


@intrinsic
def pair_at(typingctx, row, p):
    """Numbers 2 p, in the lower half, and 2 p + 1 of a row of 16 bits."""

    def generate(context, builder, sig, args):
        return builder.load(_pairs_of(context, builder, sig.args[0], *args), align=2)

    return types.uint32(row, p), generate


@intrinsic
def put_pair(typingctx, row, p, pair):
    """Write what ``pair_at`` reads."""

    def generate(context, builder, sig, args):
        builder.store(args[2], _pairs_of(context, builder, sig.args[0], *args[:2]), align=2)
        return context.get_dummy_value()

    return types.void(row, p, types.uint32), generate


def subtract(row, g, scale, known):
    """``row -= scale * g``, rounded to the nearest where the row has 16 bits.

    Args:
        known: A finite number only if all of g are; None: look.
    """


@overload(subtract, jit_options={**INSIDE, "fastmath": FAST, "error_model": "numpy"})
def _subtracted(row, g, scale, known):
    def by_numbers(row, g, scale, known):
        for d in range(g.shape[0]):
            put_number(row, d, number_at(row, d) - scale * g[d])

    def by_pairs(row, g, scale, known):
        nothing = scale * np.float32(0.0)
        if known is not None:
            nothing += known * np.float32(0.0)
        else:
            for d in range(g.shape[0]):
                nothing += g[d] * np.float32(0.0)
        if nothing != 0.0 or g.shape[0] % 2 > 0:  # infinity and NaN, whose lower digits rounding would carry over
            for d in range(g.shape[0]):
                put_number(row, d, number_at(row, d) - scale * g[d])
            return
        for p in range(g.shape[0] // 2):
            pair: Any = pair_at(row, p)  # type: ignore[call-arg]
            d = np.uint64(2) * np.uint64(p)
            low = np.float32(float_of(pair << np.uint32(16)) - scale * g[d])
            high = np.float32(float_of(pair & UPPER) - scale * g[d + np.uint64(1)])
            raised = _raised(high.view(np.uint32)) & UPPER
            put_pair(row, p, np.uint32(raised | (_raised(low.view(np.uint32)) >> np.uint32(16))))

    return by_pairs if row.dtype == types.uint16 else by_numbers


def opened(weight, r, held, bits):
    """Row r, in a compiled loop: itself, or of 16-bit rows its float32 copy in ``held``, which ``bits`` views.

    Args:
        weight: What ``memory_of`` returned; of one dimension, where a row is one number.
    """


@overload(opened, inline="always")
def _opened(weight, r, held, bits):
    if weight.dtype not in (types.uint16, types.int16):
        return lambda weight, r, held, bits: row_of(weight, r)

    def wide(weight, r, held, bits):
        row = row_of(weight, r)
        for d in range(held.shape[0]):
            held[d] = number_at(row, d)
        return held

    return wide


@njit(forceinline=True, error_model="numpy")
def row_chance(ids: Any, seed: Any, step: Any, k: int) -> Any:
    """The random stream of row k of a batch in a step, from its original id; nothing where there are no ids."""
    return row_key(seed, step, ids[k]) if len(ids) else np.uint64(0)


def close(weight, r, bits, by_chance, key):
    """Put a row that ``opened`` copied back, rounded to the nearest, or by chance from the row's random stream."""


@overload(close, jit_options={**INSIDE, "error_model": "numpy"})
def _closed(weight, r, bits, by_chance, key):
    if weight.dtype not in (types.uint16, types.int16):
        return lambda weight, r, bits, by_chance, key: None
    half = weight.dtype == types.int16

    def narrowed(weight, r, bits, by_chance, key):
        row = row_of(weight, r)
        if by_chance:
            for d in range(bits.shape[0]):
                key += GOLDEN
                draw = mix64(key)
                row[d] = _half_by_chance(bits[d], draw) if half else _bfloat_by_chance(bits[d], draw)
        else:
            for d in range(bits.shape[0]):
                row[d] = _nearest_half(bits[d]) if half else _nearest_bfloat(bits[d])

    return narrowed


@njit(cache=True, nogil=True)
def _draws(ids: np.ndarray, seed: np.uint64, step: int, out: np.ndarray) -> None:
    for r in range(out.shape[0]):
        key = row_key(seed, step, ids[r])
        for d in range(out.shape[1]):
            out[r, d] = np.float64(mix64(key + np.uint64(d + 1) * GOLDEN) >> np.uint64(32)) * 2.0**-32


def round_stochastically(values: Tensor, dtype: torch.dtype, seed: int, step: int, ids: np.ndarray) -> Tensor:
    """Each number as one of its two neighbours, the nearer one the likelier, so that the mean is the number.

    Gupta et al. 2015, "Deep learning with limited numerical precision". The same bits on any device, for any parts,
    ranks and threads.

    Args:
        values: Shape (R, D), floating.
        dtype: ``torch.bfloat16`` or ``torch.float16``.
        seed: At least 0.
        step: Steps of the table before this one.
        ids: The rows' original ids, shape (R,).
    Returns:
        Shape (R, D), of the dtype. Numbers beyond its largest, infinities and NaN are rounded to the nearest.
    """
    draws = np.empty(tuple(values.shape))
    _draws(ids.astype(np.int64), np.uint64(seed), step, draws)
    exact = values.double()
    digits, least = DIGITS[dtype]
    quantum = torch.ldexp(torch.ones_like(exact), (torch.frexp(exact).exponent - digits).clamp(min=least))
    scaled = exact / quantum
    below = scaled.floor()
    up = torch.from_numpy(draws).to(exact.device) < scaled - below
    largest = torch.finfo(dtype).max
    rounded = ((below + up) * quantum).clamp(-largest, largest)
    return torch.where(exact.abs() <= largest, rounded.to(dtype), values.to(dtype))
