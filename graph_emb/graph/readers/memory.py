"""Graphs of this library in memory: a HeteroGraph as it is, a Graph with its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.source import MASKS, WEIGHT, Contents, mask_of, register
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph


@register("memory", lambda source: isinstance(source, HeteroGraph | Graph))
def read_memory(source: Any) -> Contents:
    """The same edges; an undirected ``Graph`` holds both directions already."""
    return Contents(source if isinstance(source, HeteroGraph) else from_graph(source))


def from_graph(
    graph: Graph,
    name: str = "graph",
    labels: Labels | None = None,
    split: dict[str, np.ndarray] | None = None,
) -> HeteroGraph:
    """A graph without types: its stored arcs in the order of their sources, and what is known of the nodes.

    Args:
        labels: Become ``label``: (N,) int64 with -1 for none, or (N, C) uint8 where a node may have several.
        split: Node numbers of train, valid and test; they become masks.
    """
    columns: dict[str, np.ndarray] = {}
    if labels is not None:
        columns["label"] = label_column(labels)
    for part, nodes in (split or {}).items():
        columns[MASKS[part]] = mask_of(nodes, graph.num_nodes)
    return HeteroGraph(
        {NODE_TYPE: graph.num_nodes},
        {EDGE_TYPE: (graph.sources().astype(np.int64), graph.indices.astype(np.int64))},
        node_data={NODE_TYPE: columns} if columns else {},
        edge_data={} if graph.weights is None else {EDGE_TYPE: {WEIGHT: graph.weights.copy()}},
        node_ids={} if graph.node_ids is None else {NODE_TYPE: graph.node_ids},
        name=name,
    )


def label_column(labels: Labels) -> np.ndarray:
    """Classes as a column of node data."""
    sizes = np.diff(labels.indptr)
    nodes = np.repeat(np.arange(labels.num_nodes), sizes)
    if sizes.max(initial=0) <= 1:
        column = np.full(labels.num_nodes, -1, dtype=np.int64)
        column[nodes] = labels.indices
        return column
    table = np.zeros((labels.num_nodes, labels.num_classes), dtype=np.uint8)
    table[nodes, labels.indices] = 1
    return table
