"""Sums of the gradients of a row's occurrences, compiled: of rows of their own, or of the bags that they lie in.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
from torch import Tensor

from graph_emb.core.addresses import share
from graph_emb.core.compiled import INSIDE, njit
from graph_emb.core.threads import threads_for
from graph_emb.optim.rounding import FAST, memory_of, widened
from graph_emb.table.bags import BagGradients
from graph_emb.table.row_memory import prefetch_to_read

NOTHING = np.float32(0.0)


def _add(grads, i, out, more):
    """Add the gradient of occurrence i to out, or put it there: a row of its own, or a multiple of its bag's."""


@overload(_add, jit_options={**INSIDE, "fastmath": FAST, "error_model": "numpy"})
def _added(grads, i, out, more):
    if isinstance(grads, types.BaseTuple):

        def of_bag(grads, i, out, more):
            rows, source, factor = grads
            s, f = source[i], factor[i]
            for d in range(out.shape[0]):
                out[d] = (out[d] if more else NOTHING) + f * rows[s, d]

        return of_bag
    if grads.dtype == types.uint16:

        def of_bfloats(grads, i, out, more):
            for d in range(out.shape[0]):
                out[d] = (out[d] if more else NOTHING) + widened(grads[i, d])

        return of_bfloats

    def own(grads, i, out, more):
        for d in range(out.shape[0]):
            out[d] = (out[d] if more else NOTHING) + grads[i, d]

    return own


def ask_for(grads, i):
    """Ask for the memory of the gradient of occurrence i."""


@overload(ask_for, inline="always")
def _asked(grads, i):
    if isinstance(grads, types.BaseTuple):
        return lambda grads, i: None  # a bag's is that of the ids beside it
    return lambda grads, i: prefetch_to_read(grads, i)


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def merged(grads, start, following, mean, out):
    """Sum (or average) the gradients of one row's occurrences into out, first to last."""
    count, i = 0, start
    while i >= 0:
        _add(grads, i, out, count > 0)
        count += 1
        i = following[i]
    if mean and count > 1:
        scale = np.float32(1.0) / np.float32(count)
        for d in range(out.shape[0]):
            out[d] *= scale


@njit(parallel=True, cache=True, nogil=True)
def _sum_groups(grads, first, following, parts, out):
    for part in prange(parts):
        low, high = share(part, parts, len(first))
        for k in range(low, high):
            merged(grads, first[k], following, False, out[k])


def sum_groups(grads: Tensor | BagGradients, first: np.ndarray, following: np.ndarray, out: Tensor) -> None:
    """Sum the gradients of each group, first to last.

    Args:
        grads: Shape (B, D), float32 on the CPU; those of bags of any floating dtype.
        first, following: The groups, as ``group`` returns them.
        out: Contiguous memory for the sums, shape (R, D).
    """
    with threads_for(len(first)) as parts:
        _sum_groups(gradients_of(grads), first, following, parts, out.numpy())


def gradients_of(grads: Tensor | BagGradients) -> Any:
    """Gradients as the kernels take them: (B, D), or those of bags with the bag and factor of each id.

    Float32, or bfloat16 as it is: a pass that widens them all takes as long as the update.
    """
    if isinstance(grads, Tensor):
        kept = grads.detach().cpu().contiguous()
        return memory_of(kept if kept.dtype is torch.bfloat16 else kept.float())
    factor = torch.ones(len(grads.source)) if grads.factor is None else grads.factor.float().contiguous()
    return gradients_of(grads.grads.float()), grads.source.contiguous().numpy(), factor.numpy()
