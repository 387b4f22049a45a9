"""TransE: a relation is a translation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.comparisons import L1, L2, Comparison
from graph_emb.models.kge.scorer import check_dim
from graph_emb.table.initializers import Initializer, Uniform


@dataclass(frozen=True)
class TransE:
    """``s(h, r, t) = -||h + r - t||`` in L1 or L2 (Bordes et al., NIPS 2013).

    Args:
        dim: D; a relation has as many numbers.
        margin: gamma of the loss; first rows are uniform in +-(gamma + 2) / D (Sun et al. 2019, section 4.1).
        norm: 1 or 2.
    """

    dim: int
    margin: float = 9.0
    norm: int = 1

    def __post_init__(self) -> None:
        check_dim("transe", self.dim)
        if self.norm not in (1, 2):
            raise ConfigError(f"transe: norm is {self.norm!r}; it must be 1 or 2")

    @property
    def relation_dim(self) -> int:
        """W = D."""
        return self.dim

    @property
    def comparison(self) -> Comparison:
        """The negative distance."""
        return L1 if self.norm == 1 else L2

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h + r``."""
        return head + relation

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``t - r``."""
        return tail - relation

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``Scorer.moduli``."""
        return rows.abs()

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``Scorer.initializers``."""
        bound = (self.margin + 2.0) / self.dim
        return Uniform(-bound, bound, seed=seed), Uniform(-bound, bound, seed=seed + 1)
