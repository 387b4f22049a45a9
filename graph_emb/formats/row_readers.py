"""Files of embeddings, read piece by piece: rows in the file's order, their ids apart."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

import math
import tokenize
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.core.tensor_files import load_torch

Ids = NDArray[Any]  # int64 or numpy strings
Rows = NDArray[np.floating]

# Bytes of rows, or of text that is parsed, at once; Arrow holds a few times as much.
BYTES_AT_ONCE = 1 << 22
TEXT_AT_ONCE = 1 << 24


class RowFile(ABC):
    """A file that is known to have the shape it claims; its values are looked at as they are read.

    Attributes:
        path: The file.
        num_rows, dim: N and D.
    """

    path: Path
    num_rows: int
    dim: int

    @abstractmethod
    def __init__(self, path: Path) -> None:
        """Look at the file's shape.

        Raises:
            DataError: another file, or a damaged one.
        """

    @abstractmethod
    def ids(self) -> Ids | None:
        """The ids of the rows, (N,), int64 or strings; None where the file has none.

        Raises:
            DataError: a damaged file.
        """

    @abstractmethod
    def pieces(self) -> Iterator[Rows]:
        """The rows in order, (B, D) at a time.

        Raises:
            DataError: a damaged file.
        """

    def read(self) -> tuple[Rows, Ids | None]:
        """All rows and their ids."""
        return np.concatenate([*self.pieces()]), self.ids()


def _npy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether columns lie together, dtype and first byte of a .npy file that has all the bytes it promises."""
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            reader: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a header that Python 2 could have written, and is read
                shape, by_column, dtype = reader(stream)
            start = stream.tell()
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if min(shape, default=0) < 0:
            raise ValueError(f"its header has shape {shape}")
        needed = start + math.prod(shape) * dtype.itemsize
        if path.stat().st_size < needed:
            raise ValueError(f"it has {path.stat().st_size} bytes, its header promises {needed}")
    except (ValueError, EOFError, AttributeError, tokenize.TokenError) as error:  # the header is Python text
        archive = ValueError("it is an archive of arrays") if zipfile.is_zipfile(path) else None
        raise damaged(path, "npy", archive or error) from error
    return shape, by_column, dtype, start


