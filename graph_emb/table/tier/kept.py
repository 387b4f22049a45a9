"""Rows in a file as they were at one moment, for a checkpoint that is written while training goes on.

The moment costs the writing of those pages alone that differ in memory. After it a page has two places, in the table's
file and in another one beside it: while the checkpoint has not read the one that holds the moment, the page is written
to the other, where it stays. Neither the cache nor any bit of the training depends on it.

Legend: N pages, R rows, D width.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import StorageError
from graph_emb.core.hidden import nameless_file
from graph_emb.table.lazy_decay import DECAY, DECAYED, decay_
from graph_emb.table.shard import WEIGHT, EmbeddingShard
from graph_emb.table.tier.moves import BUFFER_BYTES, reason_of, transfer
from graph_emb.table.tier.pages import BLOCK, PageFile, aligned

RESTS = 1.0
"""Seconds that a reader of kept rows rests for each that it works: the training needs the disk and the cores too."""


class SideFile:
    """A file without a name, as long as another one and beside it, which takes room where it is written.

    Raises:
        StorageError: it cannot be made.
    """

    def __init__(self, file: PageFile) -> None:
        self.path, self.direct = file.path.parent, file.direct
        try:
            self.descriptor = nameless_file(self.path)
            os.ftruncate(self.descriptor, BLOCK + file.num_pages * file.layout.page_bytes)
        except OSError as error:
            raise StorageError(error.errno, f"table {file.table!r}: {error.strerror}", str(self.path)) from None
        if self.direct:
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_DIRECT)

    def close(self) -> None:
        """Give its room back. May be repeated."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class KeptPages:
    """The pages of a table as they are now, whatever is written after. For one thread that reads them.

    Args:
        files: The table's, and the one beside it.
        stored: Which pages they have, (N,) bool; others have their first values.
        beside: Which of them lie in the second file, (N,) bool.
    Attributes:
        layout: Of the pages.
        reader: Who reads them; when it is gone, nobody waits for it.
    """

    def __init__(self, files: tuple[PageFile, SideFile], stored: np.ndarray, beside: np.ndarray) -> None:
        self._files, self.layout = files, files[0].layout
        self._stored, self._beside, self._waiting = stored, beside, stored.copy()
        self._next, self._error = 0, (0, 0)
        self._closed, self._hurried = threading.Event(), threading.Event()
        self.reader: Callable[[], KeptRows | None] | None = None

    def holds(self, pages: np.ndarray, beside: np.ndarray) -> np.ndarray:
        """Which pages (N,) may not be overwritten where they lie, beside the table's file (N,) or in it: (N,) bool."""
        if self._closed.is_set() or self._error[0]:
            return np.zeros(len(pages), np.bool_)
        return self._waiting[pages] & (self._beside[pages] == beside)

    def fail(self, number: int, offset: int) -> None:
        """Give up, as a page has to be overwritten: the other place could not be written."""
        self._error = number, offset

    def read(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """The pages [low, high), which may be overwritten from now on; calls go up.

        Returns:
            Their bytes, (N, page_bytes) uint8, and which of them are stored, (N,) bool; others' bytes are not set.
        Raises:
            StorageError: a page could not be kept or read.
        """
        assert self._next <= low, f"pages from {low} on were handed out"
        held, stored = np.empty((high - low, self.layout.page_bytes), np.uint8), self._stored[low:high]
        for beside in (False, True):
            own, file = np.flatnonzero(stored & (self._beside[low:high] == beside)), self._files[beside]
            self._check(*self._move(file, low + own, held, own), file)
        self._check(*self._error, self._files[1])  # after reading: it may have been given up meanwhile
        self._waiting[low:high], self._next = False, high
        return held, stored

    def _move(self, file: PageFile | SideFile, pages: np.ndarray, held: np.ndarray, at: np.ndarray) -> tuple[int, int]:
        """Read whole pages (N,) into entries ``at`` of ``held``; as ``transfer``."""
        buffer = aligned(max(BUFFER_BYTES, held.shape[1]))
        whole = np.array([(held.ctypes.data, held.shape[1], 0)], np.int64)
        numbers = pages.astype(np.int64), at
        found: tuple[int, int] = transfer(
            file.descriptor, *numbers, whole, held.shape[1], buffer, False, file.direct, 0
        )
        return found

    def _check(self, number: int, offset: int, file: PageFile | SideFile) -> None:
        if number:
            raise StorageError(
                max(5, number),
                f"table {self._files[0].table!r}: keeping a page for a checkpoint failed at offset {offset} "
                f"({reason_of(number)}); the checkpoint is not written, training goes on",
                str(file.path),
            )

    def hurry(self) -> None:
        """Rest no more: somebody waits for the reader."""
        self._hurried.set()

    def rest(self, seconds: float) -> None:
        """Let the training have the disk, unless somebody waits for the reader or the program is at its end."""
        if threading.main_thread().is_alive():
            self._hurried.wait(seconds)

    def close(self) -> None:
        """Keep nothing any more. May be repeated."""
        self._closed.set()

    def wait_until_closed(self) -> None:
        """Return when nobody reads the pages any more."""
        self.hurry()
        if self.reader is not None and self.reader() is not None:
            self._closed.wait()
        self.close()


class KeptRows:
    """Rows of a shard in a file as they are now; see ``graph_emb.transport.base.TableRows``.

    Args:
        shard: Whose rows; held until ``close``.
        pages: Its pages.
        sections: The place of each column in a page.
        first_values: As of ``PageCache``.
        run: Rows are read in runs of at most so many, ascending: a run's any number of times before the next one's.
    """

    def __init__(
        self,
        shard: EmbeddingShard,
        pages: KeptPages,
        sections: Mapping[str, int],
        first_values: Callable[[np.ndarray, Sequence[Tensor | None]], None],
        run: int,
    ) -> None:
        self.first_id, self.num_rows, self._run = shard.first_id, shard.num_rows, run
        self._shard: EmbeddingShard | None = shard
        self._pages, self._sections, self._first_values = pages, dict(sections), first_values
        self._layout = pages.layout
        self._dtypes = {WEIGHT: shard.spec.dtype} | {
            name: one.dtype_beside(shard.spec.dtype) for name, one in shard.state_specs.items()
        }
        self._dim = shard.spec.dim
        self._state = {name: value.clone() for name, value in shard.state.items() if name not in sections}
        self._frozen = None if shard.frozen is None else shard.frozen.clone()
        pages.reader = weakref.ref(self)
        weakref.finalize(self, pages.close)
        self._low, self._held, self._stored = 0, np.empty((0, 0), np.uint8), np.empty(0, np.bool_)
        self._resumed: float | None = None

    def hurry(self) -> None:
        """Let the reader rest no more between its runs."""
        self._pages.hurry()

    def read(self, column: str, start: int, stop: int) -> Tensor:
        if column not in self._sections:
            found = self._state[column][start:stop]
            return torch.zeros_like(found) if column == DECAYED else found
        found = self._of_pages(column, start, stop)
        if column == WEIGHT and DECAYED in self._state:
            frozen = None if self._frozen is None else self._frozen[start:stop]
            decay_(found, self._state[DECAYED][start:stop], self._state[DECAY], frozen)
        return found

    def _of_pages(self, column: str, start: int, stop: int) -> Tensor:
        shift, section = self._layout.shift, self._sections[column]
        out = torch.empty((stop - start, self._dim), dtype=self._dtypes[column])
        if start == stop:
            return out
        low, high = start >> shift, ((stop - 1) >> shift) + 1
        if not self._low <= low <= high <= self._low + len(self._held):
            self._bring(low, ((min(self.num_rows, start + self._run) - 1) >> shift) + 1)
        offset, size = sum(self._layout.sections[:section]), self._layout.sections[section]
        own = slice(low - self._low, high - self._low)
        rows = torch.from_numpy(self._held[own, offset : offset + size].copy()).view(self._dtypes[column])
        inside = slice(start - (low << shift), stop - (low << shift))
        out.copy_(rows.reshape(-1, self._dim)[inside])
        for page in (low + np.flatnonzero(~self._stored[own])).tolist():
            ids = np.arange(max(start, page << shift), min(stop, (page + 1) << shift))
            made: list[Tensor | None] = [None] * len(self._layout.sections)
            made[section] = out[ids[0] - start : ids[-1] + 1 - start]
            self._first_values(ids, made)
        return out

    def _bring(self, low: int, high: int) -> None:
        """Hold the pages [low, high), of which those that are held already are not read again."""
        assert self._low <= low, f"pages from {low} on were handed out"
        kept = max(0, self._low + len(self._held) - low)
        again, stored = self._held[len(self._held) - kept :].copy(), self._stored[len(self._stored) - kept :]
        self._held = np.empty((0, 0), np.uint8)
        if self._resumed is not None:
            self._pages.rest(RESTS * (time.monotonic() - self._resumed))
        self._resumed = time.monotonic()
        held, found = self._pages.read(low + kept, high)
        if kept:
            held, found = np.concatenate([again, held]), np.concatenate([stored, found])
        self._low, self._held, self._stored = low, held, found

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        raise AssertionError("kept rows are read")

    def memory(self, column: str) -> Tensor | None:
        return None

    def close(self) -> None:
        """Keep nothing any more. May be repeated."""
        self._pages.close()
        self._shard = None
