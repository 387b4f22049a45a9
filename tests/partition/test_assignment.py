from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import PartitionError
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment


def two_types() -> HeteroGraph:
    no_edges = np.empty(0, np.int64)
    return HeteroGraph({"a": 3, "b": 2}, {("a", "r", "b"): (no_edges, no_edges)})


def parts(a: list[int], b: list[int]) -> dict[str, np.ndarray]:
    return {"a": np.array(a, np.int32), "b": np.array(b, np.int32)}


def test_types_lie_one_after_the_other() -> None:
    made = Assignment.of_homogeneous(two_types(), np.array([0, 1, 1, 0, 1]), 2, method="range")
    assert made.parts["a"].tolist() == [0, 1, 1]
    assert made.parts["b"].tolist() == [0, 1]
    assert made.parts["a"].dtype == np.int32
    assert made.homogeneous().tolist() == [0, 1, 1, 0, 1]
    assert made.method == "range"
    made.check(two_types())


def test_a_homogeneous_assignment_of_another_length_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"shape \(4,\); expected \(5,\)"):
        Assignment.of_homogeneous(two_types(), np.zeros(4, np.int32), 2)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Assignment(parts([0, 1, 1], [0, 1]), 0), "0 parts; at least 1"),
        (Assignment({"a": np.array([0, 1, 1])}, 2), "node types a; the graph has a, b"),
        (Assignment(parts([0, 1], [0, 1]), 2), r"'a': the assignment has shape \(2,\) of int32; expected \(3,\)"),
        (Assignment({**parts([0, 1, 1], []), "b": np.array([0.0, 1.0])}, 2), "'b'.*float64; expected"),
        (Assignment(parts([0, 1, 2], [0, 1]), 2), r"'a', node 2: part 2 is outside \[0, 2\)"),
        (Assignment(parts([0, -1, 1], [0, 1]), 2), "'a', node 1: part -1"),
        (Assignment(parts([0, 2, 2], [0, 2]), 3), "part 1 of 3 has no node"),
    ],
)
def test_what_does_not_fit_is_named(made: Assignment, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        made.check(two_types())
