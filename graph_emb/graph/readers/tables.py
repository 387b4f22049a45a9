"""Named columns of csv, tsv, txt, gz and Parquet files and arrays of ``.npy`` files, with errors that name the row."""

# R rows of a file

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graph_emb.core.errors import DataError
from graph_emb.core.terminal import reading, text_bytes
from graph_emb.graph.ids import first_outside
from graph_emb.graph.readers.source import checked_file, open_bytes, parsing, split_suffix

if TYPE_CHECKING:
    import pyarrow as pa

Table = dict[str, "pa.ChunkedArray"]
PARQUET = ("parquet", "pq")
_ROW = re.compile(r"Row #(\d+): ")
_PARQUET_ROWS = 1 << 20
BLOCK_BYTES = 1 << 25
LARGEST_ID = 2**63 - 1
MAX_ID_LENGTH = 1024
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_INTEGER = re.compile(r"-?[0-9]{1,40}\Z")


def is_parquet(file: Path) -> bool:
    return split_suffix(file)[0] in PARQUET


def head_of(file: Path, separator: str | None = None) -> tuple[int, str, list[str]]:
    """Number (from 1) of a text's first line that is not blank, its separator and its cells; of Parquet the columns.

    Raises:
        DataError: there is no such line.
    """
    if is_parquet(checked_file(file)):
        from pyarrow import parquet

        with parsing(file, "a Parquet file"):
            return 0, "", list(parquet.read_schema(file).names)
    for number, line in lines_of(file):
        separator = separator or separator_of(line)
        return number, separator, split_line(line, separator)
    raise DataError(f"{file}: has no line of text")


def separator_of(line: str, marks: str = "\t,;") -> str:
    """The first of the separators that a line shows, else a blank."""
    return next((mark for mark in marks if mark in line), " ")


def split_line(line: str, separator: str) -> list[str]:
    """The cells of a line, without blanks around them; only commas know quotes."""
    if separator == " ":
        return line.split()
    if separator == ",":
        with contextlib.suppress(csv.Error):  # a cell beyond its size limit: fall through to a plain split
            return [cell.strip() for row in csv.reader([line]) for cell in row]
    return [cell.strip() for cell in line.split(separator)]


def is_integer(cell: str) -> bool:
    return bool(_INTEGER.match(cell))


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own spelling of thousands; no file format has it


def fault_of_id(cell: str, ids: str, num_nodes: int | None) -> str | None:
    shown = repr(cell if len(cell) <= 60 else cell[:57] + "...")
    if ids == "str":
        if not cell:
            return "an id is missing"
        if len(cell) > MAX_ID_LENGTH:
            return f"id {shown} has {len(cell)} characters, expected at most {MAX_ID_LENGTH}"
        return None
    if not is_integer(cell):
        return f"id {shown} is not an integer; pass ids='str' if ids are names"
    value = int(cell)
    if cell.startswith("-") and value != 0:
        return f"id {shown} is negative; ids start at 0"
    if value > LARGEST_ID:
        return f"id {shown} is above {LARGEST_ID}; pass ids='str' if ids are names"
    if num_nodes is not None and value >= num_nodes:
        return f"id {value} is outside [0, {num_nodes}); raise num_nodes"
    return None


