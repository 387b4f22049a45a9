"""The file formats of embeddings: how rows are written piece by piece, and which reader takes them back."""

# N rows, D width, B rows of a piece.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.core.registry import Registry
from graph_emb.core.storage import OutputFile
from graph_emb.formats.row_files import Ids, NpyRows, ParquetRows, RowFile, TextRows, TorchRows
from graph_emb.formats.torch_zip import TorchZip


class Format(Protocol):
    """A writer of N rows in pieces, and the reader of what it wrote.

    Attributes:
        files: Names it writes; the last is the one that is opened.
        suffixes: Endings by which a file is recognised.
    """

    files: ClassVar[tuple[str, ...]]
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        """Starts the files for N ids and rows of D float32.

        Raises:
            DataError: the format cannot hold an id.
        """

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        """Adds ids (B,) and rows (B, D), in C order."""

    def close(self) -> None:
        """Ends the files; the streams stay open."""

    @staticmethod
    def open(path: Path) -> RowFile:
        """Such a file, to be read.

        Raises:
            DataError: not such a file, or a damaged one.
        """


FORMATS: Registry[type[Format]] = Registry("format")


@FORMATS.register("npy")
class Npy:
    """``embeddings.npy`` (N, D) beside ``ids.npy`` (N,), int64 or unicode; both without pickle."""

    files: ClassVar[tuple[str, ...]] = ("ids.npy", "embeddings.npy")
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
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
    def open(path: Path) -> RowFile:
        return NpyRows(path)


@FORMATS.register("parquet")
class Parquet:
    """``embeddings.parquet``: columns ``id`` (int64 or string) and ``embedding`` (list of D float32)."""

    files: ClassVar[tuple[str, ...]] = ("embeddings.parquet",)
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)

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

    @staticmethod
    def open(path: Path) -> RowFile:
        return ParquetRows(path)


@FORMATS.register("word2vec")
class Word2Vec:
    """``embeddings.w2v.txt``: a line "N D", then a line "id x1 ... xD" for each row, as gensim reads it.

    Numbers are the shortest text that gives the same float32 back. The text keeps no types: ids that all look like
    integers are read as int64.
    """

    files: ClassVar[tuple[str, ...]] = ("embeddings.w2v.txt",)
    suffixes: ClassVar[tuple[str, ...]] = (".w2v.txt", ".w2v", ".vec", ".emb", ".txt")

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

    def close(self) -> None:
        """Nothing follows the last line."""

    @staticmethod
    def open(path: Path) -> RowFile:
        return TextRows(path)


@FORMATS.register("pt")
class Pt:
    """``embeddings.pt``: ``{"embeddings": (N, D) float32, "ids": (N,) int64 or a list of strings}``.

    ``torch.load(path, weights_only=True, mmap=True)`` reads it.
    """

    files: ClassVar[tuple[str, ...]] = ("embeddings.pt",)
    suffixes: ClassVar[tuple[str, ...]] = (".pt", ".pth")

    def __init__(self, streams: Mapping[str, OutputFile], ids: Ids, dim: int) -> None:
        self._file = TorchZip(streams[self.files[0]], ids, (len(ids), dim))

    def append(self, ids: Ids, rows: NDArray[np.float32]) -> None:
        self._file.append(rows)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def open(path: Path) -> RowFile:
        return TorchRows(path)


def _write_header(stream: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
