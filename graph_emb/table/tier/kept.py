"""Rows of a file as they were at one moment, for a checkpoint that is written while training goes on.

The moment costs the writing of those pages alone that differ in memory: they go to a side file. After it a page that
is about to be overwritten before it was read goes there first. Neither the cache nor any bit of the training depends
on it.

Legend: N pages, R rows, D width.
"""

from __future__ import annotations

import fcntl
import os
import threading
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

FIRST, IN_FILE, BUSY, ASIDE, READ = range(5)
"""Where a page is as it was: nowhere, since it had first values; in the file; there, and someone is copying it; in the
side file; handed out."""


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
    """The pages of a file as they are now, whatever is written to it after. For one thread that reads them.

    Args:
        file: Of the pages.
        stored: Which pages it has, (N,) bool; others have their first values.
    Attributes:
        layout: Of the pages.
        side: Where pages are kept that will not stay in the file.
        reader: Who reads them; when it is gone, nobody waits for it.
    Raises:
        StorageError: no side file can be made.
    """

    def __init__(self, file: PageFile, stored: np.ndarray) -> None:
        self._file, self.layout, self.side = file, file.layout, SideFile(file)
        self._where = np.where(stored, IN_FILE, FIRST).astype(np.uint8)
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closed = False
        self.reader: Callable[[], KeptRows | None] | None = None

    def aside(self, pages: np.ndarray) -> None:
        """Note that the side file has pages (N,)."""
        self._where[pages] = ASIDE

    def before_write(self, pages: np.ndarray) -> None:
        """Keep pages (N,), ascending, that are about to be overwritten; an error is the reader's, not the writer's."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._where[pages] == BUSY).any())
            pages = pages[self._where[pages] == IN_FILE]
            self._where[pages] = BUSY  # before it is asked who closed: what is busy keeps the side file open
            if self._closed or self._error is not None or not len(pages):
                self._end(pages, IN_FILE)
                return
        error = None
        try:
            page_bytes = self._file.layout.page_bytes
            most = max(1, BUFFER_BYTES // page_bytes)
            held = np.empty((min(most, len(pages)), page_bytes), np.uint8)
            for low in range(0, len(pages), most):
                some = pages[low : low + most]
                self._move(self._file, some, held, write=False)
                self._move(self.side, some, held, write=True)
        except Exception as raised:
            error = raised
        with self._changed:
            self._error = self._error or error
            self._end(pages, ASIDE)

    def _end(self, pages: np.ndarray, where: int) -> None:
        """Note where pages are that were busy; the last one to be busy closes the side file."""
        self._where[pages] = where
        if self._closed and not (self._where == BUSY).any():
            self.side.close()
        self._changed.notify_all()

    def read(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """The pages [low, high), which may be overwritten from now on.

        Returns:
            Their bytes, (N, page_bytes) uint8, and which of them the file had, (N,) bool; others' bytes are not set.
        Raises:
            StorageError: a page could not be kept or read.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (self._where[low:high] == BUSY).any())
            if self._error is not None:
                raise self._error
            where = self._where[low:high].copy()
            assert not (where == READ).any(), f"pages {low} to {high} were handed out"
            in_file = np.flatnonzero(where == IN_FILE)
            self._where[low + in_file] = BUSY
        held = np.empty((high - low, self._file.layout.page_bytes), np.uint8)
        try:
            self._move(self._file, low + in_file, held, write=False, at=in_file)
            aside = np.flatnonzero(where == ASIDE)
            self._move(self.side, low + aside, held, write=False, at=aside)
        finally:
            with self._changed:
                self._end(low + np.flatnonzero(where != FIRST), READ)
        return held, where != FIRST

    def _move(
        self,
        file: PageFile | SideFile,
        pages: np.ndarray,
        held: np.ndarray,
        *,
        write: bool,
        at: np.ndarray | None = None,
    ) -> None:
        """Move whole pages (N,) from or to ``held`` at its entries ``at``, the first ones by default."""
        buffer = aligned(max(BUFFER_BYTES, held.shape[1]))
        whole = np.array([(held.ctypes.data, held.shape[1], 0)], np.int64)
        entries = np.arange(len(pages)) if at is None else at
        number, offset = transfer(
            file.descriptor, pages.astype(np.int64), entries, whole, held.shape[1], buffer, write, file.direct
        )
        if number:
            raise StorageError(
                max(5, number),
                f"table {self._file.table!r}: keeping a page for a checkpoint failed at offset {offset} "
                f"({reason_of(number)}); the checkpoint is not written, training goes on",
                str(file.path),
            )

    def close(self) -> None:
        """Keep nothing any more; waits for nobody. May be repeated."""
        with self._changed:
            self._closed = True
            self._end(np.empty(0, np.int64), READ)

    def wait_until_closed(self) -> None:
        """Return when nobody reads the pages any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.reader is None or self.reader() is None)
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
        kept = max(0, self._low + len(self._held) - low)
        again, stored = self._held[len(self._held) - kept :].copy(), self._stored[len(self._stored) - kept :]
        self._held = np.empty((0, 0), np.uint8)
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
