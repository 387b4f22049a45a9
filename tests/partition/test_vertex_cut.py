"""Owners of edges, HDRF against the rule written in plain Python, and buckets that hold every edge once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment
from partition.vertex_cut import buckets, edge_owner, vertex_cut
from tests.partition.report.graphs import CITES, WRITES, communities, random_typed


def test_owners_follow_the_end_that_the_rule_names() -> None:
    graph, assignment = random_typed(seed=0, num_parts=3)
    author, paper = assignment.parts["author"], assignment.parts["paper"]
    src, dst = graph.edges[WRITES]
    assert edge_owner(graph, assignment)[WRITES].tolist() == paper[dst].tolist()
    assert edge_owner(graph, assignment, "source")[WRITES].tolist() == author[src].tolist()
    with pytest.raises(ConfigError, match=r"balnced.*did you mean 'balanced'"):
        edge_owner(graph, assignment, "balnced")


def test_balanced_owners_are_an_end_each_and_spread_a_star() -> None:
    # every edge enters node 0, whose part 0 would own all nine
    ends = (np.arange(1, 10), np.zeros(9, np.int64))
    graph = HeteroGraph({NODE_TYPE: 10}, {EDGE_TYPE: ends})
    _, assignment = communities(seed=0, num_nodes=200, groups=4)
    assignment.parts = {NODE_TYPE: np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2], np.int32)}
    assignment.num_parts = 3
    owner = edge_owner(graph, assignment, "balanced")[EDGE_TYPE]
    parts = assignment.parts[NODE_TYPE]
    assert all(own in (parts[u], parts[v]) for own, u, v in zip(owner, *ends, strict=True))
    assert np.bincount(owner).tolist() == [3, 3, 3]


@pytest.mark.parametrize("seed", range(3))
def test_balancing_never_grows_the_largest_part(seed: int) -> None:
    graph, assignment = random_typed(seed, num_parts=4)
    largest = [
        np.bincount(np.concatenate(list(edge_owner(graph, assignment, rule).values())), minlength=4).max()
        for rule in ("destination", "balanced")
    ]
    assert largest[1] <= largest[0]


@pytest.mark.parametrize(("data", "kept"), [({"w": np.arange(2.0)}, 1), ({}, 0)])
def test_balancing_leaves_a_part_its_last_edge_of_a_type_with_data(data: dict[str, np.ndarray], kept: int) -> None:
    """The heavy part gave its only edge of the small type away, and DGL's server of that part would die."""
    large, small = (NODE_TYPE, "large", NODE_TYPE), (NODE_TYPE, "small", NODE_TYPE)
    # part 0 holds all edges of the large type; of the small one an edge from part 1 enters each part
    graph = HeteroGraph(
        {NODE_TYPE: 6},
        {large: (np.arange(90) % 3, np.arange(90) % 3), small: (np.array([3, 4]), np.array([0, 5]))},
        edge_data={small: data},
    )
    assignment = Assignment({NODE_TYPE: np.array([0, 0, 0, 1, 1, 1], np.int32)}, 2)
    owners = edge_owner(graph, assignment, "balanced")[small]
    assert np.bincount(owners, minlength=2).tolist() == [kept, 2 - kept]


def plain_hdrf(edges: list[tuple[int, int]], num_parts: int, weight: float, limit: int) -> list[int]:
    """HDRF as the paper writes it, sets and all."""
    held: dict[int, set[int]] = {}
    degree: dict[int, int] = {}
    size = [0] * num_parts
    owners = []
    for u, v in edges:
        for node in (u, v):
            degree[node] = degree.get(node, 0) + 1
        theta = degree[u] / (degree[u] + degree[v])
        scores = []
        for part in range(num_parts):
            score = weight * (max(size) - size[part]) / (1 + max(size) - min(size))
            score += (1 + 1 - theta) * (part in held.get(u, set()))
            score += (1 + theta) * (part in held.get(v, set()))
            scores.append(score if size[part] < limit else -1.0)
        best = scores.index(max(scores))
        owners.append(best)
        size[best] += 1
        held.setdefault(u, set()).add(best)
        held.setdefault(v, set()).add(best)
    return owners


