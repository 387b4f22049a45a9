"""Pages, the unit of transfer between a file and memory: their layout, and the file that holds them.

A page holds k rows: k weights, then k rows of each piece of per-element state. So one transfer moves all that a
row's update needs.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from graph_emb.core.errors import ConfigError, StorageError
from graph_emb.core.hidden import size_text

BLOCK = 4096
"""Bytes: of the header, and of the smallest page."""
SECTOR = 512
"""Bytes: what a page is a multiple of, so that direct I/O takes it on most disks."""
MEMORY_PAGE = 256
"""Bytes of a page of host memory, at least: fewer cost more in the map than they save in transfers."""
MAGIC = "graph_emb rows"
SUFFIX = ".rows"


@dataclass(frozen=True)
class PageLayout:
    """How rows and their state lie in a page.

    Attributes:
        shift: A page has ``1 << shift`` rows.
        sections: Bytes of each section: the weight's, then those of state.
        page_bytes: Bytes of a page; in a file a multiple of ``SECTOR``.
    """

    shift: int
    sections: tuple[int, ...]
    page_bytes: int

    @classmethod
    def of(cls, row_bytes: Sequence[int]) -> PageLayout:
        """The smallest page of which at most an eighth is padding.

        Args:
            row_bytes: Bytes of a row of each section.
        """
        total = sum(row_bytes)
        shift = 0
        while (page := max(BLOCK, -(-(total << shift) // SECTOR) * SECTOR)) - (total << shift) > page // 8:
            shift += 1
        return cls(shift, tuple(num << shift for num in row_bytes), page)

    @classmethod
    def of_memory(cls, row_bytes: Sequence[int]) -> PageLayout:
        """The smallest page of at least ``MEMORY_PAGE`` bytes, without padding: memory has no sectors.

        Args:
            row_bytes: Bytes of a row of each section.
        """
        total = sum(row_bytes)
        shift = max(0, (-(-MEMORY_PAGE // total) - 1).bit_length())
        return cls(shift, tuple(num << shift for num in row_bytes), total << shift)

    @property
    def rows(self) -> int:
        """Rows of a page."""
        return 1 << self.shift

    def num_pages(self, num_rows: int) -> int:
        """Pages of a table."""
        return -(-num_rows // self.rows)


class PageFile:
    """The file of a table's pages: one run's scratch, held by a lock while it is open.

    Args:
        folder: Made where it is missing.
        table, first_id: Whose rows these are.
        layout, num_pages: Of the pages.
        remove_leftover: Delete the files of the table that runs left which did not end, instead of refusing them.
        claimed: The first pages, whose room on the disk is reserved; ``claim`` reserves that of more. None: all.
    Raises:
        ConfigError: the disk has no room; or such a file is there.
        StorageError: the file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        table: str,
        first_id: int,
        layout: PageLayout,
        num_pages: int,
        remove_leftover: bool,
        claimed: int | None = None,
    ) -> None:
        self.table, self.layout, self.num_pages = table, layout, num_pages
        self.run = secrets.token_hex(8)
        self._stem = f"{quote(table, safe=' ')}.{first_id}."
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{self._stem}{self.run}{SUFFIX}"
            self._clear(folder, remove_leftover)
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(error.errno, f"table {table!r}: {error.strerror}", str(folder)) from None
        self.direct, self._claimed = False, 0
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._set_length(BLOCK + num_pages * layout.page_bytes)
            if short := self._lacks(num_pages if claimed is None else claimed):
                raise ConfigError(f"{short[1]}; choose another folder, fewer rows, or a rule with less state")
            self.note(None)
            self.direct = self._ask_for_direct()
        except BaseException:
            self.close()
            raise

    def _clear(self, folder: Path, remove: bool) -> None:
        """Remove or refuse what dead runs left of this table; a living run's file is locked and stays."""
        for path in sorted(folder.glob(f"{self._stem}*{SUFFIX}")):
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                finally:
                    os.close(descriptor)
                if not remove:
                    raise ConfigError(self._refusal(path))
                path.unlink()

    def _refusal(self, path: Path) -> str:
        saved = (read_header(path) or {}).get("checkpoint")
        load = f"load the checkpoint {saved}" if saved else "begin anew, no checkpoint was saved"
        return (
            f"table {self.table!r}: {path} is of a run that did not end, and its rows may be torn; {load}, "
            "and pass leftover='remove' or delete the file"
        )

    def _set_length(self, num_bytes: int) -> None:
        try:
            os.ftruncate(self.descriptor, num_bytes)
        except OSError as error:
            raise ConfigError(
                f"table {self.table!r}: no file of {size_text(num_bytes)} can be in {self.path.parent} "
                f"({error.strerror}); choose another folder"
            ) from None

    def claim(self, num_pages: int) -> None:
        """Reserve room on the disk for the first pages, so that a full one fails here and not while one is written.

        Raises:
            StorageError: there is none; the pages that were claimed before are as they were.
        """
        if num_pages > self._claimed and (short := self._lacks(num_pages)):
            raise StorageError(short[0], f"{short[1]}; free the disk and go on", str(self.path))

    def _lacks(self, num_pages: int) -> tuple[int, str] | None:
        """Reserve the room of the first pages; an errno and what is missing where the disk does not have it."""
        num_bytes = BLOCK + num_pages * self.layout.page_bytes
        missing = num_bytes - os.fstat(self.descriptor).st_blocks * SECTOR
        free, number = shutil.disk_usage(self.path.parent).free, errno.ENOSPC
        if free >= missing:  # else a part of it would be taken
            libc = ctypes.CDLL(None, use_errno=True)  # the C library's posix_fallocate would write every block instead
            arguments = ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int64(num_bytes)
            failed = libc.fallocate(ctypes.c_int(self.descriptor), *arguments)
            number = ctypes.get_errno() if failed else 0
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return number, (
                f"table {self.table!r}: {self.path} needs {size_text(missing)} of disk, {size_text(free)} are free "
                f"({os.strerror(number)})"
            )
        self._claimed = num_pages
        return None

    def note(self, checkpoint: str | None) -> None:
        """Write the header: whose file this is, and the checkpoint to load if the run does not end."""
        if self.descriptor < 0:  # closed meanwhile
            return
        self._header = {"magic": MAGIC, "run": self.run, "table": self.table, "pid": os.getpid(), "open": True}
        text = json.dumps({**self._header, "checkpoint": checkpoint}).encode()[:BLOCK]
        block = aligned(BLOCK)
        block[:] = 0
        block[: len(text)] = np.frombuffer(text, np.uint8)
        try:
            os.pwrite(self.descriptor, block.data, 0)
        except OSError as error:
            raise StorageError(error.errno, f"table {self.table!r}: header: {error.strerror}", str(self.path)) from None

    def check_own(self) -> None:
        """Raise a StorageError where the file is another run's: replaced or cut off behind this run's back."""
        found = read_header(self.path) or {}
        size = self.path.stat().st_size if self.path.is_file() else 0
        if found.get("run") != self.run or size < BLOCK + self.num_pages * self.layout.page_bytes:
            said = f"run {found['run']}" if "run" in found else "no run"
            raise StorageError(
                errno.EIO,
                f"table {self.table!r}: at offset 0 is the header of {said}, not of {self.run}, or the file of {size} "
                "bytes was cut; load a checkpoint",
                str(self.path),
            )

    def _ask_for_direct(self) -> bool:
        """Switch to direct I/O where file system and disk take it, a sector at a time."""
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(self.descriptor, [aligned(BLOCK)[:SECTOR].data], SECTOR)
        except OSError:
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags)
            return False
        return True

    def close(self) -> None:
        """Delete the file. May be repeated."""
        if self.descriptor >= 0:
            with suppress(OSError):
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = -1


def read_header(path: Path) -> dict[str, Any] | None:
    """The header of a file of pages; None where it has none."""
    try:
        with path.open("rb") as stream:
            found = json.loads(stream.read(BLOCK).rstrip(b"\0"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("magic") == MAGIC else None


def aligned(num_bytes: int) -> np.ndarray:
    """Memory for direct I/O, (num_bytes,) uint8, that begins at a multiple of ``BLOCK``."""
    memory = np.empty(num_bytes + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + num_bytes]


def least_pages(num_pages: int, parts: int, held: int = 2) -> int:
    """Pages that memory must hold of a table: ``held`` of its equal parts, or all; one where it has no parts (0)."""
    return min(max(1, num_pages), held * -(-num_pages // parts)) if parts else 1