def line_blocks(file: Path, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Number of the first line (from 1) and the bytes of each run of whole lines."""
    line, rest = 1, b""
    try:
        with open_bytes(file) as stream:
            while True:
                chunk = stream.read(block_bytes)
                if line == 1 and not rest:
                    chunk = chunk.removeprefix(b"\xef\xbb\xbf")
                cut = chunk.rfind(b"\n") + 1
                if chunk and not cut:
                    rest += chunk
                    if len(rest) > 2 * block_bytes:
                        raise DataError(f"{file}, line {line}: longer than {2 * block_bytes} bytes; is it text?")
                    continue
                text, rest = rest + chunk[:cut], chunk[cut:]
                if b"\0" in text:
                    raise DataError(f"{file}: a null byte after line {line - 1}; expected UTF-8 text")
                if text:
                    yield line, text
                    line += text.count(b"\n")
                if not chunk:
                    return
    except _GZIP_ERRORS as error:
        raise DataError(f"{file}: damaged or cut off after line {line - 1}: {error}; fetch it again") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error


def numbered_lines(file: Path, text: bytes, first_line: int, comment: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a block that is neither blank nor a comment."""
    for number, raw in enumerate(io.BytesIO(text), first_line):
        try:
            line = raw.removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}, line {number}: byte {error.object[error.start]:#x} is not UTF-8 text") from None
        stripped = line.strip()
        if stripped and not (comment and stripped[0] in comment):
            yield number, line


def lines_of(file: Path, comment: str = "", block_bytes: int = 1 << 16) -> Iterator[tuple[int, str]]:
    """``numbered_lines`` of a whole file."""
    for first, text in line_blocks(file, block_bytes):
        yield from numbered_lines(file, text, first, comment)


def rows_of(file: Path, comment: str = "#%") -> Iterator[tuple[int, list[str]]]:
    """Number and cells, as text, of each row of a text or Parquet file; Parquet's row 0 has the names of its columns.

    Comma, tab or blanks separate the cells of a text, as its first line shows.

    Raises:
        DataError: no such file, damaged, no text, or a cell that is too long; names file, line and value.
    """
    if is_parquet(checked_file(file)):
        columns = read_columns(file)
        yield 0, list(columns)
        of_columns = [[_cell(value) for value in column.to_pylist()] for column in columns.values()]
        yield from ((row, list(cells)) for row, cells in enumerate(zip(*of_columns, strict=True), 1))
        return
    separator: str | None = None
    for line, text in lines_of(file, comment, 1 << 22):
        separator = separator or separator_of(text, ",\t")
        try:
            row = text.split() if separator == " " else next(csv.reader([text.strip(" \r\n")], delimiter=separator))
        except csv.Error as error:
            raise DataError(f"{file}, line {line}: {error}") from error
        cells = [cell.strip() for cell in row]
        if max(map(len, cells)) > MAX_ID_LENGTH:
            raise DataError(f"{file}, line {line}: a cell has more than {MAX_ID_LENGTH} characters; is it a table?")
        yield line, cells


def _cell(value: Any) -> str:
    """A value of Parquet as a text file has it; the values of a list are joined by ";"."""
    if isinstance(value, list):
        return ";".join(map(_cell, value))
    if value is None or value != value:
        return ""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return str(int(value) if whole else value).strip()


def place_of(file: Path, row: int) -> str:
    """A row of ``rows_of`` for an error."""
    return f"{file}, {'row' if is_parquet(file) else 'line'} {row}"


def read_columns(
    file: Path,
    names: Sequence[str] | None = None,
    *,
    separator: str | None = None,
    header: bool = True,
    text: Collection[str] = (),
) -> Table:
    """Columns of one file, R rows each.

    Args:
        names: Which; None: all.
        separator: Of a text file; None: as its first line shows.
        header: Whether the first line of a text file names the columns; without, they are called ``0``, ``1``, ...
            Where it names a single column, a blank line below it is a row without a value; else it is no row.
        text: Columns to read as strings, whatever they look like.
    Raises:
        DataError: no such column, or a row that cannot be read; names file, line and value.
    """
    header_line, separator, known = head_of(file, separator)
    if not header and not is_parquet(file):
        header_line, known = 0, [str(place) for place in range(len(known))]
    names = known if names is None else names
    for name in names:
        if name not in known:
            raise DataError(f"{file}: no column {name!r}; columns: {', '.join(known[:20])}")
        if known.count(name) > 1:
            raise DataError(f"{file}: {known.count(name)} columns are called {name!r}; expected one")
    if is_parquet(file):
        return _read_parquet(file, names, text)
    return _read_text(file, names, known, separator, header_line, text)


def _read_parquet(file: Path, names: Sequence[str], text: Collection[str]) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    with parsing(file, "a Parquet file"), parquet.ParquetFile(file) as table:
        chunks: dict[str, list[Any]] = {name: [] for name in names}
        with reading(file.name, table.metadata.num_rows, "rows") as advance:
            for batch in table.iter_batches(_PARQUET_ROWS, columns=list(names)):
                for name, own in chunks.items():
                    own.append(batch.column(name))
                advance(batch.num_rows)
        types = {name: table.schema_arrow.field(name).type for name in names}
    columns = {name: pa.chunked_array(own, type=types[name]) for name, own in chunks.items()}
    return columns | {name: columns[name].cast(pa.string()) for name in names if name in text}


def _read_text(
    file: Path, names: Sequence[str], known: Sequence[str], separator: str, header_line: int, text: Collection[str]
) -> Table:
    """The rows below line ``header_line``, 0: all."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    parts: list[Any] = []
    types: dict[str, Any] = {name: pa.string() for name in text}
    with reading(file.name, text_bytes(file)) as advance:
        for first, block in line_blocks(file, BLOCK_BYTES):
            skip = min(max(header_line - first + 1, 0), block.count(b"\n") + (not block.endswith(b"\n")))
            try:
                part = arrow_csv.read_csv(
                    pa.BufferReader(block),
                    arrow_csv.ReadOptions(
                        column_names=list(known), skip_rows=skip, use_threads=False, block_size=max(len(block), 1)
                    ),
                    arrow_csv.ParseOptions(
                        delimiter=separator,
                        quote_char='"' if separator in ",;" else False,
                        ignore_empty_lines=not header_line or len(known) > 1,
                    ),
                    arrow_csv.ConvertOptions(include_columns=list(names), column_types=types),
                )
            except (pa.ArrowException, ValueError) as error:
                reason = " ".join(str(error).split())
                row = _ROW.search(reason)
                line = first + int(row.group(1)) - 1 if row else first
                reason = _ROW.sub("", reason).removeprefix("CSV parse error: ")
                raise DataError(f"{file}, line {line}: {reason[:200]}") from error
            types = {field.name: field.type for field in part.schema if not pa.types.is_null(field.type)} | types
            parts.append(part)
            advance(len(block))
    whole = pa.concat_tables(parts, promote_options="permissive")
    return {name: whole.column(name) for name in names}


def read_npy(file: Path) -> np.ndarray:
    """The array of a ``.npy`` file, mapped and not read; none may need a pickle."""
    with parsing(checked_file(file), "a .npy array"):
        return np.load(file, mmap_mode="r", allow_pickle=False)


def ids_of(
    file: Path, name: str, column: pa.ChunkedArray, kind: str = "auto", limit: int | None = None, *, first_row: int = 1
) -> Any:
    """A column as ids: int64 (R,), or an Arrow string column.

    Args:
        kind: ``int``, ``str`` or ``auto``.
        limit: Integers are node numbers below this.
        first_row: Number of the first value, for errors.
    Raises:
        DataError: a value is missing, negative, out of range or too long.
    """
    import pyarrow as pa
    from pyarrow import compute

    _refuse_nulls(file, name, column, first_row)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_integer = pa.types.is_integer(column.type)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if (not is_integer and not is_text) or (kind == "int" and not is_integer):
        expected = "integers" if kind == "int" else "integers or strings"
        raise DataError(f"{file}: column {name!r} holds {column.type}; expected {expected} as ids")
    if is_integer and kind != "str":
        values = array_of(column)
        row = first_outside(values, LARGEST_ID + 1 if limit is None else min(limit, LARGEST_ID + 1))
        if row is not None:
            bound = f"[0, {limit})" if limit is not None else f"[0, {LARGEST_ID}]"
            raise DataError(f"{file}, row {first_row + row}: {name} {int(values[row])} is outside {bound}")
        return values.astype(np.int64, copy=False)
    names = compute.utf8_trim_whitespace(column.cast(pa.string()))
    lengths = array_of(compute.utf8_length(names))
    bad = (lengths == 0) | (lengths > MAX_ID_LENGTH)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{file}, row {first_row + row}: {name} has {lengths[row]} characters; expected 1 to {MAX_ID_LENGTH}"
        )
    if limit is not None:
        raise DataError(f"{file}: column {name!r} holds names, but with num_nodes={limit} ids are node numbers")
    return names


def numbers_of(
    file: Path, name: str, column: pa.ChunkedArray, missing: int | None = None, *, first_row: int = 1
) -> np.ndarray:
    """A column as numbers or booleans, (R,), or (R, D) of lists of one length; without rows D may be 0.

    Args:
        missing: Stands for a value that is not there, and integers and booleans become int64; None: that is an error.
        first_row: Number of the first value, for errors.
    Raises:
        DataError: a value is missing or does not fit, or no numbers.
    """
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        _refuse_nulls(file, name, column, first_row)
        lengths = compute.list_value_length(column).to_numpy()
        if len(lengths) and (lengths != lengths[0]).any():
            row = int(np.argmax(lengths != lengths[0]))
            raise DataError(f"{file}, row {first_row + row}: {name} has {lengths[row]} values; expected {lengths[0]}")
        values = compute.list_flatten(column).to_numpy()
        if values.dtype.kind not in "biuf":
            raise DataError(f"{file}: column {name!r} holds {kind}; expected lists of numbers")
        return values.reshape(len(lengths), lengths[0] if len(lengths) else getattr(kind, "list_size", 0))
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{file}: column {name!r} holds {kind}; expected numbers")
    if missing is not None:
        try:
            column = (column if pa.types.is_floating(kind) else column.cast(pa.int64())).fill_null(missing)
        except pa.ArrowInvalid:
            largest = compute.max(column).as_py()
            raise DataError(f"{file}: {name} {largest} is above {LARGEST_ID}; does the column hold classes?") from None
    _refuse_nulls(file, name, column, first_row)
    return column.to_numpy() if pa.types.is_boolean(kind) else array_of(column)  # bits have no array


def array_of(column: pa.ChunkedArray) -> np.ndarray:
    """A copy of a column of numbers without nulls, shape (R,).

    pyarrow's own ``to_numpy`` imports pandas, a quarter of a second of a start.
    """
    parts = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.empty(0, column.type.to_pandas_dtype())


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of several files one after the other; one without rows may have any width."""
    return np.concatenate([part for part in parts if len(part)] or parts[:1])


def _refuse_nulls(file: Path, name: str, column: pa.ChunkedArray, first_row: int) -> None:
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null())))
        raise DataError(f"{file}, row {first_row + row}: {name} is missing")
