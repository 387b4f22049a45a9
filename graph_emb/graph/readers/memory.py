"""Graphs of this library in memory: a HeteroGraph as it is, a Graph with its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.options import ReadOptions
from graph_emb.graph.readers.source import WEIGHT, Contents, register
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph


@register("memory", lambda source: isinstance(source, HeteroGraph | Graph))
def read_memory(source: Any, options: ReadOptions) -> Contents:
    """The same edges; of a ``Graph`` its arcs in the order of their sources."""
    if isinstance(source, HeteroGraph):
        return Contents(source)
    graph = HeteroGraph(
        {NODE_TYPE: source.num_nodes},
        {EDGE_TYPE: (source.sources().astype(np.int64), source.indices.astype(np.int64))},
        edge_data={} if source.weights is None else {EDGE_TYPE: {WEIGHT: source.weights.copy()}},
        node_ids={} if source.node_ids is None else {NODE_TYPE: source.node_ids},
        symmetric=not source.directed,
    )
    return Contents(graph)


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
