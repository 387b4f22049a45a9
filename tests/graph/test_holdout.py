"""Held-out edges and their negatives."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph import Graph
from graph_emb.graph.held_out import hold_out_edges


def ring(num_nodes: int, **options: object) -> Graph:
    nodes = np.arange(num_nodes)
    return Graph.from_edges(nodes, (nodes + 1) % num_nodes, num_nodes, weights=nodes + 1.0, **options)


def as_set(edges: np.ndarray) -> set[tuple[int, int]]:
    return set(map(tuple, edges.tolist()))


@pytest.mark.parametrize("directed", [False, True])
def test_every_edge_is_in_exactly_one_part(directed: bool) -> None:
    graph = ring(50, directed=directed)
    train, split = hold_out_edges(graph, valid=0.1, test=0.2, seed=3)
    parts = [as_set(split[part]["edge"]) for part in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [35, 5, 10]
    assert set.union(*parts) == as_set(graph.edges())
    assert as_set(train.edges()) == parts[0]
    assert train.num_nodes == 50
    assert train.directed is directed
    train.validate()


def test_kept_edges_keep_their_weights() -> None:
    graph = ring(20)
    train, _ = hold_out_edges(graph, seed=1)
    before, after = graph.to_scipy().toarray(), train.to_scipy().toarray()
    assert np.array_equal(after[after > 0], before[after > 0])
    assert len(np.unique(train.edge_weights())) == 16


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("extra", [0, 14])
def test_negatives_are_distinct_pairs_that_are_no_edge(directed: bool, extra: int) -> None:
    """With 8 nodes and 22 edges there are only 6 free undirected pairs, fewer than twice the 4 negatives."""
    src, dst = np.triu_indices(8, k=1)
    keep = np.arange(len(src)) < 8 + extra
    graph = Graph.from_edges(src[keep], dst[keep], 8, directed=directed)
    _, split = hold_out_edges(graph, valid=2 / (8 + extra), test=2 / (8 + extra), seed=0)
    negatives = np.concatenate([split["valid"]["edge_neg"], split["test"]["edge_neg"]])
    assert negatives.shape == (4, 2)
    assert len(as_set(negatives)) == 4
    assert not graph.has_edges(negatives[:, 0], negatives[:, 1]).any()
    assert (negatives[:, 0] != negatives[:, 1]).all()
    if not directed:
        assert (negatives[:, 0] < negatives[:, 1]).all()


def test_negatives_are_uniform_over_the_free_pairs() -> None:
    graph = ring(6, directed=False)  # 15 pairs, 6 edges, 9 free
    seen: dict[tuple[int, int], int] = {}
    for seed in range(900):
        _, split = hold_out_edges(graph, valid=1 / 6, test=0.0, seed=seed)
        pair = tuple(split["valid"]["edge_neg"][0].tolist())
        seen[pair] = seen.get(pair, 0) + 1
    assert len(seen) == 9
    assert min(seen.values()) > 60  # expected 100, standard deviation 9.4
    assert max(seen.values()) < 140


def test_the_seed_decides() -> None:
    graph = ring(100)
    one, two, other = (hold_out_edges(graph, seed=seed)[1] for seed in (5, 5, 6))
    for part in one:
        for name in one[part]:
            assert np.array_equal(one[part][name], two[part][name])
    assert as_set(one["test"]["edge"]) != as_set(other["test"]["edge"])


def test_self_loops_stay_and_ids_too() -> None:
    graph = Graph.from_edges(["a", "b", "c", "d", "a"], ["b", "c", "d", "a", "a"])
    train, split = hold_out_edges(graph, valid=0.25, test=0.25, seed=0)
    assert train.num_self_loops == 1
    assert train.node_ids.tolist() == ["a", "b", "c", "d"]
    assert train.num_nodes == 4
    assert len(split["train"]["edge"]) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"valid": -0.1}, ConfigError, "valid=-0.1"),
        ({"valid": 0.5, "test": 0.5}, ConfigError, "together below 1"),
        ({"seed": -1}, ConfigError, "seed=-1"),
        ({"valid": 0.49, "test": 0.5}, DataError, "none is left to train on"),
    ],
)
def test_shares_out_of_range_are_refused(options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        hold_out_edges(ring(4), **options)


def test_a_complete_graph_has_no_negatives() -> None:
    src, dst = np.triu_indices(5, k=1)
    with pytest.raises(DataError, match=r"compares 2 edges with as .* 5 nodes of this graph have 0; hold out, or"):
        hold_out_edges(Graph.from_edges(src, dst), seed=0)
