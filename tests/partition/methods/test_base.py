from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from partition.methods import METHODS, Problem, assign
from partition.methods.base import method
from tests.partition.methods.graphs import planted, skewed


def test_auto_takes_multilevel_and_says_why() -> None:
    made = assign(planted()[0], 2)
    assert made.method == "multilevel"
    assert made.why.startswith("auto: the lowest cut")


def test_auto_takes_ranges_where_there_are_no_edges() -> None:
    made = assign(HeteroGraph({"a": 10}, {}), 2, balance=["nodes"])
    assert made.method == "range"
    assert made.parts["a"].tolist() == [0] * 5 + [1] * 5
    assert "no edges" in made.why


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown partition method 'metiss'.*did you mean 'metis'"):
        assign(planted()[0], 2, "metiss")


@pytest.mark.parametrize(
    ("options", "message"), [({"seed": -1}, "seed is -1"), ({"num_threads": 0}, "num_threads is 0")]
)
def test_numbers_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assign(planted()[0], 2, **options)


def test_every_part_gets_a_node_of_each_featured_type_and_an_edge_of_each_featured_edge_type() -> None:
    """A DGL server dies where a part has no row of a type with data."""
    graph = skewed()
    graph.node_data["shop"]["x"] = np.ones(24)
    graph.edge_data[("item", "in", "shop")] = {"w": np.ones(300)}
    hashed = assign(graph, 16, "hash", seed=1)
    _, shops = graph.edges[("item", "in", "shop")]
    assert set(hashed.parts["shop"]) == set(range(16))
    assert set(hashed.parts["shop"][shops]) == set(range(16))
    assert "moved so that every part has what it needs" in hashed.why


def test_types_smaller_than_the_parts_are_left_alone() -> None:
    graph = skewed()
    made = assign(graph, 30, "random")
    assert len(set(made.parts["shop"])) == 24
    assert "moved" not in made.why


def test_a_repair_keeps_the_cut_low_and_the_limits() -> None:
    """All shops in one part by an earlier method: the repair moves one to each of the others, the least tied."""
    num = {"user": 40, "shop": 4}
    # users 0..9 with shop 0, 10..19 with shop 1, ...; parts follow the users, all shops lie in part 0
    edges = {("user", "at", "shop"): (np.arange(40), np.arange(40) // 10)}
    graph = HeteroGraph(num, edges, {"shop": {"x": np.ones(4)}})

    def lopsided(problem: Problem) -> np.ndarray:
        return np.concatenate([np.arange(40) // 10, np.zeros(4)]).astype(np.int32)

    method("lopsided", refusal=lambda names: "", balance=("nodes",), seeded=False)(lopsided)
    try:
        made = assign(graph, 4, "lopsided", tolerance=0.3)
    finally:
        del METHODS["lopsided"]
    assert made.parts["shop"].tolist() == [0, 1, 2, 3]
    assert made.parts["user"].tolist() == (np.arange(40) // 10).tolist()
