"""The graph that readers make refuses what does not fit together, and names the row."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.typed import HeteroGraph

WRITES = ("author", "writes", "paper")


def graph(**changes) -> HeteroGraph:
    given = {
        "num_nodes": {"author": 2, "paper": 3},
        "edges": {WRITES: (np.array([0, 1, 1]), np.array([2, 0, 1]))},
        **changes,
    }
    return HeteroGraph(**given)


def test_totals_and_offsets_follow_the_order_of_the_types():
    made = graph()
    assert (made.total_nodes, made.total_edges) == (5, 3)
    assert made.node_offsets == {"author": 0, "paper": 2}
    assert made.etypes == [WRITES]


def test_a_repr_tells_counts_not_arrays():
    """The arrays of a graph filled the screen, and those of a data set several."""
    made = graph(node_data={"author": {"feat": np.zeros((2, 4), np.float32)}}, counts={"self loops dropped": 3})
    assert repr(made) == (
        "HeteroGraph(num_nodes={author: 2, paper: 3}, edges={author:writes:paper: (int64[3], int64[3])}, "
        "node_data={author: {feat: float32[2, 4]}}, counts={self loops dropped: 3}, name='graph', symmetric=False)"
    )
    many = HeteroGraph({f"type{number}": 1 for number in range(900)}, {})
    assert "type5: 1, ... of 900}" in repr(many)
    labels = Labels.from_single([0, 1], class_names=["a", "b"])
    data = Dataset("x", made, {"author": labels}, {"author": {"train": np.array([0])}})
    assert f"graph={made!r}, labels={{author: {labels!r}}}, node_split={{author: {{train: int64[1]}}}}" in repr(data)
    assert repr(labels) == "Labels(indptr=int64[3], indices=int32[2], num_classes=2, class_names=('a', 'b'))"


@pytest.mark.parametrize("ids", [np.array([0.0, 1, 1]), np.array([True, False, True]), np.zeros((3, 1), int)])
def test_ids_are_one_dimension_of_integers(ids: np.ndarray) -> None:
    # other dtypes passed all checks here and failed in a compiled kernel, with a message of the compiler
    for ends, side in (((ids, np.zeros(3, int)), "sources"), ((np.zeros(3, int), ids), "destinations")):
        with pytest.raises(DataError, match=rf"author:writes:paper: {side} have shape .*; expected integers \(E,\)"):
            graph(edges={WRITES: ends})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": {WRITES: (np.array([0, 2]), np.array([0, 0]))}}, r"edge 1: source 2 is outside \[0, 2\)"),
        ({"edges": {WRITES: (np.array([0, 1]), np.array([0, -1]))}}, r"edge 1: destination -1 is outside \[0, 3\)"),
        ({"edges": {WRITES: (np.array([0]), np.array([0, 1]))}}, "1 sources but 2 destinations"),
        ({"edges": {("author", "x", "venue"): (np.array([0]), np.array([0]))}}, "unknown node type 'venue'"),
        ({"node_data": {"paper": {"feat": np.zeros((2, 4))}}}, r"'feat' has shape \(2, 4\); expected 3 rows"),
        ({"node_data": {"venue": {}}}, "unknown type 'venue'"),
        ({"edge_data": {WRITES: {"year": np.zeros(2)}}}, "expected 3 rows"),
        ({"edge_data": {("a", "b", "c"): {}}}, "unknown type a:b:c"),
        ({"node_ids": {"author": np.array(["x"])}}, "expected 2 rows"),
        ({"node_ids": {"venue": np.array(["x"])}}, "unknown type 'venue'"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        graph(**changes)
