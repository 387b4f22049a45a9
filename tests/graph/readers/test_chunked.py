"""DGL's chunked format in its three kinds of files; metadata is data and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import HeteroGraph
from partition.conversion import write_chunked

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def write(folder: Path, **changes: Any) -> Path:
    """Two authors, three papers; every kind of file."""
    np.savetxt(folder / "w0.csv", [[0, 2], [1, 0]], fmt="%d", delimiter=",")
    np.save(folder / "c0.npy", np.array([[0, 1]]))
    parquet.write_table(pa.table({"a": [2, 1], "b": [2, 0]}), folder / "c1.parquet")
    np.savetxt(folder / "year.csv", [2010, 2011, 2012], fmt="%d")
    np.save(folder / "f0.npy", np.arange(2.0).reshape(1, 2))
    np.save(folder / "f1.npy", np.arange(2.0, 6.0).reshape(2, 2))
    table = pa.table({"0": [0, 1, 2, 3], "1": [4, 5, 6, 7], "2": [8, 9, 10, 11]})
    parquet.write_table(table.replace_schema_metadata({"shape": "(2, 2, 3)"}), folder / "cube.parquet")
    csv, numpy, arrow = ({"name": "csv", "delimiter": ","}, {"name": "numpy"}, {"name": "parquet"})
    metadata = {
        "graph_name": "mini",
        "node_type": ["author", "paper"],
        "edge_type": ["author:writes:paper", "paper:cites:paper"],
        "num_nodes_per_type": [2, 3],
        "num_edges_per_type": [2, 1],
        "edges": {
            "author:writes:paper": {"format": csv, "data": ["w0.csv"]},
            "paper:cites:paper": {"format": numpy, "data": ["c0.npy"]},
        },
        "node_data": {
            "paper": {
                "year": {"format": csv, "data": ["year.csv"]},
                "feat": {"format": numpy, "data": ["f0.npy", "f1.npy"]},
            }
        },
        "edge_data": {"author:writes:paper": {"cube": {"format": arrow, "data": ["cube.parquet"]}}},
        **changes,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def test_every_type_and_kind_of_file_is_read(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path))
    assert graph.name == "mini"
    assert graph.num_nodes == {"author": 2, "paper": 3}
    assert [ends.tolist() for ends in graph.edges[WRITES]] == [[0, 1], [2, 0]]
    assert [ends.tolist() for ends in graph.edges[CITES]] == [[0], [1]]
    assert graph.node_data["paper"]["year"].tolist() == [2010, 2011, 2012]
    assert graph.node_data["paper"]["feat"].tolist() == [[0, 1], [2, 3], [4, 5]]
    cube = np.array([[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]).reshape(2, 2, 3)
    assert graph.edge_data[WRITES]["cube"].tolist() == cube.tolist()


def test_counts_per_chunk_serve_as_counts_per_type(tmp_path: Path) -> None:
    write(tmp_path, num_nodes_per_type=None, num_nodes_per_chunk=[[1, 1], [3]])
    assert read_graph(tmp_path / "metadata.json").num_nodes == {"author": 2, "paper": 3}


def test_vectors_of_a_single_column_are_rows(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}), tmp_path / "v.parquet")
    columns = {"paper": {"feat": {"format": {"name": "parquet"}, "data": ["v.parquet"]}}}
    graph = read_graph(write(tmp_path, node_data=columns))
    assert graph.node_data["paper"]["feat"].tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(("told", "shape"), [("(3, 1)", (3, 1)), ("(3,)", (3,)), (None, (3,))])
def test_one_column_has_the_shape_of_the_metadata(tmp_path: Path, told: str | None, shape: tuple[int, ...]) -> None:
    """DGL's pipeline writes the shape: columns of (R, 1) became (R,), which numpy's files of the same did not."""
    table = pa.table({"0": [5.0, 6.0, 7.0]})
    if told is not None:
        table = table.replace_schema_metadata({"shape": told})
    parquet.write_table(table, tmp_path / "one.parquet")
    columns = {"paper": {"feat": {"format": {"name": "parquet"}, "data": ["one.parquet"]}}}
    found = read_graph(write(tmp_path, node_data=columns)).node_data["paper"]["feat"]
    assert found.shape == shape
    assert found.ravel().tolist() == [5, 6, 7]


@pytest.mark.parametrize("vectors", [False, True])
def test_parquet_chunks_of_edges_are_taken_in_the_order_of_the_metadata(tmp_path: Path, vectors: bool) -> None:
    chunks = {"z": [[2, 1], [2, 0]], "a": [[0, 1]]}
    for name, rows in chunks.items():
        ends = np.array(rows)
        table = pa.table({"vector": rows} if vectors else {"0": ends[:, 0], "1": ends[:, 1]})
        parquet.write_table(table.replace_schema_metadata({"shape": str(ends.shape)}), tmp_path / f"{name}.parquet")
    files = {"format": {"name": "parquet"}, "data": ["z.parquet", "a.parquet"]}
    csv = {"format": {"name": "csv", "delimiter": ","}, "data": ["w0.csv"]}
    edges = {"author:writes:paper": csv, "paper:cites:paper": files}
    folder = write(tmp_path, edges=edges, num_edges_per_type=None, num_edges_per_chunk=[[2], [2, 1]])
    assert [ends.tolist() for ends in read_graph(folder).edges[CITES]] == [[2, 2, 0], [1, 0, 1]]


@pytest.mark.parametrize("order", [("empty", "full"), ("full", "empty"), ("empty", "one")])
def test_a_file_without_rows_takes_the_width_of_the_others(tmp_path: Path, order: tuple[str, str]) -> None:
    # Spark writes a file for each task, those without rows included
    lists = {"empty": [], "full": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "one": [[1.0], [3.0], [5.0]]}
    for name, rows in lists.items():
        table = pa.table({"vector": pa.array(rows, pa.list_(pa.float32()))})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    files = {"format": {"name": "parquet"}, "data": [f"{name}.parquet" for name in order]}
    graph = read_graph(write(tmp_path, node_data={"paper": {"feat": files}}))
    expected = [1, 3, 5] if "one" in order else lists["full"]
    assert graph.node_data["paper"]["feat"].tolist() == expected


def test_our_own_writer_reads_back_with_original_ids(tmp_path: Path) -> None:
    graph = HeteroGraph(
        {"author": 2, "paper": 3},
        {WRITES: (np.array([0, 1]), np.array([2, 0]))},
        node_data={"paper": {"feat": np.arange(6.0).reshape(3, 2)}},
        edge_data={WRITES: {"weight": np.array([0.5, 2.5])}},
        node_ids={"author": np.array(["zoe", "ann"])},
        name="mini",
    )
    got = read_graph(write_chunked(graph, tmp_path / "out", num_chunks=2))
    assert got.num_nodes == graph.num_nodes
    assert [ends.tolist() for ends in got.edges[WRITES]] == [[0, 1], [2, 0]]
    assert got.node_data["paper"]["feat"].tolist() == graph.node_data["paper"]["feat"].tolist()
    assert got.edge_data[WRITES]["weight"].tolist() == [0.5, 2.5]
    assert got.node_ids["author"].tolist() == ["zoe", "ann"]


@pytest.mark.parametrize("shape", ["__import__('os').system('touch run')", "(2, 2, 3) + (1,)", "(2**3,)", "()"])
def test_a_shape_that_is_an_expression_is_refused_and_not_run(tmp_path: Path, shape: str) -> None:
    write(tmp_path)
    table = pa.table({"0": [0, 1, 2, 3], "1": [4, 5, 6, 7], "2": [8, 9, 10, 11]})
    parquet.write_table(table.replace_schema_metadata({"shape": shape}), tmp_path / "cube.parquet")
    with pytest.raises(DataError, match=r"cube.parquet: shape .* is no list of integers"):
        read_graph(tmp_path)
    assert not Path("run").exists()


def test_a_shape_of_another_size_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    table = pa.table({"0": [0, 1]}).replace_schema_metadata({"shape": "(3, 1)"})
    parquet.write_table(table, tmp_path / "cube.parquet")
    with pytest.raises(DataError, match=r"cube.parquet: shape \(3, 1\) in the metadata, but the file holds 2 values"):
        read_graph(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes_per_type": [2, 2]}, r"w0.csv, row 1: destination 2 is outside \[0, 2\)"),
        ({"num_nodes_per_type": [2]}, "num_nodes_per_type has 1 entries for 2 types"),
        ({"num_nodes_per_type": [2, -3]}, "num_nodes_per_type.1 = '-3'"),
        ({"num_nodes_per_type": None}, "num_nodes_per_type: is missing; give it or num_nodes_per_chunk"),
        ({"num_nodes_per_chunk": [[2], [4]]}, "is not the sum of num_nodes_per_chunk"),
        ({"num_edges_per_type": [2, 2]}, "paper:cites:paper has 1 edges in its files, but 2 by the metadata"),
        ({"edge_type": ["author:writes:paper"]}, "edges.paper:cites:paper: no such type"),
        (
            {"edge_type": ["author:writes:paper", "paper:cites:paper", "a:b:c"], "num_edges_per_type": None},
            "edges.a:b:c: is missing",
        ),
        ({"node_data": {"venue": {}}}, "node_data.venue: no such type; known: author, paper"),
        ({"edges": {"author:writes:paper": {"format": {"name": "avro"}, "data": []}}}, "format.name = 'avro'"),
        ({"node_data": {"paper": {"x": {"format": {"name": "csv"}, "data": ["no.csv"]}}}}, "no.csv: no such file"),
        ({"node_data": {"author": {"x": {"format": {"name": "csv"}, "data": ["year.csv"]}}}}, "expected 2 rows"),
        ({"node_data": {"paper": {"x": {"format": {"name": "csv"}, "data": []}}}}, "names no file"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(write(tmp_path, **changes))


def test_a_damaged_metadata_file_is_named(tmp_path: Path) -> None:
    text = (write(tmp_path) / "metadata.json").read_text()
    (tmp_path / "metadata.json").write_text(text[:50])
    with pytest.raises(DataError, match=r"metadata.json: is no JSON text"):
        read_graph(tmp_path)
