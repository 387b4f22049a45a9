from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.graphs import rmat
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.threads import ThreadPool
from graph_emb.graph.typed import EDGE_TYPE, HeteroGraph
from partition.methods import assign
from partition.methods.coarsening import Level, cluster
from partition.methods.effort import EFFORTS, MIXED, Search
from partition.methods.multilevel import Parts, first_parts
from partition.problem import symmetric
from tests.partition.methods.graphs import plain, planted, skewed


def cut(graph: HeteroGraph, parts: np.ndarray) -> int:
    return symmetric(graph).cut(parts)


def test_the_planted_partition_is_found() -> None:
    graph, blocks = planted()
    made = assign(graph, 4, "multilevel").homogeneous()
    for part in range(4):
        assert len(set(blocks[made == part])) == 1


def test_the_cut_is_far_below_random() -> None:
    graph, _ = planted(num_blocks=6, size=100)
    ours, random = assign(graph, 4, "multilevel"), assign(graph, 4, "random")
    assert cut(graph, ours.homogeneous()) < 0.6 * cut(graph, random.homogeneous())


def test_two_cliques_joined_by_one_edge_are_cut_there() -> None:
    clique = [(i, j) for i in range(6) for j in range(i)]
    graph = plain(12, np.array(clique + [(i + 6, j + 6) for i, j in clique] + [(0, 6)]))
    made = assign(graph, 2, "multilevel", balance=["nodes"]).homogeneous()
    assert cut(graph, made) == 1  # all edges weigh the same: a pair counts once


@pytest.mark.parametrize("seed", range(4))
def test_tiny_graphs_are_cut_as_well_as_by_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = plain(10, rng.integers(10, size=(18, 2)))
    best = min(
        cut(graph, parts)
        for code in range(2**9)
        if (parts := np.array([code >> i & 1 for i in range(9)] + [0], np.int32)).sum() == 5
    )
    assert cut(graph, assign(graph, 2, "multilevel", balance=["nodes"]).homogeneous()) == best


def test_many_limits_hold_at_once_on_a_skewed_graph_with_types() -> None:
    graph = skewed()
    names = ["nodes", "types", "train"]
    made = assign(graph, 4, "multilevel", balance=names, tolerance={"type:shop": 0.34, "train": 0.1})
    assert made.balance["nodes"] <= 1.05
    assert made.balance["type:user"] <= 1.05
    assert made.balance["type:item"] <= 1.06  # 79 of 75: the limit is 78.75, rounded down
    assert made.balance["type:shop"] <= 1.34
    assert made.balance["train"] <= 1.1
    random = assign(graph, 4, "random")
    assert cut(graph, made.homogeneous()) < cut(graph, random.homogeneous())


def test_node_weights_of_the_user_are_balanced() -> None:
    rng = np.random.default_rng(0)
    graph, _ = planted()
    graph.node_data["_N"] = {"bytes": rng.integers(1, 50, 240)}
    made = assign(graph, 4, "multilevel", balance=["weight:bytes"], tolerance=0.02)
    loads = np.bincount(made.homogeneous(), weights=graph.node_data["_N"]["bytes"])
    assert loads.max() <= 1.02 * loads.mean()


def test_relation_weights_decide_which_edges_are_cut() -> None:
    """Two matchings of a square: whichever weighs more stays whole."""
    first, second = ("n", "first", "n"), ("n", "second", "n")
    edges = {
        first: (np.array([0, 2]), np.array([1, 3])),
        second: (np.array([1, 3]), np.array([2, 0])),
    }
    graph = HeteroGraph({"n": 4}, edges)
    for heavy in (first, second):
        parts = assign(graph, 2, "multilevel", balance=["nodes"], relation_weights={heavy: 5}).homogeneous()
        src, dst = edges[heavy]
        assert (parts[src] == parts[dst]).all()


def test_a_star_cannot_balance_edges_and_says_which_part() -> None:
    star = HeteroGraph({"_N": 40}, {EDGE_TYPE: (np.arange(1, 40), np.zeros(39, np.int64))})
    with pytest.raises(PartitionError, match=r"multilevel: part \d holds 39 of 39 'edges'.*one node alone weighs 39"):
        assign(star, 4, "multilevel")
    assert assign(star, 4, "multilevel", balance=["nodes"]).balance["nodes"] == 1.0


def test_isolated_nodes_are_shared_out() -> None:
    graph = plain(400, np.array([[0, 1], [1, 2]]))
    made = assign(graph, 4, "multilevel", balance=["nodes"])
    assert np.bincount(made.homogeneous()).max() <= 105


