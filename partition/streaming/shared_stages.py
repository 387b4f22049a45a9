"""Temporary files of a build: stages of tasks that workers share and a second start goes on with, arrays in raw files.

A task is done when its result lies in the folder. A worker does each world_size-th task of a stage, then waits for the
results of the others, so files are all that workers exchange.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.hidden import named, remove_folder
from graph_emb.core.storage import foreign_file, read_json, replace_json
from partition.kernels import sorting as kernels

log = logging.getLogger("graph_emb.partition.streaming")

Facts = dict[str, Any]
"""The result of a task."""
PLAN = "plan.json"
POLL_S = 0.05
STALLED_S = 1800.0
"""A worker gives up when no other one has finished a task for this long."""


class Removed(Exception):
    """The first worker is done with everything and has removed the folder."""


@dataclass(frozen=True)
class Workers:
    """Which of several processes this is.

    Attributes:
        rank: From 0.
        world_size: Processes that share the folder.
        launch: What tells one launch from another, where something does; all its workers have the same.
    """

    rank: int = 0
    world_size: int = 1
    launch: str = ""

    @classmethod
    def of_environment(cls) -> Workers:
        """As torchrun says in RANK and WORLD_SIZE, one worker without it; a ConfigError where they do not fit."""
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise ConfigError(f"RANK={rank} and WORLD_SIZE={size} in the environment: expected numbers, RANK below")
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        return cls(int(rank), int(size), ":".join(os.environ.get(name, "") for name in names))


class Workplace:
    """The folder ``.<name>.streaming`` next to the partition.

    Args:
        place: Folder of the partition.
        facts: What is built, of what; another run's files are used only when all of it is the same.
        workers: Who shares the folder.
    Raises:
        ConfigError: another run builds the same partition now.
        OSError: the folder cannot be written.
    """

    def __init__(self, place: Path, facts: dict[str, Any], workers: Workers) -> None:
        self.path = place.with_name(f".{place.name}.streaming")
        self.out = self.path / "out"  # finished files of the partition until all are there
        self.workers = workers
        self._joined = False
        text = json.dumps(facts, sort_keys=True, default=str)
        self._print = hashlib.sha256(text.encode()).hexdigest()
        if workers.rank == 0:
            self._begin()
        else:
            self._wait("the first worker", lambda: self._planned() == self._print)
        self._lock = self._locked()
        self._joined = True
        (self.path / f"failed.{workers.rank}").unlink(missing_ok=True)
        if workers.rank > 0:
            replace_json(self.path / f"arrived.{workers.rank}", {"launch": workers.launch})

    def _begin(self) -> None:
        if self.path.exists() and self._planned() is None and foreign_file(self.path, ()) is not None:
            raise ConfigError(f"{self.path} is no folder of a build; move it, or give another --out")
        if self.path.exists() and self._planned() != self._print:
            os.close(self._locked())  # another run may be at work
            remove_folder(self.path)
        if self.path.exists():
            log.warning("going on with %s, which an earlier run left", self.path)
        self.out.mkdir(parents=True, exist_ok=True)
        replace_json(self.path / PLAN, {"fingerprint": self._print})

    def _planned(self) -> str | None:
        path = self.path / PLAN
        found = read_json(path).get("fingerprint") if path.is_file() else None
        return found if isinstance(found, str) else None

    def _locked(self) -> int:
        lock = os.open(self.path / f"worker-{self.workers.rank}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"another run works in {self.path}; wait for it, or give another --out") from None
        return lock

    def folder(self, name: str) -> Path:
        """A folder of temporary files."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def run(
        self, stage: str, count: int, task: Callable[[int], Facts], after: Callable[[int], object] | None = None
    ) -> list[Facts]:
        """Do this worker's tasks that are not done, wait for the others.

        Args:
            task: Makes the result of one; begins anew when a killed run was in the middle of it.
            after: Called when the result is on the disk: only then may what the task has read be removed.
        Returns:
            The result of each, in order.
        """
        results = [self.path / f"{stage}-{index}.json" for index in range(count)]
        for index in range(self.workers.rank, count, self.workers.world_size):
            if not results[index].exists():
                replace_json(results[index], task(index))
                if after is not None:
                    after(index)
        self._wait(f"the others to finish {stage!r}", lambda: all(path.exists() for path in results))
        return [read_json(path) for path in results]

    def say_failed(self, error: Exception) -> None:
        """Let the other workers of this launch end with this error instead of waiting."""
        if self.workers.world_size > 1 and self.workers.launch.strip(":"):
            content = {"launch": self.workers.launch, "error": f"{type(error).__name__}: {error}"}
            with suppress(OSError):  # a full disk is what they will see for themselves
                replace_json(self.path / f"failed.{self.workers.rank}", content)

    def close(self, *, remove: bool) -> None:
        """Let go of the folder; to remove it, the first worker does so and the others wait until it has."""
        os.close(self._lock)
        if remove and self.workers.rank == 0:
            remove_folder(self.path)
        if remove:
            with suppress(Removed):  # between two looks at the folder
                self._wait("the first worker to finish", lambda: not self.path.exists())

    @property
    def removed(self) -> bool:
        """Whether the first worker has finished while this one was still looking for results.

        It needs no more than the results of all, which a worker that waits for them sees up to ``POLL_S`` later.
        """
        return self.workers.rank > 0 and self._joined and not self.path.exists()

    def wait_arrived(self) -> None:
        """Wait until every other worker of this launch is here: one that came to no folder would wait for it."""
        marks = [self.path / f"arrived.{rank}" for rank in range(1, self.workers.world_size)]
        launch = self.workers.launch  # a mark may be that of a killed launch
        self._wait(
            "all workers to arrive",
            lambda: all(mark.exists() and read_json(mark)["launch"] == launch for mark in marks),
        )

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        last, seen = time.monotonic(), -1
        while not ready():
            if self.removed:
                raise Removed
            for path in self.path.glob("failed.*"):
                content = read_json(path)
                if content["launch"] == self.workers.launch:
                    raise PartitionError(f"worker {path.suffix[1:]} failed: {content['error']}")
            found = sum(1 for _ in self.path.glob("*.json")) if self.path.exists() else 0
            if found != seen:
                last, seen = time.monotonic(), found
            if time.monotonic() - last > STALLED_S:
                raise PartitionError(
                    f"worker {self.workers.rank} waited {STALLED_S / 60:.0f} minutes for {what} in {self.path}; "
                    "did another worker end? start all again to go on from here"
                )
            time.sleep(POLL_S)


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
    """Make a raw file, or replace it; an OSError as by ``append``."""
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
