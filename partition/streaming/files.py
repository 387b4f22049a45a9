"""Arrays that lie in raw files one after the other, read a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from graph_emb.core.storage import named


@dataclass(frozen=True)
class FileArray:
    """Values of several raw files as one array; only what is asked for is read.

    Memory maps would do the same, but the pages that they touch count as memory of the process.

    Attributes:
        files: In order; one that is missing is empty.
        dtype: Of the values.
        step: Values of a block.
    """

    files: tuple[Path, ...]
    dtype: np.dtype
    step: int

    @cached_property
    def ends(self) -> np.ndarray:
        """Values up to the end of each file."""
        sizes = [file.stat().st_size // self.dtype.itemsize if file.exists() else 0 for file in self.files]
        return np.cumsum(np.array(sizes, np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def shape(self) -> tuple[int, ...]:
        """(number of values,)."""
        return (len(self),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        out = np.empty(max(stop - start, 0), self.dtype)
        begin = 0
        for file, end in zip(self.files, self.ends.tolist(), strict=True):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                with file.open("rb", buffering=0) as stream:
                    stream.seek((low - begin) * self.dtype.itemsize)
                    _fill(stream, out[low - start : high - start])
            begin = end
        return out

    def chunks(self) -> Iterator[np.ndarray]:
        """All values, ``step`` at a time."""
        for start in range(0, len(self), self.step):
            yield self[start : start + self.step]


def write(path: Path, values: np.ndarray) -> None:
    """Make a raw file, or replace it.

    Raises:
        OSError: as ``append``.
    """
    path.write_bytes(b"")
    append(path, values)


def append(path: Path, values: np.ndarray) -> None:
    """Add values at the end of a raw file.

    Raises:
        OSError: the disk is full; the error names the file, the bytes needed and the bytes free.
    """
    if len(values):
        try:
            with path.open("ab") as stream:
                stream.write(np.ascontiguousarray(values).view(np.uint8).data)
        except OSError as error:
            raise named(error, path, values.nbytes) from error


def append_groups(values: np.ndarray, keys: np.ndarray, paths: list[Path]) -> None:
    """Add each value to the file of its key, in their order; keys are integers below ``len(paths)``."""
    from partition.kernels import relabel as kernels

    order, starts = kernels.group(keys, len(paths))
    values = values.take(order)
    for path, start, stop in zip(paths, starts[:-1], starts[1:], strict=True):
        append(path, values[start:stop])


def _fill(stream: object, out: np.ndarray) -> None:
    view = out.view(np.uint8).data.cast("B")
    done = 0
    while done < len(view):
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError(f"a temporary file ended {len(view) - done} bytes early")
        done += got
