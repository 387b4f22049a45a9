"""networkx graphs, and pickles that are more than a graph."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers import read_graph

Put = Callable[..., Path]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_all_four_classes_in_every_pickle_protocol(kind: type, protocol: int, put: Put) -> None:
    graph = kind([(0, 1), (1, 2), (1, 2)])
    graph.add_node(3)
    graph.graph["made"] = np.arange(3)
    graph.nodes[0]["others"] = [OrderedDict(a=1), defaultdict(list), frozenset({1}), np.float64(2)]
    graph.adj, graph.edges, graph.degree  # noqa: B018 (networkx keeps these views and pickles them)
    read = read_graph(put("g.gpickle", pickle.dumps(graph, protocol)))
    assert read.directed is kind.is_directed(graph)
    assert read.edges().tolist() == [[0, 1], [1, 2]]
    assert read.num_nodes == 4


def test_parallel_edges_follow_the_duplicates_option(put: Put) -> None:
    graph = nx.MultiGraph()
    graph.add_weighted_edges_from([(0, 1, 2.0), (0, 1, 5.0)])
    graph.add_edge(1, 2)
    path = put("g.pkl", pickle.dumps(graph))
    assert read_graph(path).edge_weights().tolist() == [2.0, 1.0]
    assert read_graph(path, duplicates="sum").edge_weights().tolist() == [7.0, 1.0]


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
    read = read_graph(put("g.gpickle", pickle.dumps(graph)))
    assert (None if read.node_ids is None else read.node_ids.tolist()) == ids
    expected = [str(node) if ids and isinstance(ids[0], str) else node for node in nodes[:2]]
    assert [read.ids_of(read.edges()[0]).tolist()] == [expected]


def test_graphml_ids_become_integers_where_all_are(tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_edge("5", "3", weight=2.5)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    read = read_graph(tmp_path / "g.graphml")
    assert read.directed
    assert read.node_ids.tolist() == [3, 5]
    assert read.weights.tolist() == [2.5]
    assert read_graph(tmp_path / "g.graphml", ids="str").node_ids.tolist() == ["3", "5"]
    nx.write_graphml(nx.path_graph(["a", "b", "10"]), tmp_path / "h.graphml")
    assert read_graph(tmp_path / "h.graphml").node_ids.tolist() == ["10", "a", "b"]
    with pytest.raises(DataError, match="node 0: id 'a' is not an integer"):
        read_graph(tmp_path / "h.graphml", ids="int")


class _Evil:
    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (__import__("os").system, "posix.system|nt.system"),
        (eval, "builtins.eval"),
        (getattr, "builtins.getattr"),
        (__import__("subprocess").check_output, "subprocess.check_output|commands.check_output"),
        (nx.write_edgelist, "networkx"),
        (np.save, "numpy.save"),
        (np.fromfile, "numpy"),
    ],
)
def test_a_pickle_that_calls_anything_is_refused(function: Callable, name: str, put: Put, tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    graph = nx.Graph([(0, 1)])
    graph.graph["x"] = _Evil(function, f"touch {mark}")
    for protocol in (0, 4):
        with pytest.raises(DataError, match=rf"g\.gpickle: the pickle asks for ({name}).*save it as GraphML"):
            read_graph(put("g.gpickle", pickle.dumps(graph, protocol)))
    assert not mark.exists()


def test_an_attribute_of_an_allowed_type_is_refused(put: Put) -> None:
    """Protocol 4 resolves dotted names: reportviews imports networkx, and all of it hangs below."""
    stolen = b"\x80\x04\x8c\x1cnetworkx.classes.reportviews\x8c\x0enx.x.AtlasView\x93."
    with pytest.raises(DataError, match=r"asks for networkx\.classes\.reportviews\.nx\.x\.AtlasView"):
        read_graph(put("g.gpickle", stolen))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, "holds a dict; expected a networkx graph"),
        (nx.Graph(), "has no edges"),
        (nx.Graph([(0, -1)]), "node 1: id '-1' is negative"),
        (nx.Graph([(0, 2**63)]), "node 1: id '9223372036854775808' is above"),
        (nx.Graph([("", "a")]), "node 0: an id is missing"),
        (nx.Graph([(1, "1")]), "two nodes have the id '1'"),
        (nx.Graph([(0, 1, {"weight": -1})]), "value -1 of arc 0"),
        (nx.Graph([(0, 1, {"weight": "x"})]), "weights: shape"),
    ],
)
def test_what_is_no_graph_to_train_on_is_named(value: object, words: str, put: Put) -> None:
    path = put("g.gpickle", pickle.dumps(value))
    with pytest.raises(DataError, match=words) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path))
