"""A folder that appears under its name complete or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.log import get_logger

log = get_logger("graph_emb.core.storage")

FREE_BYTES_MARGIN = 1 << 20
EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2): two names swap in one step."""


class HashedFile:
    """A new file whose bytes are counted and hashed on their way to it.

    Attributes:
        num_bytes: Written so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._hash = hashlib.sha256()
        self._stream = path.open("xb")

    def write(self, data: Any) -> int:
        """Append bytes; an OSError names the file."""
        try:
            self._stream.write(data)
        except OSError as error:
            raise named(error, self.path) from error
        self._hash.update(data)
        self.num_bytes += len(data)
        return len(data)

    def close(self) -> str:
        """Put the file on the disk and return its sha256."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            raise named(error, self.path) from error
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Close a file that is going to be removed."""
        with suppress(OSError):  # the disk that was full is full for the last buffer too
            self._stream.close()

    # What pyarrow asks of a file object.
    def flush(self) -> None:
        """Nothing waits here; ``close`` reaches the disk."""

    def tell(self) -> int:
        """Bytes written."""
        return self.num_bytes

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._stream.closed


def write_file(path: Path, write: Callable[[HashedFile], object]) -> tuple[int, str]:
    """Make a file by ``write(stream)`` and put it on the disk.

    Returns:
        Its size in bytes and its sha256.
    Raises:
        OSError: it cannot be written; the error names it.
    """
    stream = HashedFile(path)
    try:
        write(stream)
        return stream.num_bytes, stream.close()
    finally:
        stream.abandon()


class PendingFolder:
    """A folder under construction beside ``place`` that takes its name on ``publish``.

    Its name is ``.<name>.partial-...`` and its lock lives as long as this process: a later run removes the ones that
    killed processes left behind. Leaving the context without ``publish`` removes it and the parents made for it.

    Args:
        place: Where the folder will be.
        replaces: Called with an existing, non-empty place; raises a ConfigError unless it may be replaced.
    Raises:
        ConfigError: place is a file or may not be replaced.
        OSError: place cannot be written.
    """

    def __init__(self, place: str | Path, replaces: Any) -> None:
        self.place = Path(os.path.realpath(Path(place).expanduser()))
        self._replaces = replaces
        self._made: list[Path] = []
        self._published = False
        self._check()
        _remove_dead(self.place)
        try:
            self._make_parents(self.place.parent)
            self.path, self._lock = _locked_folder(self.place)
        except OSError:
            self._remove_parents()
            raise

    def __enter__(self) -> PendingFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published:
            shutil.rmtree(self.path, ignore_errors=True)
            self._remove_parents()
        os.close(self._lock)

    def check_space(self, num_bytes: int) -> None:
        """Raise an OSError now when the disk has no room for ``num_bytes``."""
        free = shutil.disk_usage(self.path).free
        if num_bytes + FREE_BYTES_MARGIN > free:
            text = f"the partition needs about {size_text(num_bytes)}, the disk has {size_text(free)} free"
            raise OSError(errno.ENOSPC, text, str(self.place))

    def publish(self) -> Path:
        """Put the names on the disk and move the folder to its place; an old one leaves in the same step."""
        for folder, _, _ in os.walk(self.path):
            sync_folder(Path(folder))
        self._check()
        if self.place.is_dir() and any(self.place.iterdir()):
            self._exchange()
        else:
            self.path.rename(self.place)
        self._published = True
        sync_folder(self.place.parent)
        return self.place

    def _exchange(self) -> None:
        if swap_names(self.path, self.place):
            shutil.rmtree(self.path, ignore_errors=True)  # the old one, under the hidden name
            return
        # No such call on this system: for a moment neither is there, and a kill then leaves the old one aside.
        aside = self.place.with_name(f".{self.place.name}.old-{secrets.token_hex(4)}")
        self.place.rename(aside)
        try:
            self.path.rename(self.place)
        except BaseException:
            aside.rename(self.place)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def _check(self) -> None:
        if not os.path.lexists(self.place):
            return
        if not self.place.is_dir():
            raise ConfigError(f"{self.place} is a file; a partition needs a folder of its own")
        if any(self.place.iterdir()):
            self._replaces(self.place)

    def _make_parents(self, folder: Path) -> None:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
            self._made.append(path)

    def _remove_parents(self) -> None:
        with suppress(OSError):  # somebody else uses it by now
            for path in reversed(self._made):
                path.rmdir()


def named(error: OSError, path: Path) -> OSError:
    """The same error with the file's name."""
    return OSError(error.errno, error.strerror, str(path))


def size_text(num_bytes: float) -> str:
    """Bytes for a person, such as ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


def _locked_folder(place: Path) -> tuple[Path, int]:
    """A new hidden folder and the descriptor that holds its lock."""
    while True:
        path = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
        path.mkdir()
        lock = os.open(path, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # another run may have taken it for a dead one before it was locked
            return path, lock
        os.close(lock)


def _remove_dead(place: Path) -> None:
    """Remove what killed runs left; the lock of a process ends with it."""
    if not place.parent.is_dir():
        return
    for path in sorted(place.parent.glob(f".{_escaped(place.name)}.partial-*")):
        with suppress(OSError), opened(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.warning("removing %s, which a killed run left", path)
            shutil.rmtree(path, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a folder, for a lock or a sync."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    with opened(folder) as descriptor:
        os.fsync(descriptor)


def swap_names(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here = -100  # AT_FDCWD; both paths are absolute
    return rename(here, os.fsencode(first), here, os.fsencode(second), EXCHANGE) == 0
