"""Small random graphs and assignments for the tests of the writer and its readers."""

from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
HELD = ("venue", "held", "paper")


def homogeneous(num_nodes: int = 40, num_edges: int = 150, seed: int = 0) -> HeteroGraph:
    """Parallel edges, self loops and isolated nodes included; features, a mask and weights."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes - 2, num_edges), rng.integers(0, num_nodes - 2, num_edges)
    return HeteroGraph(
        {NODE_TYPE: num_nodes},
        {EDGE_TYPE: ends},
        {NODE_TYPE: {"feat": rng.random((num_nodes, 3), np.float32), "train_mask": rng.random(num_nodes) < 0.5}},
        {EDGE_TYPE: {"weight": rng.random(num_edges)}},
        name="homo",
    )


def heterogeneous(seed: int = 0) -> HeteroGraph:
    """Three node types, of which ``venue`` has two nodes and no data, so parts lack it; authors have names."""
    rng = np.random.default_rng(seed)
    return HeteroGraph(
        {"author": 30, "paper": 50, "venue": 2},
        {
            WRITES: (rng.integers(0, 30, 100), rng.integers(0, 50, 100)),
            CITES: (rng.integers(0, 50, 200), rng.integers(0, 50, 200)),
            HELD: (rng.integers(0, 2, 9), rng.integers(0, 50, 9)),
        },
        {"paper": {"feat": rng.random((50, 4), np.float32), "label": rng.integers(0, 5, 50)}, "author": {}},
        {CITES: {"year": rng.integers(1990, 2020, 200).astype(np.int32)}},
        {"author": np.array([f"author {i:02d}" for i in rng.permutation(30)])},
        name="hetero",
    )


def random_parts(graph: HeteroGraph, num_parts: int, seed: int = 1) -> Assignment:
    """Every part has a node of each type that has enough of them; the rest is random."""
    rng = np.random.default_rng(seed)
    parts = {}
    for ntype, num in graph.num_nodes.items():
        first = np.arange(num) % num_parts if num >= num_parts else rng.integers(0, num_parts, num)
        values = np.where(np.arange(num) < num_parts, first, rng.integers(0, num_parts, num))
        parts[ntype] = rng.permutation(values).astype(np.int32)
    return Assignment(parts, num_parts, method="random", seed=seed, why="a test")
