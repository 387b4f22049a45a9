"""The scores of a run by short names, one a metric, out of the evaluations that its metrics.json holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Scores = Mapping[str, Any]


def scores_of(evaluation: Scores) -> dict[str, float]:
    """Every score to report by its name, such as "test hits@10", "micro-F1 at 50%" or "test accuracy".

    Of a metric that ties decide it is the reading that is reported, of several shuffles or seeds the mean.

    Args:
        evaluation: By task, as ``Finding.scores.as_dict`` gives them.
    """
    found: dict[str, float] = {}
    for task, values in evaluation.items():
        kind = next((kind for kind in READERS if task == kind or task.startswith(f"{kind}_")), None)
        if kind is None or not isinstance(values, Mapping):
            continue
        suffix = task.removeprefix(kind).strip("_")
        for name, value in READERS[kind](values, suffix):
            if isinstance(value, int | float) and name not in found:
                found[name] = float(value)
    return found


def _of_type(name: str, ntype: str) -> str:
    return f"{name} of {ntype}" if ntype else name


def _links(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    for part, scores in values["parts"].items():
        yield from ((f"{part} {name}", value["value"]) for name, value in scores["metrics"].items())


def _shares(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    for row in values["ratios"]:
        for kind in ("micro", "macro"):
            yield _of_type(f"{kind}-F1 at {row['ratio']:.0%}", suffix), row[f"{kind}_mean"]


def _split(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    yield from ((_of_type(f"{part} accuracy", suffix), found["mean"]) for part, found in values["accuracy"].items())


def _network(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    for name, found in values["metrics"].items():
        yield from ((f"{part} {name}", found.get(part)) for part in ("valid", "test"))


def _seeds(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    for name, parts in values["summary"].items():
        yield from ((f"{part} {name}", spread["mean"]) for part, spread in parts.items())


def _triples(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    yield from ((f"{suffix} {name}", value["realistic"]) for name, value in values["both"].items())


def _clusters(values: Scores, suffix: str) -> Iterator[tuple[str, Any]]:
    yield _of_type("NMI", suffix), values["nmi_mean"]


READERS: dict[str, Callable[[Scores, str], Iterator[tuple[str, Any]]]] = {
    "link_prediction": _links,
    "link_predictor": _network,
    "mlp": _network,
    "last_network": _network,
    "node_classification": _shares,
    "split_accuracy": _split,
    "graph_network": _seeds,
    "triples": _triples,
    "clusters": _clusters,
}
"""How the scores of each task are read; the rest of a task's name is a node type or a part."""
