"""What makes a knowledge-graph model: how head and relation, or relation and tail, become a query for the missing end.

Legend: B triples, D width of an entity's row, W width of a relation's row.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.comparisons import Comparison
from graph_emb.table.initializers import Initializer


class Scorer(Protocol):
    """A model's arithmetic, in plain torch; it knows no ids, tables or optimizers.

    ``score(h, r, t) = comparison(tail_query(h, r), t) = comparison(head_query(r, t), h)``, so that one query meets
    any number of candidates at once.

    """

    @property
    def comparison(self) -> Comparison:
        """What a query and an entity become."""
        ...

    @property
    def dim(self) -> int:
        """D."""
        ...

    @property
    def relation_dim(self) -> int:
        """W."""
        ...

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """What a tail is compared with: (..., D) and (..., W) to (..., D)."""
        ...

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """What a head is compared with: (..., W) and (..., D) to (..., D)."""
        ...

    def moduli(self, rows: Tensor) -> Tensor:
        """The absolute values that penalties count: of real numbers, or of the complex ones that a row holds."""
        ...

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """First rows of entities and of relations."""
        ...


def score(scorer: Scorer, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    """Scores of triples given by rows (..., D), (..., W), (..., D), which broadcast; shape (...)."""
    return scorer.comparison.pairs(scorer.tail_query(head, relation), tail)


def check_dim(model: str, dim: int, multiple: int = 1) -> int:
    """The width, or a ConfigError that says why it cannot be."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1 or dim % multiple:
        raise ConfigError(f"{model}: dim is {dim!r}; it must be a positive multiple of {multiple}")
    return dim
