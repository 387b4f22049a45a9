"""Penalties on the rows of a step's triples: weight decay that only touched rows feel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graph_emb.models.kge.scorer import Scorer


def power_sums(scorer: Scorer, rows: Sequence[Tensor], power: int) -> Tensor:
    """``sum |x|^power`` over the rows of each triple, shape (B,).

    With power 3 this is N3 (Lacroix, Usunier and Obozinski 2018, equation 4) but for its factor 1/3; |x| is the
    modulus where the model's numbers are complex.

    Args:
        scorer: Knows what the numbers of a row are.
        rows: Of heads, relations and tails, shapes (B, D), (B, W), (B, D).
        power: 2 or 3.
    """
    sums = [scorer.moduli(part).pow(power).sum(dim=-1) for part in rows]
    return torch.stack(sums).sum(dim=0)
