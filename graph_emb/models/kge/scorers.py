"""Scoring functions of knowledge-graph models: each turns two parts of a triple into a query for the third.

Legend: B triples, D width of an entity's row, W width of a relation's row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.comparisons import DOT, L1, L2, MODULUS, Comparison
from graph_emb.sampling.known_triples import HEAD, TAIL
from graph_emb.table.initializers import Initializer, Normal, Uniform

TINY = 1e-12  # keeps the modulus of 0 differentiable


@dataclass(frozen=True)
class KGEScorer(ABC):
    """The arithmetic of a model in plain torch, without ids, tables or optimizers.

    ``score(h, r, t) = comparison(tail_query(h, r), t) = comparison(head_query(r, t), h)``, so that one query is
    compared with any number of candidates at once. All methods broadcast over leading dimensions and may be called
    in any order, with gradients or without.

    Args:
        dim: D.
    Raises:
        ConfigError: dim is not a positive multiple of ``multiple``.
    """

    dim: int
    name: ClassVar[str]
    multiple: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or self.dim < 1 or self.dim % self.multiple:
            raise ConfigError(f"{self.name}: dim is {self.dim!r}; it must be a positive multiple of {self.multiple}")

    @property
    def comparison(self) -> Comparison:
        """The comparison of a query with an entity; the inner product unless the model overrides it."""
        return DOT

    @property
    def relation_dim(self) -> int:
        """W; D unless the model overrides it."""
        return self.dim

    @abstractmethod
    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """The query for the missing tail: (..., D) and (..., W) to (..., D)."""

    @abstractmethod
    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """The query for the missing head: (..., W) and (..., D) to (..., D)."""

    @abstractmethod
    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """Initial values of entities and of relations."""

    def moduli(self, rows: Tensor) -> Tensor:
        """Absolute values that penalties count: of real numbers, or of the complex numbers that a row holds."""
        return rows.abs()

    def read_by(self, side: int, relation: Tensor) -> Tensor:
        """The numbers of a relation's row (..., W) that queries for a side, ``HEAD`` or ``TAIL``, read: all of them."""
        return relation


