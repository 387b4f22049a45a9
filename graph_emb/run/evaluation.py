"""Evaluations of embeddings by the labels, splits and held-out edges of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import EvaluateSection
from graph_emb.core.errors import ConfigError
from graph_emb.graph.views import PlainDataset

SCORER_TITLES = {
    "centred-dot": "dot product of rows less their mean (scorer 'hadamard-logreg' learns from the training edges)",
    "dot": "dot product",
    "cosine": "cosine",
    "hadamard-logreg": "logistic regression on the product",
}


class Scores(Protocol):
    """Result of an evaluation: numbers for JSON, and a table as text."""

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Finding:
    """One evaluation with the name it has in metrics.json and the title over its table."""

    name: str
    title: str
    scores: Scores

    def __str__(self) -> str:
        return f"{self.title}\n{self.scores}"


def evaluate(
    weights: NDArray[np.floating],
    dataset: PlainDataset,
    section: EvaluateSection,
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> list[Finding]:
    """Judge embeddings by whatever the data set brings.

    Labels with a split of the nodes, one label each: accuracy on the split. Other labels: F1 at
    ``section.ratios``. Held-out edges: Hits@K, MRR and ROC-AUC of ``section.scorer``.

    Args:
        weights: Shape (N, D), a row for each node of the data set.
        dataset: Of N nodes.
        section: Ratios, shuffles, K and scorer.
        seed: Of the label shuffles.
        threads: None: all cores.
        progress: Show bars.
    """
    findings = []
    if dataset.labels is not None and _is_split(dataset):
        from graph_emb.evaluate.split_accuracy import split_accuracy

        assert dataset.node_split is not None
        accuracy = split_accuracy(weights, dataset.labels, dataset.node_split, threads=threads, progress=progress)
        findings.append(Finding("split_accuracy", "node classification, the data set's split", accuracy))
    elif dataset.labels is not None:
        findings.append(judge_classes(weights, dataset, section, seed, threads=threads, progress=progress))
    if dataset.link_split is not None:
        findings.append(judge_links(weights, dataset, section))
    return findings


def _is_split(dataset: PlainDataset) -> bool:
    """Whether classes are judged by the data set's own split rather than by shares of the labelled nodes."""
    labels, split = dataset.labels, dataset.node_split
    return labels is not None and split is not None and labels.is_single and {"train", "test"} <= split.keys()


def check_section(section: EvaluateSection, dataset: PlainDataset) -> None:
    """Refuse fields that are set and mean nothing to what the data set brings, before anything is trained.

    Raises:
        ConfigError: shares of the labelled nodes where none are drawn, or scores of edges where none are held out.
    """
    if dataset.labels is None or _is_split(dataset):
        refuse_set(section, ("ratios", "shuffles"), f"{dataset.name}, of whose labelled nodes no shares are drawn")
    if dataset.link_split is None:
        refuse_set(section, ("hits", "scorer"), f"{dataset.name}, which holds out no edges (dataset.hold_out)")


def refuse_set(section: EvaluateSection, names: tuple[str, ...], what: str) -> None:
    """Refuse fields of a section whose value is not the default; a written configuration names them all.

    Raises:
        ConfigError: one of ``names`` is set; ``what`` is that on which it has no effect.
    """
    for name in names if section.enabled else ():
        value = getattr(section, name)
        if value != type(section).model_fields[name].default:
            raise ConfigError(f"evaluate.{name} = {value!r} has no effect on {what}; leave it out")


def judge_classes(
    weights: NDArray[np.floating],
    dataset: PlainDataset,
    section: EvaluateSection,
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> Finding:
    """F1 of one-vs-rest logistic regression at ``section.ratios``; the data set must have labels."""
    from graph_emb.evaluate.node_classification import node_classification

    assert dataset.labels is not None
    scores = node_classification(
        weights, dataset.labels, section.ratios, section.shuffles, seed, threads=threads, progress=progress
    )
    return Finding("node_classification", "node classification, one-vs-rest logistic regression", scores)


def judge_links(weights: NDArray[np.floating], dataset: PlainDataset, section: EvaluateSection) -> Finding:
    """Hits@K, MRR and ROC-AUC on the held-out parts that the data set has."""
    from graph_emb.evaluate.link_prediction import evaluate_link

    assert dataset.link_split is not None
    parts = [part for part in ("valid", "test") if part in dataset.link_split]
    metrics = [*(f"hits@{k}" for k in section.hits), "mrr", "auc"]
    scores = evaluate_link(weights, dataset.link_split, metrics, section.scorer, parts)
    return Finding("link_prediction", f"link prediction, score: {SCORER_TITLES[section.scorer]}", scores)
