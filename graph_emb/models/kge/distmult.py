"""DistMult: a relation weighs each dimension of a dot product."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graph_emb.models.kge.comparisons import DOT, Comparison
from graph_emb.models.kge.scorer import check_dim
from graph_emb.table.initializers import Initializer, Normal


@dataclass(frozen=True)
class DistMult:
    """``s(h, r, t) = sum_d h_d r_d t_d`` (Yang et al., ICLR 2015). It cannot tell (h, r, t) from (t, r, h).

    Args:
        dim: D; a relation has as many numbers.
        init_std: First rows are normal around 0 with this standard deviation.
    """

    dim: int
    init_std: float = 0.1

    def __post_init__(self) -> None:
        check_dim("distmult", self.dim)

    @property
    def comparison(self) -> Comparison:
        """The dot product."""
        return DOT

    @property
    def relation_dim(self) -> int:
        """W = D."""
        return self.dim

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h * r``."""
        return head * relation

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``r * t``."""
        return relation * tail

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``Scorer.moduli``."""
        return rows.abs()

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``Scorer.initializers``."""
        return Normal(0.0, self.init_std, seed=seed), Normal(0.0, self.init_std, seed=seed + 1)
