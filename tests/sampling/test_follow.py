"""A sampler that follows a graph that has grown draws what one that is made for it draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import HeteroGraph
from graph_emb.sampling.negatives import NegativeSampler, UniformSampler
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks
from tests.sampling.test_metapath_walks import MetapathSampler, states

SIZES = (40, 55)
"""Nodes before and after."""
WALKS: dict[str, Any] = {"num_walks": 2, "walk_length": 8, "seed": 3}


def graph_of(num_nodes: int, *, directed: bool = False, weighted: bool = True) -> Graph:
    """The edges of fewer nodes are the first ones of more."""
    rng = np.random.default_rng(0)
    ends, weights = rng.integers(0, num_nodes, (4 * SIZES[1], 2)), rng.uniform(0.5, 2.0, 4 * SIZES[1])
    ends[: 4 * SIZES[0]] = np.random.default_rng(1).integers(0, SIZES[0], (4 * SIZES[0], 2))
    ends, weights = ends[: 4 * num_nodes], weights[: 4 * num_nodes]
    return Graph.from_edges(*ends.T, num_nodes=num_nodes, weights=weights if weighted else None, directed=directed)


def typed(papers: int) -> HeteroGraph:
    rng = np.random.default_rng(papers)
    by = ("paper", "by", "author")
    return HeteroGraph({"author": 9, "paper": papers}, {by: (np.arange(papers), rng.integers(0, 9, papers))})


def batches_of(sampler: Any, epoch: int) -> list[np.ndarray]:
    return [array for pair in sampler.numbered_batches(32, epoch=epoch, num_threads=2) for array in pair]


MAKERS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "deepwalk": (graph_of, lambda graph: WalkSampler(graph, **WALKS)),
    "node2vec": (lambda num: graph_of(num, directed=True), lambda graph: WalkSampler(graph, p=0.5, q=2.0, **WALKS)),
    "no weights": (lambda num: graph_of(num, weighted=False), lambda graph: WalkSampler(graph, **WALKS)),
    "starts": (graph_of, lambda graph: WalkSampler(graph, starts=np.array([3, 5, 30]), **WALKS)),
    "edges": (graph_of, lambda graph: EdgeSampler.of_graph(graph, draws_per_edge=2, seed=4)),
    "edges at ends": (graph_of, lambda graph: EdgeSampler.of_graph(graph, draws_per_edge=2, ends=np.array([1, 7]))),
    "metapath": (
        lambda num: states("author-paper-author", typed(num)),
        lambda graph: MetapathSampler(graph, num_walks=2, walk_length=5),
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_walks_and_degrees_are_those_of_a_new_sampler(kind: str) -> None:
    of_size, make = MAKERS[kind]
    before, after = (of_size(num) for num in SIZES)
    sampler, anew = make(before), make(after)
    first = batches_of(sampler, 0)
    sampler.follow(after)
    found, wanted = batches_of(sampler, 1), batches_of(anew, 1)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert np.array_equal(sampler.degrees(), anew.degrees())
    assert sampler.num_walks_per_epoch == anew.num_walks_per_epoch
    assert any(not np.array_equal(a, b) for a, b in zip(first, batches_of(sampler, 0), strict=False))


def test_an_epoch_that_is_under_way_ends_with_an_error() -> None:
    sampler = WalkSampler(graph_of(SIZES[0]), **WALKS)
    walks = sampler.batches(16)
    next(walks)
    sampler.follow(graph_of(SIZES[1]))
    with pytest.raises(ConfigError, match="follows another graph since this epoch began; begin it anew"):
        next(walks)


@pytest.mark.parametrize("kind", [NegativeSampler, UniformSampler])
def test_negatives_meet_the_new_nodes(kind: Any) -> None:
    degrees = [WalkSampler(graph_of(num), **WALKS).degrees() for num in SIZES]
    given = degrees if kind is NegativeSampler else SIZES
    sampler, anew = (kind(own, seed=2, low=5) for own in given)
    assert np.isclose(sampler.probabilities.sum(), 1.0)
    sampler.follow(degrees[1])
    assert np.array_equal(sampler.sample(50, 7, epoch=3), anew.sample(50, 7, epoch=3))
    assert np.array_equal(sampler.probabilities, anew.probabilities)
    with pytest.raises(ConfigError, match="a graph of 40 nodes to follow: the one before has 55"):
        sampler.follow(degrees[0])


def test_neighbourhoods_reach_the_new_nodes() -> None:
    before, after = (typed(num) for num in SIZES)
    sampler, anew = (NeighborSampling(graph, (3, 2), seed=1) for graph in (before, after))
    asked = {"author": torch.arange(9)}
    sampler.sample(asked)
    sampler.follow(after)
    for own in (sampler, anew):
        own.start_epoch(2)
    found, wanted = sampler.sample(asked), anew.sample(asked)
    assert found.inputs["paper"].tolist() == wanted.inputs["paper"].tolist()
    assert int(found.inputs["paper"].max()) >= SIZES[0]
    with pytest.raises(ConfigError, match="a graph of 40 nodes to follow"):
        sampler.follow(before)
    with pytest.raises(ConfigError, match=r"node types \['n'\] to follow, those before are \['author', 'paper'\]"):
        sampler.follow(HeteroGraph({"n": 99}, {("n", "to", "n"): (np.arange(2), np.arange(2))}))


def test_graphs_that_did_not_grow_are_refused_and_change_nothing() -> None:
    sampler = WalkSampler(graph_of(SIZES[1]), **WALKS)
    before = batches_of(sampler, 0)
    with pytest.raises(ConfigError, match="a graph of 40 nodes to follow: the one before has 55"):
        sampler.follow(graph_of(SIZES[0]))
    with pytest.raises(ConfigError, match="the graph is directed, the one before is undirected"):
        sampler.follow(graph_of(SIZES[1], directed=True))
    paths = MetapathSampler(states("author-paper-author", typed(40)), walk_length=3)
    with pytest.raises(ConfigError, match="states are of another metapath"):
        paths.follow(states("paper-author-paper", typed(55)))
    assert all(np.array_equal(a, b) for a, b in zip(before, batches_of(sampler, 0), strict=True))


def follow_on_a_rank(with_starts: bool) -> Any:
    group = ProcessGroup()
    try:
        parts = [
            PartGraph.of_graph(graph_of(num), RankRanges([0, 11 + k, num], [0, 1], 2), group.rank)
            for k, num in enumerate(SIZES)
        ]
        sampler = PartitionedWalkSampler(parts[0], group, starts=np.array([0, 20]) if with_starts else None, **WALKS)
        batches_of(sampler, 0)
        try:
            sampler.follow(parts[1])
        except ConfigError as error:
            return str(error)
        return list(sampler.numbered_batches(1 << 20, epoch=1)), sampler.degrees()
    finally:
        group.close()


@pytest.mark.dist
def test_ranks_follow_together(ranks: Ranks) -> None:
    anew = WalkSampler(graph_of(SIZES[1]), **WALKS)
    (wanted,) = anew.batches(1 << 20, epoch=1)
    for (pair,), degrees in ranks.run(follow_on_a_rank, 2, False):
        walks, index = pair
        assert np.array_equal(walks, wanted[index])
        assert np.array_equal(degrees, anew.degrees())
    for said in ranks.run(follow_on_a_rank, 2, True):
        assert "starts are numbers of the partition before" in said
