"""Evaluations of embeddings by the labels, splits and held-out edges of a data set."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graph_emb.config import EvaluateSection, RunConfig
from graph_emb.core.errors import ConfigError, LackingError
from graph_emb.core.settings import short
from graph_emb.core.threads import torch_threads
from graph_emb.evaluate.split_accuracy import train_mlp
from graph_emb.graph.datasets import NodeSplit
from graph_emb.graph.labels import Labels
from graph_emb.graph.typed import NODE_TYPE
from graph_emb.graph.views import PlainDataset
from graph_emb.models.links.training import FrozenRows, LinkPredictorResult, train_link_predictor

SCORER_TITLES = {
    "centred-dot": "dot product of rows less their mean (scorer 'hadamard-logreg' learns from the training edges)",
    "dot": "dot product",
    "cosine": "cosine",
    "hadamard-logreg": "logistic regression on the product",
}


LAST_NETWORK = "last_network"
"""The finding of a kept network; at the end of a training it is the last line of its history."""


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
    ``section.ratios``. Held-out edges: Hits@K, MRR and ROC-AUC of ``section.scorer``. ``section.mlp`` and
    ``section.predictor`` take their places where they are set.

    Args:
        weights: Shape (N, D), a row for each node of the data set.
        dataset: Of N nodes.
        section: Ratios, shuffles, K and scorer.
        seed: Of the label shuffles.
        threads: None: all cores.
        progress: Show bars.
    """
    findings, network_seed = [], seed if section.seed is None else section.seed
    if section.mlp is not None:
        assert dataset.labels is not None  # check_section
        assert dataset.node_split is not None
        with torch_threads(threads):
            matrix = with_features(weights, dataset.features, section.node_features)
            findings.append(judge_by_mlp(matrix, dataset.labels, dataset.node_split, section, network_seed, progress))
    elif dataset.labels is not None and is_split(dataset.labels, dataset.node_split):
        assert dataset.node_split is not None
        split = dataset.node_split
        findings.append(judge_split(weights, dataset.labels, split, threads=threads, progress=progress))
    elif dataset.labels is not None:
        findings.append(judge_classes(weights, dataset, section, seed, threads=threads, progress=progress))
    if section.predictor is not None:
        assert dataset.link_split is not None  # check_section
        with torch_threads(threads):
            rows = FrozenRows(with_features(weights, dataset.features, section.node_features))
            found = train_link_predictor(
                rows, dataset.link_split, len(weights), section.predictor, seed=network_seed, progress=progress
            )
        findings.append(predictor_finding(found))
    elif dataset.link_split is not None:
        findings.append(judge_links(weights, dataset, section))
    return findings


@dataclass(frozen=True)
class NetworkScores:
    """A network that was trained on rows, at the epochs that the validation part chose.

    Attributes:
        metrics: By metric ``epoch``, ``valid`` and ``test``.
        history: Evaluations in order.
        num_parameters: Of the network.
        seconds_per_epoch: Wall time of training, evaluations left out; None where it was not measured.
    """

    metrics: dict[str, dict[str, Any]]
    history: list[dict[str, Any]]
    num_parameters: int
    seconds_per_epoch: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return asdict(self)

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [[name, *values.values()] for name, values in self.metrics.items()]
        return tabulate(rows, ["metric", "epoch", "valid", "test"], floatfmt=".4f")


def last_network(kind: str, epoch: int, parts: Mapping[str, Mapping[str, float]], num_parameters: int) -> Finding:
    """The scores of the network that a run keeps, which is that of its last epoch.

    Args:
        kind: Of the task, for the title.
        parts: Metrics by part.
    """
    valid, test = parts.get("valid", {}), parts["test"]
    metrics = {name: {"epoch": epoch, "valid": valid.get(name), "test": value} for name, value in test.items()}
    scores = NetworkScores(metrics, [], num_parameters)
    return Finding(LAST_NETWORK, f"{kind} by the network that the run keeps, after epoch {epoch}", scores)


