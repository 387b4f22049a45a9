"""Files that are hashed on their way to the disk, and errors that tell what a full disk lacks."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import xxhash

FREE_BYTES_MARGIN = 1 << 20
CACHED_BYTES = 1 << 20
"""Bytes hashed at a time: small enough that hash and copy share them in the processor's cache."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def size_text(num_bytes: float) -> str:
    """Bytes for a person, such as ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


def named(error: OSError, path: Path, num_bytes: int = 0) -> OSError:
    """The same error with the file's name and, on a full disk, the bytes that it needs and that are free."""
    text = error.strerror or str(error)
    if error.errno in FULL_DISK:
        with suppress(OSError):
            free = size_text(shutil.disk_usage(path.parent).free)
            text += f"; {size_text(num_bytes)} more are needed, {free} are free"
    return OSError(error.errno, text, str(path))


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


class OutputFile:
    """A new file whose bytes are counted, and hashed on their way to it.

    Args:
        path: A name that is free.
        digest: Receives all bytes.
        expected: Bytes of the finished file where they are known; an error on a full disk tells them.
    Attributes:
        num_bytes: Written so far.
    """

    def __init__(self, path: Path, digest: Digest | None = None, expected: int = 0) -> None:
        self.path, self.num_bytes = path, 0
        self._digest, self._expected = digest, expected
        try:
            self._stream = path.open("xb")
        except OSError as error:
            raise named(error, path, expected) from error

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
                os.fsync(self._stream.fileno())
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
