"""Edges by destination, blocks of several types, batches of the whole graph and of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.sampling.blocks import BlockEdges, NeighborSampling, empty_batch, whole_graph

LIKES, OWNS = ("a", "likes", "b"), ("b", "owns", "b")


def tiny() -> HeteroGraph:
    """Two a, three b; a0 and a1 like b2, a1 likes b0; b2 owns b0."""
    return HeteroGraph(
        {"a": 2, "b": 3},
        {LIKES: (np.array([0, 1, 1]), np.array([2, 2, 0])), OWNS: (np.array([2]), np.array([0]))},
    )


def test_edges_are_grouped_by_destination_and_keep_their_ids() -> None:
    edges = BlockEdges.from_pairs(torch.tensor([0, 1, 1]), torch.tensor([2, 2, 0]), 2, 3)
    assert edges.indptr.tolist() == [0, 1, 1, 3]
    assert edges.sources.tolist() == [1, 0, 1]
    assert edges.edge_ids.tolist() == [2, 0, 1]
    assert edges.destinations.tolist() == [0, 2, 2]
    assert edges.degrees.tolist() == [1, 0, 2]
    indptr, order = edges.by_source
    assert (indptr.tolist(), order.tolist()) == ([0, 1, 3], [1, 0, 2])
    assert edges.destinations_by_source.tolist() == [2, 0, 2]
    with pytest.raises(ShapeError, match=r"sources \(1,\), destinations \(2,\)"):
        BlockEdges.from_pairs(torch.tensor([0]), torch.tensor([0, 1]), 2, 2)


def test_all_relations_meet_in_pairs_of_relation_and_destination() -> None:
    (block,) = whole_graph(tiny(), 1).blocks
    relations = block.relations
    assert relations.counts == [2, 1], "likes reaches b0 and b2, owns reaches b0"
    assert relations.pairs.indptr.tolist() == [0, 1, 3, 4]
    assert relations.pairs.sources.tolist() == [1, 0, 1, 4], "the rows of b follow those of a"
    assert relations.ends.destinations.tolist() == [2, 2, 4]
    assert relations.ends.sources.tolist() == [0, 2, 1]


def test_the_last_round_computes_the_target_type_alone() -> None:
    batch = whole_graph(tiny(), 2, target="a")
    assert {t: ids.tolist() for t, ids in batch.inputs.items()} == {"a": [0, 1], "b": [0, 1, 2]}
    first, last = batch.blocks
    assert first.num_destinations == {"a": 2, "b": 3}
    assert last.num_destinations == {"a": 2, "b": 0}
    assert [a.num_edges for a in first.edges.values()] == [3, 1]
    assert [a.num_edges for a in last.edges.values()] == [0, 0]
    assert last.relations.ends.num_destinations == 2


def test_a_batch_of_nothing_has_every_type() -> None:
    batch = empty_batch(["a", "b"], [LIKES, OWNS], 2)
    assert {t: len(ids) for t, ids in batch.inputs.items()} == {"a": 0, "b": 0}
    assert len(batch.blocks) == 2
    assert batch.blocks[0].relations.counts == [0, 0]


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


def test_the_same_seed_samples_the_same_with_one_thread(one_thread: None) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 50, (2, 900))
    graph = HeteroGraph({"n": 50}, {("n", "e", "n"): (ends[0], ends[1])})
    targets = {"n": torch.arange(20)}

    def drawn(seed: int) -> list[int]:
        return NeighborSampling(graph, (5,), seed=seed).sample(targets).blocks[0].edges["n", "e", "n"].edge_ids.tolist()

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_no_targets_make_an_empty_batch() -> None:
    batch = NeighborSampling(tiny(), (2, 2)).sample({"b": torch.empty(0, dtype=torch.int64)})
    assert all(len(ids) == 0 for ids in batch.inputs.values())
    assert len(batch.blocks) == 2


@pytest.mark.parametrize("fanouts", [(), (0,), (3, -2)])
def test_fanouts_out_of_range_are_refused(fanouts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="give a positive number or -1"):
        NeighborSampling(tiny(), fanouts)
