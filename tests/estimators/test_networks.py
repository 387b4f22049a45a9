"""Graph networks: classes come with the graph or as y, in the order of its nodes."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.estimators.networks import drawn_split, labels_of
from graph_emb.graph.typed import HeteroGraph

QUICK: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 10, "eval_every": 1, "threads": 1}


def cliques() -> tuple[nx.Graph, list[str]]:
    """Two cliques whose nodes are listed in turn, backwards, with a class each."""
    graph = nx.Graph()
    names = [f"n{number}" for number in reversed(range(20))]
    graph.add_nodes_from(names)
    graph.add_edges_from((u, v) for u in names for v in names if u < v and int(u[1:]) % 2 == int(v[1:]) % 2)
    return graph, [("even", "odd")[int(name[1:]) % 2] for name in names]


def test_classes_follow_the_order_of_a_networkx_graph() -> None:
    graph, classes = cliques()
    model = ge.GraphSAGE(**{**QUICK, "epochs": 40}).fit(graph, classes)
    assert model.score() == 1.0  # of classes in another order it would be near a half
    assert model.ids_.tolist() == list(graph)
    assert model.embedding_.shape == (20, 8)
    assert model.score() == model.metrics_["evaluation"]["graph_network"]["summary"]["accuracy"]["test"]["mean"]


def test_rgcn_takes_the_classes_of_one_type() -> None:
    users, items = np.arange(20), np.arange(20) % 2
    graph = HeteroGraph({"user": 20, "item": 2}, {("user", "buys", "item"): (users, items)})
    model = ge.RGCN(**{**QUICK, "epochs": 30}).fit(graph, {"user": items})
    assert model.score() == 1.0
    assert sorted(model.tables_) == ["item", "user"]
    with pytest.raises(ConfigError, match=r"node types user, item; give y as \{type: classes\}"):
        ge.RGCN(**QUICK).fit(graph, items)
    with pytest.raises(ConfigError, match="unknown node type 'usr'"):
        ge.RGCN(**QUICK).fit(graph, {"usr": items})


def test_a_split_of_the_graph_goes_before_a_drawn_one() -> None:
    masks = {f"{part}_mask": np.arange(6) % 3 == number for number, part in enumerate(("train", "val", "test"))}
    ring = np.arange(6)
    graph = HeteroGraph({"_N": 6}, {("_N", "_E", "_N"): (ring, (ring + 2) % 6)}, {"_N": masks})
    data: Any = ge.GraphSAGE(**QUICK)._data_of(graph, ring % 2)
    assert {part: nodes.tolist() for part, nodes in data.node_split["_N"].items()} == {
        "train": [0, 3],
        "valid": [1, 4],
        "test": [2, 5],
    }


def test_unknown_classes_are_left_out() -> None:
    codes, names = labels_of(["b", None, "a", "", "b"], 5)
    assert (codes.tolist(), names) == ([1, -1, 0, -1, 1], ("a", "b"))
    assert labels_of([3.0, np.nan, 5.0], 3)[0].tolist() == [0, -1, 1]
    assert labels_of(np.array([4, -1, 4]), 3)[0].tolist() == [0, -1, 0]
    split = drawn_split(np.array([0, -1, 1] * 10), seed=0)
    assert {part: len(nodes) for part, nodes in split.items()} == {"train": 16, "valid": 2, "test": 2}
    assert len(np.unique(np.concatenate(list(split.values())))) == 20
    assert all((nodes % 3 != 1).all() for nodes in split.values())


def test_what_is_wrong_is_refused() -> None:
    graph, classes = cliques()
    with pytest.raises(ShapeError, match=r"y has shape \(3,\); give a class, or -1, for each of the 20 nodes"):
        ge.GraphSAGE(**QUICK).fit(graph, classes[:3])
    with pytest.raises(DataError, match="y has 2 labelled nodes; give at least 3"):
        ge.GraphSAGE(**QUICK).fit(graph, ["a", "b", *[None] * 18])
    with pytest.raises(DataError, match="has no labels; node classification needs both"):
        ge.GraphSAGE(**QUICK).fit(graph)
    fitted = ge.GraphSAGE(**QUICK).fit(graph, classes)
    with pytest.raises(ConfigError, match="score takes no X and no y"):
        fitted.score(graph, classes)
