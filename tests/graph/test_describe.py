"""A data set in numbers."""

from __future__ import annotations

import json

import numpy as np

from graph_emb.graph import Graph, Labels, read_graph
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import PlainDataset, describe, describe_plain


def test_every_number_of_a_drawn_graph() -> None:
    # 0-1, 1-2, 1-3; 4 alone; 5 with itself only
    graph = Graph.from_edges([0, 1, 1, 5], [1, 2, 3, 5], num_nodes=6, weights=[1, 2, 1, 1])
    labels = Labels.from_lists([[0, 1], [1], [], [1], [], []], num_classes=3)
    data = PlainDataset(
        "drawn",
        graph,
        labels,
        node_split={"train": np.array([0, 1])},
        link_split={"train": {"edge": np.zeros((4, 2), dtype=np.int64)}},
    )
    found = describe_plain(data)
    assert found == {
        "name": "drawn",
        "nodes": 6,
        "edges": 4,
        "arcs": 7,
        "directed": False,
        "weighted": True,
        "ids": "0 .. N-1",
        "degree": {"min": 0, "median": 1.0, "mean": 7 / 6, "max": 3},
        "isolated": 2,
        "self_loops": 1,
        "components": 3,
        "largest_component": 4,
        "labels": {"classes": 3, "labelled": 3, "assignments": 4, "most_on_a_node": 2, "largest_class": 3},
        "node_split": {"train": 2},
        "link_split": {"train": {"edge": [4, 2]}},
    }
    assert json.loads(json.dumps(found)) == found


def test_a_directed_graph_counts_out_arcs_and_weak_components() -> None:
    found = describe_plain(PlainDataset("d", Graph.from_edges(["a", "c"], ["b", "b"], directed=True)))
    assert found["degree"] == {"min": 0, "median": 1.0, "mean": 2 / 3, "max": 1}
    assert (found["components"], found["isolated"], found["ids"]) == (1, 0, "str")
    assert found["labels"] is found["node_split"] is found["link_split"] is None


def test_a_graph_without_nodes_has_zeros() -> None:
    found = describe_plain(PlainDataset("none", Graph.from_edges([], [])))
    assert (found["nodes"], found["components"], found["isolated"], found["largest_component"]) == (0, 0, 0, 0)


def test_a_graph_with_types_is_counted_by_type() -> None:
    edges = {("paper", "by", "author"): (np.array([0, 1]), np.array([1, 0]))}
    graph = HeteroGraph({"author": 2, "paper": 3}, edges)
    labels = {"paper": Labels.from_single([0, 1, -1])}
    found = describe(Dataset("papers", graph, labels, {"paper": {"train": np.array([0])}}))
    assert json.loads(json.dumps(found)) == {
        "name": "papers",
        "nodes": 5,
        "edges": 2,
        "node_types": {"author": 2, "paper": 3},
        "edge_types": {"paper by author": 2},
        "labels": {"paper": {"classes": 2, "labelled": 2, "assignments": 2, "most_on_a_node": 1, "largest_class": 1}},
        "node_split": {"paper": {"train": 1}},
    }


def test_triples_are_counted_by_part() -> None:
    parts = {"train": np.array([[0, 0, 1]]), "test": np.array([[1, 0, 0]])}
    triples = KnowledgeGraph("kg", 2, 1, parts)
    found = describe(Dataset("kg", read_graph(triples, relations="column"), triples=triples))
    assert (found["relations"], found["triples"]) == (1, {"train": 1, "test": 1})


def test_a_plain_data_set_is_counted_as_it_is_stored() -> None:
    graph = HeteroGraph({NODE_TYPE: 3}, {EDGE_TYPE: (np.array([0, 0, 1]), np.array([1, 1, 2]))})
    found = describe(Dataset("g", graph))
    assert (found["edges"], found["directed"], found["duplicate edges merged"]) == (2, True, 1)
