"""SimplE: an entity as head and as tail, a relation and its inverse."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graph_emb.models.kge.comparisons import DOT, Comparison
from graph_emb.models.kge.scorer import check_dim
from graph_emb.table.initializers import Initializer, Normal


@dataclass(frozen=True)
class SimplE:
    """``s(h, r, t) = (sum_m h_m r_m t'_m + sum_m t_m r'_m h'_m) / 2`` (Kazemi and Poole, NeurIPS 2018).

    An entity's row holds its D / 2 numbers as a head, then the D / 2 (primed) ones as a tail; a relation's row holds
    its own numbers, then those of its inverse.

    Args:
        dim: D, even.
        init_std: First rows are normal around 0 with this standard deviation.
    """

    dim: int
    init_std: float = 0.1

    def __post_init__(self) -> None:
        check_dim("simple", self.dim, 2)

    @property
    def comparison(self) -> Comparison:
        """The dot product."""
        return DOT

    @property
    def relation_dim(self) -> int:
        """W = D."""
        return self.dim

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``(r' h', r h) / 2``, for a tail's ``(t, t')``."""
        return (head * relation).roll(self.dim // 2, dims=-1) / 2

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``(r t', r' t) / 2``, for a head's ``(h, h')``."""
        return relation * tail.roll(self.dim // 2, dims=-1) / 2

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``Scorer.moduli``."""
        return rows.abs()

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``Scorer.initializers``."""
        return Normal(0.0, self.init_std, seed=seed), Normal(0.0, self.init_std, seed=seed + 1)
