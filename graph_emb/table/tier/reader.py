"""Transfers of pages between a file and the arrays of the frames, by threads that leave the interpreter lock alone.

Each thread takes a share of the sorted pages; neighbours become one request from or to an aligned buffer, whose
sections are copied from or to the frames. All requests of a buffer are on their way at once where the kernel has a
queue for the thread, else one after the other. A batch of transfers is waited for as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from torch import Tensor

from graph_emb.core.errors import StorageError
from graph_emb.table.tier.kept import KeptPages, SideFile
from graph_emb.table.tier.moves import BUFFER_BYTES, close_queue, opened_queue, reason_of, transfer
from graph_emb.table.tier.pages import PageFile, PageLayout, aligned

NUM_THREADS = 8
LEAST_PAGES = 32, 4
"""Of a share, with a queue and without one: fewer are not worth another thread."""


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
            raise StorageError(
                number if number > 0 else 5,
                f"table {self._table!r}: {self._word} at offset {offset} failed ({reason_of(number)}); free the disk "
                "or replace it, and load the last checkpoint",
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
        self._own = [self._buffer_and_queue()]  # of threads that rest
        self._least = LEAST_PAGES[0 if self._own[0][1] else 1]
        self.bytes_read = self.bytes_written = 0
        self.seconds = 0.0
        self._side: SideFile | None = None
        self._beside = np.zeros(0, np.bool_)  # which pages lie there
        self._kept: KeptPages | None = None

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

    def keep(self, stored: np.ndarray, dirty: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor]) -> KeptPages:
        """The pages as they are now, until they are closed; nothing may be on its way.

        Args:
            stored: Which pages the file has, (all pages,) bool.
            dirty: Pages of which memory has another version, (N,).
            frames: Where it lies, (N,).
            columns: As of ``read``.
        Raises:
            StorageError: the disk does not take them.
        """
        if self._side is None:
            self._side, self._beside = SideFile(self.file), np.zeros(self.file.num_pages, np.bool_)
        self._start(dirty, frames, columns, True).wait()  # what the file had of them is older
        stored = stored.copy()
        stored[dirty] = True
        self._kept = KeptPages((self.file, self._side), stored, self._beside.copy())
        return self._kept

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
        shares = max(1, min(self._num_threads, num // self._least))
        cuts = np.arange(shares + 1) * num // shares
        parts = [self._pool.submit(move, int(a), int(b)) for a, b in pairwise(cuts)]
        return Transfer(self.file.table, str(self.file.path), parts, word)

    def _move(self, pages: np.ndarray, frames: np.ndarray, sections: np.ndarray, write: bool) -> tuple[int, int]:
        """Move pages, ascending, in this thread; an errno or ``SHORT`` with the offset, or (0, 0)."""
        began, side = time.perf_counter(), self._side
        if side is None:
            found = self._moved(self.file, pages, frames, sections, write)
        else:
            found = self._in_places((self.file, side), pages, frames, sections, write)
        self.seconds += time.perf_counter() - began
        return found

    def _in_places(
        self,
        files: tuple[PageFile, SideFile],
        pages: np.ndarray,
        frames: np.ndarray,
        sections: np.ndarray,
        write: bool,
    ) -> tuple[int, int]:
        """``_move`` of pages that lie in one of two files, and are written to the other while they are kept."""
        beside, held = self._beside[pages], np.zeros(len(pages), np.bool_)
        if write and self._kept is not None:
            held = self._kept.holds(pages, beside)
        for place in (False, True):
            for other in (False, True):
                own = np.flatnonzero((beside == place) & (held == other))
                if not len(own):
                    continue
                found = self._moved(files[place ^ other], pages[own], frames[own], sections, write)
                if other and found[0]:
                    assert self._kept is not None
                    self._kept.fail(*found)
                    found = self._moved(files[place], pages[own], frames[own], sections, write)
                elif other:
                    self._beside[pages[own]] = not place
                if found[0]:
                    return found
        return 0, 0

    def _moved(
        self, file: PageFile | SideFile, pages: np.ndarray, frames: np.ndarray, sections: np.ndarray, write: bool
    ) -> tuple[int, int]:
        """Move pages of one file."""
        page_bytes = self.file.layout.page_bytes
        own = self._own.pop() if self._own else self._buffer_and_queue()
        buffer, queue = own
        numbers = pages.astype(np.int64), frames.astype(np.int64)
        found: tuple[int, int] = transfer(
            file.descriptor, *numbers, sections, page_bytes, buffer, write, file.direct, queue
        )
        self._own.append(own)
        return found

    def _buffer_and_queue(self) -> tuple[np.ndarray, int]:
        """Of a thread; calls that go through the memory of the system wait in any case."""
        return aligned(max(BUFFER_BYTES, self.layout.page_bytes)), opened_queue() if self.file.direct else 0

    def close(self) -> None:
        """End the threads and delete the file, when pages that are kept were read. May be repeated."""
        if self._kept is not None:
            self._kept.wait_until_closed()
        self._pool.shutdown()
        while self._own:
            close_queue(self._own.pop()[1])
        if self._side is not None:
            self._side.close()
        self.file.close()
