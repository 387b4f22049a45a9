from __future__ import annotations

import numpy as np

from partition.kernels.refinement import connect, grow, mark_boundary, marked
from partition.problem import symmetric
from tests.partition.methods.graphs import plain


def test_only_nodes_with_neighbours_in_other_parts_are_marked() -> None:
    path = symmetric(plain(5, np.array([[0, 1], [1, 2], [2, 3], [3, 4]])))
    parts, table, marks = np.array([0, 0, 1, 1, 1], np.int32), np.empty((5, 2), np.int32), np.full(5, 7, np.int8)
    connect(path.indptr, path.indices, path.weight_array, parts, 0, 5, table)
    mark_boundary(table, parts, 0, 2, marks)
    mark_boundary(table, parts, 2, 5, marks)
    assert marks.tolist() == [0, 1, 1, 0, 0]
    assert marked(marks, np.array([4, 2, 0, 1], np.int32)).tolist() == [2, 1]


def test_a_part_grows_first_by_the_node_that_adds_least_cut() -> None:
    """The seed 0 has a leaf, 2, and a neighbour of three others, 1."""
    graph = symmetric(plain(6, np.array([[0, 1], [0, 2], [1, 3], [1, 4], [1, 5]])))
    parts, loads = np.zeros(6, np.int32), np.zeros((2, 1), np.int64)
    weights, degrees = np.ones((6, 1), np.int64), np.diff(graph.indptr)
    order = np.arange(6, dtype=np.int32)
    limits = np.full((2, 1), 6)
    grow(
        graph.indptr, graph.indices, graph.weight_array, degrees, weights, np.array([2.0]), limits, order, parts, loads
    )
    assert parts.tolist() == [1, 0, 1, 0, 0, 0]
