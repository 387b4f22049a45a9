from __future__ import annotations

from partition.methods import assign
from tests.partition.report.graphs import random_typed


def test_nodes_of_several_types_are_balanced_together() -> None:
    """numpy repeats no single 0 by several counts: metis took graphs of several types only to balance each type."""
    graph, _ = random_typed(0, 3)
    assert assign(graph, 3, "metis", balance=["nodes"]).balance["nodes"] <= 1.05
