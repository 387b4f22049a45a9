"""Graph networks: classes come with the graph or as y, in the order of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, LackingError, ShapeError
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
    with pytest.raises(DataError, match="has no labels; node classification needs labels and a split"):
        ge.GraphSAGE(**QUICK).fit(graph)
    fitted = ge.GraphSAGE(**QUICK).fit(graph, classes)
    with pytest.raises(ConfigError, match="score takes no X and no y"):
        fitted.score(graph, classes)


def test_the_trained_network_predicts_classes(tmp_path: Path) -> None:
    graph, classes = cliques()
    fitted = ge.GraphSAGE(**{**QUICK, "epochs": 40}).fit(graph, classes)
    asked = list(graph)[3:9]
    assert fitted.predict(asked).tolist() == classes[3:9]
    likely = fitted.predict_proba(asked)
    assert likely.shape == (6, 2)
    np.testing.assert_allclose(likely.sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(LackingError, match="predicts classes, not links"):
        fitted.predict_links([asked[:2]])
    with pytest.raises(DataError, match="have no embedding"):
        fitted.predict(["n99"])
    loaded = ge.load_run(fitted.save(tmp_path / "run"))
    with pytest.raises(LackingError, match="the run was of"):
        loaded.predict(asked)  # the graph was in memory


def test_a_loaded_run_predicts_as_at_the_end_of_its_training(tmp_path: Path) -> None:
    graph, classes = cliques()
    edges, labels, split = (tmp_path / name for name in ("g.csv", "l.csv", "s.csv"))
    edges.write_text("".join(f"{u},{v}\n" for u, v in graph.edges))
    labels.write_text("".join(f"{node},{name}\n" for node, name in zip(graph, classes, strict=True)))
    parts = ("train", "train", "valid", "test")
    split.write_text("".join(f"{node},{parts[n % 4]}\n" for n, node in enumerate(graph)))
    files = {"dataset": {"name": str(edges), "labels": str(labels), "split": str(split)}}
    result = ge.pipeline("sage", config=files, out=tmp_path / "run", **{**QUICK, "epochs": 30})
    loaded: Any = ge.load_run(tmp_path / "run")
    assert loaded.score() == result.metrics["evaluation"]["graph_network"]["summary"]["accuracy"]["test"]["mean"]
    right = loaded.predict(list(graph)) == np.array(classes)
    judged = [right[[n for n in range(20) if parts[n % 4] == part]].mean() for part in ("valid", "test")]
    assert judged[0] == pytest.approx(result.history[-1]["valid"]["accuracy"])
    with pytest.raises(ConfigError, match="unknown table 'entity'"):
        loaded.predict_triples([("n1", "r", "n2")])


def test_links_are_scored_by_the_trained_network(tmp_path: Path) -> None:
    graph, _ = cliques()
    edges = tmp_path / "g.csv"
    edges.write_text("".join(f"{u},{v}\n" for u, v in graph.edges))
    (tmp_path / "test.csv").write_text("".join(f"{u},{v}\n" for u, v in [*graph.edges][::9]))
    sizes = {**QUICK, "epochs": 40, "batch_size": 16, "metrics": ["rocauc"]}
    ge.pipeline("sage", {"name": str(edges), "test_edges": str(tmp_path / "test.csv")}, out=tmp_path / "run", **sizes)
    loaded: Any = ge.load_run(tmp_path / "run")
    inside, across = [("n0", "n2"), ("n1", "n5"), ("n8", "n4")], [("n0", "n1"), ("n3", "n6"), ("n7", "n2")]
    assert loaded.predict_links(inside).min() > loaded.predict_links(across).max()
    with pytest.raises(LackingError, match="predicts links, not classes"):
        loaded.predict(["n0"])


def test_unknown_classes_beside_names_are_unknown_in_a_list_too() -> None:
    """Numpy writes [-1, "a"] as text, and -1 and NaN became classes that the network learned."""
    for missing in (-1, None, float("nan"), ""):
        codes, names = labels_of(["b", missing, "a", "b"], 4)
        assert (codes.tolist(), names) == ([1, -1, 0, 1], ("a", "b")), missing
    codes, names = labels_of(np.array(["b", "-1"]), 2)
    assert names == ("-1", "b"), "an array says what its texts are"


def test_missing_classes_of_pandas_are_unknown() -> None:
    """NA is neither equal to itself nor different: asking raised TypeError."""
    codes, names = labels_of(pd.Series(["b", pd.NA, "a"], dtype="string"), 3)
    assert (codes.tolist(), names) == ([1, -1, 0], ("a", "b"))
    codes, names = labels_of(pd.Series([7, pd.NA, 3], dtype="Int64"), 3)
    assert (codes.tolist(), names) == ([1, -1, 0], ("3", "7"))


def test_classes_come_back_in_their_kind() -> None:
    """Numbers beside NaN, and truth values, came back as text, of which each is true."""
    graph, classes = cliques()
    for known in ({"even": 0.0, "odd": 1.0}, {"even": False, "odd": True}):
        y = np.array([known[name] for name in classes])
        found = ge.GraphSAGE(**{**QUICK, "epochs": 40}).fit(graph, y).predict(list(graph))
        assert found.dtype.kind == ("b" if y.dtype == bool else "i")
        np.testing.assert_array_equal(found, y)


def test_classes_of_several_lengths_are_refused() -> None:
    """Numpy's ValueError reached the user."""
    with pytest.raises(ShapeError, match="y holds lists of several lengths"):
        labels_of([[1, 2], [3]], 2)
