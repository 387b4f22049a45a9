"""Edges of a graph that are held out, to be told from pairs of nodes that are no edges."""

# M edges of the whole graph

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import LinkSplit
from graph_emb.graph.ids import are_among


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
    edges = graph.edges()
    candidates = np.flatnonzero(edges[:, 0] != edges[:, 1])
    num_valid, num_test = round(valid * len(candidates)), round(test * len(candidates))
    if len(edges) <= num_valid + num_test:
        raise DataError(f"graph: {len(edges)} edges, {num_valid + num_test} held out; none is left to train on")
    order = rng.permutation(candidates)
    held_out = {"valid": np.sort(order[:num_valid]), "test": np.sort(order[num_valid : num_valid + num_test])}
    kept = np.ones(len(edges), dtype=bool)
    for places in held_out.values():
        kept[places] = False
    return _split_edges(graph, graph, kept, {part: edges[places] for part, places in held_out.items()}, rng)


def hold_out_given(graph: Graph, given: Mapping[str, NDArray[np.int64]], seed: int = 0) -> tuple[Graph, LinkSplit, int]:
    """A training graph without some given edges, and these with as many negatives; drawn as in ``hold_out_edges``.

    Args:
        given: Of ``valid`` and ``test``, as far as there are: node numbers, (count, 2), distinct edges of two nodes, in
            the graph or not; of an undirected graph the smaller node first.
        seed: Of the negatives.
    Returns:
        The training graph, the split, and how many of the given edges were in the graph.
    Raises:
        DataError: as ``hold_out_edges``.
    """
    edges, held = graph.edges(), np.concatenate(list(given.values()))
    kept = ~are_among(edges @ [graph.num_nodes, 1], held @ [graph.num_nodes, 1])
    if not kept.any():
        raise DataError(f"graph: {len(edges)} edges, {len(held)} held out; none is left to train on")
    ends, ids = np.concatenate([edges, held]), graph.node_ids
    whole = Graph.from_edges(ends[:, 0], ends[:, 1], graph.num_nodes, None, graph.directed, ids)
    train, split = _split_edges(graph, whole, kept, given, np.random.default_rng(seed))
    return train, split, int((~kept).sum())


def _split_edges(
    graph: Graph,
    whole: Graph,
    kept: NDArray[np.bool_],
    held_out: Mapping[str, NDArray[np.int64]],
    rng: np.random.Generator,
) -> tuple[Graph, LinkSplit]:
    """The kept edges of a graph as a graph, and the held-out ones with as many pairs that are no edges of ``whole``."""
    edges, weights = graph.edges()[kept], graph.edge_weights()
    negatives = non_edges(whole, sum(map(len, held_out.values())), rng)
    num_nodes = None if graph.node_ids is not None else graph.num_nodes
    weights = None if weights is None else weights[kept]
    train = Graph.from_edges(edges[:, 0], edges[:, 1], num_nodes, weights, graph.directed, graph.node_ids)
    split, first = {"train": {"edge": edges}}, 0
    for part, held in held_out.items():
        split[part] = {"edge": held, "edge_neg": negatives[first : first + len(held)]}
        first += len(held)
    return train, split


def non_edges(graph: Graph, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Distinct non-edges, shape (count, 2), smaller node first where the graph is undirected."""
    num_nodes = graph.num_nodes
    pairs = num_nodes * (num_nodes - 1) // (1 if graph.directed else 2)
    free = pairs - (graph.num_edges - graph.num_self_loops)
    if count > free:
        raise DataError(
            f"evaluation compares {count} edges with as many pairs of nodes that are no edges, and the {num_nodes} "
            f"nodes of this graph have {free}; hold out, or score, fewer edges"
        )
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
