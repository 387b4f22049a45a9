"""Edges by destination, blocks of several types, batches of the whole graph and of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ShapeError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.sampling.blocks import BlockEdges, whole_graph

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


def test_all_relations_leave_from_pairs_of_relation_and_source() -> None:
    (block,) = whole_graph(tiny(), 1).blocks
    likes, owns = block.senders.rows
    assert (likes.tolist(), owns.tolist()) == ([0, 1], [2]), "rows of the source type"
    edges = block.senders.edges
    assert (edges.indptr.tolist(), edges.sources.tolist(), edges.num_sources) == ([0, 1, 3, 4], [1, 0, 1, 2], 3)


def test_the_last_round_computes_the_target_type_alone() -> None:
    batch = whole_graph(tiny(), 2, target="a")
    assert {t: ids.tolist() for t, ids in batch.inputs.items()} == {"a": [0, 1], "b": [0, 1, 2]}
    first, last = batch.blocks
    assert first.num_destinations == {"a": 2, "b": 3}
    assert last.num_destinations == {"a": 2, "b": 0}
    assert [a.num_edges for a in first.edges.values()] == [3, 1]
    assert [a.num_edges for a in last.edges.values()] == [0, 0]
    assert last.relations.ends.num_destinations == 2
