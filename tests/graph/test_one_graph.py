"""One file is one graph: for the library, a partition build, a streaming build and the data of a training."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import io, sparse

import partition
from graph_emb.config import DatasetSection
from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.inputs import read_dataset

Kind = tuple[str, Callable[[Path], Any], dict[str, Any]]


def text(content: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())

    return write


def table(**columns: list) -> Callable[[Path], Any]:
    return lambda path: parquet.write_table(pa.table(columns), path)


def arrays(**columns: Any) -> Callable[[Path], Any]:
    return lambda path: np.savez(path, **columns)


def attributed() -> nx.Graph:
    graph = nx.Graph([("a", "b", {"weight": 2.0}), ("b", "c", {"weight": 0.5}), ("c", "c", {"weight": 1.5})])
    nx.set_node_attributes(graph, {"a": 1, "b": 2, "c": 3}, "age")
    return graph


SYMMETRIC = sparse.csc_array(np.array([[0, 2.0, 0], [2.0, 0, 0.5], [0, 0.5, 0]]))
KINDS: dict[str, Kind] = {
    "no header": ("g.txt", text("0 1\n1 2\n2 0\n"), {}),
    "header and more columns": ("g.csv", text("time,target,source,note\n9,1,0,x\n9,2,1,y\n8,0,2,z\n"), {}),
    "comments, blank lines, a byte order mark": ("g.txt", text("\ufeff# by u, v\n\n0 1\n  % old\n1 2\n\n2 0"), {}),
    "tabs and runs of blanks": ("g.tsv", text("0\t1\n1\t2\n2\t0\n"), {}),
    "CRLF": ("g.csv", text("src,dst\r\n0,1\r\n1,2\r\n"), {}),
    "quotes": ("g.csv", text('"a,b",c\n"c","d"\nd,"a,b"\n'), {}),
    "duplicates both ways": ("g.txt", text("0 1\n1 0\n0 1\n1 2\n2 1\n2 1\n"), {}),
    "duplicates summed": ("g.txt", text("0 1\n1 0\n0 1\n1 2\n"), {"duplicates": "sum"}),
    "self loops": ("g.txt", text("0 0\n0 1\n1 1\n1 2\n"), {}),
    "self loops dropped": ("g.txt", text("0 0\n0 1\n1 1\n1 2\n"), {"self_loops": "drop"}),
    "string ids": ("g.tsv", text("New York\tRome\nRome\tOslo\nOslo\tNew York\n"), {}),
    "gaps in ids": ("g.txt", text("70 5\n5 900000000000\n900000000000 70\n"), {}),
    "nodes without edges": ("g.txt", text("3 1\n1 0\n"), {"num_nodes": 6}),
    "a weight by name": ("g.csv", text("src,dst,w\n0,1,2.5\n1,2,0.5\n"), {}),
    "a third column that is told": ("g.txt", text("0 1 3\n1 2 4\n"), {"weight": True}),
    "a third column left out": ("g.txt", text("0 1 3\n1 2 4\n"), {"weight": False}),
    "each edge both ways": ("g.txt", text("0 1\n1 0\n1 2\n"), {"directed": False}),
    "another separator": ("g.csv", text("a;b;2\nb;c;3\n"), {"separator": ";", "weight": False}),
    "gz": ("g.csv.gz", text("0,1\n1,2\n2,0\n"), {}),
    "Parquet": ("g.parquet", table(weight=[0.5, 2.0], dst=["b", "c"], src=["a", "b"]), {}),
    "npz, upper triangle": ("g.npz", arrays(indptr=[0, 2, 3, 3], indices=[1, 2, 2]), {}),
    "npz, undirected": ("g.npz", arrays(indptr=[0, 0, 1, 3], indices=[0, 0, 1], directed=False), {}),
    "npz, labels": ("g.npz", arrays(indptr=[0, 1, 2, 3], indices=[1, 2, 0], label=np.array([1, -1, 0])), {}),
    "mat, symmetric": ("g.mat", lambda path: io.savemat(path, {"network": SYMMETRIC}), {}),
    "GraphML": ("g.graphml", lambda path: nx.write_graphml(attributed(), path), {}),
    "JSON": ("g.json", lambda path: path.write_text(json.dumps(nx.node_link_data(attributed(), edges="links"))), {}),
}
IN_ONE_PIECE = {"directed", "duplicates", "self_loops"}  # options that a streaming build refuses


def assert_same(graph: HeteroGraph, other: HeteroGraph) -> None:
    assert graph.num_nodes == other.num_nodes
    assert (graph.symmetric, graph.counts) == (other.symmetric, other.counts)
    for mine, theirs in ((graph.edges, other.edges), (graph.node_ids, other.node_ids)):
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key])
    for mine, theirs in ((graph.node_data, other.node_data), (graph.edge_data, other.edge_data)):
        assert {key: set(columns) for key, columns in mine.items()} == {key: set(c) for key, c in theirs.items()}
        for key, columns in mine.items():
            for name, values in columns.items():
                np.testing.assert_array_equal(values, theirs[key][name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_the_same_graph_for_everyone(kind: str, tmp_path: Path) -> None:
    name, write, options = KINDS[kind]
    path = tmp_path / name
    write(path)
    graph = read_graph(path, **options)
    assert_same(graph, read_dataset(DatasetSection(name=str(path), **options)).graph)
    built = partition.build(path, 2, "range", out=tmp_path / "parts", reader_options=options)
    found = partition.verify(built.path, graph)
    assert found.problems == []
    assert found.checked


STREAMED = [
    kind
    for kind, (name, _, options) in KINDS.items()
    if name.split(".")[1] in ("txt", "csv", "tsv")
    and not IN_ONE_PIECE & options.keys()
    and kind not in ("quotes", "string ids", "gaps in ids", "another separator")  # ids that are not 0 .. N - 1
]


@pytest.mark.parametrize("kind", STREAMED)
def test_a_streaming_build_reads_the_same(kind: str, tmp_path: Path) -> None:
    name, write, options = KINDS[kind]
    path = tmp_path / name
    write(path)
    built = partition.build(path, 2, "range", out=tmp_path / "parts", memory="6GB", reader_options=options)
    assert partition.verify(built.path, read_graph(path, **options)).problems == []


def test_a_third_column_without_a_name_is_refused_by_everyone(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text("0 1 3\n1 2 4\n")
    for read in (
        lambda: read_graph(path),
        lambda: partition.build(path, 2, out=tmp_path / "parts"),
        lambda: partition.build(path, 2, out=tmp_path / "parts", memory="6GB"),
        lambda: read_dataset(DatasetSection(name=str(path))),
    ):
        with pytest.raises(DataError, match="line 1: a third column without a name, '3'; say weight=True"):
            read()
