"""Small graphs with known answers."""

from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import EDGE_TYPE, HeteroGraph


def plain(num_nodes: int, pairs: np.ndarray) -> HeteroGraph:
    """Both directions of each pair, (E, 2)."""
    src, dst = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return HeteroGraph({"_N": num_nodes}, {EDGE_TYPE: (np.concatenate([src, dst]), np.concatenate([dst, src]))})


def planted(num_blocks: int = 4, size: int = 60, seed: int = 0) -> tuple[HeteroGraph, np.ndarray]:
    """Blocks of ``size`` nodes with 8 edges a node inside and 1 outside, ids shuffled; and each node's block."""
    rng = np.random.default_rng(seed)
    num_nodes = num_blocks * size
    blocks = rng.permutation(np.repeat(np.arange(num_blocks), size))
    inside = []
    for block in range(num_blocks):
        nodes = np.flatnonzero(blocks == block)
        inside.append(rng.choice(nodes, (8 * size, 2)))
    return plain(num_nodes, np.concatenate([*inside, rng.integers(num_nodes, size=(num_nodes, 2))])), blocks


def skewed(seed: int = 0) -> HeteroGraph:
    """Users, items and a few shops; items are bought by a power law; some users are for training; features on all."""
    rng = np.random.default_rng(seed)
    num = {"user": 600, "item": 300, "shop": 24}
    popular = np.minimum((rng.pareto(1.2, 4000) * 5).astype(np.int64), 299)
    edges = {
        ("user", "buys", "item"): (rng.integers(600, size=4000), popular),
        ("item", "bought_by", "user"): (popular, rng.integers(600, size=4000)),
        ("item", "in", "shop"): (np.arange(300), rng.integers(24, size=300)),
    }
    data = {ntype: {"feat": np.ones((count, 2), np.float32)} for ntype, count in num.items()}
    data["user"]["train_mask"] = rng.random(600) < 0.2
    return HeteroGraph(num, edges, data)
