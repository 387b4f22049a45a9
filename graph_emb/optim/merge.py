"""Merge the gradients of duplicate ids of one step, in a fixed order.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from graph_emb.core.errors import unknown_name

Merge = Literal["sum", "mean"]
MERGES = ("sum", "mean")


def check_merge(how: str) -> None:
    """Raise a ConfigError unless ``how`` names a known treatment of duplicates."""
    if how not in MERGES:
        raise unknown_name("merge", how, MERGES)


def merge(rows: Tensor, grads: Tensor, how: Merge = "sum") -> tuple[Tensor, Tensor]:
    """Distinct rows, ascending, with their gradients summed (or averaged).

    Float64 sums carry their rounding errors along (``exact_sums``), so that the result does not depend on how the
    occurrences were grouped on the way: any number of processes gives the same bits. Other dtypes add in the order
    of position: the same input gives the same bits on every run.

    Args:
        rows: Shape (B,), int64, repeats allowed.
        grads: Shape (B, D).
        how: ``"sum"`` is the true gradient of the loss; ``"mean"`` divides by the number of occurrences (DGL 1.x).
    Returns:
        Shapes (R,) and (R, D).
    """
    check_merge(how)
    if grads.dtype is torch.float64:
        distinct, counts, merged, _ = exact_sums(rows, grads)
    else:
        distinct, counts, merged = _sums(rows, grads)
    if how == "mean":
        merged = merged / counts.unsqueeze(1).to(merged.dtype)
    return distinct, merged


def exact_sums(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct rows, ascending, with unevaluated sums: the total of a row is ``high + low``.

    Each addition keeps what it rounds away (two-sum: Knuth, TAOCP 4.2.2). For terms of one row whose magnitudes
    span less than about 2^40, high + low is the exact total whatever the order, and its rounding is unique.

    Args:
        rows: Shape (B,), int64.
        grads: Shape (B, D), float64.
    Returns:
        Distinct rows (R,), occurrences (R,), high (R, D) and low (R, D), normalised: high is the rounded total.
        Where high is not finite, low is meaningless.
    """
    distinct, counts, ordered = _by_row(rows, grads)
    starts = counts.cumsum(0) - counts
    high = ordered.index_select(0, starts) if len(starts) else ordered[:0]
    low = torch.zeros_like(high)
    for k in range(1, int(counts.max()) if len(counts) else 0):
        more = (counts > k).nonzero().flatten()
        a, x = high.index_select(0, more), ordered.index_select(0, starts[more] + k)
        total = a + x
        part = total - a
        high[more] = total
        low[more] += (a - (total - part)) + (x - part)
    rounded = torch.where(high.isfinite(), high + low, high)
    return distinct, counts, rounded, low - (rounded - high)


def presum(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fewer rows with the same total: what a sender may merge without changing the owner's result.

    Float64 totals that do not fit one number travel as two rows, the second one holding what the first rounds away.

    Returns:
        rows (S,), repeated at most once; grads (S, D); and the occurrences that each row stands for (S,), 0 for a
        second row.
    """
    if grads.dtype is not torch.float64:
        distinct, counts, sums = _sums(rows, grads)
        return distinct, sums, counts
    distinct, counts, high, low = exact_sums(rows, grads)
    rest = (high.isfinite().all(dim=1) & (low != 0).any(dim=1)).nonzero().flatten()
    rows = torch.cat([distinct, distinct[rest]])
    return rows, torch.cat([high, low[rest]]), torch.cat([counts, torch.zeros_like(rest)])


def _by_row(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows, their counts, and the gradients in the order (row, position)."""
    sorted_rows, order = torch.sort(rows, stable=True)
    distinct, counts = torch.unique_consecutive(sorted_rows, return_counts=True)
    return distinct, counts, grads.index_select(0, order)


def _sums(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows, their counts, and the sums of their gradients in the order of position."""
    distinct, counts, ordered = _by_row(rows, grads)
    merged = ordered if len(distinct) == len(rows) else torch.segment_reduce(ordered, "sum", lengths=counts)
    return distinct, counts, merged