@pytest.mark.parametrize(("num_parts", "weight"), [(3, 1.0), (5, 2.0), (70, 1.0)])
def test_hdrf_equals_the_rule_in_plain_python(num_parts: int, weight: float) -> None:
    graph, _ = random_typed(seed=4, num_parts=2)
    edges = list(zip(*(ends.tolist() for ends in graph.edges[WRITES]), strict=True))
    edges = [(u, v + 7) for u, v in edges]
    edges += [(u + 7, v + 7) for u, v in zip(*(ends.tolist() for ends in graph.edges[CITES]), strict=True)]
    made = vertex_cut(graph, num_parts, seed=None, balance_weight=weight, tolerance=0.1)
    expected = plain_hdrf(edges, num_parts, weight, int(np.ceil(1.1 * len(edges) / num_parts)))
    assert np.concatenate([made.parts[WRITES], made.parts[CITES]]).tolist() == expected
    held = {(node, part) for edge, part in zip(edges, expected, strict=True) for node in edge}
    replicas = [sum(1 for node, _ in held if node == wanted) for wanted in range(20)]
    assert made.num_replicas.tolist() == replicas
    assert made.replication_factor == pytest.approx(len(held) / sum(count > 0 for count in replicas))


def test_hdrf_keeps_its_tolerance_and_repeats_for_a_seed() -> None:
    graph, _ = communities(seed=1, num_nodes=400)
    first, second, other = (vertex_cut(graph, 7, seed=seed, tolerance=0.01) for seed in (3, 3, 4))
    assert np.array_equal(first.parts[EDGE_TYPE], second.parts[EDGE_TYPE])
    assert not np.array_equal(first.parts[EDGE_TYPE], other.parts[EDGE_TYPE])
    limit = int(np.ceil(1.01 * graph.total_edges / 7))
    assert np.bincount(first.parts[EDGE_TYPE], minlength=7).max() <= limit
    assert first.edge_balance == np.bincount(first.parts[EDGE_TYPE]).max() / (graph.total_edges / 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_parts": 0}, "num_parts=0"),
        ({"num_parts": 2, "tolerance": -0.1}, "tolerance=-0.1"),
        ({"num_parts": 2, "balance_weight": float("nan")}, "balance_weight=nan"),
    ],
)
def test_hdrf_refuses_options_outside_their_limits(options: dict, message: str) -> None:
    graph, _ = random_typed(seed=0, num_parts=2)
    with pytest.raises(ConfigError, match=message):
        vertex_cut(graph, **options)


def test_a_graph_without_edges_is_refused() -> None:
    graph = HeteroGraph({NODE_TYPE: 3}, {EDGE_TYPE: (np.empty(0, np.int64), np.empty(0, np.int64))})
    with pytest.raises(DataError, match="without edges"):
        vertex_cut(graph, 2)


@pytest.mark.data
def test_hdrf_replicates_ddi_as_published_measurements_say(shared_data: Path) -> None:
    graph = read_graph("ogbl-ddi", root=shared_data, directed=True)
    made = vertex_cut(graph, 4)
    assert made.replication_factor < 2.95  # random edges: 3.84, degree-based hashing: 3.20
    assert made.edge_balance <= 1.05


@pytest.mark.parametrize("num_parts", [3, 260])
def test_buckets_hold_every_edge_once_by_the_parts_of_its_ends(num_parts: int) -> None:
    graph, assignment = random_typed(seed=0, num_parts=3)
    if num_parts > 256:  # more than 16 bits of buckets
        graph, assignment = communities(seed=0, num_nodes=400)
        assignment.parts = {NODE_TYPE: (np.arange(400) % 260).astype(np.int32)}
        assignment.num_parts = 260
    made = buckets(graph, assignment)
    for etype, (src, dst) in graph.edges.items():
        seen = []
        for i, j in np.ndindex(num_parts, num_parts):
            ids = made.edges(etype, i, j)
            assert (assignment.parts[etype[0]][src[ids]] == i).all()
            assert (assignment.parts[etype[2]][dst[ids]] == j).all()
            assert (np.diff(ids) > 0).all()
            seen += ids.tolist()
        assert sorted(seen) == list(range(len(src)))
    assert made.counts.sum() == graph.total_edges
    inside = sum((assignment.parts[e[0]][s] == assignment.parts[e[2]][d]).sum() for e, (s, d) in graph.edges.items())
    assert made.diagonal == pytest.approx(inside / graph.total_edges)
    assert made.balance == pytest.approx(made.counts.max() * num_parts**2 / graph.total_edges)


def test_a_bucket_outside_the_parts_is_refused() -> None:
    graph, assignment = random_typed(seed=0, num_parts=3)
    with pytest.raises(ConfigError, match=r"part 3 is outside \[0, 3\)"):
        buckets(graph, assignment).edges(WRITES, 0, 3)
