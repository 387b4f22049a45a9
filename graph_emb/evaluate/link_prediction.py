"""Link prediction: Hits@K, MRR and ROC-AUC of scores, of embeddings, and by OGB's own Evaluator."""

# N nodes, D width, B positives or pairs, M negatives, of all edges or of each.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graph_emb.compat.ogb import evaluator
from graph_emb.core.errors import ConfigError, DataError, Registry, ShapeError, unknown_name
from graph_emb.evaluate.ranks import Ranks, TiedValue, as_embeddings, as_scores, rank, warn_of_ties
from graph_emb.sampling.negatives import NonEdges
from graph_emb.transport.process_group import ProcessGroup

HITS_AT = (10, 20, 30, 50, 100)
METRICS = (*(f"hits@{k}" for k in HITS_AT), "mrr", "auc")


def hits(positive: Any, negative: Any, ks: Sequence[int] = HITS_AT) -> dict[int, float]:
    """Hits@K by OGB's rule: the share of positives strictly above the K-th best negative.

    It is pessimistic about ties, and 1.0 with fewer than K negatives, as in OGB.

    Args:
        positive: Logits, shape (B,), float32 or float64, torch or numpy.
        negative: Shape (M,), shared, or (B, M).
        ks: The values of K.
    Raises:
        ConfigError: a K below 1.
        ShapeError, DataError: as ``rank``.
    Warns:
        TiesWarning: ties decide more than a point.

    Example:
        >>> from graph_emb.evaluate.link_prediction import hits
        >>> hits(torch.tensor([3.0, 1.5]), torch.tensor([0.0, 1.0, 2.0]), ks=(1, 2))
        {1: 0.5, 2: 1.0}
    """
    ranks = rank(positive, negative)
    return {k: _reported(f"hits@{k}", ranks.hits(k)) for k in ks}


def mrr(positive: Any, negative: Any) -> float:
    """Mean reciprocal rank, realistic about ties as in OGB since 1.3.4. Arguments and errors as ``hits``."""
    return _reported("mrr", rank(positive, negative).mrr())


def roc_auc(positive: Any, negative: Any) -> float:
    """Area under the ROC curve, a tie counting as half. Arguments and errors as ``hits``."""
    return _reported("auc", rank(positive, negative).auc())


def metric_values(ranks: Ranks, metrics: Sequence[str]) -> dict[str, float]:
    """The values to report, OGB's: pessimistic about ties for Hits@K, realistic for "mrr" and "rocauc" (also "auc").

    Raises:
        ConfigError: an unknown metric.
    Warns:
        TiesWarning: ties decide more than a point.
    """
    return {name: _reported(name, measure(name)(ranks)) for name in metrics}


def ogb_metrics(name: str, positive: Any, negative: Any, ks: Sequence[int] | None = None) -> dict[str, float]:
    """Metrics by OGB's Evaluator, given torch tensors (its MRR fails on numpy arrays, ogb #321).

    Args:
        name: The data set, such as "ogbl-ddi".
        positive: Logits, shape (B,).
        negative: Shape (M,) for Hits@K and ROC-AUC, (B, M) for MRR.
        ks: The values of K, where the data set's metric is Hits@K; None: its own.
    Returns:
        ``{"hits@20": ...}``, ``{"mrr": ..., "hits@1": ..., "hits@3": ..., "hits@10": ...}`` or ``{"rocauc": ...}``.
    Raises:
        ConfigError: no link data set of OGB, or ks for one whose metric is not Hits@K.
        ShapeError, DataError: as ``rank``.
    """
    theirs = evaluator(name, "link")
    per_positive = theirs.eval_metric == "mrr"
    scores = {
        "y_pred_pos": as_scores("positive", positive, (1,)),
        "y_pred_neg": as_scores("negative", negative, (2,) if per_positive else (1,)),
    }
    if not theirs.eval_metric.startswith("hits@"):
        if ks is not None:
            raise ConfigError(f"{name} is judged by {theirs.eval_metric}, not by Hits@K; leave ks out")
        return {key.removesuffix("_list"): float(torch.as_tensor(v).mean()) for key, v in theirs.eval(scores).items()}
    found: dict[str, float] = {}
    for k in [theirs.K] if ks is None else ks:
        theirs.K = k
        found.update(theirs.eval(scores))
    return found