def test_a_tighter_tolerance_is_met() -> None:
    graph, _ = planted(num_blocks=5, size=50)
    made = assign(graph, 4, "multilevel", tolerance=0.0)
    sizes = np.bincount(made.homogeneous())
    assert sizes.max() <= 63  # 250 / 4 rounded up


def test_more_parts_than_a_table_of_connections_allows_are_refined_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, _ = planted(num_blocks=6, size=100)
    monkeypatch.setattr("partition.methods.multilevel.LEAST_TABLE_BYTES", 0)
    monkeypatch.setattr("partition.methods.multilevel.TABLE_BYTES_PER_ENTRY", 0)
    ours, random = assign(graph, 4, "multilevel"), assign(graph, 4, "random")
    assert cut(graph, ours.homogeneous()) < 0.7 * cut(graph, random.homogeneous())


def test_cycles_never_make_the_cut_worse() -> None:
    graph, _ = planted(num_blocks=7, size=80, seed=3)
    once = assign(graph, 5, "multilevel", repeats=1, cycles=0)
    cycled = assign(graph, 5, "multilevel", repeats=1, cycles=2)
    assert cut(graph, cycled.homogeneous()) <= cut(graph, once.homogeneous())


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_finds_the_planted_partition(effort: str) -> None:
    graph, blocks = planted()
    made = assign(graph, 4, "multilevel", effort=effort).homogeneous()
    for part in range(4):
        assert len(set(blocks[made == part])) == 1


def test_more_effort_cuts_less() -> None:
    graph, _ = planted(num_blocks=40, size=60, seed=1)
    cuts = {
        effort: sum(
            cut(graph, assign(graph, 8, "multilevel", seed=seed, effort=effort).homogeneous()) for seed in (0, 1)
        )
        for effort in EFFORTS
    }
    assert cuts["high"] < cuts["default"]


@pytest.mark.parametrize("effort", ["hihg", 3, ["high"]])
def test_an_unknown_effort_is_refused(effort: object) -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match=r"unknown effort .*; known: default, high"):
        assign(graph, 2, "multilevel", effort=effort)


def test_neighbours_that_propose_each_others_label_merge() -> None:
    """Proposals of a batch see the labels from before it: two neighbours in one batch once changed places for ever."""
    pairs = np.arange(400).reshape(200, 2)
    adjacency = symmetric(plain(400, pairs))
    level = Level(adjacency.indptr, adjacency.indices, adjacency.weight_array, np.ones((400, 1), np.int64))
    with ThreadPool(1) as threads:
        labels = cluster(level, np.array([2]), 3, 1, np.random.default_rng(0), threads)
    assert (labels[pairs[:, 0]] == labels[pairs[:, 1]]).all()


def test_levels_between_leave_room_for_the_search_on_the_finest(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, int] = {}
    made = Parts.__init__

    def noted(parts: Parts, level: Level, start: np.ndarray, most: np.ndarray, num_parts: int) -> None:
        limits[level.num_nodes] = int(most[0])
        made(parts, level, start, most, num_parts)

    monkeypatch.setattr(Parts, "__init__", noted)
    graph, _ = planted(num_blocks=6, size=2000)
    assign(graph, 3, "multilevel", balance=["nodes"], tolerance=0.1, repeats=1, cycles=0)
    coarsest, *between, finest = (limits[size] for size in sorted(limits))
    assert coarsest == finest == 4400
    assert between
    assert set(between) == {4380}  # 4,000 and 0.95 of 400


