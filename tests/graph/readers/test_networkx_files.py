"""networkx graphs, and pickles that are more than a graph."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from tests.graph.readers.compressed import read_csr

Put = Callable[..., Path]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_all_four_classes_in_every_pickle_protocol(kind: type, protocol: int, put: Put) -> None:
    graph = kind([(0, 1), (1, 2), (1, 2)])
    graph.add_node(3)
    graph.graph["made"] = np.arange(3)
    graph.nodes[0]["others"] = [OrderedDict(a=1), defaultdict(list), frozenset({1}), np.float64(2)]
    graph.adj, graph.edges, graph.degree  # noqa: B018 (networkx keeps these views and pickles them)
    read = read_csr(put("g.gpickle", pickle.dumps(graph, protocol)), trust_pickle=True)
    assert read.directed is kind.is_directed(graph)
    assert read.edges().tolist() == [[0, 1], [1, 2]]
    assert read.num_nodes == 4


def test_parallel_edges_follow_the_duplicates_option(put: Put) -> None:
    graph = nx.MultiGraph()
    graph.add_weighted_edges_from([(0, 1, 2.0), (0, 1, 5.0)])
    graph.add_edge(1, 2)
    path = put("g.pkl", pickle.dumps(graph))
    assert read_csr(path, trust_pickle=True).edge_weights().tolist() == [2.0, 1.0]
    assert read_csr(path, trust_pickle=True, duplicates="sum").edge_weights().tolist() == [7.0, 1.0]


@pytest.mark.parametrize(
    ("nodes", "ids"),
    [
        ([2, 0, 1], None),
        ([30, 10, 20], [10, 20, 30]),
        ([np.int64(2), 1, 5], [1, 2, 5]),
        (["b", "a", "c"], ["a", "b", "c"]),
        ([(0, 1), (0, 0), (1, 1)], ["(0, 0)", "(0, 1)", "(1, 1)"]),
        ([True, 7, "x"], ["7", "True", "x"]),
    ],
)
def test_nodes_are_numbered_in_the_order_of_their_ids(nodes: list, ids: list | None, put: Put) -> None:
    graph = nx.DiGraph([(nodes[0], nodes[1])])
    graph.add_node(nodes[2])
    read = read_csr(put("g.gpickle", pickle.dumps(graph)), trust_pickle=True)
    assert (None if read.node_ids is None else read.node_ids.tolist()) == ids
    expected = [str(node) if ids and isinstance(ids[0], str) else node for node in nodes[:2]]
    assert [read.ids_of(read.edges()[0]).tolist()] == [expected]


def test_graphml_ids_become_integers_where_all_are(tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_edge("5", "3", weight=2.5)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    read = read_csr(tmp_path / "g.graphml")
    assert read.directed
    assert read.node_ids.tolist() == [3, 5]
    assert read.weights.tolist() == [2.5]
    assert read_csr(tmp_path / "g.graphml", ids="str").node_ids.tolist() == ["3", "5"]
    nx.write_graphml(nx.path_graph(["a", "b", "10"]), tmp_path / "h.graphml")
    assert read_csr(tmp_path / "h.graphml").node_ids.tolist() == ["10", "a", "b"]
    with pytest.raises(DataError, match="node 0: id 'a' is not an integer"):
        read_csr(tmp_path / "h.graphml", ids="int")


class Caller:
    """Pickled, a call of a function by whoever loads it."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


REFUSED = (
    "a pickle can run any code; save the graph as GraphML, JSON node-link or an edge list, or say trust_pickle=True"
)


@pytest.mark.parametrize("name", ["g.gpickle", "g.pkl", "g.pickle", "g.gpickle.gz", "g.pickle.gz"])
def test_no_pickle_is_read_unless_it_is_trusted(name: str, put: Put, tmp_path: Path) -> None:
    """An allow-list of types admitted ``numpy.dtype`` with BUILD: eight bytes became an object pointer."""
    mark = tmp_path / "was_here"
    content = pickle.dumps(Caller(Path.touch, mark))
    path = put(name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=rf"{name}: {REFUSED}"):
        read_csr(path)
    assert not mark.exists()
    with pytest.raises(DataError, match="holds a NoneType; expected a networkx graph"):
        read_csr(path, trust_pickle=True)
    assert mark.exists()


