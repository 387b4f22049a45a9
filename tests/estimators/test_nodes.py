"""Every kind of graph goes in; rows come out in its order and by the names of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, LackingError, ShapeError
from graph_emb.graph.typed import HeteroGraph

QUICK: dict[str, Any] = {"dim": 4, "num_walks": 2, "walk_length": 6, "threads": 1}
GOOD: dict[str, Any] = {"dim": 16, "num_walks": 20, "window": 3, "threads": 1}
EDGES = [("d", "a"), ("a", "c"), ("c", "b"), ("b", "d"), ("a", "b")]


@pytest.fixture(scope="module")
def karate() -> nx.Graph:
    return nx.karate_club_graph()


@pytest.fixture(scope="module")
def fitted(karate: nx.Graph) -> Any:
    return ge.DeepWalk(**GOOD).fit(karate)


def test_rows_come_in_the_order_of_a_networkx_graph() -> None:
    graph = nx.Graph(EDGES)
    model = ge.DeepWalk(**QUICK)
    rows = model.fit_transform(graph)
    assert model.ids_.tolist() == list(graph) == ["d", "a", "c", "b"]
    assert rows is model.embedding_
    assert rows.shape == (4, 4)
    np.testing.assert_array_equal(model.transform(["b", "d"]), rows[[3, 0]])
    by_name = ge.pipeline("deepwalk", dataset=graph, evaluate=False, **QUICK).embeddings
    assert by_name is not None
    assert by_name.node_ids.tolist() == ["a", "b", "c", "d"]  # of the run: sorted
    np.testing.assert_array_equal(rows[[1, 3, 2, 0]], by_name.weights)


def kinds(folder: Path) -> dict[str, Any]:
    import torch

    from graph_emb.compat import dgl as compat_dgl

    src, dst = np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 0, 2])
    pd.DataFrame({"src": src, "dst": dst}).to_csv(folder / "edges.csv", index=False)
    dense = np.zeros((4, 4))
    dense[src, dst] = dense[dst, src] = 1
    return {
        "networkx": nx.Graph(zip(src.tolist(), dst.tolist(), strict=True)),
        "dgl": compat_dgl.load().graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=4),
        "scipy": sparse.csr_array(dense),
        "dictionary of keys": sparse.dok_array(dense),
        "numpy": dense,
        "lists": dense.tolist(),
        "frame": pd.DataFrame({"source": src, "target": dst}),
        "path": folder / "edges.csv",
        "read": ge.read_graph(folder / "edges.csv"),
        "data set": ge.load_dataset(folder / "edges.csv"),
    }


def test_every_kind_of_graph_gives_the_same_rows(tmp_path: Path) -> None:
    graphs = kinds(tmp_path)
    rows = {kind: ge.DeepWalk(**QUICK).fit_transform(graph) for kind, graph in graphs.items()}
    for kind, found in rows.items():
        np.testing.assert_array_equal(found, rows["scipy"], err_msg=kind)
    model = ge.DeepWalk(**QUICK).fit(graphs["path"])
    for kind in ("networkx", "dgl", "scipy", "numpy", "frame", "read"):
        np.testing.assert_array_equal(model.transform(graphs[kind]), rows["scipy"], err_msg=kind)


def test_other_nodes_of_networkx_go_by_their_text(tmp_path: Path) -> None:
    graph = nx.grid_2d_graph(3, 2)
    model = ge.LINE(dim=4, draws_per_edge=2, threads=1).fit(graph)
    assert model.ids_.tolist() == [str(node) for node in graph]
    np.testing.assert_array_equal(model.transform([(2, 1), (0, 0)]), model.embedding_[[5, 0]])
    loaded = ge.load_run(model.save(tmp_path / "grid"))
    assert loaded.nearest((0, 0), k=2) == model.nearest((0, 0), k=2)


def test_a_pipeline_with_a_classifier_works(karate: nx.Graph, fitted: Any) -> None:
    clubs = [karate.nodes[node]["club"] for node in karate]
    steps = make_pipeline(ge.DeepWalk(**GOOD), LogisticRegression()).fit(karate, clubs)
    assert steps.score(karate, clubs) > 0.9
    assert steps.predict([0, 33]).tolist() == ["Mr. Hi", "Officer"]
    rows = fitted.transform(fitted.ids_)
    assert cross_val_score(LogisticRegression(), rows, clubs, cv=3).mean() > 0.85


def test_neighbours_are_near_and_not_the_node_itself(fitted: Any) -> None:
    found = fitted.nearest(33, k=5)
    names, cosines = zip(*found, strict=True)
    assert 33 not in names
    assert list(cosines) == sorted(cosines, reverse=True)
    rows = fitted.embedding_ / np.linalg.norm(fitted.embedding_, axis=1, keepdims=True)
    best = np.argsort(-(rows @ rows[33]))[1:6]
    assert list(names) == best.tolist()
    with pytest.raises(ConfigError, match=r"k=34 nearest of 34 rows: give one in \[1, 33\]"):
        fitted.nearest(33, k=34)


def test_score_tells_edges_from_other_pairs(karate: nx.Graph, fitted: Any) -> None:
    edges = np.array(karate.edges)
    value = fitted.score(edges)
    assert 0.7 < value < 1.0
    assert (
        value
        == fitted.score(karate)
        == fitted.score(pd.DataFrame(edges))
        == fitted.score(edges.tolist())
        == fitted.score(karate.edges)
    )
    pairs, truth = [(0, 1), (33, 32), (0, 33), (16, 26)], np.array([1, 1, 0, 0])
    centred = fitted.embedding_ - fitted.embedding_.mean(axis=0)
    scores = [float(centred[u] @ centred[v]) for u, v in pairs]
    by_hand = np.mean([scores[i] > scores[j] for i in (0, 1) for j in (2, 3)])
    assert fitted.score(pairs, truth) == pytest.approx(by_hand)
    assert fitted.score(pairs, 1 - truth) == pytest.approx(1 - by_hand)


def test_drawn_pairs_are_no_edges_whatever_the_order_of_the_nodes() -> None:
    """Two cliques of letters: all other pairs join the cliques, whose rows point apart."""
    left, right = "dbca", "hgfe"
    graph = nx.Graph([(u, v) for part in (left, right) for u in part for v in part if u < v])
    graph.add_edge("a", "e")
    assert ge.DeepWalk(**GOOD).fit(graph).score([("d", "b"), ("h", "g"), ("c", "a"), ("f", "e")]) == 1.0


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([(0, 1, 2)], None, ShapeError, "X holds no pairs of ids"),
        ([(0, 1)], [1, 0], ShapeError, r"y has shape \(2,\); give 1 \(an edge\) or 0 for each of the 1 pairs"),
        ([(0, 1), (0, 2)], [1, 1], DataError, r"y must hold 1 \(an edge\) and 0 \(none\)"),
        ([(0, 99)], None, DataError, "1 of 2 nodes have no embedding, the first is id 99"),
    ],
)
def test_pairs_at_fault_are_refused(fitted: Any, X: Any, y: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted.score(X, y)


def test_what_is_not_there_is_refused(fitted: Any) -> None:
    with pytest.raises(NotFittedError):
        ge.DeepWalk().transform([1])
    with pytest.raises(DataError, match="1 of 2 nodes have no embedding, the first is id 40"):
        fitted.transform([3, 40])
    with pytest.raises(ConfigError, match=r"transform takes ids, such as \['a'\]"):
        fitted.transform("a")
    with pytest.raises(ConfigError, match="EdgeView is no graph"):
        ge.DeepWalk().fit(nx.cycle_graph(3).edges)
    with pytest.raises(ConfigError, match="unknown table 'author'; known: node"):
        fitted.transform([1], table="author")
    with pytest.raises(ConfigError, match=r"a builtins.int is no graph"):
        ge.DeepWalk().fit(3)


def test_a_saved_estimator_is_a_run(karate: nx.Graph, fitted: Any, tmp_path: Path) -> None:
    place = fitted.save(tmp_path / "karate")
    for loaded in (ge.load_run(place), ge.DeepWalk.load(place)):
        assert type(loaded) is ge.DeepWalk
        assert loaded.get_params() | {"lr": None, "lr_decay": None} == fitted.get_params()
        assert (loaded.lr, loaded.lr_decay) == (0.025, "linear")  # a run says what it took
        np.testing.assert_array_equal(loaded.ids_, fitted.ids_)
        np.testing.assert_array_equal(loaded.embedding_, fitted.embedding_)
    assert loaded.score([(0, 1), (0, 9)], [1, 0]) == fitted.score([(0, 1), (0, 9)], [1, 0])
    with pytest.raises(LackingError, match=r"in memory: Graph of 34 nodes .*fit again"):
        loaded.score([(0, 1)])
    with pytest.raises(ConfigError, match=r"is a run of deepwalk, not of node2vec; take ge.load_run"):
        ge.Node2Vec.load(place)
    with pytest.raises(ConfigError, match="holds a run"):
        fitted.save(place)
    assert fitted.save(place, overwrite=True) == place
    with pytest.raises(ConfigError, match="is no run folder"):
        ge.load_run(tmp_path)


def test_edges_of_a_complete_graph_have_nothing_to_be_told_from() -> None:
    model = ge.DeepWalk(dim=4, num_walks=1).fit(nx.complete_graph(5))
    with pytest.raises(ge.DataError, match=r"compares 1 edges .* have 0; hold out, or score, fewer"):
        model.score([[0, 1]])


def test_a_run_of_a_file_is_loaded_and_scored(tmp_path: Path) -> None:
    graph = tmp_path / "ring.csv"
    graph.write_text("".join(f"n{u},n{(u + 1) % 20}\n" for u in range(20)))
    ge.pipeline("deepwalk", dataset=graph, out=tmp_path / "run", evaluate=False, **GOOD)
    loaded = ge.load_run(tmp_path / "run")
    assert loaded.score([("n0", "n1"), ("n7", "n6")]) == 1.0


def test_metapath2vec_has_a_table_for_each_type(tmp_path: Path) -> None:
    authors, papers = np.arange(6), np.arange(6) // 3
    edges = {("author", "writes", "paper"): (authors, papers)}
    graph = HeteroGraph({"author": 6, "paper": 2}, edges)
    model = ge.Metapath2Vec(metapath="author-paper-author", dim=4, walk_length=5, threads=1).fit(graph)
    assert list(model.tables_) == ["author", "paper"]
    assert model.transform([1], table="paper").shape == (1, 4)
    assert model.score([(0, 1), (0, 5)], [1, 0]) in (0.0, 1.0)
    with pytest.raises(ShapeError, match="y has shape"):
        model.score([(0, 1)])
    with pytest.raises(ConfigError, match="node types author, paper; give ids of one"):
        model.transform(graph)
    loaded = ge.load_run(model.save(tmp_path / "paths"))
    np.testing.assert_array_equal(loaded.transform([1], table="paper"), model.transform([1], table="paper"))


def test_links_are_scored_by_the_product_less_the_mean(tmp_path: Path) -> None:
    model = ge.DeepWalk(**QUICK).fit(nx.les_miserables_graph())
    pairs = [("Valjean", "Javert"), ("Valjean", "Napoleon")]
    rows = model.embedding_ - model.embedding_.mean(axis=0)
    row = {name: rows[place] for place, name in enumerate(model.ids_.tolist())}
    loaded = ge.load_run(model.save(tmp_path / "run"))
    expected = [row[left] @ row[right] for left, right in pairs]
    np.testing.assert_allclose(loaded.predict_links(pairs), expected, rtol=1e-5)
    with pytest.raises(DataError, match="Frodo"):
        model.predict_links([("Valjean", "Frodo")])


def test_most_similar_adds_and_subtracts_directions() -> None:
    model = ge.DeepWalk(**QUICK).fit(nx.les_miserables_graph())
    units = model.embedding_ / np.linalg.norm(model.embedding_, axis=1, keepdims=True)
    names = model.ids_.tolist()
    asked = units[names.index("Valjean")] + units[names.index("Cosette")] - units[names.index("Javert")]
    cosines = units @ asked / np.linalg.norm(asked)
    order = [names[place] for place in np.argsort(-cosines) if names[place] not in ("Valjean", "Cosette", "Javert")]
    found = model.most_similar(["Valjean", "Cosette"], "Javert", k=5)
    assert [name for name, _ in found] == order[:5]
    assert found[0][1] == pytest.approx(cosines[names.index(order[0])], rel=1e-4)
    assert model.most_similar("Valjean", k=3)[0][0] == model.nearest("Valjean", k=3)[0][0]
    for wrong, told in (({"positive": []}, "positive"), ({"positive": "Valjean", "k": 77}, r"k=77 .*\[1, 76\]")):
        with pytest.raises(ConfigError, match=told):
            model.most_similar(**wrong)


def test_ids_of_torch_are_ids_and_what_is_no_list_is_refused_as_such(fitted: Any) -> None:
    """str(tensor(0)) was looked up as the name of a node; None and a number ended with a traceback."""
    import torch

    expected = fitted.predict_links([(0, 1), (2, 3)])
    np.testing.assert_array_equal(fitted.predict_links(torch.tensor([[0, 2], [1, 3]]).T), expected)
    assert fitted.nearest(torch.tensor(0), 2) == fitted.nearest(0, 2)
    np.testing.assert_array_equal(fitted.transform(list(torch.tensor([3, 4]))), fitted.transform([3, 4]))
    for pairs in (None, 3, [0, 1]):
        with pytest.raises(ShapeError, match=r"X holds no pairs of ids; give shape \(E, 2\)"):
            fitted.predict_links(pairs)
    for ids in (None, 3):
        with pytest.raises(ShapeError, match=rf"{ids} is one value; give ids of nodes"):
            fitted.transform(ids)
    with pytest.raises(ConfigError, match=r"DeepWalk\.fit got no graph; give one"):
        ge.DeepWalk(**QUICK).fit(None)
    with pytest.raises(ConfigError, match=r"DeepWalk\.fit got a dict, which is no graph; give one in memory, such as"):
        ge.DeepWalk(**QUICK).fit({0: [1], 1: [0]})


def test_ids_beyond_int64_are_refused_by_name(fitted: Any) -> None:
    """Numpy raised OverflowError where a list of integers became int64."""
    with pytest.raises(DataError, match=r"id 1180591620717411303424 is outside .*; pass such ids as strings"):
        fitted.transform([2**70])
    with pytest.raises(DataError, match="column 'source' holds an integer outside int64; make such ids strings"):
        ge.DeepWalk(**QUICK).fit(pd.DataFrame({"source": [2**70, 1], "target": [1, 2]}))


def test_score_refuses_an_empty_array_as_it_does_an_empty_list(fitted: Any) -> None:
    """The first row was read before anything looked whether there is one."""
    for empty in (np.zeros((0, 2), np.int64), []):
        with pytest.raises(ShapeError, match="X holds no pairs of ids"):
            fitted.score(empty)


def test_matrices_of_halves_and_of_foreign_byte_order_are_read() -> None:
    """scipy.sparse takes neither, and its ValueError reached the user."""
    dense = np.ones((4, 4)) - np.eye(4)
    rows = ge.DeepWalk(**QUICK).fit_transform(dense)
    foreign = ">" if np.little_endian else "<"
    for dtype in (np.float16, f"{foreign}f8", f"{foreign}i4"):
        np.testing.assert_array_equal(ge.DeepWalk(**QUICK).fit_transform(dense.astype(dtype)), rows, str(dtype))
    with pytest.raises(DataError, match=r"an array of datetime64\[s\], shape \(3, 3\); expected a matrix"):
        ge.DeepWalk(**QUICK).fit(np.zeros((3, 3), "M8[s]"))
