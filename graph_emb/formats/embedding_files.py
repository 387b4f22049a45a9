"""Embeddings on the disk, each row under the id that its node has in the user's files, and a writer of each format."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graph_emb.core.errors import ConfigError, DataError, Registry, ShapeError, check_flags
from graph_emb.core.storage import OutputFile, PendingFiles
from graph_emb.formats.row_readers import Ids, NpyRows, ParquetRows, RowFile, TextRows, TorchRows
from graph_emb.graph.csr import Graph
from graph_emb.graph.ids import arrow_ids, as_ids, find_ids, first_repeated
from graph_emb.graph.readers.source import is_object_of

ALIGN = 64
LOCAL_HEADER = 30  # bytes before a record's name, in its header
ZIP64 = 20  # bytes that Python's zipfile adds to a header of a file whose size may pass 4 GiB
FOLDER = "archive"
BYTES_AT_ONCE = 1 << 24  # of float32 rows in memory at once
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")


class Format(ABC):
    """A writer of N rows in pieces, and the reader of what it wrote.

    Attributes:
        files: Names it writes; the last is the one that is opened.
        suffixes: Endings by which a file is recognised.
        reader: Opens a file; raises a DataError for another one or a damaged one.
    """

    files: ClassVar[tuple[str, ...]]
    suffixes: ClassVar[tuple[str, ...]]
    reader: ClassVar[type[RowFile]]

    @abstractmethod
    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        """Start the files for N ids and rows of D float32.

        Raises:
            DataError: the format cannot hold an id.
        """

    @abstractmethod
    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        """Append ids (B,) and rows (B, D), in C order."""

    def close(self) -> None:  # noqa: B027 - most formats end with their last row
        """Finish the files, where bytes follow the last row; the streams stay open."""


FORMATS: Registry[type[Format]] = Registry("format")


@FORMATS.register("npy")
class Npy(Format):
    """``embeddings.npy`` (N, D) beside ``ids.npy`` (N,), int64 or unicode; both without pickle."""

    files = ("ids.npy", "embeddings.npy")
    suffixes = (".npy",)
    reader = NpyRows

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        self._ids, self._rows = (streams[name] for name in self.files)
        self._dtype = ids.dtype.newbyteorder("<")
        _write_npy_header(self._ids, self._dtype, ids.shape)
        _write_npy_header(self._rows, np.dtype("<f4"), (len(ids), dim))

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._ids.write(ids.astype(self._dtype, copy=False).tobytes())
        self._rows.write(rows.astype("<f4", copy=False).tobytes())


def _write_npy_header(out: OutputFile, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(cast(Any, out), header)


def write_npy(out: OutputFile, array: NDArray[Any]) -> None:
    """Write numbers as a ``.npy`` file."""
    _write_npy_header(out, array.dtype.newbyteorder("<"), array.shape)
    out.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")))


@FORMATS.register("parquet")
class Parquet(Format):
    """``embeddings.parquet``: columns ``id`` (int64 or string) and ``embedding`` (list of D float32)."""

    files = ("embeddings.parquet",)
    suffixes = (".parquet",)
    reader = ParquetRows

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.string() if ids.dtype.kind == "U" else pa.int64()
        self._schema = pa.schema([("id", kind), ("embedding", pa.list_(pa.float32(), dim))])
        # Distinct ids and floats gain nothing from a dictionary.
        self._writer = pq.ParquetWriter(streams[self.files[0]], self._schema, use_dictionary=False)

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        import pyarrow as pa

        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        columns = [arrow_ids(ids).cast(self._schema.field("id").type), lists]
        self._writer.write_table(pa.table(columns, schema=self._schema), row_group_size=len(ids))

    def close(self) -> None:
        self._writer.close()


@FORMATS.register("word2vec")
class Word2Vec(Format):
    """``embeddings.w2v.txt``: a line "N D", then a line "id x1 ... xD" for each row, as gensim reads it.

    Numbers are the shortest text that gives the same float32 back. The text keeps no types: ids that all look like
    integers are read as int64.
    """

    files = ("embeddings.w2v.txt",)
    suffixes = (".w2v.txt", ".w2v", ".vec", ".emb", ".txt")
    reader = TextRows

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
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
        lines = pc.binary_join_element_wise(arrow_ids(ids).cast(pa.string()), vectors, " ")
        whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")
        self._stream.write(whole[0].as_buffer())
        self._stream.write(b"\n")


class _Storage:
    """Stands for the raw record of a name; the pickler writes it as torch does."""

    def __init__(self, kind: type, name: str, size: int) -> None:
        self.reference = ("storage", kind, name, "cpu", size)


class _Tensor:
    """Stands for a whole contiguous tensor over a record."""

    def __init__(self, storage: _Storage, shape: tuple[int, ...]) -> None:
        self._storage, self._shape = storage, shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = tuple(int(np.prod(self._shape[i + 1 :], dtype=np.int64)) for i in range(len(self._shape)))
        import torch

        rebuild: Any = torch._utils._rebuild_tensor_v2
        return rebuild, (self._storage, 0, self._shape, strides, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.reference if isinstance(obj, _Storage) else None


class _Archive(zipfile.ZipFile):
    def __del__(self) -> None:
        """Not finished here: after an error its stream is gone."""


@FORMATS.register("pt")
class Pt(Format):
    """``embeddings.pt``: ``{"embeddings": (N, D) float32, "ids": (N,) int64 or a list of strings}``.

    ``torch.load(path, weights_only=True, mmap=True)`` reads it. It is ``torch.save``'s file, written row by row: a zip
    archive of stored records (torch/csrc/jit/serialization, caffe2/serialize/inline_container.h), a pickle that names
    its storages and a record of raw bytes for each of them, aligned to 64 bytes.
    """

    files = ("embeddings.pt",)
    suffixes = (".pt", ".pth")
    reader = TorchRows

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        import torch

        self._stream = stream = streams[self.files[0]]
        self._zip = _Archive(cast(IO[bytes], stream), "w", zipfile.ZIP_STORED, allowZip64=True)
        numbers = ids.dtype.kind != "U"
        rows = _Tensor(_Storage(torch.FloatStorage, "0", len(ids) * dim), (len(ids), dim))
        stored = _Tensor(_Storage(torch.LongStorage, "1", len(ids)), ids.shape) if numbers else ids.tolist()
        text = io.BytesIO()
        _Pickler(text, protocol=2).dump({"embeddings": rows, "ids": stored})
        records = [("data.pkl", text.getvalue()), ("byteorder", b"little"), ("version", b"3\n")]
        if numbers:
            records.append(("data/1", ids.astype("<i8", copy=False).tobytes()))
        for name, data in records:
            with self._record(name) as record:
                record.write(data)
        self._rows = self._record("data/0")

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._rows.write(rows.astype("<f4", copy=False).tobytes())

    def close(self) -> None:
        self._rows.close()
        self._zip.close()

    def _record(self, name: str) -> Any:
        """An open record whose first byte is aligned, so that a mapped file can be used as it lies."""
        entry = zipfile.ZipInfo(f"{FOLDER}/{name}")
        before = self._stream.tell() + LOCAL_HEADER + len(entry.filename) + ZIP64 + 4
        entry.extra = struct.pack("<2sH", b"FB", -before % ALIGN) + b"\0" * (-before % ALIGN)
        return self._zip.open(entry, "w", force_zip64=True)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Rows with the ids they belong to.

    Attributes:
        weights: Shape (N, D), float32; float64 if a foreign .npy file holds that.
        node_ids: Shape (N,), int64 or numpy strings, distinct.
    Raises:
        ShapeError: the shapes or dtypes do not fit.
        DataError: an id stands twice.
    """

    weights: NDArray[np.floating]
    node_ids: Ids

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.dtype.kind != "f" or not self.weights.size:
            raise ShapeError(f"weights have dtype {self.weights.dtype}, shape {self.weights.shape}; give floats (N, D)")
        object.__setattr__(self, "node_ids", checked_ids(self.node_ids, len(self.weights)))


