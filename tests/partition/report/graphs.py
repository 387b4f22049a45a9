"""Small graphs and assignments for the tests of reports."""

from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def random_typed(seed: int, num_parts: int) -> tuple[HeteroGraph, Assignment]:
    """7 authors, 11 papers, loops, parallel edges, a dead end, a type without edges, weights and masks."""
    stream = np.random.default_rng(seed)
    num = {"author": 7, "paper": 11, "venue": 2}
    edges = {
        WRITES: (stream.integers(0, 7, 25), stream.integers(0, 11, 25)),
        CITES: (stream.integers(0, 10, 30), stream.integers(0, 11, 30)),
        ("paper", "in", "venue"): (np.empty(0, np.int64), np.empty(0, np.int64)),
    }
    graph = HeteroGraph(
        num,
        edges,
        node_data={"paper": {"train_mask": stream.random(11) < 0.6, "test_mask": np.arange(11) == 3}},
        edge_data={etype: {"weight": stream.random(len(src)) + 0.1} for etype, (src, _) in edges.items()},
    )
    parts = stream.integers(0, num_parts, 20).astype(np.int32)
    parts[:num_parts] = np.arange(num_parts)
    return graph, Assignment.of_homogeneous(graph, parts, num_parts)


def communities(seed: int, num_nodes: int = 4000, groups: int = 20) -> tuple[HeteroGraph, Assignment]:
    """A planted partition with hubs in four parts; both directions of each edge, and no isolated node."""
    stream = np.random.default_rng(seed)
    group = np.arange(num_nodes) * groups // num_nodes
    size = num_nodes // groups
    # squared uniforms: within a group the first nodes are hubs
    inner = (stream.random((2, 4 * num_nodes)) ** 2 * size).astype(np.int64)
    inner += stream.integers(0, groups, 4 * num_nodes) * size
    outer = stream.integers(0, num_nodes, (2, num_nodes))
    ring = np.stack([np.arange(num_nodes), np.roll(np.arange(num_nodes), 1)])
    pairs = np.concatenate([inner, outer, ring], axis=1)
    pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    graph = HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: (pairs[0].copy(), pairs[1].copy())})
    return graph, Assignment.of_homogeneous(graph, (group * 4 // groups).astype(np.int32), 4)