def test_the_best_of_several_ways_goes_on_until_little_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ways down from the level after the graph; on the graph itself one search alone takes its parts on."""
    scores: list[tuple[float, int]] = []
    graph, _ = planted(num_blocks=6, size=2000)
    refine = Parts.refine

    def noted(parts: Parts, *args: Any) -> None:
        if parts.level.num_nodes == 12_000:
            before.append(parts.score)
        refine(parts, *args)
        if 1_000 < parts.level.num_nodes < 12_000:
            scores.append(parts.score)

    monkeypatch.setattr(Parts, "refine", noted)
    monkeypatch.setattr("partition.methods.effort.LEAST_ENTRIES", 0)
    for settled, sure, ways in ((0.0, 0, 4), (1.0, 10**9, 1), (1.0, 0, 3)):
        monkeypatch.setattr("partition.methods.multilevel.SURE_ENTRIES", sure)
        monkeypatch.setattr("partition.methods.multilevel.SETTLED", settled * 1e6)
        monkeypatch.setattr("partition.methods.multilevel.MOST_SETTLED", settled)
        before: list[tuple[float, int]] = []
        scores.clear()
        assign(graph, 4, "multilevel", seed=2)
        assert len(scores) == ways
        assert before == [min(scores)]
        assert ways < 4 or min(scores) < min(scores[0], scores[-1])  # neither the first way nor the last


def test_dense_graphs_whose_clusters_hold_little_are_cut_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of the same density keep the parts that they had."""
    monkeypatch.setattr("partition.methods.effort.DENSE_ENTRIES", (0, 10**6))

    def cuts(graph: HeteroGraph, mixed: float) -> list[int]:
        monkeypatch.setattr("partition.methods.multilevel.MIXED", mixed)
        return [cut(graph, assign(graph, 4, "multilevel", seed=seed).homogeneous()) for seed in range(4)]

    mixed, rng = rmat(11, 40, seed=1), np.random.default_rng(0)
    blocks = rng.integers(40, size=(60_000, 1)) * 50
    clustered = plain(
        2_000, np.concatenate([blocks + rng.integers(50, size=(60_000, 2)), rng.integers(2_000, size=(9_000, 2))])
    )
    assert max(cuts(mixed, MIXED)) < 0.995 * min(cuts(mixed, 1.0))
    assert cuts(clustered, MIXED) == cuts(clustered, 1.0) != cuts(clustered, 0.0)


def test_only_the_best_starts_are_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = planted(num_blocks=6, size=20)
    adjacency = symmetric(graph)
    level = Level(
        adjacency.indptr,
        adjacency.indices,
        adjacency.weight_array,
        np.ones((120, 1), np.int64),
        np.empty(0, np.int32),
    )
    before: list[int] = []
    refine = Parts.refine

    def noted(parts: Parts, *args: Any) -> None:
        before.append(parts.score[1])
        refine(parts, *args)

    monkeypatch.setattr(Parts, "refine", noted)
    cuts = {}
    with ThreadPool(1) as threads:
        for share in (1.0, 0.25, 0.0):
            before.clear()
            effort = replace(EFFORTS["high"], starts=40, tries=1, refined=share)
            first_parts(level, 2, np.array([63]), effort, len(level.indices), np.random.default_rng(0), threads)
            cuts[share] = sorted(before)
    assert [len(found) for found in cuts.values()] == [40, 10, 6]
    assert cuts[0.25] == cuts[1.0][:10]


@pytest.mark.parametrize(("after", "tried"), [(0.0, True), (2.0, False)])
def test_a_search_is_left_out_where_the_round_before_gained_too_little(after: float, tried: bool) -> None:
    graph, _ = planted(num_blocks=6, size=100)
    adjacency = symmetric(graph)
    level = Level(
        adjacency.indptr, adjacency.indices, adjacency.weight_array, np.ones((600, 1), np.int64), np.empty(0, np.int32)
    )
    first = Search(rounds=1, per_search=0, patience=1)
    found = []
    for searches in ((first,), (first, Search(rounds=3, per_search=20, patience=60, after=after))):
        made = Parts(level, np.random.default_rng(0).integers(4, size=600).astype(np.int32), np.array([200]), 4)
        with ThreadPool(1) as threads:
            made.refine(searches, np.random.default_rng(1), threads)
        found.append(made.score[1])
    assert (found[1] < found[0]) == tried


@pytest.mark.parametrize("options", [{"repeats": 0}, {"cycles": -1}, {"repeats": 1.5}, {"repeats": True}])
def test_counts_out_of_range_are_refused(options: dict) -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match="must be an integer of at least"):
        assign(graph, 2, "multilevel", **options)


def test_without_a_limit_it_refuses() -> None:
    graph, _ = planted()
    with pytest.raises(ConfigError, match="everything ends in one part"):
        assign(graph, 2, "multilevel", balance=[])


def test_batches_shared_by_threads_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small levels are not worth threads and stay with one; here every level is handed out."""
    monkeypatch.setattr("partition.methods.coarsening.SERIAL_ENTRIES", 0)
    monkeypatch.setattr("partition.methods.coarsening.ALONE_ENTRIES", 0)
    graph, _ = planted(num_blocks=6, size=400)
    made = {
        assign(graph, 3, "multilevel", seed=4, num_threads=threads).homogeneous().tobytes() for threads in (1, 2, 3)
    }
    assert len(made) == 1
