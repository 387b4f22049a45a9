"""Data frames and numpy arrays are graphs as files of the same columns are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from graph_emb.graph.views import knowledge_graph

TRIPLES = {"tail": ["b", "c", "a"], "head": ["a", "b", "a"], "relation": ["likes", "knows", "likes"]}


@pytest.mark.parametrize(
    "columns",
    [
        {"source": [5, 7, 5], "target": [7, 9, 9]},
        {"w": [0.5, 2.0, 1.0], "dst": ["y", "z", "z"], "src": ["x", "y", "x"]},
        {0: [0, 1, 2], 1: [1, 2, 0]},
    ],
)
def test_a_frame_is_the_graph_of_its_csv_file(columns: dict[Any, Any], tmp_path: Path) -> None:
    frame = pd.DataFrame(columns)
    frame.to_csv(tmp_path / "edges.csv", index=False)
    ours, theirs = read_graph(frame), read_graph(tmp_path / "edges.csv", header=True)
    for mine, other in zip(ours.edges[EDGE_TYPE], theirs.edges[EDGE_TYPE], strict=True):
        np.testing.assert_array_equal(mine, other)
    assert ours.num_nodes == theirs.num_nodes
    np.testing.assert_equal(ours.node_ids, theirs.node_ids)
    np.testing.assert_equal(ours.edge_data, theirs.edge_data)


def test_options_mean_what_they_mean_for_files() -> None:
    frame = pd.DataFrame({"a": [0, 1], "b": [1, 2], "cost": [3.0, 4.0], "note": ["p", "q"]})
    graph = read_graph(frame, columns=["b", "a"], weight="cost", num_nodes=5, directed=False)
    assert graph.num_nodes == {NODE_TYPE: 5}
    assert sorted(zip(*map(np.ndarray.tolist, graph.edges[EDGE_TYPE]), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert sorted(graph.edge_data[EDGE_TYPE]["weight"].tolist()) == [3.0, 3.0, 4.0, 4.0]
    with pytest.raises(ConfigError, match="unknown option of format 'pandas' 'header'"):
        read_graph(frame, header=True)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"source": [1, 2], "target": [2, None]}, "the data frame, row 1: target is missing"),
        ({"source": ["a", "b"], "target": ["b", None]}, "the data frame, row 1: target"),
        ({"source": [0.5, 2.0], "target": [1, 2]}, "column 'source' holds double; expected integers or strings as ids"),
        ({"source": ["a", 2], "target": ["b", "c"]}, "column 'source' holds values of several kinds"),
        ({"source": [1, 2], "target": ["b", "c"]}, "one end of the edges holds numbers, the other names"),
        ({"source": [1, 2], "target": [2, 3], "weight": [1.0, -1.0]}, "row 1: weight -1.0 is not finite and above 0"),
        ({"source": [], "target": []}, "has no edges"),
        ({"a": [1], "b": [2], "c": [3], "d": [4]}, r"4 column\(s\), expected 2 or 3"),
    ],
)
def test_a_frame_at_fault_is_one_clear_line(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(pd.DataFrame(columns))


def test_head_relation_and_tail_are_triples() -> None:
    graph = knowledge_graph(load_dataset(pd.DataFrame(TRIPLES)))
    assert (graph.entities, graph.relations) == (("a", "b", "c"), ("knows", "likes"))
    assert sorted(map(tuple, graph.train.tolist())) == [(0, 1, 0), (0, 1, 1), (1, 0, 2)]
    with pytest.raises(DataError, match="has no triples"):
        read_graph(pd.DataFrame({"head": [], "relation": [], "tail": []}))
    with pytest.raises(ConfigError, match="order= and separator= are for text"):
        read_graph(pd.DataFrame(TRIPLES), order="htr")


def test_an_array_is_a_matrix_of_weights() -> None:
    matrix = np.array([[0, 2.0, 0], [2.0, 0, 1.0], [0, 1.0, 0]])
    graph = read_graph(matrix)
    assert graph.symmetric
    assert graph.edges[EDGE_TYPE][0].tolist() == [0, 1, 1, 2]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [2.0, 2.0, 1.0, 1.0]
    for wrong, message in ((matrix[:2], "expected a square one"), (matrix[0], "expected a matrix"),
                           (np.array([["a"]]), "expected a matrix")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_graph(wrong)