def read_array(path: Path) -> NDArray[Any]:
    """A .npy file without pickle, in this machine's byte order; read, not mapped, as an address space may be limited.

    Raises:
        DataError: no such file, or it is damaged or holds Python objects.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a .npy file")
    shape, by_column, dtype, start = _npy_header(path)
    found = np.fromfile(path, dtype, math.prod(shape), offset=start).reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(found, dtype=dtype.newbyteorder("="))


class NpyRows(RowFile):
    """A .npy file; ``embeddings.npy`` has its ids in ``ids.npy`` beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shape, self._by_column, self._dtype, self._start = _npy_header(path)
        if self._dtype.kind != "f" or len(shape) != 2:
            raise DataError(f"{path} holds {self._dtype} of shape {shape}; embeddings are floats (N, D)")
        self.num_rows, self.dim = shape

    def ids(self) -> Ids | None:
        beside = self.path.with_name("ids.npy")
        return read_array(beside) if self.path.name == "embeddings.npy" and beside.exists() else None

    def pieces(self) -> Iterator[Rows]:
        step = max(1, BYTES_AT_ONCE // max(1, self._dtype.itemsize * self.dim))
        starts = range(0, self.num_rows, step)
        if self._by_column and self.num_rows * self.dim:
            mapped = np.memmap(self.path, self._dtype, "r", self._start, (self.num_rows, self.dim), "F")
            yield from (mapped[start : start + step] for start in starts)
            return
        with self.path.open("rb") as stream:
            stream.seek(self._start)
            for start in starts:
                count = min(step, self.num_rows - start)
                yield np.fromfile(stream, self._dtype, count * self.dim).reshape(count, self.dim)

    def read(self) -> tuple[Rows, Ids | None]:
        return read_array(self.path), self.ids()


class TorchRows(RowFile):
    """A .pt file, memory-mapped and without pickled code: ``{"embeddings": (N, D), "ids": ...}`` or a tensor alone."""

    def __init__(self, path: Path) -> None:
        import torch

        content = load_torch(path)
        weights = content.get("embeddings") if isinstance(content, dict) else content
        if not isinstance(weights, torch.Tensor) or weights.dim() != 2 or not weights.is_floating_point():
            found = f"the keys {sorted(map(str, content))}" if isinstance(content, dict) else type(content).__name__
            raise DataError(f"{path} holds {found}; embeddings are a float tensor (N, D), alone or under 'embeddings'")
        self._ids = content.get("ids") if isinstance(content, dict) else None
        if not isinstance(self._ids, (torch.Tensor, list, type(None))):
            raise DataError(f"{path} holds ids as a {type(self._ids).__name__}; give a tensor of integers or a list")
        self.path, self._rows = path, weights.detach()  # a Parameter requires a gradient
        self.num_rows, self.dim = weights.shape

    def ids(self) -> Ids | None:
        if self._ids is None:
            return None
        return np.array(self._ids) if isinstance(self._ids, list) else self._ids.detach().numpy()

    def pieces(self) -> Iterator[Rows]:
        import torch

        step = max(1, BYTES_AT_ONCE // max(1, self._rows.element_size() * self.dim))
        for start in range(0, self.num_rows, step):
            piece = self._rows[start : start + step]
            yield (piece.float() if piece.dtype == torch.bfloat16 else piece).numpy()  # numpy has no bfloat16


class _ArrowRows(RowFile):
    """Rows that Arrow decodes batch by batch."""

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

    @abstractmethod
    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        """Ids and rows of each batch; what is not asked for need not be decoded."""

    @abstractmethod
    def _typed(self, chunks: Iterable[Any]) -> Ids:
        """The ids of all batches as one array."""


class ParquetRows(_ArrowRows):
    """Columns ``id`` and ``embedding``, a list of fixed size of float32."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                self.num_rows, schema = file.metadata.num_rows, file.schema_arrow
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise damaged(path, "parquet", error) from error
        names = schema.names
        kind: Any = schema.field("embedding").type if "embedding" in names else pa.null()
        if "id" not in names or not (pa.types.is_fixed_size_list(kind) and pa.types.is_float32(kind.value_type)):
            raise DataError(
                f"{path} has the columns {', '.join(names)}; "
                "embeddings have id and embedding, a list of fixed size of float32"
            )
        self.dim, self._id_type = kind.list_size, schema.field("id").type

    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns, place = ["id"] * ids + ["embedding"] * rows, 0
        hole = "{} has empty ids or embeddings near row {}"
        step = max(1, BYTES_AT_ONCE // (4 * self.dim))
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(step, columns=columns):
                    found = [batch.column(name) for name in columns]
                    if any(column.null_count for column in found) or (rows and found[-1].flatten().null_count):
                        raise DataError(hole.format(self.path, place))
                    values = found[-1].flatten().to_numpy().reshape(-1, self.dim) if rows else None
                    yield found[0] if ids else None, values
                    place += len(batch)
        except (pa.ArrowException, OSError) as error:
            if "lists to be of size" in str(error):  # how pyarrow 25, the last for Python 3.10, reads an empty one
                raise DataError(hole.format(self.path, place)) from error
            raise damaged(self.path, "parquet", error) from error

    def _typed(self, chunks: Iterable[Any]) -> Ids:
        import pyarrow as pa

        ids = pa.chunked_array(list(chunks), type=self._id_type).to_numpy()
        return ids.astype(str) if ids.dtype.kind == "O" else ids


class TextRows(_ArrowRows):
    """word2vec text: a line "N D", then "id x1 ... xD"; ids that all look like integers are integers.

    Each line may end with a space, as those of fastText and of the first word2vec do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            words = stream.readline(64).split()
            self._spaced = stream.readline(TEXT_AT_ONCE).endswith(b" \n")
            size = stream.seek(0, 2)
            stream.seek(-min(1, size), 2)
            last = stream.read(1)
        if len(words) != 2 or not all(word.isdigit() for word in words) or min(map(int, words)) < 1:
            raise DataError(f"{path} is no word2vec text: its first line is not 'rows width', two positive integers")
        self.num_rows, self.dim = num_rows, dim = int(words[0]), int(words[1])
        # Every number needs a digit and a separator.
        if last != b"\n" or 2 * num_rows * dim > size:
            raise DataError(
                f"{path} is cut off: {size} bytes cannot hold {num_rows} x {dim} numbers and a last line end"
            )

    def _batches(self, *, ids: bool, rows: bool) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa
        from pyarrow import csv

        names = ["id", *map(str, range(self.dim)), *["end"] * self._spaced]
        types = {**dict.fromkeys(names, pa.float32()), "id": pa.string(), "end": pa.bool_()}
        place = end = 0
        try:
            with csv.open_csv(
                self.path,
                csv.ReadOptions(skip_rows=1, column_names=names, block_size=max(TEXT_AT_ONCE, 64 * self.dim)),
                csv.ParseOptions(delimiter=" ", quote_char=False),
                csv.ConvertOptions(
                    column_types=types,
                    null_values=[],
                    true_values=[""],  # what follows the last space; anything else is an error
                    false_values=[],
                    include_columns=names if rows else ["id"],
                ),
            ) as reader:
                for batch in reader:
                    end = place + len(batch)
                    if end > self.num_rows:
                        break
                    values = np.empty((len(batch), self.dim * rows), dtype=np.float32)
                    for column in range(values.shape[1]):
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


def damaged(path: Path, kind: str, error: Exception) -> DataError:
    """The error for a file that its library refuses."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error  # the system's word, such as a missing permission; Arrow's own errors have no number
    reason = " ".join(str(error).split())[:160]
    return DataError(f"{path} is damaged or no {kind} file ({reason}); export it again")