@dataclass(frozen=True)
class LinkScores:
    """Metrics of some parts of a split.

    Attributes:
        scorer: Name of the scorer.
        parts: ``parts["test"]["hits@20"]`` under the three readings of a tie.
        num_pairs: ``num_pairs["test"]``: positives, and negatives for each of them.
    """

    scorer: str
    parts: dict[str, dict[str, TiedValue]]
    num_pairs: dict[str, tuple[int, int]]

    def value(self, part: str, metric: str) -> float:
        """The value to report: OGB's, thus pessimistic for Hits@K and realistic otherwise."""
        return _choose(metric, self.parts[part][metric])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "scorer": self.scorer,
            "parts": {
                part: {
                    "num_positives": self.num_pairs[part][0],
                    "num_negatives": self.num_pairs[part][1],
                    "metrics": {name: {"value": _choose(name, v), **v._asdict()} for name, v in metrics.items()},
                }
                for part, metrics in self.parts.items()
            },
        }

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [part, name, self.value(part, name), *value]
            for part, metrics in self.parts.items()
            for name, value in metrics.items()
        ]
        head = ["part", "metric", "value", "realistic", "optimistic", "pessimistic"]
        return tabulate(rows, head, floatfmt=".4f")


def evaluate_link(
    embeddings: Any,
    link_split: LinkSplit,
    metrics: Sequence[str] = METRICS,
    scorer: str | PairScorer = "centred-dot",
    parts: Sequence[str] = ("valid", "test"),
) -> LinkScores:
    """Rank held-out edges among non-edges by scores of embeddings.

    Args:
        embeddings: Shape (N, D), floating, torch or numpy; 16-bit rows are scored in float32.
        link_split: Row numbers by part and kind: "edge" (B, 2) and "edge_neg" (M, 2), shared, or (B, M, 2), or
            "target_node_neg" (B, M), wrong targets for the source of each edge; of the training part "edge" alone, for
            scorers that learn.
        metrics: Of "hits@K", "mrr", "auc"; ranks among the given negatives only.
        scorer: "centred-dot", "dot", "cosine", "hadamard-logreg", or a ``PairScorer``.
        parts: Parts of the split to evaluate.
    Raises:
        ConfigError: an unknown metric or scorer.
        DataError: values that are not finite; a part that is missing, empty or names unknown nodes.
    Warns:
        TiesWarning: ties decide more than a point of a metric.

    Example:
        >>> from graph_emb.evaluate.link_prediction import evaluate_link
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> split = {"test": {"edge": torch.tensor([[0, 1], [2, 3]]), "edge_neg": torch.tensor([[0, 2], [1, 3]])}}
        >>> evaluate_link(rows, split, ("auc",), parts=("test",)).value("test", "auc")
        1.0
    """
    measures = {name: measure(name) for name in metrics}
    rule = SCORERS[scorer]() if isinstance(scorer, str) else scorer
    table = torch.from_numpy(as_embeddings(embeddings))
    pair_score = rule.fit(table, link_split)
    found: dict[str, dict[str, TiedValue]] = {}
    num_pairs = {}
    for part in parts:
        ranks = link_part(link_split, part, len(table)).ranks(lambda pairs: score_pairs(table, pairs, pair_score))
        found[part] = {name: of(ranks) for name, of in measures.items()}
        num_pairs[part] = len(ranks.optimistic), ranks.num_negatives
        for name, value in found[part].items():
            warn_of_ties(f"{part} {name}", value)
    return LinkScores(rule.name, found, num_pairs)


_BY_NAME: Mapping[str, Callable[[Ranks], TiedValue]] = {"mrr": Ranks.mrr, "auc": Ranks.auc, "rocauc": Ranks.auc}


