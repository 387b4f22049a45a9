"""Graphs that DGL saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graph_emb.compat.dgl import load
from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import NODE_TYPE
from tests.graph.readers.compressed import read_csr, read_plain


@pytest.fixture(scope="module")
def dgl() -> Any:
    return load()


def save(dgl: Any, path: Path, *graphs: Any) -> Path:
    dgl.save_graphs(str(path), list(graphs))
    return path


def test_weights_labels_and_masks_are_read(dgl: Any, tmp_path: Path) -> None:
    graph = dgl.graph(([2, 0, 1], [0, 1, 2]), num_nodes=4)
    graph.edata["w"] = torch.tensor([[5.0], [6.0], [7.0]])
    graph.ndata["label"] = torch.tensor([1, 0, -1, 2])
    graph.ndata["train_mask"] = torch.tensor([True, False, False, True])
    graph.ndata["val_mask"] = torch.tensor([False, True, False, False])
    read = read_plain(save(dgl, tmp_path / "g.bin", graph))
    assert read.graph.directed
    assert read.graph.edges().tolist() == [[0, 1], [1, 2], [2, 0]]
    assert read.graph.weights.tolist() == [6.0, 7.0, 5.0]
    assert read.graph.num_nodes == 4
    assert read.labels.to_single().tolist() == [1, 0, -1, 2]
    assert {part: nodes.tolist() for part, nodes in read.node_split.items()} == {"train": [0, 3], "valid": [1]}


def test_several_labels_are_read(dgl: Any, tmp_path: Path) -> None:
    graph = dgl.graph(([0, 1], [1, 0]))
    graph.ndata["label"] = torch.tensor([[1, 0, 1], [0, 0, 0]])
    read = read_plain(save(dgl, tmp_path / "g.dgl", graph))
    assert not read.graph.directed
    assert read.labels.indices.tolist() == [0, 2]
    assert read.labels.num_classes == 3
    assert read.node_split is None


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("label", [-5, 1], "labels: class -5 at position 0 is outside"),
    ],
)
def test_labels_that_are_no_classes_are_refused(dgl: Any, tmp_path: Path, field: str, values: list, words: str) -> None:
    graph = dgl.graph(([0], [1]))
    graph.ndata[field] = torch.tensor(values)
    with pytest.raises(DataError, match=words):
        read_csr(save(dgl, tmp_path / "g.dgl", graph))


def test_what_is_no_single_plain_graph_is_refused(dgl: Any, tmp_path: Path) -> None:
    graph = dgl.graph(([0], [1]))
    with pytest.raises(DataError, match="holds 2 graphs, expected 1"):
        read_csr(save(dgl, tmp_path / "two.dgl", graph, graph))
    hetero = dgl.heterograph({("user", "likes", "item"): ([0], [0])})
    with pytest.raises(DataError, match="2 node types and 1 edge types; expected one of each"):
        read_csr(save(dgl, tmp_path / "hetero.dgl", hetero))
    wide = dgl.graph(([0], [1]))
    wide.edata["weight"] = torch.ones(1, 3)
    with pytest.raises(DataError, match=r"weights: shape \(1, 3\)"):
        read_csr(save(dgl, tmp_path / "wide.dgl", wide))
    assert read_csr(save(dgl, tmp_path / "none.dgl", dgl.graph(([], []), num_nodes=3))).num_arcs == 0


def test_labels_that_are_no_classes_stay_data(dgl: Any, tmp_path: Path) -> None:
    graph = dgl.graph(([0], [1]))
    graph.ndata["label"] = torch.tensor([0.5, 1.5])
    path = save(dgl, tmp_path / "g.dgl", graph)
    assert read_plain(path).labels is None
    assert read_graph(path).node_data[NODE_TYPE]["label"].tolist() == [0.5, 1.5]
