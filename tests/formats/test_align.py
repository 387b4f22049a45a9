"""Rows in the order of a graph's nodes."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.formats.embedding_files import Embeddings, align
from graph_emb.graph.csr import Graph


def test_rows_follow_the_graphs_order_and_extra_rows_are_left() -> None:
    found = Embeddings(np.float32([[0], [1], [2], [3]]), np.array([10, 20, 30, 40]))
    assert align(found, [30, 10]).tolist() == [[2.0], [0.0]]
    graph = Graph.from_edges([0, 1], [1, 2], node_ids=np.array([40, 20, 30]))
    assert align(found, graph).tolist() == [[3.0], [1.0], [2.0]]


def test_unsigned_ids_are_compared_as_integers() -> None:
    found = Embeddings(np.float32([[5], [6]]), np.array([2**62 + 1, 2**62]))
    assert align(found, np.array([2**62, 2**62 + 1], np.uint64)).tolist() == [[6.0], [5.0]]


def test_a_graph_without_ids_means_its_numbers() -> None:
    graph = Graph.from_edges([0], [1])
    assert align(Embeddings(np.float32([[5], [6]]), np.array([1, 0])), graph).tolist() == [[6.0], [5.0]]


def test_integers_and_strings_meet_as_text() -> None:
    found = Embeddings(np.float32([[1], [2]]), np.array([7, 8]))
    assert align(found, ["8", "7"]).tolist() == [[2.0], [1.0]]
    assert align(Embeddings(found.weights, np.array(["7", "8"])), [8]).tolist() == [[2.0]]


def test_a_node_without_a_row_is_named() -> None:
    found = Embeddings(np.float32([[1], [2]]), np.array(["a", "b"]))
    with pytest.raises(DataError, match="2 of 3 nodes have no embedding, the first is id 'c'"):
        align(found, ["a", "c", "d"])


@pytest.mark.parametrize("weights", [np.ones(3), np.ones((3, 2), dtype=int), np.ones((0, 2))])
def test_embeddings_are_a_floating_matrix(weights: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="give floats"):
        Embeddings(weights, np.arange(3))