def measure(name: str) -> Callable[[Ranks], TiedValue]:
    """A metric of ranks by its name: "hits@K", "mrr", "auc" or OGB's word for it, "rocauc".

    Raises:
        ConfigError: no such metric.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    found = re.fullmatch(r"hits@([1-9]\d*)", name)
    if not found:
        raise unknown_name("metric", name, METRICS)
    k = int(found[1])
    return lambda ranks: ranks.hits(k)


def _choose(metric: str, value: TiedValue) -> float:
    return value.pessimistic if metric.startswith("hits@") else value.realistic


def _reported(metric: str, value: TiedValue) -> float:
    warn_of_ties(metric, value)
    return _choose(metric, value)


LinkSplit = Mapping[str, Mapping[str, Any]]
"""Arrays by part ("train", "valid", "test") and kind ("edge", "edge_neg", "target_node_neg")."""
PAIRS_AT_ONCE = 1 << 20
"""Pairs of one call for scores where every edge has negatives of its own: 16 MiB of node numbers."""


@dataclass(frozen=True)
class LinkPart:
    """A part of a split.

    Attributes:
        edge: Shape (B, 2).
        shared: Negatives of all edges, shape (M, 2), or (B, M, 2), those of each; or None.
        targets: Wrong targets for the source of each edge, shape (B, M); or None.
    """

    edge: Tensor
    shared: Tensor | None
    targets: Tensor | None

    def ranks(self, score: Callable[[Tensor], Tensor]) -> Ranks:
        """Ranks of the edges among their negatives.

        Args:
            score: From pairs (..., 2) to logits (...).
        """
        if self.shared is not None:
            return rank(score(self.edge), score(self.shared))
        assert self.targets is not None
        width, negative = self.targets.shape[1], []
        step = max(1, PAIRS_AT_ONCE // width)
        for edges, targets in zip(self.edge.split(step), self.targets.split(step), strict=True):
            pairs = torch.stack([edges[:, :1].expand(-1, width), targets], dim=2).view(-1, 2)
            negative.append(score(pairs).view(len(edges), -1))
        return rank(score(self.edge), torch.cat(negative))


def dealt_scores(
    group: ProcessGroup | None, score: Callable[[Tensor], Tensor], size: int
) -> Callable[[Tensor], Tensor]:
    """``score`` by all ranks; every rank calls it with the same pairs, and has the scores of all.

    Pairs are dealt in even, contiguous stretches of whole chunks, so that each rank multiplies the matrices that one
    process would: the scores are those of one process, bit for bit.

    Args:
        group: The ranks; None: one.
        score: From pairs (B, 2) to logits (B,) of torch's default dtype, made from the first pair on ``size`` at a
            time.
        size: Pairs of a chunk.
    """
    if group is None:
        return score

    def dealt(pairs: Tensor) -> Tensor:
        chunks = -(-len(pairs) // size)
        low, high = (chunks * rank // group.world_size * size for rank in (group.rank, group.rank + 1))
        found = torch.zeros(len(pairs))
        if own := len(found[low:high]):
            found[low : low + own] = score(pairs[low : low + own]).cpu()
        return group.sum(found, "scores of pairs")  # all but one of the summands are 0

    return dealt


def link_part(link_split: LinkSplit, part: str, num_nodes: int) -> LinkPart:
    """A part with its negatives: ``edge_neg`` (M, 2) or (B, M, 2), or ``target_node_neg`` (B, M).

    Raises:
        DataError: the part has no edges or no negatives, or names a node outside [0, ``num_nodes``).
        ShapeError: an array of another shape.
    """
    edge = pairs_of(link_split, part, "edge", num_nodes)
    if "target_node_neg" not in link_split[part]:
        return LinkPart(edge, pairs_of(link_split, part, "edge_neg", num_nodes), None)
    targets = torch.as_tensor(link_split[part]["target_node_neg"]).long()
    if targets.dim() != 2 or len(targets) != len(edge) or targets.shape[1] == 0:
        raise ShapeError(f"{part} target_node_neg has shape {tuple(targets.shape)}; give ({len(edge)}, M)")
    _check_nodes(f"{part} 'target_node_neg'", targets, num_nodes)
    return LinkPart(edge, None, targets)


def pairs_of(link_split: LinkSplit, part: str, kind: str, num_nodes: int) -> Tensor:
    """Pairs of a split, int64, all in [0, ``num_nodes``): shape (B, 2) of "edge", (..., 2) of "edge_neg".

    Raises:
        DataError: absent, empty, or a node out of range.
        ShapeError: not integers of that shape.
    """
    if part not in link_split or kind not in link_split[part] or len(link_split[part][kind]) == 0:
        raise DataError(f"the link split has no {part} {kind!r}; known parts: {', '.join(link_split) or 'none'}")
    pairs = torch.as_tensor(link_split[part][kind])
    shaped = pairs.dim() == 2 if kind == "edge" else pairs.dim() > 1
    if not shaped or pairs.shape[-1] != 2 or pairs.is_floating_point():
        raise ShapeError(
            f"{part} {kind!r} has shape {tuple(pairs.shape)} and dtype {pairs.dtype}; give integers (E, 2)"
        )
    _check_nodes(f"{part} {kind!r}", pairs, num_nodes)
    return pairs.long()


def _check_nodes(what: str, nodes: Tensor, num_nodes: int) -> None:
    if int(nodes.min()) < 0 or int(nodes.max()) >= num_nodes:
        wrong = int(nodes[(nodes < 0) | (nodes >= num_nodes)][0])
        raise DataError(f"{what} names node {wrong}, outside [0, {num_nodes}), the graph's nodes")


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
