"""EdgeSampler: arcs in proportion to their weight, the same for any number of ranks, threads and batch size."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walks import EdgeSampler
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks

EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 3], [0, 4], [4, 2]])
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0, 4.0, 1.5])


def graph_of(*, directed: bool, weighted: bool = True) -> Graph:
    return Graph.from_edges(
        EDGES[:, 0], EDGES[:, 1], num_nodes=6, weights=WEIGHTS if weighted else None, directed=directed
    )


def drawn(sampler: EdgeSampler, size: int = 8192, threads: int = 1, epoch: int = 0) -> np.ndarray:
    return np.concatenate([w for w, _ in sampler.numbered_batches(size, epoch=epoch, num_threads=threads)])


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_arcs_are_drawn_in_proportion_to_their_weight(directed: bool, weighted: bool) -> None:
    graph = graph_of(directed=directed, weighted=weighted)
    walks = drawn(EdgeSampler.of_graph(graph, draws_per_edge=4000, seed=1))
    assert walks.shape == (24_000, 2)
    matrix = graph.to_scipy().toarray()
    counts = np.zeros_like(matrix)
    np.add.at(counts, (walks[:, 0], walks[:, 1]), 1)
    assert not counts[matrix == 0].any()
    expected = matrix[matrix > 0] / matrix.sum() * len(walks)
    misfit = ((counts[matrix > 0] - expected) ** 2 / expected).sum()
    assert misfit < chi2.ppf(0.999, len(expected) - 1)


def test_draws_do_not_depend_on_batches_or_threads_and_epochs_differ() -> None:
    sampler = EdgeSampler.of_graph(graph_of(directed=False), draws_per_edge=60, seed=3)
    whole = drawn(sampler)
    np.testing.assert_array_equal(whole, drawn(sampler, 7))
    np.testing.assert_array_equal(whole, drawn(sampler, 200, threads=3))
    assert (whole != drawn(sampler, epoch=1)).any()
    later = np.concatenate([w for w, _ in sampler.numbered_batches(50, first=100)])
    np.testing.assert_array_equal(whole[100:], later)


def test_the_source_and_the_arc_are_drawn_independently_of_the_negatives_of_an_equal_seed() -> None:
    from graph_emb.sampling.negatives import NegativeSampler

    sampler = EdgeSampler.of_graph(graph_of(directed=False), draws_per_edge=200, seed=3)
    negatives = NegativeSampler(sampler.degrees(), 1.0, seed=3).sample(1200, 1)[:, 0]
    same = (drawn(sampler)[:, 0] == negatives).mean()
    assert same < 0.5, "equal streams would give the source itself as its negative"


def test_every_edge_counts_once_in_the_length_of_an_epoch() -> None:
    undirected = EdgeSampler.of_graph(graph_of(directed=False), draws_per_edge=5)
    assert (undirected.num_edges, undirected.num_walks_per_epoch) == (6, 30)
    assert EdgeSampler.of_graph(graph_of(directed=True), draws_per_edge=5).num_edges == 6


def test_a_graph_without_edges_and_no_draws_are_refused() -> None:
    with pytest.raises(ConfigError, match="no edges to draw"):
        EdgeSampler.of_graph(Graph.from_edges([], [], num_nodes=3))
    with pytest.raises(ConfigError, match="num_walks = 0"):
        EdgeSampler.of_graph(graph_of(directed=False), draws_per_edge=0)


def draw_on_a_rank(directed: bool) -> tuple[np.ndarray, np.ndarray, int]:
    group = ProcessGroup()
    try:
        places = layout(RangeBook([0, 2, 6]), group.world_size, None, "walks")
        part = PartGraph.of_graph(graph_of(directed=directed), places, group.rank)
        sampler = EdgeSampler(part, group, draws_per_edge=50, seed=2)
        batches = list(sampler.numbered_batches(64))
        return (*(np.concatenate(parts) for parts in zip(*batches, strict=True)), sampler.bytes_sent)
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("directed", [False, True])
def test_two_ranks_draw_the_edges_of_one_and_send_none(ranks: Ranks, directed: bool) -> None:
    found = ranks.run(draw_on_a_rank, 2, directed)
    whole = drawn(EdgeSampler.of_graph(graph_of(directed=directed), draws_per_edge=50, seed=2))
    assert sorted(np.concatenate([index for _, index, _ in found])) == list(range(300))
    for rank, (walks, index, sent) in enumerate(found):
        np.testing.assert_array_equal(walks, whole[index])
        assert ((walks[:, 0] >= 2) == rank).all()
        assert sent == 0


@pytest.mark.parametrize("directed", [False, True])
def test_arcs_at_some_nodes_alone_are_drawn_and_degrees_are_of_all(directed: bool) -> None:
    graph = graph_of(directed=directed)
    sampler, whole = (EdgeSampler.of_graph(graph, draws_per_edge=200, ends=ends) for ends in (np.array([1]), None))
    assert sampler.num_edges == 2
    walks = np.sort(drawn(sampler), axis=1)
    assert {tuple(walk) for walk in walks.tolist()} == {(0, 1), (1, 2)}
    assert np.array_equal(sampler.degrees(), whole.degrees())
    assert np.array_equal(sampler.own_degrees()[0], whole.own_degrees()[0])
    assert (walks[:, 0] == 1).mean() == pytest.approx(2 / 3, abs=0.08)  # by their weights of 1 and 2
    with pytest.raises(ConfigError, match="no edges to draw"):
        EdgeSampler.of_graph(graph, ends=np.array([5]))
