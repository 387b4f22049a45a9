"""Training on validation edges once everything is chosen without them, as ogbl-collab allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graph_emb.graph import Graph
from graph_emb.graph.views import PlainDataset


def with_validation_edges(data: PlainDataset) -> PlainDataset:
    """The data set with its validation edges in the graph and among the training edges.

    Weights of repeated edges add up; an edge without one counts 1.

    Args:
        data: With a link split.
    """
    split, graph = data.link_split, data.graph
    assert split is not None
    held = split["valid"]
    known = graph.edge_weights()
    weights = [np.ones(graph.num_edges, np.float32) if known is None else known, _weights(held)]
    ends = np.concatenate([graph.edges(), held["edge"]])
    joined = Graph.from_edges(
        ends[:, 0],
        ends[:, 1],
        graph.num_nodes,
        np.concatenate(weights),
        graph.directed,
        duplicates="sum",
    )
    train = {"edge": np.concatenate([split["train"]["edge"], held["edge"]])}
    return replace(data, graph=joined, link_split={**split, "train": train})


def _weights(tables: Mapping[str, Any]) -> np.ndarray:
    given = tables.get("weight")
    return np.ones(len(tables["edge"]), np.float32) if given is None else np.asarray(given, np.float32).reshape(-1)
