"""Compiled building blocks of kernels: counter-based random bits, and the distinct values of a batch.

splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): what a draw is
depends on its stream and its number alone. Its functions take and return ``np.uint64``, ``mix64`` arrays of it as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The distance between the states of a stream: 2^64 divided by the golden ratio, odd."""
UNIT = 2.0**-53


@njit(cache=True, nogil=True, inline="always")
def mix64(x: Any) -> Any:
    """The output of a state: a bijection of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def unit(bits: np.uint64) -> float:
    """Random bits as a float64 in [0, 1) on a grid of 2^-53."""
    return np.float64(bits >> np.uint64(11)) * UNIT


@njit(cache=True, nogil=True, inline="always")
def unit_draw(key: np.uint64, number: int) -> float:
    """Draw ``number`` of the stream ``key``, see ``unit``."""
    return unit(mix64(key + np.uint64(number) * GOLDEN))


@njit(cache=True, nogil=True)
def group(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct rows in the order of first occurrence, and for each the chain of its occurrences.

    Returns of B rows distinct (R,), first (R,) and following (B,): the next occurrence of the same row, or -1.
    A hash table of at least twice B slots beats a sort, and keeps the gradients in reading order.
    """
    num = rows.shape[0]
    bits = 4
    while (1 << bits) < 2 * num:
        bits += 1
    slots = np.full(1 << bits, -1, np.int32)
    shift = np.uint64(64 - bits)
    mask = (1 << bits) - 1
    distinct = np.empty(num, np.int64)
    first = np.empty(num, np.int64)
    last = np.empty(num, np.int64)
    following = np.full(num, -1, np.int64)
    found = 0
    for i in range(num):
        row = rows[i]
        slot = np.int64((np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)) >> shift)
        while slots[slot] >= 0 and distinct[slots[slot]] != row:
            slot = (slot + 1) & mask
        k = slots[slot]
        if k < 0:
            slots[slot] = found
            distinct[found] = row
            first[found] = i
            last[found] = i
            found += 1
        else:
            following[last[k]] = i
            last[k] = i
    return distinct[:found], first[:found], following
