from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.typed import EDGE_TYPE, HeteroGraph
from partition.kernels.sorting import count
from partition.problem import SymmetricAdjacency, symmetric

FORWARD, BACKWARD = ("a", "to", "b"), ("b", "back", "a")


def plain(num_nodes: int, pairs: list[tuple[int, int]]) -> HeteroGraph:
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    return HeteroGraph({"_N": num_nodes}, {EDGE_TYPE: (src, dst)})


def typed() -> HeteroGraph:
    ids = np.array([0, 1]), np.array([1, 0])
    return HeteroGraph({"a": 2, "b": 2}, {FORWARD: ids, BACKWARD: (np.array([1]), np.array([0]))})


def dense(adjacency: SymmetricAdjacency) -> np.ndarray:
    out = np.zeros((adjacency.num_nodes, adjacency.num_nodes), np.int64)
    for u, (low, high) in enumerate(pairwise(adjacency.indptr)):
        assert len(set(adjacency.indices[low:high].tolist())) == high - low
        out[u, adjacency.indices[low:high]] = 1 if adjacency.weights is None else adjacency.weights[low:high]
    return out


def test_parallel_edges_become_weights_and_self_loops_go() -> None:
    made = symmetric(plain(3, [(0, 1), (1, 0), (0, 1), (1, 2), (2, 2)]))
    assert dense(made).tolist() == [[0, 3, 0], [3, 0, 1], [0, 1, 0]]
    assert made.indices.dtype == np.int32


def test_equal_weights_are_not_stored() -> None:
    made = symmetric(plain(3, [(0, 1), (1, 0), (1, 2), (2, 1)]))
    assert made.weights is None
    assert dense(made).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_types_lie_one_after_the_other() -> None:
    # a0-b1 by both relations, a1-b0 by one
    assert dense(symmetric(typed())).tolist() == [[0, 0, 0, 2], [0, 0, 1, 0], [0, 1, 0, 0], [2, 0, 0, 0]]


def test_relation_weights_count_and_zero_leaves_a_relation_out() -> None:
    assert dense(symmetric(typed(), {FORWARD: 5}))[0, 3] == 6
    assert dense(symmetric(typed(), {FORWARD: 5}))[1, 2] == 5
    assert symmetric(typed(), {FORWARD: 0}).num_entries == 2


def test_relation_weights_take_the_names_that_yaml_can_write() -> None:
    """The text was an unknown edge type, and the error named it among the known ones."""
    assert dense(symmetric(typed(), {"a:to:b": 5, "b:back:a": 2}))[0, 3] == 7


@pytest.mark.parametrize(
    "weights", [5, 0, ["a:to:b"], {"a:to:b": "x"}, {"a:to:b": None}, {"a:to:c": 1}, {"a:to:b": 1, FORWARD: 2}, {3: 1}]
)
def test_what_yaml_can_write_but_is_no_weight_is_refused(weights: Any) -> None:
    """They were TypeErrors and ValueErrors from the depth."""
    with pytest.raises(ConfigError, match="relation_weights"):
        symmetric(typed(), weights)


@pytest.mark.parametrize("weights", [{("a", "x", "b"): 1}, {FORWARD: -1}, {FORWARD: 1.5}, {FORWARD: 2**31}])
def test_bad_relation_weights_are_refused(weights: dict) -> None:
    with pytest.raises(ConfigError, match="relation_weights"):
        symmetric(typed(), weights)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("back", [[1], [1, 2]])
def test_weights_that_do_not_fit_together_are_refused(back: list[int], num_threads: int) -> None:
    """Back and forth weigh 2^32 - 2, whether or not every edge has its reverse; one direction alone is the limit."""
    heavy, light = ("n", "heavy", "n"), ("n", "light", "n")
    ends = np.array([0, 1]), np.array([1, 2])
    edges = {heavy: ends, light: (np.array([2, 3] * 3), np.array([3, 2] * 3))}  # enough for two threads
    costs = {heavy: 2**31 - 1}
    assert symmetric(HeteroGraph({"n": 4}, edges), costs, num_threads=num_threads).weight_array.max() == 2**31 - 1
    forth = np.array(back)
    edges[heavy] = np.append(ends[0], forth), np.append(ends[1], forth - 1)
    with pytest.raises(ConfigError, match="between two nodes weigh 4294967294 together; at most 2147483647"):
        symmetric(HeteroGraph({"n": 4}, edges), costs, num_threads=num_threads)


def test_any_number_of_threads_gives_the_same_arrays() -> None:
    rng = np.random.default_rng(0)
    graph = plain(50, [tuple(pair) for pair in rng.integers(50, size=(400, 2)).tolist()])
    one, three = symmetric(graph), symmetric(graph, num_threads=3)
    for name in ("indptr", "indices", "weights"):
        assert getattr(one, name).tobytes() == getattr(three, name).tobytes()
    src, dst = graph.edges[EDGE_TYPE]
    expected = np.zeros((50, 50), np.int64)
    np.add.at(expected, (src, dst), 1)
    expected += expected.T
    np.fill_diagonal(expected, 0)
    assert (dense(one) == expected).all()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_list_of_both_directions_gives_the_same_graph_as_one_of_either(num_threads: int) -> None:
    rng = np.random.default_rng(4)
    pairs = rng.integers(30, size=(200, 2))
    reversed_pairs = pairs[:, ::-1]
    once = dense(symmetric(plain(30, pairs.tolist()), num_threads=num_threads))
    twice = np.concatenate([pairs, reversed_pairs])[rng.permutation(400)]
    assert (dense(symmetric(plain(30, twice.tolist()), num_threads=num_threads)) == 2 * once).all()
    # One edge less, or one that points the other way, and the directions differ.
    for wrong in (twice[1:], np.concatenate([twice[:1, ::-1], twice[1:]])):
        expected = np.zeros((30, 30), np.int64)
        np.add.at(expected, tuple(wrong.T), 1)
        expected += expected.T
        np.fill_diagonal(expected, 0)
        assert (dense(symmetric(plain(30, wrong.tolist()), num_threads=num_threads)) == expected).all()


