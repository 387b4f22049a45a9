"""PartitionedWalkSampler: the walks of WalkSampler, whoever holds the arcs.

Every test of several ranks runs a module-level function on each; the single-process result is made in the test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from graph_emb.core.errors import ConfigError, DataError, PartitionError, PeerError, ShapeError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook, RankRanges
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walk_kernels import WALKER
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks
from tests.sampling.test_walks import dense, misfit, second_order

NODES = 60
BOOKS = {1: [0, 60], 2: [0, 13, 60], 3: [0, 20, 20, 60], 4: [0, 1, 25, 50, 60]}
BIASES = [(1.0, 1.0), (0.5, 2.0), (0.05, 1.0), (3.0, 0.3)]
OPTIONS: dict[str, Any] = {"num_walks": 3, "walk_length": 9, "seed": 5}


def random_graph(kind: str) -> Graph:
    """60 nodes, the last five of them alone; of the directed ones many have no out-arc."""
    rng = np.random.default_rng(3)
    count = {"sparse": 60, "directed": 90}.get(kind, 240)
    src, dst = rng.integers(0, 55, count), rng.integers(0, 55, count)
    weights = rng.uniform(0.1, 4.0, count) if kind in ("weighted", "directed") else None
    return Graph.from_edges(src, dst, num_nodes=NODES, weights=weights, directed=kind == "directed")


def places(world_size: int, parts: int) -> RankRanges:
    return layout(RangeBook(BOOKS[parts]), world_size, None, "walks")


def walk_on_a_rank(parts: int, kinds: list[str], batch_sizes: list[int]) -> dict[Any, Any]:
    group = ProcessGroup()
    found = {}
    try:
        for kind in kinds:
            part = PartGraph.of_graph(random_graph(kind), places(group.world_size, parts), group.rank)
            for p, q in BIASES:
                sampler = PartitionedWalkSampler(part, group, p=p, q=q, **OPTIONS)
                for size in batch_sizes:
                    batches = list(sampler.numbered_batches(size, epoch=1, num_threads=size % 2 + 1))
                    found[kind, p, q, size] = batches
        return found
    finally:
        group.close()


KINDS = ["plain", "sparse", "weighted", "directed"]


@pytest.mark.dist
@pytest.mark.parametrize(("world_size", "parts"), [(1, 3), (2, 2), (3, 3), (3, 4), (4, 2)])
def test_walks_are_those_of_one_process_whatever_the_ranks(ranks: Ranks, world_size: int, parts: int) -> None:
    answers = ranks.run(walk_on_a_rank, world_size, parts, KINDS, [100, 180])
    for kind in KINDS:
        for p, q in BIASES:
            (expected,) = WalkSampler(random_graph(kind), p=p, q=q, **OPTIONS).batches(180, epoch=1)
            for size in (100, 180):
                own = [answer[kind, p, q, size] for answer in answers]
                assert {len(batches) for batches in own} == {-(-180 // size)}
                index = np.concatenate([index for batches in own for _, index in batches])
                walks = np.concatenate([walks for batches in own for walks, _ in batches])
                assert sorted(index) == list(range(180))
                np.testing.assert_array_equal(walks[np.argsort(index)], expected, err_msg=f"{kind} {p} {q} {size}")
                for rank, batches in enumerate(own):
                    low, high = places(world_size, parts).owned(rank)
                    starts = np.concatenate([walks[:, 0] for walks, _ in batches])
                    assert ((starts >= low) & (starts < high)).all()


def long_walks_on_a_rank(p: float, q: float) -> tuple[np.ndarray, int]:
    group = ProcessGroup()
    try:
        part = PartGraph.of_graph(
            small_graph(), layout(RangeBook([0, 2, 4, 6]), group.world_size, None, "w"), group.rank
        )
        sampler = PartitionedWalkSampler(part, group, p=p, q=q, num_walks=1000, walk_length=12, seed=8)
        return np.concatenate([walks for walks, _ in sampler.numbered_batches(2000)]), sampler.bytes_sent
    finally:
        group.close()


def small_graph() -> Graph:
    edges = np.array([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (2, 5), (1, 5), (0, 4)])
    return Graph.from_edges(edges[:, 0], edges[:, 1], weights=0.25 + np.arange(9) % 4)


@pytest.mark.dist
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (4.0, 0.5)])
def test_steps_have_the_probabilities_of_the_definition(ranks: Ranks, p: float, q: float) -> None:
    walks = np.concatenate([walks for walks, _ in ranks.run(long_walks_on_a_rank, 3, p, q)])
    adjacency = dense(small_graph())
    t, v, x = (walks[:, i : i + 10].ravel() for i in range(3))
    counts = np.zeros((6, 6, 6))
    np.add.at(counts, (t, v, x), 1)
    fits = [
        misfit(counts[a, b], second_order(adjacency, a, b, p, q)) for a in range(6) for b in range(6) if adjacency[a, b]
    ]
    distance, freedom = np.sum(fits, axis=0)
    assert freedom >= 20
    assert chi2.sf(distance, freedom) > 1e-4


@pytest.mark.dist
def test_neighbours_travel_only_where_the_bias_asks_for_them(ranks: Ranks) -> None:
    sent = {q: [count for _, count in ranks.run(long_walks_on_a_rank, 3, 0.5, q)] for q in (1.0, 1.0000001)}
    assert all(0 < without < rows for without, rows in zip(sent[1.0], sent[1.0000001], strict=True))


def test_without_a_group_the_part_is_the_whole_graph() -> None:
    graph = random_graph("weighted")
    part = PartGraph.of_graph(graph, places(1, 3), 0)
    (found,) = PartitionedWalkSampler(part, **OPTIONS).numbered_batches(180)
    (expected,) = WalkSampler(graph, **OPTIONS).numbered_batches(180)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def arcs_on_a_rank(kind: str, exchanged: bool) -> list[Any]:
    """Rows from the arcs that a part in DGL's format holds: those that arrive at its nodes."""
    group = ProcessGroup()
    try:
        graph, where = random_graph(kind), places(group.world_size, 3)
        low, high = where.owned(group.rank)
        mine = np.flatnonzero((graph.indices >= low) & (graph.indices < high))
        mine = np.concatenate([mine[::-1], mine[:3]])  # in no order, some of them twice
        src, dst = graph.sources()[mine], graph.indices[mine]
        weights = None if graph.weights is None else graph.weights[mine]
        if not exchanged:
            src, dst = dst, src
        part = PartGraph.from_arcs(
            src, dst, where, group.rank, weights=weights, directed=graph.directed, group=group if exchanged else None
        )
        return [part.indptr, part.indices, part.weights]
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize(("kind", "exchanged"), [("weighted", False), ("directed", True), ("plain", True)])
def test_rows_from_arcs_are_those_of_the_graph(ranks: Ranks, kind: str, exchanged: bool) -> None:
    for rank, found in enumerate(ranks.run(arcs_on_a_rank, 3, kind, exchanged)):
        expected = PartGraph.of_graph(random_graph(kind), places(3, 3), rank)
        for mine, other in zip(found, (expected.indptr, expected.indices, expected.weights), strict=True):
            np.testing.assert_array_equal(mine, other)


