"""Link prediction: Hits@K, MRR and ROC-AUC of scores, of embeddings, and by OGB's own Evaluator."""

# N nodes, D width, B positives, M negatives.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graph_emb.compat.ogb import evaluator
from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.evaluate.arrays import as_embeddings, as_scores
from graph_emb.evaluate.link_split import LinkSplit, link_part
from graph_emb.evaluate.ranks import Ranks, TiedValue, rank, warn_of_ties
from graph_emb.evaluate.scorers import PairScorer, as_scorer, score_pairs

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
        scorer: "centred-dot", "dot", "cosine", "hadamard-logreg", or an object of ``graph_emb.evaluate.scorers``.
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
    rule = as_scorer(scorer)
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
