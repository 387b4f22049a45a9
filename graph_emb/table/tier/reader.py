"""Transfers of pages between a file and the arrays of the frames, by threads that leave the interpreter lock alone.

Each thread takes a share of the sorted pages; neighbours become one call of ``pread`` or ``pwrite`` into an aligned
buffer, whose sections are copied from or to the frames. A batch of transfers is waited for as a whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numba import types
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import StorageError
from graph_emb.table.tier.pages import BLOCK, SECTOR, PageFile, PageLayout, aligned

NUM_THREADS = 8
BUFFER_BYTES = 256 << 10
"""Of a thread: neighbouring pages up to this are one call."""
LEAST_PAGES = 4
"""Of a share: fewer are not worth another thread."""
SHORT = -1
"""In place of an errno: the file ended before the page."""
EINTR = 4

_call = types.intp(types.int32, types.intp, types.uintp, types.int64)
_pread: Any = types.ExternalFunction("pread", _call)
_pwrite: Any = types.ExternalFunction("pwrite", _call)
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
_errno_at: Any = types.ExternalFunction("__errno_location", types.intp())
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
DONT_NEED = os.POSIX_FADV_DONTNEED


@njit(cache=True, nogil=True)
def _copy_sections(buffer: Any, frame: Any, sections: Any, to_frame: bool) -> None:
    """Copy the sections of a page between a buffer and a frame; a base of 0 leaves a section out."""
    for s in range(len(sections)):
        base, size, offset = sections[s]
        if base != 0:
            here, there = base + frame * size, buffer + offset
            if to_frame:
                _memcpy(here, there, size)
            else:
                _memcpy(there, here, size)


@njit(cache=True, nogil=True)
def _transfer(
    file: Any, pages: Any, frames: Any, sections: Any, page_bytes: int, buffer: Any, write: bool, direct: bool
) -> tuple[int, int]:
    """Move pages, ascending, from or to their frames; (0, 0), or an errno or ``SHORT`` with the offset in the file."""
    number = np.zeros(1, np.int32)
    at = buffer.ctypes.data
    room = max(1, len(buffer) // page_bytes)
    i = 0
    while i < len(pages):
        j = i + 1
        while j < len(pages) and j - i < room and pages[j] == pages[j - 1] + 1:
            j += 1
        if write:
            for k in range(i, j):
                _copy_sections(at + (k - i) * page_bytes, frames[k], sections, False)
        start, want, done = BLOCK + pages[i] * page_bytes, (j - i) * page_bytes, 0
        while done < want:
            if write:
                count = _pwrite(np.int32(file), at + done, np.uint64(want - done), start + done)
            else:
                count = _pread(np.int32(file), at + done, np.uint64(want - done), start + done)
            if count < 0:
                _memcpy(number.ctypes.data, _errno_at(), np.uint64(4))
                if number[0] != EINTR:
                    return np.int64(number[0]), start + done
            elif count == 0 or (direct and not write and count < want - done and count % SECTOR != 0):
                return SHORT, start + done + count
            else:
                done += count
        if not write:
            for k in range(i, j):
                _copy_sections(at + (k - i) * page_bytes, frames[k], sections, True)
        if not direct:
            _fadvise(np.int32(file), start, want, np.int32(DONT_NEED))
        i = j
    return 0, 0


class Transfer:
    """Pages on their way; ``wait`` returns when they are there."""

    def __init__(self, table: str, path: str, parts: Sequence[Future[tuple[int, int]]], word: str) -> None:
        self._table, self._path, self._parts, self._word = table, path, parts, word

    @property
    def done(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        return all(part.done() for part in self._parts)

    def wait(self) -> None:
        """Return when every page is moved.

        Raises:
            StorageError: one was not; names table, file and offset.
        """
        for number, offset in [part.result() for part in self._parts]:
            if number == 0:
                continue
            said = "the file ends there: it was cut off" if number == SHORT else os.strerror(number)
            raise StorageError(
                number if number > 0 else 5,
                f"table {self._table!r}: {self._word} at offset {offset} failed ({said}); free the disk or replace it, "
                "and load the last checkpoint",
                self._path,
            )


class PageReader:
    """Moves pages of a file from and to arrays.

    Args:
        file: Of the pages; closed with this.
        num_threads: That wait for the disk.

    Attributes:
        bytes_read, bytes_written: So far.
        seconds: That threads spent, summed.
    """

    def __init__(self, file: PageFile, num_threads: int = NUM_THREADS) -> None:
        self.file, self._num_threads = file, num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=f"rows of {file.table}")
        self._buffers: list[np.ndarray] = []
        self.bytes_read = self.bytes_written = 0
        self.seconds = 0.0

    @property
    def layout(self) -> PageLayout:
        """Of the pages."""
        return self.file.layout

    def note(self, checkpoint: str | None) -> None:
        """Note in the file which checkpoint stands for it, if the run does not end."""
        self.file.note(checkpoint)

    def check_own(self) -> None:
        """Raise a StorageError where the file is another run's."""
        self.file.check_own()

    def read(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Start to read pages.

        Args:
            pages: Shape (N,), distinct.
            frames: Where each goes, (N,).
            columns: The array of each section, contiguous, rows of frame f from ``f * rows`` on; None leaves it out.
        """
        self.bytes_read += len(pages) * self.file.layout.page_bytes
        return self._start(pages, frames, columns, False)

    def write(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Start to write pages; arguments as ``read``. The frames stay as they are until it is done."""
        self.bytes_written += len(pages) * self.file.layout.page_bytes
        return self._start(pages, frames, columns, True)

    def exchange(
        self, old: np.ndarray, dirty: np.ndarray, new: np.ndarray, stored: np.ndarray, frames: np.ndarray,
        columns: Sequence[Tensor],
    ) -> Transfer:  # fmt: skip
        """Start to write pages, and to read others into their frames as soon as those are written.

        Args:
            old: What the frames hold, ascending, (N,).
            dirty: Which of them are written, (N,).
            new: What comes in their place, ascending, (N,).
            stored: Which of them are read, (N,); the frames of others are free when it is done.
            frames: Shape (N,).
            columns: As of ``read``.
        """
        page_bytes = self.file.layout.page_bytes
        self.bytes_written += int(np.count_nonzero(dirty)) * page_bytes
        self.bytes_read += int(np.count_nonzero(stored)) * page_bytes
        sections = self._sections_of(columns)

        def move(low: int, high: int) -> tuple[int, int]:
            for pages, chosen, write in ((old, dirty, True), (new, stored, False)):
                own = np.flatnonzero(chosen[low:high]) + low
                found = self._move(pages[own], frames[own], sections, write)
                if found[0]:
                    return found
            return 0, 0

        return self._in_shares(len(old), move, "move")

    def _start(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None], write: bool) -> Transfer:
        order = np.argsort(pages, kind="stable")
        pages, frames = pages[order], frames[order]
        sections = self._sections_of(columns)

        def move(low: int, high: int) -> tuple[int, int]:
            return self._move(pages[low:high], frames[low:high], sections, write)

        return self._in_shares(len(pages), move, "write" if write else "read")

    def _sections_of(self, columns: Sequence[Tensor | None]) -> np.ndarray:
        """Address, bytes and place in a page of each section, (S, 3)."""
        sizes = self.file.layout.sections
        offsets = np.cumsum((0, *sizes))[:-1].tolist()
        bases = [0 if column is None else column.data_ptr() for column in columns]
        return np.array(list(zip(bases, sizes, offsets, strict=True)), np.int64)

    def _in_shares(self, num: int, move: Callable[[int, int], tuple[int, int]], word: str) -> Transfer:
        """Let threads move the pages [low, high) of num each."""
        shares = max(1, min(self._num_threads, num // LEAST_PAGES))
        cuts = np.arange(shares + 1) * num // shares
        parts = [self._pool.submit(move, int(a), int(b)) for a, b in pairwise(cuts)]
        return Transfer(self.file.table, str(self.file.path), parts, word)

    def _move(self, pages: np.ndarray, frames: np.ndarray, sections: np.ndarray, write: bool) -> tuple[int, int]:
        """Move pages, ascending, in this thread; an errno or ``SHORT`` with the offset, or (0, 0)."""
        began, file, page_bytes = time.perf_counter(), self.file, self.file.layout.page_bytes
        buffer = self._buffers.pop() if self._buffers else aligned(max(BUFFER_BYTES, page_bytes))
        numbers = pages.astype(np.int64), frames.astype(np.int64)
        found = _transfer(file.descriptor, *numbers, sections, page_bytes, buffer, write, file.direct)
        self._buffers.append(buffer)
        self.seconds += time.perf_counter() - began
        return found

    def close(self) -> None:
        """End the threads and delete the file. May be repeated."""
        self._pool.shutdown()
        self.file.close()
