"""Weight decay that rows make up for when they are next met: its state, and the loops that read and settle it.

A table's ``DECAY`` is the sum of the decay of all its steps, a row's ``DECAYED`` that sum as of its last one; what the
row lacks is the factor ``exp(DECAYED - DECAY)``.

Legend: R stored rows, B asked rows, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.threads import threads_for
from graph_emb.table.row_memory import prefetch, prefetch_to_read
from graph_emb.table.spec import accumulation_dtype

DECAY, DECAYED = "decay", "decayed"
"""State of lazy weight decay: the table's sum, and as of each row's last step (``graph_emb.optim.rule.Rule``)."""
AHEAD = 8
"""Rows whose memory is asked for before it is needed."""
NUMBERS_AHEAD = 32
"""The same of rows of one number."""
SMALL = -1.0 / 64.0


@njit(inline="always")
def _lacking(before, decay):  # type: ignore[no-untyped-def]
    """The factor of a row: one function for reads and updates of all 32 and 16 bit rows, so that they agree."""
    x = before - max(before, decay)
    if x > SMALL:  # where the rest of exp's series is below float64's last digit
        return np.float32(
            1.0 + x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0)))))
        )
    return np.float32(np.exp(x))


def settle_factors(decayed: np.ndarray, decay: float, rows: np.ndarray, factor: np.ndarray) -> None:
    """Bring the decay of distinct rows up to the table's sum; ``factor``, (B,) float32, takes what each one lacked.

    Args:
        decayed: Of the stored rows, shape (R,); changed. A row that is ahead of the sum keeps what it has.
        decay: The table's sum.
        rows: Shape (B,), int64.
    """
    with threads_for(len(rows)) as parts:
        _settle(decayed, decay, rows, parts, factor)


@njit(parallel=True, cache=True, nogil=True)
def _settle(decayed, decay, rows, parts, factor):  # type: ignore[no-untyped-def]
    for part in prange(parts):
        low, high = part * len(rows) // parts, (part + 1) * len(rows) // parts
        for k in range(low, high):
            if k + NUMBERS_AHEAD < high:
                prefetch(decayed, rows[k + NUMBERS_AHEAD])
            factor[k] = _lacking(decayed[rows[k]], decay)
            decayed[rows[k]] = max(decayed[rows[k]], decay)


@njit(parallel=True, cache=True, nogil=True)
def _gather(weight, decayed, decay, frozen, rows, parts, out):  # type: ignore[no-untyped-def]
    for part in prange(parts):
        low, high = part * len(rows) // parts, (part + 1) * len(rows) // parts
        for k in range(low, high):
            if k + AHEAD < high:
                prefetch_to_read(weight, rows[k + AHEAD])
                prefetch_to_read(decayed, rows[k + AHEAD])
            r = rows[k]
            factor = np.float32(1.0) if len(frozen) > 0 and frozen[r] else _lacking(decayed[r], decay)
            for d in range(weight.shape[1]):
                out[k, d] = weight[r, d] * factor


def gather_decayed(
    weight: Tensor, decayed: Tensor, decay: float | Tensor, frozen: Tensor | None, rows: Tensor, out: Tensor
) -> None:
    """Copy rows as they are read: with the decay that they lack, but for frozen ones.

    Args:
        weight, decayed, frozen: Of the stored rows: (R, D), (R,) and None or (R,) bool.
        decay: The table's sum, a number or (1,) beside weight.
        rows: Shape (B,), int64, inside [0, R), repeats allowed; on the device of weight.
        out: Shape (B, D), of the dtype of weight.
    """
    if weight.device.type == "cpu" and weight.dtype is torch.float32 and weight.is_contiguous():
        held = np.empty(0, np.bool_) if frozen is None else frozen.numpy()
        with threads_for(len(rows)) as parts:
            _gather(weight.numpy(), decayed.numpy(), float(decay), held, rows.contiguous().numpy(), parts, out.numpy())
        return
    torch.index_select(weight, 0, rows, out=out)
    decay_(out, decayed[rows], decay, None if frozen is None else frozen[rows])


def decay_(values: Tensor, before: Tensor, decay: float | Tensor, frozen: Tensor | None) -> None:
    """Make up for the decay that copies of rows, (B, D), lack.

    Args:
        before: ``DECAYED`` of each, shape (B,).
        decay: The table's sum, a number or (1,) beside values.
        frozen: Which of them have none, (B,); None: no one.
    """
    wide = accumulation_dtype(values.dtype)
    if wide is torch.float32 and before.device.type == "cpu":
        factor = torch.empty(len(before))
        settle_factors(before.clone().numpy(), float(decay), np.arange(len(before)), factor.numpy())
    else:
        factor = torch.exp(before - before.clamp(min=decay))
    if frozen is not None:
        factor[frozen] = 1.0
    values.copy_(values.to(wide) * factor.unsqueeze(1).to(wide))
