"""The one way to the disk: files hashed on their way, files and folders that take their names when complete."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import xxhash
from typing_extensions import Self

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.hidden import HiddenFolder, left_behind, named, remove_left_behind, remove_marked, size_text
from graph_emb.core.page_cache import Drain
from graph_emb.core.paths import user_path

FREE_BYTES_MARGIN = 1 << 20
CACHED_BYTES = 1 << 20
"""Bytes hashed at a time: small enough that hash and copy share them in the processor's cache."""
EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2): two names swap in one step."""


def check_space(folder: Path, num_bytes: int, what: str) -> None:
    """Raise an OSError when the disk of ``folder`` has no room for ``num_bytes``; ``what`` needs them."""
    free = shutil.disk_usage(folder).free
    if num_bytes + FREE_BYTES_MARGIN > free:
        text = f"{what} needs about {size_text(num_bytes)}, the disk has {size_text(free)} free; give another --out"
        raise OSError(errno.ENOSPC, text, str(folder))


class Digest(Protocol):
    """A checksum of bytes that come piece by piece: ``hashlib.sha256()``, ``xxhash.xxh64()``."""

    def update(self, data: Any, /) -> object: ...
    def hexdigest(self) -> str: ...


LONGEST_NAME, MOST_PARTS = 255, 8
"""Bytes of a file's or folder's name that file systems take, and parts of a path that we write, at most."""


def inside(name: str) -> str:
    """A path that a manifest gives, relative to its folder.

    Raises:
        ValueError: it leaves the folder, or no file system takes it, which would be an error of the system's.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"file name {name!r} leaves the folder")
    if len(path.parts) > MOST_PARTS or any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
        raise ValueError(f"file name {name[:40]!r}... is longer than file systems take")
    return name


class OutputFile:
    """A new file whose bytes are counted, and hashed on their way to it.

    Args:
        path: A name that is free.
        digest: Receives all bytes.
        expected: Bytes of the finished file where they are known; an error on a full disk tells them.
        drained: Bytes leave the kernel's memory on the way, see ``graph_emb.core.page_cache``: for rows that a process
            of limited memory does not hold either. Whoever reads the file next reads the disk.
    Attributes:
        num_bytes: Written so far.
    """

    def __init__(self, path: Path, digest: Digest | None = None, expected: int = 0, *, drained: bool = False) -> None:
        self.path, self.num_bytes = path, 0
        self._digest, self._expected = digest, expected
        try:
            self._stream = path.open("xb")
        except OSError as error:
            raise named(error, path, expected) from error
        self._drain = Drain(self._stream.fileno()) if drained else None

    def write(self, data: Any) -> int:
        """Append bytes; an OSError names the file."""
        view = memoryview(data)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        for start in range(0, len(view), CACHED_BYTES):
            piece = view[start : start + CACHED_BYTES]
            try:
                self._stream.write(piece)
                if self._drain is not None:
                    self._drain.wrote(len(piece))
            except OSError as error:
                raise self._named(error, len(view) - start) from error
            if self._digest is not None:
                self._digest.update(piece)
            self.num_bytes += len(piece)
        return len(view)

    def close(self) -> str:
        """Put the file on the disk and return its checksum, "" without a digest; may be repeated."""
        if not self.closed:
            try:
                self._stream.flush()
                if self._drain is None:
                    os.fsync(self._stream.fileno())
                else:
                    self._drain.finish()
                self._stream.close()
            except OSError as error:
                self.abandon()
                raise self._named(error, 0) from error
        return "" if self._digest is None else self._digest.hexdigest()

    def abandon(self) -> None:
        """Close a file that is going to be removed."""
        with suppress(OSError):  # the disk that was full is full for the last buffer too
            self._stream.close()

    def _named(self, error: OSError, waiting: int) -> OSError:
        return named(error, self.path, max(self._expected - self.num_bytes, waiting))

    def flush(self) -> None:
        """Let readers see all bytes; ``close`` puts them on the disk."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._named(error, 0) from error

    # For pyarrow and zipfile.
    def tell(self) -> int:
        """The position of the next byte."""
        return self._stream.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go back to write over something; only without a digest."""
        assert self._digest is None, f"{self.path} is hashed from its first byte to its last"
        return self._stream.seek(offset, whence)

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._stream.closed


def write_file(path: Path, write: Callable[[OutputFile], object]) -> tuple[int, str]:
    """Make a file by ``write(stream)`` and put it on the disk.

    Returns:
        Its size in bytes and its sha256.
    Raises:
        OSError: it cannot be written; the error names it.
    """
    stream = OutputFile(path, hashlib.sha256())
    try:
        write(stream)
        return stream.num_bytes, stream.close()
    finally:
        stream.abandon()


