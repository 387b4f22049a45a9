"""Sampled neighbourhoods: which edges are kept, how often, and that nothing but the node and the epoch decides it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.compiled import unit_draw
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import torch_threads
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.sampling.blocks import Batch, BlockEdges
from graph_emb.sampling.neighbors import NeighborSampling, choose, kept
from tests.sampling.test_blocks import LIKES, OWNS, tiny

TO = ("n", "to", "n")


def dense(num_nodes: int = 60, num_edges: int = 2400) -> HeteroGraph:
    ends = np.random.default_rng(0).integers(0, num_nodes, (2, num_edges))
    return HeteroGraph({"n": num_nodes}, {TO: (ends[0], ends[1])})


def edges_into(batch: Batch, layer: int, etype: EdgeType, rows: torch.Tensor) -> dict[int, list[int]]:
    """The ids of the edges that a layer keeps into each of its destinations, whose nodes are ``rows``."""
    edges = batch.blocks[layer].edges[etype]
    return {int(v): edges.edge_ids[edges.indptr[t] : edges.indptr[t + 1]].tolist() for t, v in enumerate(rows)}


def test_all_neighbours_of_two_rounds_and_the_targets_first() -> None:
    batch = NeighborSampling(tiny(), (-1, -1)).sample({"b": torch.tensor([2, 0])})
    first, last = batch.blocks
    assert last.num_destinations == {"a": 0, "b": 2}
    assert batch.inputs["b"][:2].tolist() == [2, 0], "targets come first, in their order"
    assert sorted(batch.inputs["a"].tolist()) == [0, 1]
    likes = last.edges[LIKES]
    found = {(int(batch.inputs["a"][s]), (2, 0)[d]) for s, d in zip(likes.sources, likes.destinations, strict=True)}
    assert found == {(0, 2), (1, 2), (1, 0)}
    assert sorted(likes.edge_ids.tolist()) == [0, 1, 2]
    assert last.edges[OWNS].num_edges == 1
    assert first.num_sources == {t: len(ids) for t, ids in batch.inputs.items()}


def test_no_more_than_the_fanout_of_each_type() -> None:
    src = np.arange(1, 9)
    star = HeteroGraph({"n": 9}, {("n", r, "n"): (src, np.zeros(8, np.int64)) for r in ("x", "y")})
    (block,) = NeighborSampling(star, (3,), seed=1).sample({"n": torch.tensor([0])}).blocks
    assert [edges.num_edges for edges in block.edges.values()] == [3, 3]


def test_no_targets_make_an_empty_batch() -> None:
    batch = NeighborSampling(tiny(), (2, 2)).sample({"b": torch.empty(0, dtype=torch.int64)})
    assert {ntype: len(ids) for ntype, ids in batch.inputs.items()} == {"a": 0, "b": 0}
    assert len(batch.blocks) == 2
    assert batch.blocks[0].relations.counts == [0, 0]


@pytest.mark.parametrize("fanouts", [(), (0,), (3, -2)])
def test_fanouts_out_of_range_are_refused(fanouts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="give a positive number or -1"):
        NeighborSampling(tiny(), fanouts)


def test_kept_edges_are_the_graphs_and_none_is_kept_twice() -> None:
    graph = dense()
    src, dst = graph.edges[TO]
    targets = torch.tensor([5, 17, 3])
    batch = NeighborSampling(graph, (7, 4), seed=3).sample({"n": targets})
    first, last = batch.blocks
    inputs = batch.inputs["n"].numpy()
    assert inputs[:3].tolist() == targets.tolist()
    assert len(np.unique(inputs)) == len(inputs)
    for block in (first, last):
        edges = block.edges[TO]
        ids = edges.edge_ids.numpy()
        assert (src[ids] == inputs[edges.sources]).all()
        assert (dst[ids] == inputs[edges.destinations]).all()
        assert len(np.unique(ids)) == len(ids)
        assert edges.num_sources == block.num_sources["n"]
    degrees = np.bincount(dst, minlength=60)[inputs[: last.num_sources["n"]]]
    assert first.edges[TO].degrees.tolist() == np.minimum(degrees, 7).tolist()


def test_a_node_has_one_neighbourhood_whatever_the_batch() -> None:
    """Law 14: alone, among others, in another order, and at any place of another list of the same edges."""
    graph = dense()
    sampling = NeighborSampling(graph, (6, 3), seed=8)
    sampling.start_epoch(2)
    every = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    together = sampling.sample({"n": every})
    last = edges_into(together, 1, TO, every)
    first = edges_into(together, 0, TO, together.inputs["n"])
    for node in (0, 31, 59):
        alone = sampling.sample({"n": torch.tensor([node])})
        assert edges_into(alone, 1, TO, torch.tensor([node])) == {node: last[node]}
        reached = alone.inputs["n"][: alone.blocks[1].num_sources["n"]]
        for inner, ids in edges_into(alone, 0, TO, reached).items():
            assert ids == first[inner]
    assert sum(last[node] != first[node][:3] for node in range(60)) > 50, "each round draws anew"


def test_seed_and_epoch_change_the_draws() -> None:
    graph, targets = dense(), {"n": torch.arange(20)}

    def drawn(seed: int, epoch: int) -> list[int]:
        sampling = NeighborSampling(graph, (5,), seed=seed)
        sampling.start_epoch(epoch)
        return sampling.sample(targets).blocks[0].edges[TO].edge_ids.tolist()

    assert drawn(4, 0) == drawn(4, 0)
    assert len({tuple(drawn(seed, epoch)) for seed in (4, -5, 2**70) for epoch in (0, 1)}) == 6


@pytest.mark.parametrize(("degree", "fanout"), [(10, 3), (7, 6), (40, 1), (300, 80)])
def test_every_edge_and_every_pair_is_kept_equally_often(degree: int, fanout: int) -> None:
    """Chi-square of 4,000 nodes with the same edges, each with its own draws, within four of its standard errors."""
    num = 4000
    row = torch.zeros(num, dtype=torch.int64)
    edges = BlockEdges(torch.tensor([0, degree]), torch.arange(degree), degree, torch.arange(degree))
    found = kept(edges, row, torch.arange(num), fanout, np.uint64(77)).edge_ids.view(num, fanout).numpy()
    assert (np.diff(found, axis=1) > 0).all(), "in rising order, so none twice"
    share = fanout / degree
    counts = np.bincount(found.ravel(), minlength=degree)
    assert_even(counts, num * share, 1 - share, degree - 1)
    if 1 < fanout < 10:
        pairs = np.zeros((degree, degree), np.int64)
        for a in range(fanout):
            for b in range(a + 1, fanout):
                np.add.at(pairs, (found[:, a], found[:, b]), 1)
        both = share * (fanout - 1) / (degree - 1)
        upper = pairs[np.triu_indices(degree, 1)]
        assert abs(upper / (num * both) - 1).max() < 5 * (1 / (num * both)) ** 0.5


@pytest.mark.parametrize(
    ("degree", "count"), [(2, 1), (40, 39), (64, 15), (65, 15), (70, 64), (10_000, 15), (2**40, 5)]
)
def test_the_draws_of_a_node_are_floyds(degree: int, count: int) -> None:
    """Checkpoints continue with the same neighbourhoods: sets of bits and sorted lists hold what a set would."""
    out = np.empty(count, np.int64)
    for stream in range(200):
        choose(np.uint64(stream), degree, out)
        drawn: set[int] = set()
        for last in range(degree - count, degree):
            x = int(unit_draw(np.uint64(stream), last - degree + count) * (last + 1))
            drawn.add(last if x in drawn else x)
        assert out.tolist() == sorted(drawn)


def test_threads_keep_what_one_keeps() -> None:
    """Rows are shared among threads from 4,096 on; the last share ends behind the last row."""
    num = 2 * 4096 + 3
    gen = torch.Generator().manual_seed(0)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, 40, (50,), generator=gen).cumsum(0)])
    edges = BlockEdges(indptr, torch.randint(0, 9, (int(indptr[-1]),), generator=gen), 9, torch.arange(int(indptr[-1])))
    rows = torch.randint(0, 50, (num,), generator=gen)
    with torch_threads(2):
        found = kept(edges, rows, torch.arange(num), 7, np.uint64(5))
    with torch_threads(1):
        alone = kept(edges, rows, torch.arange(num), 7, np.uint64(5))
    assert torch.equal(found.indptr, alone.indptr)
    assert torch.equal(found.edge_ids, alone.edge_ids)
    assert torch.equal(found.sources, edges.sources[found.edge_ids])


def assert_even(counts: np.ndarray, expected: float, variance: float, freedom: int) -> None:
    """Without replacement a count has the variance ``expected * variance``."""
    statistic = float(((counts - expected) ** 2 / (expected * variance)).sum())
    assert abs(statistic - freedom - 1) < 4 * (2 * freedom) ** 0.5 + 1
