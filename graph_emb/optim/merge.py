"""What happens to duplicate ids of one step: their gradients become one, in a fixed order.

Legend: B pushed rows, R distinct rows, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from graph_emb.errors import unknown_name

Merge = Literal["sum", "mean"]
MERGES = ("sum", "mean")


def check_merge(how: str) -> None:
    """Raise a ConfigError unless ``how`` names a known treatment of duplicates."""
    if how not in MERGES:
        raise unknown_name("merge", how, MERGES)


def merge(rows: Tensor, grads: Tensor, how: Merge = "sum") -> tuple[Tensor, Tensor]:
    """Distinct rows, ascending, with their gradients summed (or averaged) in the order of position.

    The sum of a row starts with its first occurrence and adds the others one by one, so that the same
    input gives the same bits on every run.

    Args:
        rows: Shape (B,), int64, repeats allowed.
        grads: Shape (B, D).
        how: ``"sum"`` is the true gradient of the loss; ``"mean"`` divides by the number of occurrences (DGL 1.x).
    Returns:
        Shapes (R,) and (R, D).
    """
    check_merge(how)
    ordered, order = torch.sort(rows, stable=True)
    distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
    if len(distinct) == len(rows):
        return distinct, grads.index_select(0, order)
    merged = torch.segment_reduce(grads.index_select(0, order), "sum", lengths=counts)
    if how == "mean":
        merged = merged / counts.unsqueeze(1)
    return distinct, merged
