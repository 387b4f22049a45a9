"""Arrays that lie in raw files one after the other, read a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from graph_emb.core.hidden import named
from partition.kernels import relabel as kernels


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
                wanted = out[low - start : high - start].view(np.uint8)
                with file.open("rb") as stream:
                    stream.seek((low - begin) * self.dtype.itemsize)
                    lacking = len(wanted) - stream.readinto(wanted.data)
                    if lacking:
                        raise EOFError(f"{file}: a temporary file ended {lacking} bytes early")
            begin = end
        return out

    def chunks(self) -> Iterator[np.ndarray]:
        """All values, ``step`` at a time."""
        for start in range(0, len(self), self.step):
            yield self[start : start + self.step]


@dataclass(frozen=True)
class Runs:
    """Values on their way to a bucket: each task appends to a run of its own in every bucket.

    Attributes:
        folder: Where the runs lie.
        num_buckets, num_tasks: Buckets, and tasks that hand out values.
        dtype, step: As in ``FileArray``.
    """

    folder: Path
    num_buckets: int
    num_tasks: int
    dtype: np.dtype
    step: int

    def begin(self, task: int) -> list[Path]:
        """The runs of a task by bucket; what a killed one has left of them is removed."""
        paths = [self.folder / f"{bucket}-{task}" for bucket in range(self.num_buckets)]
        for path in paths:
            path.unlink(missing_ok=True)
        return paths

    def of(self, bucket: int) -> FileArray:
        """All values of a bucket, in the order of the tasks."""
        return FileArray(self._paths(bucket), self.dtype, self.step)

    def remove(self, bucket: int) -> None:
        """Remove a bucket that nobody needs any more."""
        for path in self._paths(bucket):
            path.unlink(missing_ok=True)

    def _paths(self, bucket: int) -> tuple[Path, ...]:
        return tuple(self.folder / f"{bucket}-{task}" for task in range(self.num_tasks))


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
    order, starts = kernels.group(keys, len(paths))
    values = values.take(order)
    for path, start, stop in zip(paths, starts[:-1], starts[1:], strict=True):
        append(path, values[start:stop])
