"""Forecasts equal their formulas in plain Python, and what real walks and real sampling pull within ten per cent."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.graph.csr import Graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.sampling.walks import WalkSampler
from partition.assignment import Assignment
from partition.kernels import forecast as kernels
from partition.report import forecast
from partition.report.forecast import FlatGraph, forecast_samples, forecast_walks
from tests.partition.report.graphs import communities, random_typed

TOLERANCE = 0.10


def homogeneous_edges(graph: HeteroGraph, assignment: Assignment) -> list[tuple[int, int, float, tuple]]:
    offsets = graph.node_offsets
    return [
        (int(u) + offsets[etype[0]], int(v) + offsets[etype[2]], float(w), etype)
        for etype, ends in graph.edges.items()
        for u, v, w in zip(*ends, graph.edge_data[etype]["weight"], strict=True)
    ]


@pytest.mark.parametrize(("seed", "num_parts"), [(0, 2), (1, 3), (2, 5), (3, 1)])
def test_walks_equal_brute_force(seed: int, num_parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MOST_COLUMNS", 3)
    graph, assignment = random_typed(seed, num_parts)
    parts, edges, length = assignment.homogeneous(), homogeneous_edges(graph, assignment), 5
    visits, remote = np.zeros(length), np.zeros(length)
    by_part = np.zeros((num_parts, 2))
    for start in range(20):
        mass = {start: 1 / 20}
        for step in range(length):
            here, away = sum(mass.values()), sum(m for node, m in mass.items() if parts[node] != parts[start])
            visits[step] += here
            remote[step] += away
            by_part[parts[start]] += here, away
            after: dict[int, float] = {}
            for node, m in mass.items():
                out = [(v, w) for u, v, w, _ in edges if u == node]
                for v, w in out:
                    after[v] = after.get(v, 0.0) + m * w / sum(weight for _, weight in out)
            mass = after
    other = parts[::-1].copy()
    got = forecast_walks(FlatGraph(graph), [other, parts], num_parts, length)[1]
    np.testing.assert_allclose(got.visits, visits, atol=1e-6)
    np.testing.assert_allclose(got.remote, remote, atol=1e-6)
    np.testing.assert_allclose(got.by_part, by_part[:, 1] / by_part[:, 0], atol=1e-6)
    assert got.share == pytest.approx(remote.sum() / visits.sum())


@pytest.mark.parametrize(("seed", "num_parts"), [(0, 2), (1, 3), (2, 5)])
def test_samples_of_all_neighbours_equal_brute_force(seed: int, num_parts: int) -> None:
    graph, assignment = random_typed(seed, num_parts)
    parts, edges = assignment.homogeneous(), homogeneous_edges(graph, assignment)
    train = np.concatenate([np.zeros(7, bool), graph.node_data["paper"]["train_mask"], np.zeros(2, bool)])
    other = parts[::-1].copy()
    got = forecast_samples(FlatGraph(graph), [other, parts], num_parts, (99, 99), batch_size=99)[1]
    for part in range(num_parts):
        needed = set(np.flatnonzero(train & (parts == part)).tolist())
        for hop in range(2):
            needed |= {u for u, v, _, _ in edges if v in needed}
            assert got[hop].rows[part] == len(needed)
            assert got[hop].remote[part] == sum(parts[node] != part for node in needed)


def test_one_batch_draws_distinct_edges_with_equal_chance() -> None:
    # 1 seed with 6 in-edges from distinct nodes, of which 3 are in the other part; 4 are drawn
    graph = HeteroGraph(
        {NODE_TYPE: 7},
        {EDGE_TYPE: (np.arange(1, 7), np.zeros(6, np.int64))},
        {NODE_TYPE: {"train_mask": np.arange(7) == 0}},
    )
    parts = np.array([0, 0, 0, 0, 1, 1, 1], np.int32)
    counts = np.zeros(7)
    groups = FlatGraph(graph).groups_by_destination()
    for key in range(3000):
        mark, reached, found = np.full(7, -1), np.empty(7, np.int64), np.zeros((2, 1), np.int64)
        kernels.sample_batch(
            np.array([0]), *groups, np.array([4]), np.uint64(key << 32), mark, 0, reached, parts, 0, found,
        )  # fmt: skip
        assert found[0, 0] == 5
        assert found[1, 0] == (parts[mark == 0] == 1).sum()
        counts += mark == 0
    assert counts[0] == 3000
    np.testing.assert_allclose(counts[1:] / 3000, 4 / 6, atol=0.03)


def test_samples_of_all_neighbours_are_counted_exactly() -> None:
    # 0 -> 1 -> 2 and 3 -> 2; parts {2}, {0, 1, 3}: the seed 2 needs 1 and 3, then 0
    ends = (np.array([0, 1, 3]), np.array([1, 2, 2]))
    graph = HeteroGraph({NODE_TYPE: 4}, {EDGE_TYPE: ends}, {NODE_TYPE: {"train_mask": np.arange(4) == 2}})
    parts = np.array([1, 1, 0, 1], np.int32)
    ((one, two),) = forecast_samples(FlatGraph(graph), [parts], 2, (9, 9), batch_size=5)
    assert (one.rows.tolist(), one.remote.tolist()) == ([pytest.approx(3), 0], [pytest.approx(2), 0])
    assert (two.rows.tolist(), two.remote.tolist()) == ([pytest.approx(4), 0], [pytest.approx(3), 0])
    assert two.share == pytest.approx(3 / 4)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_simulated_walks_are_near_the_exact_ones(is_weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, assignment = communities(seed=2)
    src, dst = graph.edges[EDGE_TYPE]
    if is_weighted:  # heavy edges go up, so that no walk that ignores weights would fit
        graph.edge_data = {EDGE_TYPE: {"weight": np.where(src < dst, 8.0, 0.5)}}
    dead_end = src != 17
    graph.edges = {EDGE_TYPE: (src[dead_end], dst[dead_end])}
    graph.edge_data = {e: {"weight": c["weight"][dead_end]} for e, c in graph.edge_data.items()}
    parts = [assignment.homogeneous(), (np.arange(4000) % 4).astype(np.int32)]
    exact = forecast_walks(FlatGraph(graph), parts, 4, 10)
    monkeypatch.setattr(forecast, "EXACT_WORK", 0)
    simulated = forecast_walks(FlatGraph(graph), parts, 4, 10)
    for one, other in zip(exact, simulated, strict=True):
        assert (one.num_simulated, other.num_simulated) == (0, 200_000)
        np.testing.assert_allclose(other.visits, one.visits, atol=0.005)
        np.testing.assert_allclose(other.remote, one.remote, atol=0.005)
        np.testing.assert_allclose(other.by_part, one.by_part, atol=0.01)


@pytest.mark.parametrize("work", [0, 10**12])
def test_forecasts_do_not_depend_on_the_number_of_threads(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, assignment = communities(seed=2, num_nodes=1000)
    parts = assignment.homogeneous()
    monkeypatch.setattr(forecast, "EXACT_WORK", work)
    monkeypatch.setattr(forecast, "SIMULATED_WALKS", 5000)
    found = []
    for num_threads in (1, 3):
        monkeypatch.setattr(forecast, "thread_count", lambda _, num=num_threads: num)
        (walks,) = forecast_walks(FlatGraph(graph), [parts], 4, 6)
        ((hop,),) = forecast_samples(FlatGraph(graph), [parts], 4, (3,), batch_size=50)
        found.append([walks.visits, walks.remote, walks.by_part, hop.rows, hop.remote])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("seed", [0, 1])
def test_deepwalk_really_pulls_what_is_forecast(seed: int) -> None:
    graph, assignment = communities(seed)
    (ends,) = graph.edges.values()
    parts = assignment.homogeneous()
    sampler = WalkSampler(
        Graph.from_edges(*ends, num_nodes=graph.total_nodes, directed=True), num_walks=2, walk_length=20, seed=seed
    )
    walks = np.concatenate(list(sampler.batches(num_threads=1)))
    visited = walks >= 0
    really = (visited & (parts[walks] != parts[walks[:, :1]])).sum() / visited.sum()
    expected = forecast_walks(FlatGraph(graph), [parts], 4, 20)[0].share
    assert 0.05 < expected < 0.75
    assert abs(expected - really) <= TOLERANCE * really


@pytest.mark.parametrize("fanouts", [(25, 10), (5, 5), (3, 2)])
def test_two_hop_sampling_really_needs_what_is_forecast(fanouts: tuple[int, int]) -> None:
    import torch

    from graph_emb.compat.dgl import load

    dgl = load()
    graph, assignment = communities(seed=5)
    (ends,) = graph.edges.values()
    parts = torch.from_numpy(assignment.homogeneous())
    whole = dgl.graph(ends, num_nodes=graph.total_nodes)
    (expected,) = forecast_samples(FlatGraph(graph), [parts.numpy()], 4, fanouts, batch_size=125)
    dgl.seed(0)
    torch.manual_seed(0)
    rows, remote = np.zeros(2), np.zeros(2)
    for part in range(4):
        own = torch.nonzero(parts == part).flatten()
        for seeds in own[torch.randperm(len(own))].split(125):
            for hop in (1, 2):
                sampler = dgl.dataloading.NeighborSampler(list(fanouts[:hop][::-1]))
                needed, _, _ = sampler.sample_blocks(whole, seeds)
                rows[hop - 1] += len(needed)
                remote[hop - 1] += int((parts[needed] != part).sum())
    for hop in range(2):
        assert abs(expected[hop].share - remote[hop] / rows[hop]) <= TOLERANCE * remote[hop] / rows[hop]
        assert abs((expected[hop].rows * 8).sum() - rows[hop]) <= TOLERANCE * rows[hop]


def test_sampling_of_typed_graphs_draws_from_each_edge_type() -> None:
    import torch

    from graph_emb.compat.dgl import load

    dgl = load()
    stream = np.random.default_rng(0)
    edges = {
        ("user", "buys", "item"): (stream.integers(0, 2000, 12000), (stream.random(12000) ** 3 * 500).astype(int)),
        ("item", "sold to", "user"): (stream.integers(0, 500, 9000), stream.integers(0, 2000, 9000)),
        ("user", "knows", "user"): (stream.integers(0, 2000, 8000), stream.integers(0, 2000, 8000)),
    }
    seeds = np.arange(2000) % 5 == 0
    graph = HeteroGraph({"user": 2000, "item": 500}, edges, {"user": {"train_mask": seeds}})
    parts = {"user": np.arange(2000) // 700, "item": np.arange(500) % 3}
    assignment = Assignment({ntype: own.astype(np.int32) for ntype, own in parts.items()}, 3)
    flat = FlatGraph(graph)
    ((_, expected),) = forecast_samples(flat, [assignment.homogeneous()], 3, (4, 2), batch_size=20)
    whole = dgl.heterograph(edges, num_nodes_dict=graph.num_nodes)
    dgl.seed(1)
    torch.manual_seed(1)
    rows, remote = np.zeros(3), np.zeros(3)
    for part in range(3):
        own = torch.from_numpy(np.flatnonzero(seeds & (parts["user"] == part)))
        for batch in own[torch.randperm(len(own))].split(20):
            needed, _, _ = dgl.dataloading.NeighborSampler([2, 4]).sample_blocks(whole, {"user": batch})
            for ntype, nodes in needed.items():
                rows[part] += len(nodes)
                remote[part] += (parts[ntype][nodes.numpy()] != part).sum()
    np.testing.assert_allclose(expected.rows * expected.batches, rows, rtol=TOLERANCE)
    np.testing.assert_allclose(expected.remote * expected.batches, remote, rtol=TOLERANCE)
