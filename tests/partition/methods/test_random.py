from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import HeteroGraph
from partition.methods import assign


def test_random_deals_every_type_evenly() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "random", seed=2, balance=["nodes", "types"])
    assert np.ptp(np.bincount(made.parts["a"])) <= 1
    assert np.ptp(np.bincount(made.parts["b"])) <= 1
    assert np.ptp(np.bincount(made.homogeneous())) <= 1
