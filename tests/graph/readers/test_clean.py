"""Loops, directions, duplicates, isolated nodes and reverse types: what is done, in which order, and the counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import Contents, ReadOptions, cleaned
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph

WRITES = ("author", "writes", "paper")


def plain(pairs: list[tuple[int, int]], weights: list[float] | None = None, num_nodes: int = 6) -> HeteroGraph:
    src, dst = np.array(pairs).T
    data = {EDGE_TYPE: {"weight": np.array(weights)}} if weights else {}
    return HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: (src, dst)}, edge_data=data)


def pairs_of(graph: HeteroGraph, etype: tuple[str, str, str] = EDGE_TYPE) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges[etype]), strict=True))


def test_nothing_changes_without_an_option() -> None:
    given = [(1, 1), (0, 1), (0, 1), (1, 0)]
    graph = read_graph(plain(given))
    assert pairs_of(graph) == given
    assert graph.counts == {"duplicate edges kept": 1}
    assert not graph.symmetric


def test_loops_are_dropped_and_counted() -> None:
    graph = read_graph(plain([(1, 1), (0, 1), (2, 2)], [1.0, 2.0, 3.0]), self_loops="drop")
    assert pairs_of(graph) == [(0, 1)]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [2.0]
    assert graph.counts == {"self loops dropped": 2}


def test_loops_between_two_node_types_are_none() -> None:
    ends = (np.array([0, 1]), np.array([0, 0]))
    graph = read_graph(HeteroGraph({"author": 2, "paper": 1}, {WRITES: ends}), self_loops="drop")
    assert pairs_of(graph, WRITES) == [(0, 0), (1, 0)]


def test_duplicates_keep_the_first_and_its_place() -> None:
    graph = read_graph(plain([(3, 1), (0, 1), (3, 1), (0, 1)], [1.0, 2.0, 4.0, 8.0]), duplicates="first")
    assert pairs_of(graph) == [(3, 1), (0, 1)]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [1.0, 2.0]
    assert graph.counts == {"duplicate edges dropped": 2}


def test_duplicates_sum_their_weights() -> None:
    graph = read_graph(plain([(3, 1), (0, 1), (3, 1)], [1.0, 2.0, 4.0]), duplicates="sum")
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [5.0, 2.0]
    assert graph.counts == {"duplicate edges summed": 1}


def test_duplicates_without_a_weight_count_one_each() -> None:
    graph = read_graph(plain([(3, 1), (0, 1), (3, 1)]), duplicates="sum")
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [2.0, 1.0]


def test_integer_weights_stay_integers_when_summed() -> None:
    graph = plain([(3, 1), (3, 1)])
    graph.edge_data = {EDGE_TYPE: {"weight": np.array([3, 4], np.int32)}}
    weights = read_graph(graph, duplicates="sum").edge_data[EDGE_TYPE]["weight"]
    assert (weights.tolist(), weights.dtype.kind) == ([7], "i")


def test_undirected_adds_only_reverses_that_are_missing() -> None:
    graph = read_graph(plain([(0, 1), (1, 0), (2, 3), (4, 4)], [1.0, 2.0, 3.0, 4.0]), directed=False)
    assert pairs_of(graph) == [(0, 1), (1, 0), (2, 3), (4, 4), (3, 2)]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [1.0, 2.0, 3.0, 4.0, 3.0]
    assert graph.counts == {"reverse edges added": 1}


def test_a_source_of_undirected_edges_gets_every_reverse() -> None:
    contents = Contents(plain([(0, 1), (1, 0), (4, 4)]), both_ways=True)
    assert pairs_of(cleaned(contents, ReadOptions())) == [(0, 1), (1, 0), (4, 4), (1, 0), (0, 1)]
    assert pairs_of(cleaned(contents, ReadOptions(directed=True))) == [(0, 1), (1, 0), (4, 4)]


def test_isolated_nodes_go_and_the_others_keep_their_ids_and_data() -> None:
    graph = plain([(4, 2), (2, 2)])
    graph.node_data = {NODE_TYPE: {"feat": np.arange(12).reshape(6, 2)}}
    got = read_graph(graph, isolated="drop")
    assert got.num_nodes == {NODE_TYPE: 2}
    assert pairs_of(got) == [(1, 0), (0, 0)]
    assert got.node_ids[NODE_TYPE].tolist() == [2, 4]
    assert got.node_data[NODE_TYPE]["feat"].tolist() == [[4, 5], [8, 9]]
    assert got.counts == {"isolated nodes dropped": 4}
    graph.node_ids = {NODE_TYPE: np.array(list("abcdef"))}
    assert read_graph(graph, isolated="drop").node_ids[NODE_TYPE].tolist() == ["c", "e"]


def test_a_loop_that_is_dropped_leaves_its_node_isolated() -> None:
    got = read_graph(plain([(4, 2), (3, 3)]), isolated="drop", self_loops="drop")
    assert got.node_ids[NODE_TYPE].tolist() == [2, 4]
    with pytest.raises(DataError, match="no node has an edge"):
        read_graph(plain([(3, 3)]), isolated="drop", self_loops="drop")


def test_reverse_types_turn_each_type_round_with_its_data() -> None:
    given = HeteroGraph(
        {"author": 2, "paper": 3},
        {WRITES: (np.array([0, 1]), np.array([2, 0]))},
        edge_data={WRITES: {"year": np.array([7, 8])}},
    )
    graph = read_graph(given, reverse_types=True)
    reverse = ("paper", "rev_writes", "author")
    assert graph.etypes == [WRITES, reverse]
    assert pairs_of(graph, reverse) == [(2, 0), (0, 1)]
    assert graph.edge_data[reverse]["year"].tolist() == [7, 8]
    assert graph.counts == {"reverse edge types added": 1}
    with pytest.raises(DataError, match="paper:rev_writes:author is in the data already"):
        read_graph(
            HeteroGraph({"paper": 3, "author": 2}, {**given.edges, reverse: given.edges[WRITES][::-1]}),
            reverse_types=True,
        )


def test_types_that_hold_both_directions_get_no_reverse_type() -> None:
    cites = ("paper", "cites", "paper")
    given = HeteroGraph(
        {"author": 2, "paper": 3},
        {WRITES: (np.array([0]), np.array([2])), cites: (np.array([0]), np.array([1]))},
    )
    graph = read_graph(given, reverse_types=True, directed=False)
    assert graph.etypes == [WRITES, cites, ("paper", "rev_writes", "author")]
    assert read_graph(given, reverse_types=True).etypes[3] == ("paper", "rev_cites", "paper")


def test_undirected_needs_a_type_with_ends_of_one_type() -> None:
    given = HeteroGraph({"author": 2, "paper": 3}, {WRITES: (np.array([0]), np.array([2]))})
    with pytest.raises(ConfigError, match="use reverse_types=True"):
        read_graph(given, directed=False)


@pytest.mark.parametrize(
    ("option", "value"), [("duplicates", "drop"), ("self_loops", "remove"), ("isolated", "remove")]
)
def test_an_unknown_policy_is_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown {option} policy '{value}'"):
        read_graph(plain([(0, 1)]), **{option: value})


@pytest.mark.parametrize("seed", range(5))
def test_options_together_equal_brute_force(seed: int) -> None:
    stream = np.random.default_rng(seed)
    given = [tuple(pair) for pair in stream.integers(0, 8, (30, 2)).tolist()]
    graph = read_graph(plain(given, num_nodes=8), duplicates="sum", self_loops="drop", directed=False, isolated="drop")
    expected = Counter(pair for pair in given if pair[0] != pair[1])
    for (u, v), count in list(expected.items()):
        if (v, u) not in expected:
            expected[v, u] = count
    names = graph.node_ids.get(NODE_TYPE, np.arange(8))
    got = {
        (names[u], names[v]): w for (u, v), w in zip(pairs_of(graph), graph.edge_data[EDGE_TYPE]["weight"], strict=True)
    }
    assert got == expected
    assert names.tolist() == sorted({node for pair in expected for node in pair})