def weights_on_one_rank() -> str:
    group = ProcessGroup()
    try:
        weights = np.ones(1) if group.rank else None
        where = places(2, 2)
        with pytest.raises(ConfigError) as caught:
            PartGraph.from_arcs([0], [1], where, group.rank, weights=weights, group=group)
        return str(caught.value)
    finally:
        group.close()


@pytest.mark.dist
def test_weights_on_some_ranks_only_are_refused(ranks: Ranks) -> None:
    for said in ranks.run(weights_on_one_rank, 2):
        assert "ranks with weights: [False, True]" in said


def test_arcs_that_do_not_fit_the_part_are_refused() -> None:
    where = places(2, 2)
    with pytest.raises(PartitionError, match=r"leaves node 13, outside of its range \[0, 13\)"):
        PartGraph.from_arcs([0, 13], [1, 1], where, 0)
    with pytest.raises(DataError, match=r"node 60 is outside \[0, 60\)"):
        PartGraph.from_arcs([0], [60], where, 0)
    with pytest.raises(ShapeError, match="src has 1 ids, dst has 2"):
        PartGraph.from_arcs([0], [1, 2], where, 0)
    with pytest.raises(PartitionError, match="covers 60 nodes, the graph has 6"):
        PartGraph.of_graph(small_graph(), where, 0)
    with pytest.raises(ShapeError, match=r"indptr of rank 0: .* expected .*, \(14,\)"):
        PartGraph(np.zeros(3, np.int64), np.zeros(0, np.int32), None, False, where, 0)


def disagree(what: str) -> str:
    group = ProcessGroup()
    try:
        part = PartGraph.of_graph(random_graph("plain"), places(2, 2), group.rank)
        if what == "options":
            PartitionedWalkSampler(part, group, q=1.0 + group.rank)
        sampler = PartitionedWalkSampler(part, group, **OPTIONS)
        ((walks, _),) = sampler.numbered_batches(180)
        if group.rank == 0:  # as where one rank has left the walks of a batch and the other has not
            sampler._bring_home([np.empty(0, np.int32)] * 2, walks)
        sampler._move(np.empty(0, WALKER), 0)
    except (ConfigError, PeerError) as error:
        return str(error)
    finally:
        group.close()
    return "nothing"


@pytest.mark.dist
def test_ranks_that_differ_are_told(ranks: Ranks) -> None:
    for said in ranks.run(disagree, 2, "options"):
        assert "walk options differ between ranks" in said
    for rank, said in enumerate(ranks.run(disagree, 2, "calls")):
        assert f"rank {rank} is in walks over partitions, rank {1 - rank} in another call" in said


def test_a_part_of_another_rank_is_refused() -> None:
    part = PartGraph.of_graph(random_graph("plain"), places(2, 2), 1)
    with pytest.raises(ConfigError, match="that of rank 1 of 2, this process is rank 0 of 1"):
        PartitionedWalkSampler(part)
