"""Files of embeddings, read piece by piece: rows in the file's order, their ids apart."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graph_emb.errors import DataError

Ids = NDArray[Any]  # int64 or numpy strings
Rows = NDArray[np.floating]

# Bytes of rows, or of text that is parsed, at once.
BYTES_AT_ONCE = 1 << 24
TEXT_AT_ONCE = 1 << 24


class RowFile(Protocol):
    """A file that is known to have the shape it claims; its values are looked at as they are read.

    Attributes:
        path: The file.
        num_rows, dim: N and D.
    """

    path: Path
    num_rows: int
    dim: int

    def ids(self) -> Ids | None:
        """The ids of the rows, (N,), int64 or strings; None where the file has none.

        Raises:
            DataError: a damaged file.
        """

    def pieces(self) -> Iterator[Rows]:
        """The rows in order, (B, D) at a time; a piece may be a view of a mapped file.

        Raises:
            DataError: a damaged file.
        """

    def read(self) -> tuple[Rows, Ids | None]:
        """All rows and their ids."""


class _MappedRows:
    """Rows that lie in a file as they lie in memory."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self.path, self._rows = path, rows
        self.num_rows, self.dim = rows.shape

    def ids(self) -> Ids | None:
        return None

    def pieces(self) -> Iterator[Rows]:
        step = max(1, BYTES_AT_ONCE // (self._rows.itemsize * max(1, self.dim)))
        for start in range(0, self.num_rows, step):
            yield self._rows[start : start + step]

    def read(self) -> tuple[Rows, Ids | None]:
        return np.array(self._rows, dtype=self._rows.dtype.newbyteorder("=")), self.ids()


class NpyRows(_MappedRows):
    """A .npy file, memory-mapped; ``embeddings.npy`` has its ids in ``ids.npy`` beside it."""

    def __init__(self, path: Path) -> None:
        rows = map_array(path)
        if rows.dtype.kind != "f" or rows.ndim != 2:
            raise DataError(f"{path} holds {rows.dtype} of shape {rows.shape}; embeddings are floats (N, D)")
        super().__init__(path, rows)

    def ids(self) -> Ids | None:
        beside = self.path.with_name("ids.npy")
        if self.path.name != "embeddings.npy" or not beside.exists():
            return None
        ids = map_array(beside)
        return np.array(ids, dtype=ids.dtype.newbyteorder("="))


class TorchRows(_MappedRows):
    """A .pt file, memory-mapped and without pickled code: ``{"embeddings": (N, D), "ids": ...}`` or a tensor alone."""

    def __init__(self, path: Path) -> None:
        import torch

        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise damaged(path, "torch", error) from error
        weights = content.get("embeddings") if isinstance(content, dict) else content
        if not isinstance(weights, torch.Tensor) or weights.dim() != 2 or not weights.is_floating_point():
            found = f"the keys {sorted(map(str, content))}" if isinstance(content, dict) else type(content).__name__
            raise DataError(f"{path} holds {found}; embeddings are a float tensor (N, D), alone or under 'embeddings'")
        self._ids = content.get("ids") if isinstance(content, dict) else None
        super().__init__(path, (weights.float() if weights.dtype == torch.bfloat16 else weights).numpy())

    def ids(self) -> Ids | None:
        if self._ids is None:
            return None
        return np.array(self._ids) if isinstance(self._ids, list) else self._ids.numpy()


class _ArrowRows:
    """Rows that Arrow decodes batch by batch."""

    path: Path
    num_rows: int
    dim: int

    def ids(self) -> Ids | None:
        return self._typed(ids for ids, _ in self._batches(ids=True, rows=False))

    def pieces(self) -> Iterator[Rows]:
        for _, rows in self._batches(ids=False, rows=True):
            yield rows

    def read(self) -> tuple[Rows, Ids | None]:
        weights = np.empty((self.num_rows, self.dim), dtype=np.float32)
        found, place = [], 0
        for ids, rows in self._batches(ids=True, rows=True):
            weights[place : place + len(rows)] = rows
            found.append(ids)
            place += len(rows)
        return weights, self._typed(found)

    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        raise NotImplementedError

    def _typed(self, chunks: Iterable[Any]) -> Ids:
        raise NotImplementedError


class ParquetRows(_ArrowRows):
    """Columns ``id`` and ``embedding``, a list of fixed size of float32."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self.num_rows, schema = file.metadata.num_rows, file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, "parquet", error) from error
        self.dim = _list_type(schema, path).list_size
        self._id_type = schema.field("id").type

    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns, place = ["id"] * ids + ["embedding"] * rows, 0
        step = max(1, BYTES_AT_ONCE // (4 * self.dim))
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(step, columns=columns):
                    found = [batch.column(name) for name in columns]
                    if any(column.null_count for column in found) or (rows and found[-1].flatten().null_count):
                        raise DataError(f"{self.path} has empty ids or embeddings near row {place}")
                    values = found[-1].flatten().to_numpy().reshape(-1, self.dim) if rows else None
                    yield found[0] if ids else None, values
                    place += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.path, "parquet", error) from error

    def _typed(self, chunks: Iterable[Any]) -> Ids:
        import pyarrow as pa

        ids = pa.chunked_array(list(chunks), type=self._id_type).to_numpy()
        return ids.astype(str) if ids.dtype.kind == "O" else ids


class TextRows(_ArrowRows):
    """word2vec text: a line "N D", then "id x1 ... xD"; ids that all look like integers are integers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_rows, self.dim = _read_text_header(path)

    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa
        from pyarrow import csv

        names = ["id", *map(str, range(self.dim))]
        place = end = 0
        try:
            with csv.open_csv(
                self.path,
                csv.ReadOptions(skip_rows=1, column_names=names, block_size=max(TEXT_AT_ONCE, 64 * self.dim)),
                csv.ParseOptions(delimiter=" ", quote_char=False),
                csv.ConvertOptions(
                    column_types={name: pa.string() if name == "id" else pa.float32() for name in names},
                    null_values=[],
                    include_columns=names if rows else ["id"],
                ),
            ) as reader:
                for batch in reader:
                    end = place + len(batch)
                    if end > self.num_rows:
                        break
                    values = np.empty((len(batch), self.dim), dtype=np.float32) if rows else None
                    for column in range(self.dim if rows else 0):
                        values[:, column] = batch.column(column + 1).to_numpy()
                    yield batch.column(0) if ids else None, values
                    place = end
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.path, "word2vec", error) from error
        if end != self.num_rows:
            more = " or more" if end > self.num_rows else ""
            raise DataError(f"{self.path} has {end}{more} rows, its first line says {self.num_rows}")

    def _typed(self, chunks: Iterable[Any]) -> Ids:
        import pyarrow as pa

        ids = pa.chunked_array(list(chunks), type=pa.string()).to_numpy().astype(str)
        with suppress(ValueError, OverflowError):
            numbers = ids.astype(np.int64)
            if (numbers.astype(str) == ids).all():
                return numbers
        return ids