@pytest.mark.parametrize(("pairs", "even"), [([(0, 1), (2, 2), (1, 0)], True), ([(0, 1), (1, 2), (2, 0)], False)])
def test_edges_with_all_their_reverses_are_recognised(pairs: list[tuple[int, int]], even: bool) -> None:
    src, dst = np.array(pairs).T
    excess = count(src, dst, 0, 0, 0, 3, 1, np.zeros(3, np.int32), np.zeros(3, np.int32))
    assert (excess == 0) == even


def test_relations_with_reverses_of_the_same_weights_give_the_weight_of_both() -> None:
    likes, liked = ("a", "likes", "b"), ("b", "liked", "a")
    ids, other = (np.array([0, 1, 1]), np.array([1, 0, 1])), (np.array([0, 0]), np.array([0, 1]))
    graph = HeteroGraph({"a": 2, "b": 2}, {FORWARD: ids, BACKWARD: ids[::-1], likes: other, liked: other[::-1]})
    made = symmetric(graph, {FORWARD: 5, BACKWARD: 5})
    assert dense(made).tolist() == [[0, 0, 2, 12], [0, 0, 10, 10], [2, 10, 0, 0], [12, 10, 0, 0]]


def test_reverses_of_another_relation_count_only_with_the_same_weight() -> None:
    ids = np.array([0, 1, 1]), np.array([1, 0, 1])
    graph = HeteroGraph({"a": 2, "b": 2}, {FORWARD: ids, BACKWARD: ids[::-1]})
    assert dense(symmetric(graph, {FORWARD: 3, BACKWARD: 3}))[1].tolist() == [0, 0, 1, 1]  # all the same
    assert dense(symmetric(graph, {FORWARD: 3}))[1].tolist() == [0, 0, 1, 1]
    uneven = HeteroGraph(graph.num_nodes, {FORWARD: ids, BACKWARD: (ids[1][:2], ids[0][:2])})
    assert dense(symmetric(uneven, {FORWARD: 3})).tolist() == [[0, 0, 0, 4], [0, 0, 4, 3], [0, 4, 0, 0], [4, 3, 0, 0]]


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("late", [False, True])
def test_weights_that_are_even_in_a_thread_but_not_everywhere_are_kept(num_threads: int, late: bool) -> None:
    ring = [(i, (i + step) % 10) for i in range(10) for step in (1, 2, 3)]
    single, double = [(u, v) for u, v in ring], [(u + 10, v + 10) for u, v in ring] * 2
    extra = [(18, 19)] * late
    made = symmetric(plain(20, single + double + extra), num_threads=num_threads)
    expected = np.zeros((20, 20), np.int64)
    np.add.at(expected, tuple(np.array(single + double + extra).T), 1)
    assert (dense(made) == expected + expected.T).all()


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_threads_share_the_edges_of_several_types(num_threads: int) -> None:
    rng = np.random.default_rng(2)
    sizes, kinds = {"a": 9, "b": 6}, [("a", "x", "b"), ("b", "y", "a"), ("a", "z", "a")]
    edges = {
        kind: (rng.integers(sizes[kind[0]], size=number), rng.integers(sizes[kind[2]], size=number))
        for kind, number in zip(kinds, (40, 3, 25), strict=True)
    }
    graph, costs = HeteroGraph(sizes, edges), {kinds[0]: 4, kinds[1]: 7}
    one, many = symmetric(graph, costs), symmetric(graph, costs, num_threads=num_threads)
    for name in ("indptr", "indices", "weights"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes()
    expected = np.zeros((15, 15), np.int64)
    for kind, (src, dst) in edges.items():
        np.add.at(expected, (src + 9 * (kind[0] == "b"), dst + 9 * (kind[2] == "b")), costs.get(kind, 1))
    expected += expected.T
    np.fill_diagonal(expected, 0)
    assert (dense(many) == expected).all()


def test_the_cut_equals_brute_force() -> None:
    rng = np.random.default_rng(1)
    graph = plain(12, [tuple(pair) for pair in rng.integers(12, size=(40, 2)).tolist()])
    adjacency = symmetric(graph)
    src, dst = graph.edges[EDGE_TYPE]
    for _ in range(20):
        parts = rng.integers(3, size=12).astype(np.int32)
        assert adjacency.cut(parts) == (parts[src] != parts[dst]).sum()
    with pytest.raises(PartitionError, match=r"shape \(3,\); expected \(12,\)"):
        adjacency.cut(np.zeros(3, np.int32))


def test_a_graph_without_edges_has_an_empty_adjacency() -> None:
    made = symmetric(plain(4, []))
    assert made.indptr.tolist() == [0, 0, 0, 0, 0]
    assert made.num_entries == 0
