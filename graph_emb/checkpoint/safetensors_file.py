"""Safetensors files written and read in pieces: a file never stands in memory whole.

Format: https://huggingface.co/docs/safetensors (8 bytes length, JSON header, data). ``safetensors.safe_open`` reads
what is written here; the library itself writes and reads whole tensors only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from graph_emb.core.errors import DataError
from graph_emb.core.json_codec import CODES
from graph_emb.core.storage import OutputFile

PIECE_BYTES = 16 << 20
"""Bytes that are read or written at a time."""
SCATTERED_BYTES = 2 << 20
"""Of rows that are gathered or scattered: they should be in the processor's cache when they are used again."""
MOST_HEADER = 100 << 20
ALIGN = 64

DTYPES = {code: dtype for dtype, code in CODES.items()}


class Column(NamedTuple):
    """A tensor of a file.

    Attributes:
        dtype, shape: Of the whole tensor.
        offset: Of its first byte in the file.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def raw(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous CPU tensor, sharing its memory, shape (num_bytes,)."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


class PieceWriter:
    """Writes one safetensors file, tensor after tensor in pieces, and hashes it on the way.

    Args:
        path: A new file.
        columns: Shape and dtype of every tensor by name. The widest dtypes come first in the file, so that each tensor
            is aligned; ``order`` is the order in which ``write`` must bring them.
    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, Column]) -> None:
        self.order = sorted(columns, key=lambda name: -columns[name].dtype.itemsize)
        header: dict[str, Any] = {}
        at = 0
        for name in self.order:
            column = columns[name]
            end = at + column.num_bytes
            header[name] = {"dtype": CODES[column.dtype], "shape": list(column.shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        self.expected = 8 + len(text) + at
        self._file = OutputFile(path, xxhash.xxh64(), self.expected)
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, rows: Tensor) -> None:
        self._file.write(raw(rows.contiguous()).data)

    def close(self) -> str:
        """Put the file on the disk; its XXH64."""
        written = self._file.num_bytes
        assert written == self.expected, f"{self._file.path}: {written} bytes written of {self.expected}"
        return self._file.close()

    def abandon(self) -> None:
        self._file.abandon()


class PieceReader:
    """Reads row ranges of the tensors of a safetensors file. A context manager.

    Attributes:
        columns: Every tensor by name.
    Raises:
        DataError: the file is missing or its header is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._stream = path.open("rb", buffering=0)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; the checkpoint is not complete") from None
        try:
            self.columns = _columns(path, self._stream)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor, all of it by default."""
        column = self.columns[name]
        stop = column.shape[0] if stop is None else stop
        out = torch.empty((stop - start, *column.shape[1:]), dtype=column.dtype)
        self.read_into(name, start, out)
        return out

    def whole(self, name: str) -> Tensor:
        """A tensor of any shape, a scalar too."""
        column = self.columns[name]
        flat = torch.empty(math.prod(column.shape), dtype=column.dtype)
        self._fill(name, column.offset, flat)
        return flat.view(column.shape)

    def read_into(self, name: str, start: int, out: Tensor) -> None:
        """Rows [start, start + len(out)) of a tensor into contiguous CPU memory of its dtype.

        Raises:
            DataError: the file ends before them.
        """
        column = self.columns[name]
        self._fill(name, column.offset + start * column.row_bytes, out)

    def _fill(self, name: str, at: int, out: Tensor) -> None:
        view = raw(out).data
        while len(view):
            count = os.preadv(self._stream.fileno(), [view], at)
            if not count:
                raise DataError(f"{self.path}: ends {len(view)} bytes before the rest of {name!r}; it was cut off")
            view, at = view[count:], at + count


def _columns(path: Path, stream: Any) -> dict[str, Column]:
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= min(MOST_HEADER, size - 8):
        raise DataError(f"{path}: header of {length} bytes in a file of {size}; the file is damaged")
    try:
        header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            column = Column(DTYPES[entry["dtype"]], tuple(map(int, entry["shape"])), 8 + length + int(begin))
            if begin < 0 or end - begin != column.num_bytes or 8 + length + end > size:
                raise ValueError(f"tensor {name!r} lies at bytes [{begin}, {end}) of {size - 8 - length}")
            found[name] = column
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: no safetensors header ({type(error).__name__}: {error})") from None
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write whole tensors; the size and checksum of the file."""
    held = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    writer = PieceWriter(path, {name: Column(tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()})
    try:
        for name in writer.order:
            writer.write(held[name])
    except BaseException:
        writer.abandon()
        raise
    return writer.expected, writer.close()


def row_pieces(num_rows: int, row_bytes: int, most: int = PIECE_BYTES) -> Iterable[tuple[int, int]]:
    """[start, stop) of pieces of at most ``most`` bytes, at least one row each."""
    step = max(1, most // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(num_rows, start + step)