def score(scorer: KGEScorer, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    """Scores of triples given by rows (..., D), (..., W), (..., D), which broadcast; shape (...)."""
    return scorer.comparison.pairs(scorer.tail_query(head, relation), tail)


@dataclass(frozen=True)
class TransE(KGEScorer):
    """``s(h, r, t) = -||h + r - t||`` in L1 or L2 (Bordes et al., NIPS 2013): a relation is a translation.

    Args:
        dim: D; a relation has as many numbers.
        margin: gamma of the loss; initial values are uniform in +-(gamma + 2) / D (Sun et al. 2019, section 4.1).
        norm: 1 or 2.

    Example:
        >>> from graph_emb.models.kge.scorers import TransE, score
        >>> h, r, t = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
        >>> float(score(TransE(2, norm=1), h, r, t))  # -(|1.5| + |-2|)
        -3.5
    """

    margin: float = 9.0
    norm: int = 1
    name: ClassVar[str] = "transe"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in (1, 2):
            raise ConfigError(f"transe: norm is {self.norm!r}; it must be 1 or 2")

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

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``KGEScorer.initializers``."""
        bound = (self.margin + 2.0) / self.dim
        return Uniform(-bound, bound, seed=seed), Uniform(-bound, bound, seed=seed + 1)


@dataclass(frozen=True)
class NormalScorer(KGEScorer):
    """A model with an inner product, whose initial values are normal around 0.

    Args:
        dim: D.
        init_std: Their standard deviation.
    """

    init_std: float = 0.1

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``KGEScorer.initializers``."""
        return Normal(0.0, self.init_std, seed=seed), Normal(0.0, self.init_std, seed=seed + 1)


@dataclass(frozen=True)
class DistMult(NormalScorer):
    """``s(h, r, t) = sum_d h_d r_d t_d`` (Yang et al., ICLR 2015). It cannot tell (h, r, t) from (t, r, h).

    Example:
        >>> from graph_emb.models.kge.scorers import DistMult, score
        >>> h, r, t = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
        >>> float(score(DistMult(2), h, r, t))  # 0 - 6
        -6.0
    """

    name: ClassVar[str] = "distmult"

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h * r``."""
        return head * relation

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``r * t``."""
        return relation * tail


@dataclass(frozen=True)
class ComplEx(NormalScorer):
    """``s(h, r, t) = Re(sum_m h_m r_m conj(t_m))`` (Trouillon et al., ICML 2016).

    DistMult over complex numbers, which tells a relation's two directions apart. Rows of entities and relations hold
    D / 2 complex numbers: real parts, then imaginary ones.

    Example:
        >>> from graph_emb.models.kge.scorers import ComplEx, score
        >>> h, r, t = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 3.0]])
        >>> float(score(ComplEx(2), h, r, t))  # (1 + 2i)(0.5 - i) = 2.5; times 2 - 3i: real part 5
        5.0
    """

    name: ClassVar[str] = "complex"
    multiple: ClassVar[int] = 2

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``h * r``: its real dot product with t is the real part of ``h r conj(t)``."""
        return complex_product(head, relation)

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``t * conj(r)``: its real dot product with h is the real part of ``conj(t conj(r)) h``."""
        a, b = tail.chunk(2, dim=-1)
        c, d = relation.chunk(2, dim=-1)
        return torch.cat([a * c + b * d, b * c - a * d], dim=-1)

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``KGEScorer.moduli``."""
        return complex_moduli(rows)


@dataclass(frozen=True)
class SimplE(NormalScorer):
    """``s(h, r, t) = (sum_m h_m r_m t'_m + sum_m t_m r'_m h'_m) / 2`` (Kazemi and Poole, NeurIPS 2018).

    An entity's row holds its D / 2 numbers as a head, then the D / 2 (primed) ones as a tail; a relation's row holds
    its own numbers, then those of its inverse.

    Example:
        >>> from graph_emb.models.kge.scorers import SimplE, score
        >>> h, r, t = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
        >>> float(score(SimplE(2), h, r, t))  # (1 * 0.5 * 3 + 0 * -1 * 2) / 2
        0.75
    """

    name: ClassVar[str] = "simple"
    multiple: ClassVar[int] = 2

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """``(r' h', r h) / 2``, for a tail's ``(t, t')``."""
        return (head * relation).roll(self.dim // 2, dims=-1) / 2

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``(r t', r' t) / 2``, for a head's ``(h, h')``."""
        return relation * tail.roll(self.dim // 2, dims=-1) / 2


@dataclass(frozen=True)
class RotatE(KGEScorer):
    """``s(h, r, t) = -sum_m |h_m exp(i phase_m) - t_m|`` (Sun et al., ICLR 2019).

    A relation is a rotation of each complex number. An entity has D / 2 of them: real parts, then imaginary ones. A
    relation has D / 2 numbers within about +-range, ``phase = pi * number / range``, so that one learning rate suits
    both tables (the authors' code).

    Args:
        dim: D, even.
        margin: gamma of the loss; ``range = (gamma + 2) / (D / 2)``, and initial values are uniform in +-range.

    Example:
        >>> from graph_emb.models.kge.scorers import RotatE, score
        >>> h, r, t = torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([0.0, 3.0])
        >>> round(float(score(RotatE(2, 4.0), h, r, t)), 4)  # a quarter turn: |(1 + 2i) i - 3i| = |-2 - 2i|
        -2.8284
    """

    margin: float = 9.0
    name: ClassVar[str] = "rotate"
    multiple: ClassVar[int] = 2

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
        return complex_product(head, self._rotation(relation))

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """``t * exp(-i phase)``: a rotation keeps distances, so the score is the same."""
        return complex_product(tail, self._rotation(-relation))

    def _rotation(self, relation: Tensor) -> Tensor:
        phase = relation * (math.pi / self.range)
        return torch.cat([phase.cos(), phase.sin()], dim=-1)

    def moduli(self, rows: Tensor) -> Tensor:
        """See ``KGEScorer.moduli``; a relation's numbers are real."""
        return rows.abs() if rows.shape[-1] == self.relation_dim else complex_moduli(rows)

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """See ``KGEScorer.initializers``."""
        return Uniform(-self.range, self.range, seed=seed), Uniform(-self.range, self.range, seed=seed + 1)


@dataclass(frozen=True)
class Reciprocal(KGEScorer):
    """A scorer whose relations have a second row of their own for queries of heads (Lacroix et al., ICML 2018).

    ``head_query(r, t) = base.tail_query(t, r')``: (h, r, t) is also the triple (t, r', h), r' being r's inverse. A
    relation's row has the numbers of r, then those of r', so that tables, checkpoints and ranks need to know nothing.
    A triple has two scores then, one for each side; where there is but one, it is that of the tail.

    Args:
        dim: D.
        base: The scorer of both directions, of the same width.

    Example:
        >>> from graph_emb.models.kge.scorers import DistMult, Reciprocal
        >>> scorer = Reciprocal(2, DistMult(2))
        >>> h, r, t = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0, 5.0, 0.0]), torch.tensor([3.0, 4.0])
        >>> float(scorer.tail_query(h, r) @ t), float(scorer.head_query(r, t) @ h)  # 1 * 3 + 2 * 4; 5 * 3 * 1
        (11.0, 15.0)
    """

    base: KGEScorer
    name: ClassVar[str] = "reciprocal"

    @property
    def comparison(self) -> Comparison:
        """That of the scorer."""
        return self.base.comparison

    @property
    def relation_dim(self) -> int:
        """W = twice the scorer's."""
        return 2 * self.base.relation_dim

    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor:
        """The scorer's, by r."""
        return self.base.tail_query(head, self.read_by(TAIL, relation))

    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor:
        """The scorer's query for the tail of (t, r', ?)."""
        return self.base.tail_query(tail, self.read_by(HEAD, relation))

    def initializers(self, seed: int) -> tuple[Initializer, Initializer]:
        """The scorer's."""
        return self.base.initializers(seed)

    def moduli(self, rows: Tensor) -> Tensor:
        """The scorer's, of an entity's row or what ``read_by`` gives."""
        return self.base.moduli(rows)

    def read_by(self, side: int, relation: Tensor) -> Tensor:
        """r for tails, r' for heads."""
        width = self.base.relation_dim
        return relation[..., :width] if side == TAIL else relation[..., width:]


def complex_product(left: Tensor, right: Tensor) -> Tensor:
    """Products of the complex numbers of two rows (..., D): D / 2 real parts, then D / 2 imaginary parts."""
    a, b = left.chunk(2, dim=-1)
    c, d = right.chunk(2, dim=-1)
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def complex_moduli(rows: Tensor) -> Tensor:
    """Absolute values of the complex numbers of rows (..., D); shape (..., D / 2)."""
    real, imaginary = rows.chunk(2, dim=-1)
    return (real.square() + imaginary.square() + TINY).sqrt()


def scorer_of(settings: Any) -> KGEScorer:
    """The scorer of a model's settings, with inverse relations where these ask for them."""
    made = SCORERS[settings.name](settings)
    return Reciprocal(settings.dim, made) if settings.reciprocal else made


SCORERS: dict[str, Callable[[Any], KGEScorer]] = {
    "transe": lambda settings: TransE(settings.dim, settings.margin, settings.norm),
    "distmult": lambda settings: DistMult(settings.dim, settings.init_std),
    "complex": lambda settings: ComplEx(settings.dim, settings.init_std),
    "rotate": lambda settings: RotatE(settings.dim, settings.margin),
    "simple": lambda settings: SimplE(settings.dim, settings.init_std),
}
"""The scorer of each model from its settings, without inverse relations; a width that does not fit is a ConfigError."""