def test_object_arrays_are_refused_always(put: Put, tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    path = put("g.npz", indptr=np.array([0, 1]), indices=np.array([Caller(Path.touch, mark)], dtype=object))
    with pytest.raises(DataError, match=r"cannot be read as an \.npz archive: Object arrays cannot be loaded"):
        read_csr(path)
    with pytest.raises(ConfigError, match="unknown option of format 'npz' 'trust_pickle'"):
        read_csr(path, trust_pickle=True)
    assert not mark.exists()


@pytest.mark.parametrize("key", ["links", "edges"])
def test_node_link_json_keeps_attributes_and_direction(key: str, put: Put) -> None:
    data = {
        "directed": True,
        "multigraph": True,
        "nodes": [{"id": "b", "age": 3}, {"id": "a", "age": 4}],
        key: [{"source": "a", "target": "b", "key": n, "weight": w} for n, w in enumerate((2.0, 3.0))],
    }
    graph = read_graph(put("g.json", json.dumps(data)))
    assert graph.node_ids[NODE_TYPE].tolist() == ["a", "b"]
    assert graph.node_data[NODE_TYPE]["age"].tolist() == [4, 3]
    assert [ends.tolist() for ends in graph.edges[EDGE_TYPE]] == [[0, 0], [1, 1]]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [2.0, 3.0]
    assert graph.counts == {"duplicate edges kept": 1}
    assert read_graph(put("h.json", json.dumps({**data, "directed": False}))).total_edges == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1, 2]", "no lists 'nodes' and 'links'; expected JSON as networkx.node_link_data makes it"),
        ('{"nodes": [], "links": 3}', "no lists 'nodes' and 'links'"),
        ('{"nodes": [{"name": 1}], "links": []}', "node 0: 'id' is 'None'; expected an integer or a text"),
        ('{"nodes": [{"id": [1]}], "links": []}', "node 0: 'id' is '\\[1\\]'; expected an integer or a text"),
        ('{"nodes": [{"id": 1}, {"id": 1}], "links": []}', "node 1: id 1 is given twice"),
        ('{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "edge 0: 2 is no id of a node"),
        ('{"nodes": [', "cannot be read as JSON node-link data"),
        ("[" * 200_000, "cannot be read as JSON node-link data: .*; is the file whole"),
        ('{"nodes": [{"id": ' + "9" * 5000 + '}], "links": []}', "cannot be read as JSON node-link data"),
    ],
)
def test_json_that_is_no_graph_is_one_line(content: str, words: str, put: Put) -> None:
    path = put("g.json", content)
    with pytest.raises(DataError, match=words) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, "holds a dict; expected a networkx graph"),
        (nx.Graph(), "has no nodes"),
        (nx.Graph([(0, -1)]), "node 1: id '-1' is negative"),
        (nx.Graph([(0, 2**63)]), "node 1: id '9223372036854775808' is above"),
        (nx.Graph([("", "a")]), "node 0: an id is missing"),
        (nx.Graph([(1, "1")]), "two nodes are written '1'"),
        (nx.Graph([(0, 1, {"weight": -1})]), "value -1 of arc 0"),
        (nx.Graph([(0, 1, {"weight": "x"})]), "edge attribute 'weight': holds str; expected numbers"),
    ],
)
def test_what_is_no_graph_to_train_on_is_named(value: object, words: str, put: Put) -> None:
    path = put("g.gpickle", pickle.dumps(value))
    with pytest.raises(DataError, match=words) as caught:
        read_csr(path, trust_pickle=True)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("command", ["partition", "info", "train"])
def test_every_command_that_reads_graphs_takes_trust_pickle(
    command: str, put: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(put("g.gpickle", pickle.dumps(nx.karate_club_graph())))
    out = str(tmp_path / "out")
    words = {
        "partition": ["partition", "build", path, "--parts", "2", "--out", out, "--quiet"],
        "info": ["info", path],
        "train": ["train", "deepwalk", "--dataset", path, "--out", out, "--no-eval"],
    }[command]
    assert main(words) == 2
    assert "a pickle can run any code" in capsys.readouterr().err
    assert main([*words, "--trust-pickle"]) == 0
