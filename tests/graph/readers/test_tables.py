"""Columns of text and Parquet files come out as they are, and a bad value is told with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import tables


def test_columns_keep_the_order_that_was_asked_for(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,b,c\n1,3,5\n2,4,6\n")
    for name in ("t.parquet", "t.csv"):
        read = tables.read_columns(tmp_path / name, ["c", "a"])
        assert {key: column.to_pylist() for key, column in read.items()} == {"c": [5, 6], "a": [1, 2]}
        assert list(read) == ["c", "a"]


@pytest.mark.parametrize("separator", [",", "\t", ";", " "])
def test_separators_are_seen_in_the_first_line(tmp_path: Path, separator: str) -> None:
    (tmp_path / "t.txt").write_text(separator.join("ab") + "\n" + separator.join("12") + "\n")
    assert tables.head_of(tmp_path / "t.txt") == (1, separator, ["a", "b"])
    assert tables.read_columns(tmp_path / "t.txt")["b"].to_pylist() == [2]


def test_a_file_longer_than_a_block_keeps_its_rows_and_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_BYTES", 100)
    rows = [(f"n{row}", row, "" if row % 7 else row / 2) for row in range(200)]
    with gzip.open(tmp_path / "t.csv.gz", "wt") as stream:
        stream.write("name,number,maybe\n")
        stream.writelines(f"{name},{number},{maybe}\n" for name, number, maybe in rows)
    read = tables.read_columns(tmp_path / "t.csv.gz")
    assert read["name"].to_pylist() == [row[0] for row in rows]
    assert read["number"].to_pylist() == [row[1] for row in rows]
    assert read["maybe"].to_pylist() == [None if row[2] == "" else row[2] for row in rows]


@pytest.mark.parametrize("blank", ["\n", "\r\n", "  \n\t\n", 9 * "\n"])
@pytest.mark.parametrize("block_bytes", [4, 1 << 25])
def test_blank_lines_before_the_header_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str, block_bytes: int
) -> None:
    # Arrow skipped one line, whichever it was, so that the header below a blank line became a row
    monkeypatch.setattr(tables, "BLOCK_BYTES", block_bytes)
    (tmp_path / "t.csv").write_bytes(f"{blank}a,b\nu1,u2\n\nu3,u4\n".encode())
    read = tables.read_columns(tmp_path / "t.csv")
    assert {name: column.to_pylist() for name, column in read.items()} == {"a": ["u1", "u3"], "b": ["u2", "u4"]}
    (tmp_path / "t.csv").write_bytes(f"{blank}a\n1\n2\n".encode())
    assert tables.read_columns(tmp_path / "t.csv")["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize("text", ["a\n1\n\n3", "a\n1\n\n3\n", "\na\r\n1\r\n\r\n3\r\n"])
def test_a_blank_line_below_a_single_name_is_a_row_without_a_value(tmp_path: Path, text: str) -> None:
    # Arrow takes it for no row by default, and all rows below move up
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert tables.read_columns(tmp_path / "t.csv")["a"].to_pylist() == [1, None, 3]


def test_a_blank_line_without_a_header_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n1\n\n3\n")
    assert tables.read_columns(tmp_path / "t.txt", header=False)["0"].to_pylist() == [1, 3]


def test_a_bad_value_in_a_later_block_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_BYTES", 100)
    lines = ["a,b", *(f"{row},1" for row in range(100))]
    lines[73] = "x,1"
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"t.csv, line 74: .*invalid value 'x'"):
        tables.read_columns(tmp_path / "t.csv")


def test_text_is_not_guessed_where_it_must_be_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n007,1\n")
    assert tables.read_columns(tmp_path / "t.csv", text=["a"])["a"].to_pylist() == ["007"]


def test_lists_become_rows_and_uneven_ones_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    even = pa.chunked_array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]])
    assert tables.numbers_of(file, "v", even).tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(DataError, match="row 2: v has 1 values; expected 2"):
        tables.numbers_of(file, "v", pa.chunked_array([[[1.0, 2.0], [3.0]]]))
    with pytest.raises(DataError, match="expected lists of numbers"):
        tables.numbers_of(file, "v", pa.chunked_array([[["a"], ["b"]]]))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.int64()), pa.list_(pa.float32(), 3)])
def test_lists_of_no_rows_have_the_width_that_is_known(kind: pa.DataType) -> None:
    # a shape of 0 rows by -1 columns is undefined
    for column in (pa.chunked_array([], type=kind), pa.chunked_array([[]], type=kind)):
        width = 3 if pa.types.is_fixed_size_list(kind) else 0
        assert tables.numbers_of(Path("t.parquet"), "v", column).shape == (0, width)


def test_files_without_rows_have_no_say_in_the_width() -> None:
    none, two = np.empty((0, 0)), np.ones((2, 3))
    assert tables.joined([none, two, none, two]).shape == (4, 3)
    assert tables.joined([none, none]).shape == (0, 0)


def test_missing_numbers_are_refused_or_filled(tmp_path: Path) -> None:
    column = pa.chunked_array([[1, None, 3]])
    with pytest.raises(DataError, match=r"t.csv, row 2: v is missing"):
        tables.numbers_of(tmp_path / "t.csv", "v", column)
    assert tables.numbers_of(tmp_path / "t.csv", "v", column, missing=-1).tolist() == [1, -1, 3]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.bool_(), [True, None, False], [1, -1, 0]),
        (pa.uint8(), [200, None, 3], [200, -1, 3]),
        (pa.uint8(), [200, 3], [200, 3]),
        (pa.int16(), [-1, None], [-1, -1]),
        (pa.float32(), [0.5, None], [0.5, -1]),
    ],
)
def test_what_stands_for_a_missing_number_fits_every_type(kind: pa.DataType, values: list, expected: list) -> None:
    # -1 does not fit a boolean or an unsigned type: Arrow raised even where nothing was missing
    got = tables.numbers_of(Path("t.parquet"), "v", pa.chunked_array([values], type=kind), missing=-1)
    assert got.tolist() == expected
    assert got.dtype == (np.float32 if kind == pa.float32() else np.int64)


def test_a_number_that_does_not_fit_is_told() -> None:
    column = pa.chunked_array([[1, 2**63]], type=pa.uint64())
    with pytest.raises(DataError, match=r"t.parquet: v 9223372036854775808 is above 9223372036854775807"):
        tables.numbers_of(Path("t.parquet"), "v", column, missing=-1)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,a\n1,2\n")
    with pytest.raises(DataError, match="2 columns are called 'a'"):
        tables.read_columns(tmp_path / "t.csv", ["a"])


def test_an_array_file_of_objects_or_cut_short_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"o.npy: cannot be read as a .npy array"):
        tables.read_npy(tmp_path / "o.npy")
    np.save(tmp_path / "x.npy", np.arange(100))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:300])
    with pytest.raises(DataError, match=r"x.npy: cannot be read as a .npy array"):
        tables.read_npy(tmp_path / "x.npy")


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n\n")
    with pytest.raises(DataError, match=r"t.csv: has no line of text"):
        tables.read_columns(tmp_path / "t.csv")
