"""The file formats of embeddings: how rows are written piece by piece and read back whole."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from graph_emb.errors import DataError
from graph_emb.registry import Registry

Ids = NDArray[Any]  # int64 or numpy strings
Loaded = tuple[NDArray[np.floating], "Ids | None"]

# Bytes of text that are parsed at once.
TEXT_AT_ONCE = 1 << 24


class Format(Protocol):
    """A writer of N rows in pieces, and the reader of what it wrote.

    Attributes:
        files: Names it writes; the last is the one that ``read`` takes.
        suffixes: Endings by which a file is recognised.
    """

    files: ClassVar[tuple[str, ...]]
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, streams: Mapping[str, BinaryIO], ids: Ids, dim: int) -> None:
        """Starts the files for N ids and rows of D float32.

        Raises:
            DataError: the format cannot hold an id.
        """

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        """Adds ids (B,) and rows (B, D), in C order."""

    def close(self) -> None:
        """Ends the files; the streams stay open."""

    @staticmethod
    def read(path: Path) -> Loaded:
        """Weights (N, D) and ids (N,), None where the file has none.

        Raises:
            DataError: not such a file, or a damaged one.
        """


FORMATS: Registry[type[Format]] = Registry("format")


@FORMATS.register("npy")
class Npy:
    """``embeddings.npy`` (N, D) beside ``ids.npy`` (N,), int64 or unicode; both without pickle."""

    files: ClassVar[tuple[str, ...]] = ("ids.npy", "embeddings.npy")
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    def __init__(self, streams: Mapping[str, BinaryIO], ids: Ids, dim: int) -> None:
        self._ids, self._rows = (streams[name] for name in self.files)
        self._dtype = ids.dtype.newbyteorder("<")
        _write_header(self._ids, self._dtype, ids.shape)
        _write_header(self._rows, np.dtype("<f4"), (len(ids), dim))

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._ids.write(ids.astype(self._dtype, copy=False).tobytes())
        self._rows.write(rows.astype("<f4", copy=False).tobytes())

    def close(self) -> None:
        """Nothing follows the last row."""

    @staticmethod
    def read(path: Path) -> Loaded:
        weights = _read_array(path)
        if weights.dtype.kind != "f" or weights.ndim != 2:
            raise DataError(f"{path} holds {weights.dtype} of shape {weights.shape}; embeddings are floats (N, D)")
        ids = path.with_name("ids.npy")
        if path.name != "embeddings.npy" or not ids.exists():
            return weights, None
        return weights, _read_array(ids)


@FORMATS.register("parquet")
class Parquet:
    """``embeddings.parquet``: columns ``id`` (int64 or string) and ``embedding`` (list of D float32)."""

    files: ClassVar[tuple[str, ...]] = ("embeddings.parquet",)
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)

    def __init__(self, streams: Mapping[str, BinaryIO], ids: Ids, dim: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.string() if ids.dtype.kind == "U" else pa.int64()
        self._schema = pa.schema([("id", kind), ("embedding", pa.list_(pa.float32(), dim))])
        # Distinct ids and floats gain nothing from a dictionary.
        self._writer = pq.ParquetWriter(streams[self.files[0]], self._schema, use_dictionary=False)

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        import pyarrow as pa

        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        columns = [pa.array(ids, type=self._schema.field("id").type), lists]
        self._writer.write_table(pa.table(columns, schema=self._schema), row_group_size=len(ids))

    def close(self) -> None:
        self._writer.close()

    @staticmethod
    def read(path: Path) -> Loaded:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                kind = _list_type(file.schema_arrow, path)
                weights = np.empty((file.metadata.num_rows, kind.list_size), dtype=np.float32)
                ids, place = [], 0
                for batch in file.iter_batches(columns=["id", "embedding"]):
                    lists = batch.column("embedding")
                    if lists.null_count or lists.flatten().null_count or batch.column("id").null_count:
                        raise DataError(f"{path} has empty ids or embeddings near row {place}")
                    weights[place : place + len(lists)] = lists.flatten().to_numpy().reshape(-1, kind.list_size)
                    ids.append(batch.column("id"))
                    place += len(lists)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, "parquet", error) from error
        return weights, pa.chunked_array(ids, type=file.schema_arrow.field("id").type).to_numpy()


@FORMATS.register("word2vec")
class Word2Vec:
    """``embeddings.w2v.txt``: a line "N D", then a line "id x1 ... xD" for each row, as gensim reads it.

    Numbers are the shortest text that gives the same float32 back. The text keeps no types: ids that all look like
    integers are read as int64.
    """

    files: ClassVar[tuple[str, ...]] = ("embeddings.w2v.txt",)
    suffixes: ClassVar[tuple[str, ...]] = (".w2v.txt", ".w2v", ".vec", ".emb", ".txt")

    def __init__(self, streams: Mapping[str, BinaryIO], ids: Ids, dim: int) -> None:
        if ids.dtype.kind == "U":
            for value in ids.tolist():
                if value.split() != [value]:
                    raise DataError(
                        f"id {value!r} is empty or has white space, which word2vec text separates by; "
                        "export npy or parquet"
                    )
        self._stream = streams[self.files[0]]
        self._stream.write(f"{len(ids)} {dim}\n".encode())

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = pa.array(rows.reshape(-1)).cast(pa.string())
        starts = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        vectors = pc.binary_join(pa.ListArray.from_arrays(starts, numbers), " ")
        lines = pc.binary_join_element_wise(pa.array(ids).cast(pa.string()), vectors, " ")
        whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")
        self._stream.write(whole[0].as_buffer())
        self._stream.write(b"\n")

    def close(self) -> None:
        """Nothing follows the last line."""

    @staticmethod
    def read(path: Path) -> Loaded:
        import pyarrow as pa
        from pyarrow import csv

        num_rows, dim = _read_text_header(path)
        names = ["id", *map(str, range(dim))]
        weights = np.empty((num_rows, dim), dtype=np.float32)
        ids, place, end = [], 0, 0
        try:
            with csv.open_csv(
                path,
                csv.ReadOptions(skip_rows=1, column_names=names, block_size=max(TEXT_AT_ONCE, 64 * dim)),
                csv.ParseOptions(delimiter=" ", quote_char=False),
                csv.ConvertOptions(
                    column_types={name: pa.string() if name == "id" else pa.float32() for name in names}, null_values=[]
                ),
            ) as reader:
                for batch in reader:
                    end = place + len(batch)
                    if end > num_rows:
                        break
                    for column in range(dim):
                        weights[place:end, column] = batch.column(column + 1).to_numpy()
                    ids.append(batch.column(0))
                    place = end
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, "word2vec", error) from error
        if end != num_rows:
            more = " or more" if end > num_rows else ""
            raise DataError(f"{path} has {end}{more} rows, its first line says {num_rows}")
        return weights, _as_integers(pa.chunked_array(ids).to_numpy().astype(str))


def _write_header(stream: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def _read_array(path: Path) -> NDArray:
    """A .npy file as an array of this machine's byte order."""
    try:
        # Mapped first: a header that promises more than the file holds fails before memory is taken.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.ndarray):
            raise ValueError("it is an archive of arrays")
        return np.array(mapped, dtype=mapped.dtype.newbyteorder("="))
    except (ValueError, EOFError) as error:
        raise _damaged(path, "npy", error) from error


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


def _as_integers(ids: Ids) -> Ids:
    with suppress(ValueError, OverflowError):
        numbers = ids.astype(np.int64)
        if (numbers.astype(str) == ids).all():
            return numbers
    return ids


def _damaged(path: Path, kind: str, error: Exception) -> DataError:
    if isinstance(error, OSError) and error.errno is not None:
        raise error  # the system's word, such as a missing permission; Arrow's own errors have no number
    reason = " ".join(str(error).split())[:160]
    return DataError(f"{path} is damaged or no {kind} file ({reason}); export it again")
