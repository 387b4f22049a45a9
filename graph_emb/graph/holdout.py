"""Held-out edges of a plain graph, with sampled non-edges, for link prediction without a published split."""

# M edges of the whole graph

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import LinkSplit


def hold_out_edges(graph: Graph, valid: float = 0.1, test: float = 0.1, seed: int = 0) -> tuple[Graph, LinkSplit]:
    """A training graph without some random edges, and those edges with as many negatives.

    Negatives are distinct pairs of different nodes that are no edge of the whole graph (of a directed graph: no arc in
    that direction), drawn uniformly. Self loops stay in the training graph. The graph may fall apart: a node can lose
    all its edges. Nodes, ids and weights stay.

    Args:
        valid, test: Shares of the M edges, each at least 0, together below 1; rounded to whole edges.
        seed: The same seed gives the same edges, whatever the machine.
    Returns:
        The training graph, and ``{"train": {"edge"}, "valid": {"edge", "edge_neg"}, "test": ...}``, each (count, 2).
    Raises:
        ConfigError: a share or the seed is out of range.
        DataError: no edge is left to train on, or there are fewer non-edges than negatives are wanted.
    """
    if not (0 <= valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise ConfigError(f"valid={valid}, test={test}: expected shares of at least 0, together below 1")
    if seed < 0:
        raise ConfigError(f"seed={seed}: expected an integer of at least 0")
    rng = np.random.default_rng(seed)
    edges, weights = graph.edges(), graph.edge_weights()
    candidates = np.flatnonzero(edges[:, 0] != edges[:, 1])
    num_valid, num_test = round(valid * len(candidates)), round(test * len(candidates))
    if len(edges) <= num_valid + num_test:
        raise DataError(f"graph: {len(edges)} edges, {num_valid + num_test} held out; none is left to train on")
    order = rng.permutation(candidates)
    held_out = {"valid": np.sort(order[:num_valid]), "test": np.sort(order[num_valid : num_valid + num_test])}
    negatives = _non_edges(graph, num_valid + num_test, rng)
    kept = np.ones(len(edges), dtype=bool)
    for places in held_out.values():
        kept[places] = False
    train = Graph.from_edges(
        edges[kept, 0],
        edges[kept, 1],
        None if graph.node_ids is not None else graph.num_nodes,
        None if weights is None else weights[kept],
        graph.directed,
        graph.node_ids,
    )
    return train, {
        "train": {"edge": edges[kept]},
        "valid": {"edge": edges[held_out["valid"]], "edge_neg": negatives[:num_valid]},
        "test": {"edge": edges[held_out["test"]], "edge_neg": negatives[num_valid:]},
    }


def _non_edges(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Distinct non-edges, shape (count, 2), smaller node first where the graph is undirected."""
    num_nodes = graph.num_nodes
    pairs = num_nodes * (num_nodes - 1) // (1 if graph.directed else 2)
    free = pairs - (graph.num_edges - graph.num_self_loops)
    if count > free:
        raise DataError(f"graph: {free} pairs of {num_nodes} nodes are no edges, but {count} negatives are wanted")
    if free < 2 * count:  # so dense that all pairs fit into memory where the edges do
        src, dst = np.divmod(np.arange(num_nodes**2, dtype=np.int64), num_nodes)
        wanted = src != dst if graph.directed else src < dst
        non_edges = np.stack([src[wanted], dst[wanted]], axis=1)
        non_edges = non_edges[~graph.has_edges(*non_edges.T)]
        return non_edges[rng.permutation(len(non_edges))[:count]]
    found = np.zeros(0, dtype=np.int64)  # src * N + dst of distinct non-edges, in the order in which they were drawn
    while len(found) < count:
        src, dst = rng.integers(num_nodes, size=(2, 2 * (count - len(found)) + 16))
        if not graph.directed:
            src, dst = np.minimum(src, dst), np.maximum(src, dst)
        free = (src != dst) & ~graph.has_edges(src, dst)
        found = np.concatenate([found, src[free] * num_nodes + dst[free]])
        _, first = np.unique(found, return_index=True)
        found = found[np.sort(first)]
    return np.stack(np.divmod(found[:count], num_nodes), axis=1)
