from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import HeteroGraph
from partition.methods import assign


def test_ranges_ascend_within_a_type_and_take_turns_with_the_rest() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "range", balance=["nodes", "types"])
    assert made.parts["a"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert made.parts["b"].tolist() == [0, 0, 1, 2, 2, 3, 3]  # the extra ones: parts 0, 1 of a, then 2, 3, 0 of b
    assert np.bincount(made.homogeneous()).tolist() == [5, 4, 4, 4]