def predictor_finding(result: LinkPredictorResult) -> Finding:
    """The scores of OGB's link predictor."""
    told = result.as_dict()
    num_parameters = result.predictor.num_parameters
    scores = NetworkScores(told["scores"], told["history"], num_parameters, result.seconds_per_epoch)
    return Finding("link_predictor", "link prediction by OGB's network, at the best validation value", scores)


def judge_by_mlp(
    matrix: Tensor, labels: Labels, split: NodeSplit, section: EvaluateSection, seed: int, progress: bool
) -> Finding:
    """OGB's MLP, trained on the rows (N, D) of the training nodes; the epoch is the best on the validation nodes."""
    truth = labels.to_single() if labels.is_single else labels.to_matrix().toarray().astype(np.float32)
    parts = {part: (matrix[torch.from_numpy(nodes)], torch.from_numpy(truth[nodes])) for part, nodes in split.items()}
    found = train_mlp(parts, labels.num_classes, section.mlp, seed=seed, progress=progress)
    best = {"epoch": found.epoch, "valid": found.scores["valid"], "test": found.scores["test"]}
    scores = NetworkScores({found.metric: best}, [{"epoch": found.epoch, **found.scores}], found.num_parameters)
    return Finding("mlp", "node classification by OGB's network, at the best validation value", scores)


def with_features(weights: NDArray[np.floating], features: NDArray[Any] | None, how: str) -> Tensor:
    """Rows (N, D) behind the node features (N, F), as OGB's scripts put them; as they are for "none"."""
    rows = torch.from_numpy(weights)
    if how == "none":
        return rows
    given = torch.from_numpy(np.ascontiguousarray(features)).float()
    return torch.cat([F.normalize(given, dim=0) if how == "unit columns" else given, rows], dim=1)


def is_split(labels: Labels | None, split: NodeSplit | None) -> bool:
    """Whether classes are judged by a split of the nodes rather than by shares of the labelled nodes."""
    return labels is not None and split is not None and labels.is_single and {"train", "test"} <= split.keys()


def judge_split(
    weights: NDArray[np.floating],
    labels: Labels,
    split: NodeSplit,
    suffix: str = "",
    *,
    threads: int | None = None,
    progress: bool = False,
) -> Finding:
    """Accuracy of logistic regression on the parts of a split of nodes with one class each.

    Args:
        suffix: Of the finding's name.
    """
    from graph_emb.evaluate.split_accuracy import split_accuracy

    accuracy = split_accuracy(weights, labels, split, threads=threads, progress=progress)
    return Finding(f"split_accuracy{suffix}", "node classification, the data set's split", accuracy)


def check_own_split(config: RunConfig, labels: Labels | None, split: NodeSplit | None) -> None:
    """Refuse a split of files that nothing reads.

    Raises:
        ConfigError: nodes have several classes, which shares of the labelled nodes judge, whatever the split.
    """
    section, own = config.evaluate, config.dataset.split or config.dataset.labels
    if section.enabled and section.mlp is None and own and labels is not None and split and not labels.is_single:
        raise ConfigError(
            f"{own}: its split has no effect on nodes of several classes, which evaluate.ratios judges; leave the "
            "split out, or set evaluate.mlp"
        )


def check_section(section: EvaluateSection, dataset: PlainDataset) -> None:
    """Refuse fields that are set and mean nothing to what the data set brings, before anything is trained.

    Raises:
        ConfigError: shares of the labelled nodes where none are drawn, or scores of edges where none are held out.
    """
    name, features = dataset.name, {} if dataset.features is None else {NODE_TYPE: dataset.features}
    if dataset.labels is None or is_split(dataset.labels, dataset.node_split) or section.mlp is not None:
        refuse_set(section, ("ratios", "shuffles"), f"{name}, of whose labelled nodes no shares are drawn")
    if dataset.link_split is None:
        refuse_set(section, ("hits", "scorer"), f"{name}, which holds out no edges (dataset.hold_out)")
    elif section.predictor is not None:
        refuse_set(section, ("hits", "scorer"), "scores that the predictor gives; it has metrics of its own")
    if not {"valid", "test"} <= (dataset.link_split or {}).keys():
        refuse_set(section, ("predictor",), f"{name}, which holds out no edges for validation and test")
    labelled = NODE_TYPE if dataset.labels is not None and dataset.node_split is not None else None
    check_networks(section, name, labelled, dataset.node_split, features)


