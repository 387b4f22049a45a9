"""RotatE: a relation is a rotation of each complex number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.models.kge.comparisons import MODULUS, Comparison
from graph_emb.models.kge.complex_rows import complex_moduli, times
from graph_emb.models.kge.scorer import check_dim
from graph_emb.table.initializers import Initializer, Uniform


@dataclass(frozen=True)
class RotatE:
    """``s(h, r, t) = -sum_m |h_m exp(i phase_m) - t_m|`` (Sun et al., ICLR 2019).

    An entity has D / 2 complex numbers: real parts, then imaginary ones. A relation has D / 2 numbers within about
    +-range, ``phase = pi * number / range``, so that one learning rate suits both tables (the authors' code).

    Args:
        dim: D, even.
        margin: gamma of the loss; ``range = (gamma + 2) / (D / 2)``, and first rows are uniform in +-range.
    """

    dim: int
    margin: float = 9.0

    def __post_init__(self) -> None:
        check_dim("rotate", self.dim, 2)

    @property
    def comparison(self) -> Comparison:
        """The negative sum of moduli."""
        return MODULUS

    @property
    def relation_dim(self) -> int:
        """W = D / 2 phases."""
        return self.dim // 2

    @property
    def range(self) -> float:
        """The number that stands for a phase of pi."""
        return (self.margin + 2.0) / self.relation_dim

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h * exp(i phase)``."""
        return times(head, self._rotation(relation))

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``t * exp(-i phase)``: a rotation keeps distances, so the score is the same."""
        return times(tail, self._rotation(-relation))

    def _rotation(self, relation: Tensor) -> Tensor:
        phase = relation * (math.pi / self.range)
        return torch.cat([phase.cos(), phase.sin()], dim=-1)

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``Scorer.moduli``; a relation's numbers are real."""
        return rows.abs() if rows.shape[-1] == self.relation_dim else complex_moduli(rows)

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``Scorer.initializers``."""
        return Uniform(-self.range, self.range, seed=seed), Uniform(-self.range, self.range, seed=seed + 1)
