"""Files of labels, matched to the ids of a graph."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError
from graph_emb.graph import Graph, read_labels

NAMES = Graph.from_edges(["ann", "bob"], ["bob", "carl"])
DENSE = Graph.from_edges([0, 1], [1, 2], num_nodes=4)
GAPS = Graph.from_edges([10, 20], [20, 40])


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("graph", "content", "rows", "names"),
    [
        (NAMES, "bob,red\nann,blue\n", [[0], [1], []], ("blue", "red")),
        (NAMES, "node,color\nbob,red\nann,blue\n", [[0], [1], []], ("blue", "red")),
        (NAMES, "ann,x,y\ncarl,y\n", [[0, 1], [], [1]], ("x", "y")),
        (NAMES, "ann,x;y\ncarl, y ;\n", [[0, 1], [], [1]], ("x", "y")),
        (NAMES, "ann\tx\nann\ty\ncarl\ty\nann\tx\n", [[0, 1], [], [1]], ("x", "y")),
        (NAMES, "# who what\n\nann x\n", [[0], [], []], ("x",)),
        (NAMES, "ann,x\nbob,\n", [[0], [], []], ("x",)),
        (DENSE, "0,10\n2,9\n3,9\n", [[1], [], [0], [0]], ("9", "10")),
        (DENSE, "0,1\n1,-1\n2,0\n", [[1], [], [0], []], ("0", "1")),
        (DENSE, "who,what\n0,1\n", [[0], [], [], []], ("1",)),
        (GAPS, "40,a\r\n10,b\r\n", [[1], [], [0]], ("a", "b")),
        (NAMES, '\ufeffann,"a, b"\n', [[0], [], []], ("a, b",)),
    ],
)
def test_text_rows_become_label_lists(
    graph: Graph, content: str, rows: list, names: tuple[str, ...], tmp_path: Path
) -> None:
    for path in (put(tmp_path, "l.csv", content), put(tmp_path, "l.csv.gz", gzip.compress(content.encode()))):
        labels = read_labels(path, graph)
        found = [labels.indices[a:b].tolist() for a, b in zip(labels.indptr[:-1], labels.indptr[1:], strict=True)]
        assert found == rows
        assert labels.class_names == names
        assert labels.num_nodes == graph.num_nodes


def test_header_says_it_where_guessing_cannot(tmp_path: Path) -> None:
    path = put(tmp_path, "l.csv", "ann,x\nbob,y\n")
    assert read_labels(path, NAMES, header=True).class_names == ("y",)
    path = put(tmp_path, "l.csv", "who,what\nbob,y\n")
    assert read_labels(path, NAMES, header=True).class_names == ("y",)
    with pytest.raises(DataError, match="line 1: node 'who' is not among the 3 nodes"):
        read_labels(path, NAMES)


def test_arrays_are_in_the_order_of_the_nodes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=np.array([1, -1, 0]))
    assert read_labels(tmp_path / "a.npz", NAMES).to_single().tolist() == [1, -1, 0]
    np.savez(tmp_path / "b.npz", label_indptr=[0, 2, 2, 3], label_indices=[0, 1, 1])
    assert read_labels(tmp_path / "b.npz", NAMES).counts().tolist() == [2, 0, 1]
    scipy.io.savemat(tmp_path / "c.mat", {"group": np.array([[1, 0], [0, 0], [1, 1]])})
    assert read_labels(tmp_path / "c.mat", NAMES).indices.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("graph", "name", "content", "words"),
    [
        (NAMES, "l.csv", "ann,x\ndora,y\n", "line 2: node 'dora' is not among the 3 nodes of the graph"),
        (DENSE, "l.csv", "0,x\n\n4,y\n", "line 3: node '4' is not among the 4 nodes of the graph"),
        (DENSE, "l.csv", "0,x\n-1,y\n", "line 2: node '-1' is not among"),
        (GAPS, "l.csv", "10,x\n11,y\n", "line 2: node '11' is not among the 3"),
        (DENSE, "l.csv", "0,x\n99999999999999999999999,y\n", "line 2: node '99999999999999999999999' is not among"),
        (DENSE, "l.csv", "0,x\nann,y\n", "line 2: node 'ann' is not an integer"),
        (DENSE, "l.csv", "0,x\n1\n", "line 2: 1 column, expected node,label"),
        (DENSE, "l.csv", "node,label\n", "has no labels"),
        (DENSE, "l.csv", "0," + "x" * 1025, "line 1: a cell has more than 1024 characters"),
        (DENSE, "l.csv", "0," + "x" * 200000, "line 1: field larger than"),
        (DENSE, "l.txt", b"0 a\n\xff\xff\n", "line 2: byte 0xff is not UTF-8"),
        (DENSE, "l.csv.gz", b"0,1\n", "damaged or cut off"),
        (DENSE, "l.json", "{}", r"suffix '\.json' is no labels file"),
        (DENSE, "l.npz", b"PK junk", r"is no \.npz archive"),
        (DENSE, "l.mat", b"junk" * 50, "cannot be read as a MATLAB file"),
        (DENSE, "l.csv", "", "is empty"),
    ],
)
def test_labels_of_another_graph_or_damaged_ones_are_named(
    graph: Graph, name: str, content: str | bytes, words: str, tmp_path: Path
) -> None:
    path = put(tmp_path, name, content)
    with pytest.raises(DataError, match=words) as caught:
        read_labels(path, graph)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_arrays_of_another_length_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=np.array([1, 0]))
    with pytest.raises(DataError, match="labels of 2 nodes, but the graph has 3; are they of another graph"):
        read_labels(tmp_path / "a.npz", NAMES)
    np.savez(tmp_path / "b.npz", other=np.array([1, 0]))
    with pytest.raises(DataError, match="holds no labels; expected label or label_indptr"):
        read_labels(tmp_path / "b.npz", NAMES)
    scipy.io.savemat(tmp_path / "c.mat", {"other": np.ones(3)})
    with pytest.raises(DataError, match="holds no labels; expected group"):
        read_labels(tmp_path / "c.mat", NAMES)
    with pytest.raises(ConfigError, match=r"header=True means nothing to a \.npz file"):
        read_labels(tmp_path / "a.npz", NAMES, header=True)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "txt", "npz", "mat", "csv.gz"])
def test_random_bytes_give_one_line(suffix: str, tmp_path: Path) -> None:
    for size in (1, 30, 3000):
        path = put(tmp_path, f"noise.{suffix}", os.urandom(size))
        with pytest.raises(GraphEmbError) as caught:
            read_labels(path, DENSE)
        assert "\n" not in str(caught.value)


@pytest.mark.data
def test_blogcatalog_labels_fit_its_graph(shared_data: Path) -> None:
    from graph_emb.graph.readers import read_graph
    from graph_emb.graph.views import compressed

    path = shared_data / "blogcatalog" / "graph.npz"
    labels = read_labels(path, compressed(read_graph(path), symmetrize=True)[0])
    assert (labels.num_classes, len(labels.indices), len(labels.labelled())) == (39, 14476, 10312)