def write_text(path: Path, text: str) -> tuple[int, str]:
    """``write_file`` of a text: for folders that are still hidden, where nobody reads yet.

    The name of a file may hold bytes that are no UTF-8; they are written as escapes.
    """
    return write_file(path, lambda stream: stream.write(text.encode(errors="backslashreplace")))


def sha256_of(path: Path) -> str:
    """The sha256 of a file."""
    return _digest_of(path, hashlib.sha256())


def xxh64_of(path: Path) -> str:
    """The XXH64 of a file: finds damage, as fast as memory. ``xxhsum -H64 FILE`` prints the same digits."""
    return _digest_of(path, xxhash.xxh64())


def _digest_of(path: Path, digest: Digest) -> str:
    buffer = memoryview(bytearray(CACHED_BYTES))
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads further ahead
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


class _Parents:
    """Folders that were made on the way to a place, to be removed again after a failure."""

    def __init__(self, folder: Path) -> None:
        self._made: list[Path] = []
        try:
            for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                path.mkdir(exist_ok=True)
                self._made.append(path)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        with suppress(OSError):  # another process uses it by now
            for path in reversed(self._made):
                path.rmdir()


class PendingFolder:
    """A folder under construction beside ``place`` that takes its name on ``publish``. A context manager.

    Its name is ``.<name>.partial-...``; a later run removes the ones that killed processes left. Leaving the context
    without ``publish`` or ``keep`` removes it and the parents made for it.

    Args:
        place: Where the folder will be.
        may_replace: Called with an existing, non-empty place; raises a ConfigError unless it may be replaced.
        what: The word for it in messages.
        name: Of the hidden folder, where other processes must find it.
        is_ours: See ``remove_left_behind``.
    Attributes:
        path: The hidden folder; ``place`` once it is published.
    Raises:
        ConfigError: place is a file or may not be replaced, or another process writes under ``name``.
        OSError: place cannot be written.
    """

    def __init__(
        self,
        place: str | Path,
        may_replace: Callable[[Path], object],
        *,
        what: str = "partition",
        name: str | None = None,
        is_ours: Callable[[Path], bool] | None = None,
    ) -> None:
        self.place = Path(os.path.realpath(user_path(place)))
        self._may_replace, self._what = may_replace, what
        self._done = False
        self._check()
        remove_left_behind(left_behind(self.place), is_ours)
        if name is not None:
            remove_left_behind([self.place.with_name(name)], is_ours, empty=True)
        self._parents = _Parents(self.place.parent)
        try:
            self._hidden = HiddenFolder(self.place, name)
        except FileExistsError as error:
            raise ConfigError(
                f"{error.filename}: another process writes this {what} (or was killed, where the file system has no "
                "locks); take another name, or remove the folder"
            ) from None
        except OSError:
            self._parents.remove()
            raise
        self.path = self._hidden.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_space(self, num_bytes: int) -> None:
        """Raise an OSError now when the disk has no room for ``num_bytes``, not after hours of work."""
        check_space(self.path, num_bytes, f"the {self._what}")

    def publish(self) -> Path:
        """Put the names on the disk and move the folder to its place; an old one leaves in the same step.

        Raises:
            ConfigError: place was taken meanwhile.
            OSError: the folder could not be moved; or it was, and the message says so.
        """
        for folder, _, _ in os.walk(self.path):
            _sync(Path(folder))
        self._check()
        self._hidden.unmark()
        old = self.path if self.place.is_dir() and any(self.place.iterdir()) else None
        if old is None:
            self.path.rename(self.place)
        elif not swap_names(self.path, self.place):
            old = self._move_aside()
        self._done, self.path = True, self.place
        try:
            _sync(self.place.parent)  # before the old one goes: a cut of power may keep what came later alone
            if old is not None:
                remove_marked(old)
        except OSError as error:
            text = f"{error.strerror}; the new {self._what} is complete and in its place"
            raise OSError(error.errno, text, str(self.place)) from error
        return self.place

    def keep(self) -> None:
        """Leave the hidden folder where it is, whatever happens: the work in it is complete."""
        self._hidden.unmark()
        self._done = True

    def close(self) -> None:
        """Let go; a folder that was neither published nor kept is removed. May be repeated."""
        self._hidden.close(remove=not self._done)
        if not self._done:
            self._parents.remove()

    def _move_aside(self) -> Path:
        """Without renameat2: for a moment neither folder has the name, and a kill then leaves the old one aside."""
        aside = self.place.with_name(f".{self.place.name}.old-{secrets.token_hex(4)}")
        self.place.rename(aside)
        try:
            self.path.rename(self.place)
        except BaseException:
            aside.rename(self.place)
            raise
        return aside

    def _check(self) -> None:
        if not os.path.lexists(self.place):
            return
        if not self.place.is_dir():
            raise ConfigError(f"{self.place} is a file; a {self._what} needs a folder of its own")
        if any(self.place.iterdir()):
            self._may_replace(self.place)


