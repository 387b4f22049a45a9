"""Compiled sums of the gradients of equal rows, as ``graph_emb.core.distinct.group`` chains them.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from graph_emb.core.threads import threads_for


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
