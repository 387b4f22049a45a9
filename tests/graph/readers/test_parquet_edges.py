"""Parquet edge tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import edge_list
from tests.graph.readers.compressed import read_csr


def save(path: Path, columns: dict, **types: pa.DataType) -> Path:
    arrays = {name: pa.array(values, type=types.get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path)
    return path


@pytest.mark.parametrize(
    "columns",
    [
        {"src": [0, 1], "dst": [1, 2]},
        {"a": [0, 1], "b": [1, 2]},
        {"time": [5, 6], "target": [1, 2], "Source": [0, 1], "x": ["p", "q"]},
        {"u": [0, 1], "v": [1, 2], "w": [1.0, 1.0]},
    ],
)
def test_columns_are_found_by_name_or_place(columns: dict, tmp_path: Path) -> None:
    graph = read_csr(save(tmp_path / "g.parquet", columns))
    assert graph.edges().tolist() == [[0, 1], [1, 2]]
    assert graph.weights is None


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=["small", "large", "dict"]
)
def test_string_ids_of_every_arrow_type(kind: pa.DataType, tmp_path: Path) -> None:
    path = save(tmp_path / "g.parquet", {"src": ["b", "c"], "dst": ["a", "b"]}, src=kind, dst=kind)
    assert read_csr(path).node_ids.tolist() == ["a", "b", "c"]


def test_integers_can_be_names_and_num_nodes_keeps_isolated_ones(tmp_path: Path) -> None:
    path = save(tmp_path / "g.parquet", {"src": [0, 10], "dst": [9, 9]}, src=pa.uint8(), dst=pa.int16())
    assert read_csr(path, ids="str").node_ids.tolist() == ["0", "10", "9"]
    assert read_csr(path).node_ids.tolist() == [0, 9, 10]
    assert read_csr(path, num_nodes=12).num_nodes == 12


def test_named_columns_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_list, "PARQUET_ROWS", 2)
    numbers = np.arange(7)
    path = save(tmp_path / "g.parquet", {"k": numbers, "p": numbers, "q": numbers + 1, "r": numbers + 0.5})
    graph = read_csr(path, columns=["p", "q", "r"])
    assert graph.num_edges == 7
    assert graph.edge_weights().tolist() == (numbers + 0.5).tolist()


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        ({"src": [0, -1], "dst": [1, 1]}, {}, DataError, "row 2: src -1 is outside"),
        ({"src": [0, None], "dst": [1, 1]}, {}, DataError, "row 2: src is missing"),
        ({"src": [0], "dst": [1], "weight": [0.0]}, {}, DataError, "row 1: weight 0.0 is not finite and above 0"),
        ({"src": [0], "dst": [1], "weight": ["x"]}, {}, DataError, "column 'weight' holds string; expected numbers"),
        ({"src": [0.5], "dst": [1.5]}, {}, DataError, "column 'src' holds double; expected integers or strings"),
        ({"src": ["a"], "dst": [1]}, {}, DataError, "one end of the edges holds names, the other numbers"),
        ({"src": ["a", ""], "dst": ["b", "c"]}, {}, DataError, "row 2: src has 0 characters"),
        ({"src": ["a"], "dst": ["b"]}, {"ids": "int"}, DataError, "expected integers as ids"),
        (
            {"src": ["a"], "dst": ["b"]},
            {"num_nodes": 3},
            DataError,
            "holds names, but with num_nodes=3 ids",
        ),
        ({"src": [0], "dst": [3]}, {"num_nodes": 3}, DataError, r"row 1: dst 3 is outside \[0, 3\)"),
        (
            {"src": np.array([2**63], dtype=np.uint64), "dst": [3]},
            {},
            DataError,
            "row 1: src 9223372036854775808 is outside",
        ),
        ({"one": [0]}, {}, DataError, "1 column"),
        ({"a": [0], "b": [1], "c": [2], "d": [3]}, {}, DataError, "4 column"),
        ({"src": [0], "dst": [1]}, {"weight": True}, DataError, "no weight column"),
        ({"src": [], "dst": []}, {"ids": "str"}, DataError, "has no edges"),
    ],
)
def test_the_row_at_fault_is_named(columns: dict, options: dict, error: type, words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "g.parquet", columns)
    with pytest.raises(error, match=words):
        read_csr(path, **options)


def test_the_row_number_counts_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_list, "PARQUET_ROWS", 2)
    path = save(tmp_path / "g.parquet", {"src": [0, 1, 2, 3, -9], "dst": [1, 2, 3, 4, 5]})
    with pytest.raises(DataError, match="row 5: src -9 is outside"):
        read_csr(path)


def test_an_empty_table_has_no_edges(tmp_path: Path) -> None:
    path = save(tmp_path / "g.parquet", {"src": [], "dst": []}, src=pa.int64(), dst=pa.int64())
    with pytest.raises(DataError, match="has no edges"):
        read_csr(path)
