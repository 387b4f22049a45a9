"""The distinct values of a batch and the chain of positions of each, in one compiled pass.

Legend: B values, R distinct values.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def group(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct rows in the order of first occurrence, and for each the chain of its occurrences.

    Returns distinct (R,), first (R,) and following (B,): the next occurrence of the same row, or -1.
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
