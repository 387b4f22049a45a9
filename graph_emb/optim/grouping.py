"""Which rows of a batch are equal, and the sums of their gradients, compiled.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from graph_emb.core.threads import threads_for


@njit(cache=True, nogil=True)
def group(rows):
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


@njit(inline="always")
def merged(grads, start, following, mean, out):
    """Sum (or average) the gradients of one row's occurrences into out, first to last."""
    width = out.shape[0]
    for d in range(width):
        out[d] = grads[start, d]
    i = following[start]
    if i < 0:
        return
    count = 1
    while i >= 0:
        for d in range(width):
            out[d] += grads[i, d]
        count += 1
        i = following[i]
    if mean:
        scale = np.float32(1.0) / np.float32(count)
        for d in range(width):
            out[d] *= scale


@njit(inline="always")
def share(part, parts, num):
    """The rows [low, high) of one of several equal shares."""
    return part * num // parts, (part + 1) * num // parts


@njit(parallel=True, cache=True, nogil=True)
def _sum_groups(grads, first, following, parts, out):
    for part in prange(parts):
        low, high = share(part, parts, len(first))
        for k in range(low, high):
            merged(grads, first[k], following, False, out[k])


def sum_groups(grads: Tensor, first: np.ndarray, following: np.ndarray, out: Tensor) -> None:
    """Sum the gradients of each group, first to last.

    Args:
        grads: Shape (B, D), float32 on the CPU.
        first, following: The groups, as ``group`` returns them.
        out: Contiguous memory for the sums, shape (R, D).
    """
    with threads_for(len(first)) as parts:
        _sum_groups(grads.contiguous().numpy(), first, following, parts, out.numpy())
