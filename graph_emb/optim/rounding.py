"""Stochastic rounding to 16 bits: random bits that belong to (seed, step, original id, column), not to a process.

Legend: R rows, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, mix64

DIGITS = {torch.bfloat16: (8, -133), torch.float16: (11, -24)}
"""Binary digits of a number, and the exponent of the smallest step between two, by dtype."""


@njit(inline="always")
def row_key(seed: Any, step: Any, id: Any) -> Any:
    """The random stream of a row in a step."""
    return mix64(mix64(mix64(seed + GOLDEN) + np.uint64(step)) ^ (np.uint64(id) * GOLDEN))


@njit(inline="always")
def nearest(bits: Any) -> Any:
    """The bfloat16, as uint16, nearest to a float32, as uint32; ties to even."""
    if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
        return np.uint16(0x7FC0)  # NaN
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(inline="always")
def by_chance(bits: Any, draw: Any) -> Any:
    """``round_stochastically`` of one float32, as uint32, to bfloat16, as uint16, by 64 random bits."""
    if bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F7F0000):
        return nearest(bits)  # beyond the largest number
    rest, chance = np.uint64(bits & np.uint32(0xFFFF)) << np.uint64(16), draw >> np.uint64(32)
    below_zero = bits >> np.uint32(31)  # where the upper neighbour is the shorter one
    away = chance + rest >= np.uint64(1 << 32) if below_zero else chance < rest
    return np.uint16(bits >> np.uint32(16)) + np.uint16(away)


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