def check_networks(
    section: EvaluateSection,
    name: str,
    labelled: str | None,
    split: NodeSplit | None,
    features: Mapping[str, NDArray[Any]],
) -> None:
    """Refuse an MLP without labels and parts, and features that are not there.

    Args:
        labelled: The node type whose rows are judged; None: no type has labels and a split.
        features: By node type.
    Raises:
        ConfigError, DataError: the data set lacks what the network reads.
    """
    if labelled is None or not {"train", "valid", "test"} <= (split or {}).keys():
        refuse_set(section, ("mlp",), f"{name}, which has no labels with a split into train, valid and test")
    if section.enabled and section.node_features != "none" and (labelled or NODE_TYPE) not in features:
        hint = "take evaluate.node_features=none, or complete its files"
        raise LackingError(f"data set {name!r} has no node features here; {hint}")


def refuse_set(section: EvaluateSection, names: tuple[str, ...], what: str) -> None:
    """Refuse fields of a section whose value is not the default; a written configuration names them all.

    Raises:
        ConfigError: one of ``names`` is set; ``what`` is that on which it has no effect.
    """
    for name in names if section.enabled else ():
        value = getattr(section, name)
        if value != type(section).model_fields[name].default:
            raise ConfigError(f"evaluate.{name} = {short(value)} has no effect on {what}; leave it out")


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


T = TypeVar("T")


def each_seed(
    seeds: Sequence[int], run: Callable[[int], T], finished: Callable[[int], T | None] | None = None
) -> Iterator[tuple[int, T]]:
    """Every seed with its result, in order, as they come; a result is not held here while the next seed runs.

    Args:
        seeds: Distinct.
        run: Gets a seed that is not finished.
        finished: The result of a seed that an earlier job has run; None where it has to run.
    Raises:
        ConfigError: no seed, or one twice.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={list(seeds)}: give at least one, each once")
    for seed in seeds:
        kept = None if finished is None else finished(seed)
        yield seed, run(seed) if kept is None else kept
        del kept


def mean_std(values: Sequence[float]) -> dict[str, float | None]:
    """OGB's two numbers: ``torch.mean`` and the unbiased ``torch.std``, which one value does not have (None)."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def as_text(values: Sequence[float]) -> str:
    """Mean and std as a leaderboard writes them: ``0.2642 ± 0.0610``."""
    found = mean_std(values)
    return f"{found['mean']:.4f}" if found["std"] is None else f"{found['mean']:.4f} ± {found['std']:.4f}"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, std and the values themselves, for a JSON file."""
    return {**mean_std(values), "values": list(values)}


@dataclass(frozen=True)
class SeedsResult:
    """The same training with several seeds.

    Attributes:
        seeds: In order; none where the first one was interrupted.
        runs: Of each seed a mapping with "metrics": by metric, the values of its parts.
    """

    seeds: tuple[int, ...]
    runs: tuple[dict[str, Any], ...]

    def values(self, part: str, metric: str) -> list[float]:
        """A metric of "valid" or "test" of each seed, at the epoch that the validation part chose."""
        return [run["metrics"][metric][part] for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file: mean and standard deviation by metric and part."""
        found: dict[str, Any] = {}
        for metric, values in self.runs[0]["metrics"].items() if self.runs else ():
            parts = [part for part in ("valid", "test") if values[part] is not None]
            found[metric] = {part: summary(self.values(part, metric)) for part in parts}
        return {"seeds": list(self.seeds), "summary": found, "runs": list(self.runs)}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [metric, part, spread["mean"], spread["std"], len(self.seeds)]
            for metric, parts in self.as_dict()["summary"].items()
            for part, spread in parts.items()
        ]
        return tabulate(rows, ["metric", "part", "mean", "std", "seeds"], floatfmt=".4f", missingval="-")