def map_array(path: Path) -> NDArray[Any]:
    """A .npy file, memory-mapped: a header that promises more than the file holds fails before memory is taken.

    Raises:
        DataError: no .npy file, an archive, a pickle, or a file that was cut.
    """
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.ndarray):
            raise ValueError("it is an archive of arrays")
    except (ValueError, EOFError) as error:
        raise damaged(path, "npy", error) from error
    return mapped


def damaged(path: Path, kind: str, error: Exception) -> DataError:
    """What to raise for a file that its library refuses."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error  # the system's word, such as a missing permission; Arrow's own errors have no number
    reason = " ".join(str(error).split())[:160]
    return DataError(f"{path} is damaged or no {kind} file ({reason}); export it again")


def _list_type(schema: Any, path: Path) -> Any:
    import pyarrow as pa

    names = schema.names
    kind: Any = schema.field("embedding").type if "embedding" in names else pa.null()
    if "id" not in names or not (pa.types.is_fixed_size_list(kind) and pa.types.is_float32(kind.value_type)):
        raise DataError(
            f"{path} has the columns {', '.join(names)}; "
            "embeddings have id and embedding, a list of fixed size of float32"
        )
    return kind


def _read_text_header(path: Path) -> tuple[int, int]:
    with path.open("rb") as stream:
        words = stream.readline(64).split()
        stream.seek(0, 2)
        size = stream.tell()
        stream.seek(-min(1, size), 2)
        last = stream.read(1)
    if len(words) != 2 or not all(word.isdigit() for word in words) or min(map(int, words)) < 1:
        raise DataError(f"{path} is no word2vec text: its first line is not 'rows width', two positive integers")
    num_rows, dim = map(int, words)
    # Every number needs a digit and a separator.
    if last != b"\n" or 2 * num_rows * dim > size:
        raise DataError(f"{path} is cut off: {size} bytes cannot hold {num_rows} x {dim} numbers and a last line end")
    return num_rows, dim
