"""``torch.save``'s file, written row by row: a table that no memory holds becomes a tensor that ``torch.load`` maps.

The format is a zip archive of stored records (torch/csrc/jit/serialization, caffe2/serialize/inline_container.h): a
pickle that names its storages, a record of raw bytes for each storage, each of them aligned to 64 bytes.
"""

# N rows, D width.

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.storage import OutputFile

ALIGN = 64
LOCAL_HEADER = 30  # bytes before a record's name, in its header
ZIP64 = 20  # bytes that Python's zipfile adds to a header of a file whose size may pass 4 GiB
FOLDER = "archive"


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


class TorchZip:
    """Writes ``{"embeddings": (N, D) float32, "ids": (N,) int64 or a list of strings}``.

    Args:
        stream: Empty, seekable.
        ids: Shape (N,), int64 or strings; held, the rows are not.
        shape: (N, D).
    """

    def __init__(self, stream: OutputFile, ids: NDArray[Any], shape: tuple[int, int]) -> None:
        self._stream = stream
        self._zip = zipfile.ZipFile(cast(IO[bytes], stream), "w", zipfile.ZIP_STORED, allowZip64=True)
        numbers = ids.dtype.kind != "U"
        content: dict[str, Any] = {"embeddings": _Tensor(_Storage(torch.FloatStorage, "0", shape[0] * shape[1]), shape)}
        content["ids"] = _Tensor(_Storage(torch.LongStorage, "1", len(ids)), ids.shape) if numbers else ids.tolist()
        text = io.BytesIO()
        _Pickler(text, protocol=2).dump(content)
        for name, data in (("data.pkl", text.getvalue()), ("byteorder", b"little"), ("version", b"3\n")):
            self._whole(name, data)
        if numbers:
            self._whole("data/1", ids.astype("<i8", copy=False).tobytes())
        self._rows = self._record("data/0")

    def append(self, rows: NDArray[np.float32]) -> None:
        """Add rows (B, D), in C order."""
        self._rows.write(rows.astype("<f4", copy=False).tobytes())

    def close(self) -> None:
        """End the archive; the stream stays open."""
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