def save_embeddings(
    folder: str | Path,
    weights: Any,
    node_ids: ArrayLike | None = None,
    formats: Sequence[str] = ("npy",),
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write embeddings under their original ids; all files appear complete, or none does.

    Rows are fetched once, in pieces of ``BYTES_AT_ONCE``, so a table may be larger than the memory.

    Args:
        folder: Made when it is absent.
        weights: Shape (N, D), float32; 16-bit rows become the float32 of the same value. Anything with a shape, a dtype
            and slices of rows: a tensor, an array, a memory map, ``DistEmbedding.weight``.
        node_ids: Shape (N,), distinct integers or strings; None: 0 .. N-1.
        formats: Of "npy" (``embeddings.npy``, ``ids.npy``), "parquet" (``embeddings.parquet``, columns id and
            embedding) and "word2vec" (``embeddings.w2v.txt``).
        overwrite: Replace files of these names.
    Returns:
        The files written.
    Raises:
        ConfigError: an unknown format, none, or one twice; a file is there already.
        ShapeError: weights are no rows of these dtypes, or not as many as ids.
        DataError: an id stands twice, or a format cannot hold it.
        OSError: the disk is full or cannot be written; nothing is left.
    """
    check_flags(overwrite=overwrite)
    shape, dtype = tuple(weights.shape), str(weights.dtype).removeprefix("torch.")
    if len(shape) != 2 or 0 in shape or dtype not in _EXACT_IN_FLOAT32:
        known = ", ".join(_EXACT_IN_FLOAT32)
        raise ShapeError(f"weights have dtype {dtype}, shape {shape}; give rows (N, D) of {known}")
    num_rows, dim = shape
    ids = np.arange(num_rows) if node_ids is None else checked_ids(node_ids, num_rows)
    step = max(1, BYTES_AT_ONCE // (4 * dim))
    pieces = (weights[begin : begin + step] for begin in range(0, num_rows, step))
    return write_rows(folder, pieces, dim, ids, formats, overwrite=overwrite)


def copy_embeddings(
    source: str | Path, folder: str | Path, formats: Sequence[str], *, overwrite: bool = False
) -> list[Path]:
    """``save_embeddings`` of what ``load_embeddings`` reads, piece by piece; arguments and errors as theirs.

    float64 rows of a foreign file become the nearest float32.
    """
    check_flags(overwrite=overwrite)
    file = open_embeddings(source)
    found = file.ids()
    try:
        ids = np.arange(file.num_rows) if found is None else checked_ids(found, file.num_rows)
    except (ShapeError, DataError) as error:
        raise DataError(f"{file.path}: {error}") from error
    return write_rows(folder, file.pieces(), file.dim, ids, formats, overwrite=overwrite)


def write_rows(
    folder: str | Path, pieces: Iterable[Any], dim: int, ids: Ids, formats: Sequence[str], *, overwrite: bool = False
) -> list[Path]:
    """Rows that come in order, (B, D) at a time, with their checked ids (N,), into all formats at once.

    Returns and raises as ``save_embeddings``.
    """
    if isinstance(formats, str):
        raise ConfigError(f"formats is {formats!r}, one text; give a list, such as [{formats!r}]")
    if not formats or len(set(formats)) < len(formats):
        raise ConfigError(f"formats are {list(formats)}; give one or more of {', '.join(FORMATS)}, each once")
    kinds = [FORMATS[name] for name in formats]
    names = [name for kind in kinds for name in kind.files]
    with PendingFiles(folder, names, overwrite=overwrite) as pending:
        writers: list[Format] = []
        try:
            for kind in kinds:
                writers.append(kind({name: pending.open(name) for name in kind.files}, ids, dim))
            begin = 0
            for piece in pieces:
                rows = _as_float32(piece)
                for writer in writers:
                    writer.append(ids[begin : begin + len(rows)], rows)
                begin += len(rows)
            for writer in writers:
                writer.close()
        except BaseException:
            for writer in writers:
                with suppress(Exception):  # after a failure, what its end would raise says nothing new
                    writer.close()
            raise
        return pending.publish()


def load_embeddings(path: str | Path) -> Embeddings:
    """Read what ``save_embeddings`` wrote.

    Args:
        path: A file of one of the formats, recognised by its ending, or a folder with ``embeddings.npy``,
            ``embeddings.parquet`` or ``embeddings.w2v.txt``, looked for in this order.
    Returns:
        The weights and ids; 0 .. N-1 for a .npy file without ids.
    Raises:
        DataError: nothing there, an unknown ending, or a damaged file.
        OSError: the file cannot be read.
    """
    file = open_embeddings(path)
    weights, ids = file.read()
    if weights.dtype == np.float16:
        weights = weights.astype(np.float32)
    try:
        return Embeddings(weights, np.arange(len(weights)) if ids is None else ids)
    except (ShapeError, DataError) as error:
        raise DataError(f"{file.path}: {error}") from error


def open_embeddings(path: str | Path) -> RowFile:
    """A file of embeddings, found as ``load_embeddings`` finds it, to be read piece by piece.

    Raises:
        DataError: nothing there, an unknown ending, or a damaged file.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        for kind in FORMATS.values():
            file = path / kind.files[-1]
            if file.is_file():
                return kind.reader(file)
        names = ", ".join(kind.files[-1] for kind in FORMATS.values())
        raise DataError(f"{path} holds no embeddings; looked for {names}")
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder that an export or a run wrote")
    for kind in FORMATS.values():
        if path.name.endswith(kind.suffixes):
            return kind.reader(path)
    endings = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
    raise DataError(f"{path} has no ending of embeddings; known: {endings}")


def align(embeddings: Embeddings, nodes: Graph | ArrayLike) -> NDArray[np.floating]:
    """The rows of some nodes in their order, shape (B, D).

    Args:
        embeddings: Of these nodes and perhaps of others.
        nodes: Ids (B,), or a graph whose N nodes are meant.
    Raises:
        DataError, ShapeError: as ``places_of``.
    """
    if isinstance(nodes, Graph):
        nodes = np.arange(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids
    places = places_of(embeddings, nodes)
    return embeddings.weights if places is None else embeddings.weights[places]


def places_of(embeddings: Embeddings, nodes: ArrayLike) -> NDArray[np.int64] | None:
    """The rows' numbers of some nodes, shape (B,); None: the nodes are all of the rows', in their order.

    Where one side holds integers and the other strings, ids are compared as text.

    Args:
        nodes: Ids (B,).
    Raises:
        DataError: a node has no row.
        ShapeError: nodes are no one-dimensional integers or strings.
    """
    known, asked = embeddings.node_ids, exact_ids(nodes, "nodes")
    if (known.dtype.kind == "U") != (asked.dtype.kind == "U"):
        known, asked = known.astype(str), asked.astype(str)
    if np.array_equal(known, asked):
        return None
    rows = find_ids(known, len(known), asked)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise DataError(
            f"{len(missing)} of {len(asked)} nodes have no embedding, the first is id {asked[missing[0]].item()!r}; "
            "are the embeddings of this graph?"
        )
    return rows


def exact_ids(values: object, name: str) -> Ids:
    """``as_ids`` as int64 or strings: unsigned ones are compared with int64 as floats, which are equal above 2**53.

    Raises:
        ShapeError, DataError: as ``as_ids``.
    """
    ids = as_ids(values, name)
    return ids if ids.dtype.kind == "U" else ids.astype(np.int64, copy=False)


def checked_ids(node_ids: object, num_rows: int) -> Ids:
    """Ids as int64 or strings.

    Raises:
        ShapeError: they are not num_rows one-dimensional integers or strings.
        DataError: an id stands twice.
    """
    ids = exact_ids(node_ids, "node_ids")
    if len(ids) != num_rows:
        raise ShapeError(f"{len(ids)} node_ids for {num_rows} rows of weights; give one for each")
    twice = first_repeated(ids)
    if twice is not None:
        raise DataError(f"node id {twice!r} stands for {(ids == twice).sum()} rows; ids must differ")
    return ids


def _as_float32(rows: Any) -> NDArray[np.float32]:
    if is_object_of(rows, "torch"):
        of_numpy = rows.float() if str(rows.dtype) == "torch.bfloat16" else rows  # numpy has no bfloat16
        rows = of_numpy.detach().cpu().numpy()
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.dtype.itemsize > 4 and (np.isinf(narrow) & np.isfinite(rows)).any():
        raise DataError(f"a number of {np.abs(rows).max():g} is beyond float32, which the formats hold")
    return narrow
