"""Writers of embeddings in each file format, piece by piece, and the readers that take them back."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import IO, Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, Registry
from graph_emb.core.storage import OutputFile
from graph_emb.formats.row_readers import Ids, NpyRows, ParquetRows, RowFile, TextRows, TorchRows

ALIGN = 64
LOCAL_HEADER = 30  # bytes before a record's name, in its header
ZIP64 = 20  # bytes that Python's zipfile adds to a header of a file whose size may pass 4 GiB
FOLDER = "archive"


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
        rows = np.dtype("<f4")
        for stream, dtype, shape in ((self._ids, self._dtype, ids.shape), (self._rows, rows, (len(ids), dim))):
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(cast(Any, stream), header)

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._ids.write(ids.astype(self._dtype, copy=False).tobytes())
        self._rows.write(rows.astype("<f4", copy=False).tobytes())


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
        columns = [pa.array(ids, type=self._schema.field("id").type), lists]
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
        lines = pc.binary_join_element_wise(pa.array(ids).cast(pa.string()), vectors, " ")
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
        self._stream = stream = streams[self.files[0]]
        self._zip = _Archive(cast(IO[bytes], stream), "w", zipfile.ZIP_STORED, allowZip64=True)
        numbers = ids.dtype.kind != "U"
        content: dict[str, Any] = {
            "embeddings": _Tensor(_Storage(torch.FloatStorage, "0", len(ids) * dim), (len(ids), dim))
        }
        content["ids"] = _Tensor(_Storage(torch.LongStorage, "1", len(ids)), ids.shape) if numbers else ids.tolist()
        text = io.BytesIO()
        _Pickler(text, protocol=2).dump(content)
        for name, data in (("data.pkl", text.getvalue()), ("byteorder", b"little"), ("version", b"3\n")):
            self._whole(name, data)
        if numbers:
            self._whole("data/1", ids.astype("<i8", copy=False).tobytes())
        self._rows = self._record("data/0")

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._rows.write(rows.astype("<f4", copy=False).tobytes())

    def close(self) -> None:
        self._rows.close()
        self._zip.close()

    def _whole(self, name: str, data: bytes) -> None:
        with self._record(name) as record:
            record.write(data)

    def _record(self, name: str) -> Any:
        """An open record whose first byte is aligned, so that a mapped file can be used as it lies."""
        entry = zipfile.ZipInfo(f"{FOLDER}/{name}")
        before = self._stream.tell() + LOCAL_HEADER + len(entry.filename) + ZIP64 + 4
        entry.extra = struct.pack("<2sH", b"FB", -before % ALIGN) + b"\0" * (-before % ALIGN)
        return self._zip.open(entry, "w", force_zip64=True)
