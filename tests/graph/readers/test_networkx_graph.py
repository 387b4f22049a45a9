"""networkx graphs of each class with their attributes."""

from __future__ import annotations

from pathlib import Path

import networkx
import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE


def test_attributes_that_all_have_become_data() -> None:
    graph = networkx.DiGraph()
    graph.add_node(1, age=30, feat=[1.0, 2.0], name="x", rare=1)
    graph.add_node(0, age=40, feat=[3.0, 4.0], name="y")
    graph.add_edge(1, 0, weight=0.5, note="n")
    got = read_graph(graph)
    assert got.node_data[NODE_TYPE]["age"].tolist() == [40, 30]
    assert got.node_data[NODE_TYPE]["feat"].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert list(got.node_data[NODE_TYPE]) == ["age", "feat"]
    assert got.edge_data[EDGE_TYPE]["weight"].tolist() == [0.5]
    assert [ends.tolist() for ends in got.edges[EDGE_TYPE]] == [[1], [0]]
    assert got.counts == {"node attributes left out": 2, "edge attributes left out": 1}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("rare", "node 1: has no attribute 'rare'"),
        ("name", "node attribute 'name': holds str; expected numbers"),
        ("uneven", "node attribute 'uneven': arrays of several shapes"),
    ],
)
def test_an_attribute_that_was_asked_for_must_fit(asked: str, message: str) -> None:
    graph = networkx.Graph()
    graph.add_node(0, name="x", rare=1, uneven=[1], age=3)
    graph.add_node(1, name="y", uneven=[1, 2], age=4)
    with pytest.raises(DataError, match=message):
        read_graph(graph, node_attributes=[asked])
    assert list(read_graph(graph, node_attributes=["age"]).node_data[NODE_TYPE]) == ["age"]
    assert read_graph(graph, node_attributes=[]).node_data == {}


def test_an_undirected_edge_means_both_directions() -> None:
    graph = networkx.Graph([(0, 1), (1, 1)])
    assert [ends.tolist() for ends in read_graph(graph).edges[EDGE_TYPE]] == [[0, 1, 1], [1, 1, 0]]
    assert [ends.tolist() for ends in read_graph(graph, directed=True).edges[EDGE_TYPE]] == [[0, 1], [1, 1]]
    assert read_graph(networkx.MultiGraph([(0, 1), (0, 1)])).total_edges == 4


def test_names_are_kept_in_sorted_order() -> None:
    got = read_graph(networkx.DiGraph([("b", "a"), ("a", ("t", 1))]))
    assert got.node_ids[NODE_TYPE].tolist() == ["('t', 1)", "a", "b"]
    assert [ends.tolist() for ends in got.edges[EDGE_TYPE]] == [[2, 1], [1, 0]]
    assert read_graph(networkx.DiGraph([(7, 3)])).node_ids[NODE_TYPE].tolist() == [3, 7]
    with pytest.raises(DataError, match="two nodes are written '1'"):
        read_graph(networkx.DiGraph([("1", 1)]))


def test_graphml_keeps_attributes(tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_edge("a", "b", weight=2.5)
    networkx.set_node_attributes(graph, {"a": 1.5, "b": 2.5}, "score")
    networkx.write_graphml(graph, tmp_path / "g.graphml.gz")
    got = read_graph(tmp_path / "g.graphml.gz")
    assert got.node_data[NODE_TYPE]["score"].tolist() == [1.5, 2.5]
    assert got.edge_data[EDGE_TYPE]["weight"].tolist() == [2.5]
    assert got.name == "g"


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.gpickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"g.gpickle: a pickle can run any code"):
        read_graph(tmp_path / "g.gpickle")


def test_a_graph_of_arrays_as_attributes() -> None:
    graph = networkx.path_graph(3, create_using=networkx.DiGraph)
    networkx.set_node_attributes(graph, {node: np.full(2, node) for node in range(3)}, "feat")
    assert read_graph(graph).node_data[NODE_TYPE]["feat"].tolist() == [[0, 0], [1, 1], [2, 2]]
