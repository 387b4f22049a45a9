"""A source finds its reader; options that mean nothing to it, and what is no graph, are refused in one line."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph import Graph
from graph_emb.graph.readers import ReadOptions, read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph


def test_an_option_of_another_format_names_those_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("0,1\n")
    with pytest.raises(ConfigError, match=r"unknown option of format 'edges' 'relations'; known: .*num_nodes"):
        read_graph(tmp_path / "g.csv", relations="types")
    with pytest.raises(ConfigError, match=r"'num_node'.*did you mean 'num_nodes'"):
        read_graph(tmp_path / "g.csv", num_node=3)


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown graph format 'triple'.*did you mean 'triples'"):
        read_graph(tmp_path / "x", format="triple")


def test_each_option_is_described() -> None:
    text = read_graph.__doc__ or ""
    for field in fields(ReadOptions):
        assert re.search(rf"^ {{8}}(\w+, )*{field.name}(, \w+)*: ", text, re.MULTILINE), (
            f"{field.name} has no description"
        )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (42, "a builtins.int is no graph"),
        ({0: [1]}, "a builtins.dict is no graph"),
        ("nowhere/graph.xyz", "nowhere/graph.xyz: no such file"),
    ],
)
def test_what_is_no_graph_is_refused(source: object, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        read_graph(source)


def test_a_file_of_unknown_kind_asks_for_its_format(tmp_path: Path) -> None:
    (tmp_path / "graph.xyz").write_text("0 1\n1 2\n")
    with pytest.raises(DataError, match="cannot tell its format; give format="):
        read_graph(tmp_path / "graph.xyz")
    with pytest.raises(DataError, match="cannot tell its format"):
        read_graph(tmp_path)


def test_a_stated_format_overrides_the_name(tmp_path: Path) -> None:
    (tmp_path / "graph.xyz").write_text("0 1\n1 2\n")
    assert read_graph(tmp_path / "graph.xyz", format="edges").total_edges == 2


def test_the_name_comes_from_the_source_or_the_caller(tmp_path: Path) -> None:
    (tmp_path / "friends.csv").write_text("0,1\n")
    assert read_graph(tmp_path / "friends.csv").name == "friends"
    assert read_graph(str(tmp_path / "friends.csv"), name="mine").name == "mine"
    with pytest.raises(ConfigError, match="name 'a/b'"):
        read_graph(tmp_path / "friends.csv", name="a/b")


def test_a_graph_of_the_library_keeps_arcs_weights_and_ids() -> None:
    graph = Graph.from_edges(["b", "a"], ["c", "b"], weights=[2.0, 0.5], directed=True)
    got = read_graph(graph)
    assert got.node_ids[NODE_TYPE].tolist() == ["a", "b", "c"]
    assert [ends.tolist() for ends in got.edges[EDGE_TYPE]] == [[0, 1], [1, 2]]
    assert got.edge_data[EDGE_TYPE]["weight"].tolist() == [0.5, 2.0]
    undirected = read_graph(Graph.from_edges([0], [1]))
    assert [ends.tolist() for ends in undirected.edges[EDGE_TYPE]] == [[0, 1], [1, 0]]


def test_a_graph_without_nodes_is_refused() -> None:
    empty = HeteroGraph({NODE_TYPE: 0}, {EDGE_TYPE: (np.empty(0, np.int64), np.empty(0, np.int64))})
    with pytest.raises(DataError, match="has no nodes"):
        read_graph(empty)


@pytest.mark.parametrize("format", ["npz", "ogb", "edges", "yaml", "memory", "networkx", "dgl", "triples"])
def test_a_format_that_does_not_read_the_object_is_refused(format: str) -> None:
    """The chosen reader took any source: a matrix given to another's reader ended in an AttributeError or TypeError."""
    with pytest.raises(ConfigError, match=rf"format='{format}' does not read a csr_array in memory; leave format= out"):
        read_graph(sparse.csr_array(np.eye(3)), format=format)


@pytest.mark.parametrize("format", ["scipy", "memory"])
def test_a_format_of_objects_refuses_a_path(tmp_path: Path, format: str) -> None:
    (tmp_path / "g.csv").write_text("0,1\n")
    with pytest.raises(ConfigError, match=rf"format='{format}' does not read a path, .*g.csv; leave format= out"):
        read_graph(tmp_path / "g.csv", format=format)