class PendingFiles:
    """Files under construction in a hidden folder beside them, which ``publish`` renames. A context manager.

    Leaving the context without ``publish`` (a full disk, Ctrl-C) removes them and the folders made for them.

    Args:
        folder: Made when it is absent.
        names: In the order in which they take their names; the last is the one that readers look for.
        overwrite: Replace files that are there.
    Raises:
        ConfigError: a name is taken, or folder is a file.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path, names: Sequence[str], *, overwrite: bool = False) -> None:
        self.folder, self.names, self.overwrite = Path(folder), tuple(names), overwrite
        self._streams: list[OutputFile] = []
        self._check_names()

    def __enter__(self) -> PendingFiles:
        remove_left_behind(left_behind(self.folder / self.names[-1]))
        self._parents = _Parents(self.folder)
        try:
            self._hidden = HiddenFolder(self.folder / self.names[-1])
        except OSError:
            self._parents.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.abandon()
        self._hidden.close()
        self._parents.remove()

    def path(self, name: str) -> Path:
        """Where one of the files is written, for a library that opens it by itself."""
        return self._hidden.path / name

    def open(self, name: str) -> OutputFile:
        """Begin one of the files; ``publish`` closes it. Tables beyond memory are exported so: it is drained."""
        self._streams.append(OutputFile(self.path(name), drained=True))
        return self._streams[-1]

    def publish(self) -> list[Path]:
        """Put all files on the disk, then give them their names.

        Of several files, the last one's old version goes first and its new one comes last: whoever finds it finds
        files that belong together, whenever the process is killed or power goes.

        Returns:
            The paths, in the order of the names.
        Raises:
            OSError: a name could not be given; the old files have theirs again.
        """
        for stream in self._streams:
            stream.close()
        for name in self.names:
            _sync(self.path(name))
        self._check_names()
        old = [name for name in reversed(self.names) if os.path.lexists(self.folder / name) and len(self.names) > 1]
        try:
            for name in old:
                os.replace(self.folder / name, self.path(f"{name}.old"))
            for name in self.names:
                if len(self.names) > 1 and name in (self.names[0], self.names[-1]):
                    _sync(self.folder)  # a cut of power may keep what came later alone
                os.replace(self.path(name), self.folder / name)
        except OSError:
            for name in reversed(old):
                if os.path.lexists(self.path(f"{name}.old")):
                    os.replace(self.path(f"{name}.old"), self.folder / name)
            raise
        _sync(self.folder)
        return [self.folder / name for name in self.names]

    def _check_names(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; give a folder")
        for name in self.names:
            path = self.folder / name
            if path.is_dir():
                raise ConfigError(f"{path} is a folder; a file of this name is to be written, give another folder")
            if os.path.lexists(path) and not self.overwrite:
                raise ConfigError(f"{path} exists; pass overwrite to replace it, or give another folder")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A hidden name to write a file under, which becomes ``path`` at the end; an older file gives way in that step.

    After an error in the block nothing has changed.
    """
    path = Path(path)
    path.parent.stat()  # a folder that is missing is an error, not made
    with PendingFiles(path.parent, [path.name], overwrite=True) as pending:
        yield pending.path(path.name)
        pending.publish()


def replace_text(path: str | Path, text: str) -> None:
    """Write a text file that appears complete or not at all, see ``replacing``."""
    with replacing(path) as draft:
        write_text(draft, text)


def replace_json(path: str | Path, content: Any) -> None:
    """``replace_text`` of ``json_text``."""
    replace_text(path, json_text(content))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: it is unreadable or no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON, or a number of many digits
        raise DataError(f"{path}: no valid JSON ({error}); the file is damaged") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}; expected an object")
    return content


def foreign_file(folder: Path, ours: Iterable[str]) -> str | None:
    """The first file of a folder that is not one of ours, by its path inside; None where there is none."""
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}
    return min(found - set(ours), default=None)


def swap_names(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here = -100  # AT_FDCWD; both paths are absolute
    return rename(here, os.fsencode(first), here, os.fsencode(second), EXCHANGE) == 0


def _sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise named(error, path) from error
    finally:
        os.close(descriptor)


def json_text(content: Any) -> str:
    """JSON with null for the numbers that JSON lacks (NaN, infinities); numpy numbers and arrays are fine."""
    return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it, see ``json_text``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch numbers and arrays
        return plain(value.tolist())
    return value
