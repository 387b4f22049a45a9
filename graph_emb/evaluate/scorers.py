"""Scores of edges from the embeddings of their two ends."""

# N nodes, D width, B pairs.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.core.registry import Registry
from graph_emb.evaluate.link_split import LinkSplit, pairs_of
from graph_emb.sampling.non_edges import NonEdges

GATHERED_AT_ONCE = 1 << 22
"""Numbers gathered at once for one side of the pairs: 16 MiB of float32."""

PairScore = Callable[[Tensor, Tensor], Tensor]


class PairScorer(Protocol):
    """A scoring rule, which may learn from the training edges; ``fit`` is called once, before any score."""

    name: ClassVar[str]

    def fit(self, embeddings: Tensor, link_split: LinkSplit) -> PairScore:
        """The score as a function of left and right rows, (B, D) each, to (B,); higher means likelier.

        Args:
            embeddings: All rows, shape (N, D).
            link_split: Of which only the training part may be read.
        Raises:
            DataError: the rule learns and the split has no training edges.
        """


SCORERS: Registry[type[PairScorer]] = Registry("scorer")


@SCORERS.register("dot")
@dataclass(frozen=True)
class Dot:
    """The inner product, for rows that were trained by it, as those of LINE's first order."""

    name: ClassVar[str] = "dot"

    def fit(self, embeddings: Tensor, link_split: LinkSplit) -> PairScore:
        """Learns nothing."""
        return lambda left, right: (left * right).sum(dim=1)


@SCORERS.register("centred-dot")
@dataclass(frozen=True)
class CentredDot:
    """The inner product after the mean row is subtracted from all rows.

    Skip-gram factorises PMI - log k (Levy and Goldberg 2014), and its two tables hold the constant as one direction:
    rows x share a vector a and context rows c its opposite, which gives all pairs the same low x . c. In x_i . x_j
    that vector counts with the wrong sign and by how far each row has been trained, so that of two rows those of
    higher degree score higher, whether an edge joins them or not. Without the mean it is gone.
    """

    name: ClassVar[str] = "centred-dot"

    def fit(self, embeddings: Tensor, link_split: LinkSplit) -> PairScore:
        """Learns the mean of all rows."""
        mean = embeddings.mean(dim=0)
        return lambda left, right: ((left - mean) * (right - mean)).sum(dim=1)


@SCORERS.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """The cosine of the angle; 0 for a row of zeros."""

    name: ClassVar[str] = "cosine"

    def fit(self, embeddings: Tensor, link_split: LinkSplit) -> PairScore:
        """Learns nothing."""
        return lambda left, right: F.cosine_similarity(left, right)


@SCORERS.register("hadamard-logreg")
@dataclass(frozen=True)
class HadamardLogistic:
    """Logistic regression (scikit-learn, C=1) on the element-wise product: node2vec's protocol (Grover 2016, 4.4).

    It learns from training edges and as many non-edges: the split's own, else uniform ones that are no training edge.

    Args:
        seed: Of the edges that are taken and of the non-edges.
        max_edges: Training edges that are used at most; their products lie in memory.
    """

    name: ClassVar[str] = "hadamard-logreg"
    seed: int = 0
    max_edges: int = 100_000

    def __post_init__(self) -> None:
        if self.max_edges < 1:
            raise ConfigError(f"max_edges is {self.max_edges}; give at least 1")

    def fit(self, embeddings: Tensor, link_split: LinkSplit) -> PairScore:
        """Learns D weights and a bias.

        Raises:
            DataError: the split has no training edges.
        """
        from sklearn.linear_model import LogisticRegression

        edges = pairs_of(link_split, "train", "edge", len(embeddings))
        generator = torch.Generator().manual_seed(self.seed)
        if "edge_neg" in link_split["train"]:
            others = self._take(pairs_of(link_split, "train", "edge_neg", len(embeddings)).view(-1, 2), generator)
        else:
            non_edges = NonEdges(edges, len(embeddings))
            others = non_edges.sample(min(len(edges), self.max_edges), generator)
        pairs = torch.cat([self._take(edges, generator), others])
        products = embeddings.index_select(0, pairs[:, 0]) * embeddings.index_select(0, pairs[:, 1])
        truth = np.arange(len(pairs)) < len(pairs) - len(others)
        model = LogisticRegression(solver="newton-cholesky").fit(products.numpy(), truth)
        weight = torch.from_numpy(model.coef_[0]).to(embeddings.dtype)
        bias = float(model.intercept_[0])
        return lambda left, right: (left * right) @ weight + bias

    def _take(self, pairs: Tensor, generator: torch.Generator) -> Tensor:
        return pairs[torch.randperm(len(pairs), generator=generator)[: self.max_edges]]


def as_scorer(scorer: str | PairScorer) -> PairScorer:
    """A scorer by its name, with default settings, or as given.

    Raises:
        ConfigError: no scorer of that name.
    """
    return SCORERS[scorer]() if isinstance(scorer, str) else scorer


def score_pairs(embeddings: Tensor, pairs: Tensor, pair_score: PairScore) -> Tensor:
    """Scores of pairs, gathered in pieces of bounded size.

    Args:
        embeddings: Shape (N, D).
        pairs: Node numbers, shape (..., 2), int64.
        pair_score: What ``PairScorer.fit`` returned.
    Returns:
        Shape (...), the embeddings' dtype.
    """
    step = max(1, GATHERED_AT_ONCE // embeddings.shape[1])
    scores = [
        pair_score(embeddings.index_select(0, piece[:, 0]), embeddings.index_select(0, piece[:, 1]))
        for piece in pairs.reshape(-1, 2).split(step)
    ]
    return torch.cat(scores).view(pairs.shape[:-1])
