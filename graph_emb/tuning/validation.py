"""A data set without its test data, and the values by which trials on it are compared."""

# N nodes, B judged triples or edges.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import LackingError
from graph_emb.graph.datasets import Dataset, NodeSplit
from graph_emb.graph.labels import Labels
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.pipeline import PipelineResult

SHARE_OF_TRAIN = 0.2
"""Of the training nodes, to validate on, where a split has no validation part."""
SHARE_UNUSED = 0.05
"""Of the training nodes, that stand in for the test part of a network, which must have one; its value is not read."""
SHARE_HIDDEN = 0.5
"""Of the labelled nodes, whose labels a search does not get, where there is no split."""


def without_test(dataset: Dataset, *, networks: bool, seed: int = 0) -> Dataset:
    """The data set as a search may see it: its validation data stand where the test data were, which are gone.

    Nodes of the test part lose their labels; where a split has no validation part, a fifth of the training nodes
    become it, and where labels have no split, half of the labelled nodes lose theirs. Filtered ranks do not know the
    test triples.

    Args:
        networks: Whether something is chosen by the validation part of the nodes while it trains: then that part stays,
            and a few training nodes are the test part; else the validation nodes are the test part.
        seed: Of the nodes that are chosen where the data set does not say.
    Raises:
        LackingError: there is nothing to validate on.
    """
    labels, splits = dict(dataset.labels), dict(dataset.node_split)
    for number, ntype in enumerate(sorted(labels)):
        random = np.random.default_rng((seed, number))
        split = splits.get(ntype, {})
        if split:
            splits[ntype], visible = _split_without_test(split, networks, random)
        else:
            nodes = random.permutation(labels[ntype].labelled())
            visible = nodes[: len(nodes) - int(SHARE_HIDDEN * len(nodes))]
        labels[ntype] = _labels_of(labels[ntype], visible)
    links = dataset.link_split
    if links is not None:
        if "valid" not in links:
            raise LackingError(f"{dataset.name}: its held-out edges have no validation part to tune by")
        links = {**links, "test": links["valid"]}
    triples = None if dataset.triples is None else _triples_without_test(dataset.triples)
    if not labels and links is None and triples is None:
        raise LackingError(f"{dataset.name}: has no labels, held-out edges or triples to tune by")
    graph = _columns_without_classes(dataset.graph)
    return replace(dataset, graph=graph, labels=labels, node_split=splits, link_split=links, triples=triples)


def _split_without_test(
    split: NodeSplit, networks: bool, random: np.random.Generator
) -> tuple[NodeSplit, NDArray[np.int64]]:
    """The split, and the nodes that keep their labels."""
    train, valid = split["train"], split.get("valid")
    if valid is None:
        order = random.permutation(len(train))
        cut = max(1, int(SHARE_OF_TRAIN * len(train)))
        train, valid = train[np.sort(order[cut:])], train[np.sort(order[:cut])]
    visible = np.concatenate([train, valid])
    if not networks:
        return {"train": train, "test": valid}, visible
    order = random.permutation(len(train))
    cut = max(1, int(SHARE_UNUSED * len(train)))
    return {"train": train[np.sort(order[cut:])], "valid": valid, "test": train[np.sort(order[:cut])]}, visible


def _labels_of(labels: Labels, nodes: NDArray[np.int64]) -> Labels:
    """The labels of some nodes; the others have none."""
    kept = np.zeros(labels.num_nodes, np.bool_)
    kept[nodes] = True
    owner = np.repeat(np.arange(labels.num_nodes), np.diff(labels.indptr))
    chosen = kept[owner]
    return Labels.from_pairs(
        owner[chosen], labels.indices[chosen], labels.num_nodes, labels.num_classes, labels.class_names
    )


def _triples_without_test(graph: KnowledgeGraph) -> KnowledgeGraph:
    if "valid" not in graph.parts:
        raise LackingError(f"{graph.name}: has no validation triples to tune by")
    parts = {part: own for part, own in graph.parts.items() if part != "test"}
    negatives = {part: own for part, own in graph.negatives.items() if part != "test"}
    return replace(graph, parts=parts, negatives=negatives)


def _columns_without_classes(graph: HeteroGraph) -> HeteroGraph:
    """The graph without the columns and tables from which labels and splits were taken."""
    data = {
        ntype: {name: own for name, own in columns.items() if name != "label" and own.dtype != np.bool_}
        for ntype, columns in graph.node_data.items()
    }
    return replace(graph, node_data=data, class_names={}, held_out=None)


def valid_values(result: PipelineResult) -> dict[str, float]:
    """The validation values of a run on a data set without its test data, the usual one first.

    Names are such as ``valid.mrr``, ``valid.accuracy``, ``valid.micro@0.5`` or ``valid.hits@20``.
    """
    found: dict[str, float] = {}
    best = result.metrics["train"].get("best_valid_mrr")
    if best is not None:
        found["valid.mrr"] = best
    for name, own in result.metrics["evaluation"].items():
        if isinstance(own, Mapping):
            for metric, value in _of_finding(own):
                found.setdefault(f"valid.{metric}" if metric else f"valid.{name}", float(value))
    return found


def _of_finding(own: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The validation values of an evaluation, by metric, from what metrics.json has of it."""
    if "ratios" in own:  # the middle one first: a search without a choice takes it
        rows = sorted(own["ratios"], key=lambda row: abs(row["ratio"] - 0.5))
        return [(f"{kind}@{row['ratio']:g}", row[f"{kind}_mean"]) for row in rows for kind in ("micro", "macro")]
    if "accuracy" in own:
        return [("accuracy", own["accuracy"]["test"]["mean"])]
    if "parts" in own:
        return [(name, value["value"]) for name, value in own["parts"]["valid"]["metrics"].items()]
    if "summary" in own:
        return [(name, parts["valid"]["mean"]) for name, parts in own["summary"].items() if "valid" in parts]
    if "metrics" in own:
        return [(name, values["valid"]) for name, values in own["metrics"].items()]
    if "both" in own:
        return [(name, value["realistic"]) for name, value in own["both"].items()]
    return []
