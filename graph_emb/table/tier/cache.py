"""A cache of pages: frames in front of a lower tier, first values of unwritten pages, transfers on their way.

Everything that reads or changes a row goes through the frames, or looks into them first: whatever was prefetched or
is being written, a reader meets the newest value.

Legend: B rows of a call, N pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import StorageError
from graph_emb.table.tier.frames import DIRTY, PINNED, Frames
from graph_emb.table.tier.kept import KeptPages
from graph_emb.table.tier.pages import PageLayout
from graph_emb.table.tier.reader import Transfer

NEVER, STORED, ON_ITS_WAY = 0, 1, 2
"""Of a page in the file: it holds first values and was not written; it is there; it is being written."""
SCAN_BYTES = 2 << 20
"""Of pages that a reader holds at a time which does not enter the cache."""
LEAST_HELD = 64
"""Pages that are held and brought together, unless there are fewer."""
FILL_BYTES = 2 << 20
"""Of pages whose first values are made at a time."""


@dataclass
class CacheStats:
    """What a cache of pages did since its table was made.

    Attributes:
        calls: Reads and updates that went through the frames.
        requested: Rows of them, repeats counted; ``hit_rows`` of them lay in memory.
        distinct: Pages of them, each once a call: hits + misses.
        evictions: Pages that left; ``dirty_writes`` of them were written.
        bytes_read, bytes_written: From and to the file.
        seconds_waited: That calls stood still for transfers.
        prefetched: Pages that were brought for an announced batch; ``prefetched_unused`` of them left unused.
        scanned: Pages that scans read past the cache.
    """

    calls: int = 0
    requested: int = 0
    hit_rows: int = 0
    distinct: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    dirty_writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds_waited: float = 0.0
    prefetched: int = 0
    prefetched_unused: int = 0
    scanned: int = 0

    @property
    def hit_share(self) -> float:
        """The share of requested rows that lay in memory."""
        return self.hit_rows / self.requested if self.requested else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {**asdict(self), "hit_share": round(self.hit_share, 6)}

    def told(self, seconds: float, rows: str = "rows") -> str:
        """What a line of progress says after so many seconds of training."""
        moved = (self.bytes_read + self.bytes_written) / 2**20
        waited, rate = (number / seconds if seconds else 0.0 for number in (self.seconds_waited, moved))
        return f"{self.hit_share:.0%} of {rows} in memory, {waited:.0%} waiting, {rate:,.0f} MiB/s"


def sum_of(first: CacheStats, second: CacheStats) -> CacheStats:
    """What two caches did together."""
    return CacheStats(**{name: value + getattr(second, name) for name, value in vars(first).items()})


class LowerTier(Protocol):
    """Where pages lie that have no frame: a file (``PageReader``) or memory of the host (``HostPages``).

    Attributes:
        layout: Of the pages.
        bytes_read, bytes_written: So far.
    """

    @property
    def layout(self) -> PageLayout: ...

    bytes_read: int
    bytes_written: int

    def read(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Start to bring distinct pages (N,) into the frames (N,) of columns; None leaves a section out."""

    def write(self, pages: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor | None]) -> Transfer:
        """Start to take pages from frames, which stay as they are until it is done."""

    def exchange(
        self, old: np.ndarray, dirty: np.ndarray, new: np.ndarray, stored: np.ndarray, frames: np.ndarray,
        columns: Sequence[Tensor],
    ) -> Transfer:  # fmt: skip
        """Start to write the pages old (N,) that are dirty (N,), and then to read those of new (N,) that are stored
        (N,) into the same frames (N,)."""

    def keep(
        self, stored: np.ndarray, dirty: np.ndarray, frames: np.ndarray, columns: Sequence[Tensor]
    ) -> KeptPages | None:
        """The pages as they are now, until they are closed: dirty ones (N,) from frames (N,); None: they are copied."""

    def note(self, checkpoint: str | None) -> None:
        """Note which checkpoint stands for the rows, if the run does not end."""

    def check_own(self) -> None:
        """Raise a StorageError where the pages are no longer this run's."""

    def close(self) -> None:
        """End transfers and free the pages. May be repeated."""


class PageCache:
    """The frames of a table over a lower tier.

    Args:
        frames: The residency map.
        reader: Of the lower tier.
        columns: The arrays of the frames, in the order of a page's sections; rows of frame f from ``f * rows`` on.
        first_values: Writes the first values of rows, (B,) int64 ascending, into such arrays, one row each.
        num_rows: Of the table; the last page may have room for more.
    """

    def __init__(
        self,
        frames: Frames,
        reader: LowerTier,
        columns: Sequence[Tensor],
        first_values: Callable[[np.ndarray, Sequence[Tensor | None]], None],
        num_rows: int,
    ) -> None:
        self.frames, self.reader, self.columns = frames, reader, list(columns)
        self.num_rows, self._rows = num_rows, 1 << frames.shift
        self.first_values = first_values
        self.in_file = np.zeros(len(frames.frame_of), np.uint8)
        self._jobs: dict[int, tuple[Transfer, np.ndarray]] = {}  # with the pages that a write is for
        self._number = 0
        self._failure: StorageError | None = None
        self._stats = CacheStats()

    @property
    def stats(self) -> CacheStats:
        """A copy of the counts."""
        reader = self.reader
        return replace(self._stats, bytes_read=reader.bytes_read, bytes_written=reader.bytes_written)

    def check(self) -> None:
        """Raise the error of an earlier transfer: after it nobody knows which rows the file has."""
        if self._failure is not None:
            raise self._failure

    # Calls that enter the cache

    def chunks(self, rows: np.ndarray, *, write: bool) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
        """Bring rows into memory, in as many turns as they need.

        Args:
            rows: Shape (B,), int64, repeats allowed.
            write: Whether they are about to change.
        Returns:
            For each turn the positions of its rows among B, ascending, or None for all, and their places among the
            frames' rows, valid until the next turn. A row's repeats come in one turn; no rows come in one turn too.
        """
        if self.frames.fits(rows):
            yield None, self._resident(rows, write)
            return
        pages = rows >> self.frames.shift
        order = np.argsort(pages, kind="stable")
        starts = np.flatnonzero(np.diff(pages[order], prepend=-1))[:: self.frames.capacity]
        for low, high in zip(starts, [*starts[1:], len(order)], strict=True):
            chosen = np.sort(order[low:high])
            yield chosen, self._resident(rows[chosen], write)

    def _resident(self, rows: np.ndarray, write: bool) -> np.ndarray:
        self.check()
        frames, stats = self.frames, self._stats
        touched = frames.touch(rows, write, next(iter(self._jobs), self._number + 1) - 1)
        missing = touched.missing
        try:
            self._wait_through(touched.job)
            if len(missing):
                self._make_room(frames.excess(len(missing)))
                self._bring(missing, write=write)
                frames.fill_places(rows, touched.places)
        except BaseException:
            frames.forget(missing)
            raise
        stats.calls += 1
        stats.requested += len(rows)
        stats.hit_rows += touched.hit_rows
        stats.hits += touched.hits
        stats.misses += len(missing)
        stats.distinct += touched.hits + len(missing)
        return touched.places

    def arrived(self, rows: np.ndarray) -> None:
        """Note that an announced batch is asked for."""
        if self.frames.announced:
            self.frames.arrived(rows)

    def prefetch(self, rows: np.ndarray) -> None:
        """Start to bring the pages of a batch to come, as far as they do not push out what is needed sooner."""
        self.check()
        frames = self.frames
        number, pages = frames.announce(rows)
        wanted = np.sort(pages[(frames.frame_of[pages] < 0) & (self.in_file[pages] != NEVER)])
        room = frames.capacity // 2 - frames.num_pinned
        wanted = wanted[: max(0, room)]
        if not len(wanted):
            return
        free = frames.capacity - frames.resident
        chosen = frames.victims(frames.excess(len(wanted)), later_than=number)
        if free:
            self._bring(wanted[:free], write=False, ahead=True)
            self._stats.prefetched += len(wanted[:free])
        if len(chosen):  # written and read by one transfer, so that nothing waits for the frames to be free
            order = np.argsort(frames.page_of[chosen], kind="stable")
            self._exchange(chosen[order], wanted[free : free + len(chosen)], pin=True)

    def hold(self, groups: Sequence[np.ndarray]) -> None:
        """Start to bring pages into memory, which others leave.

        Whatever is in memory is met by every call before and after, whether it is held or not: only time depends on it.

        Args:
            groups: Distinct pages each, those that are needed first in front; as many as there are frames are brought.
                A call waits for the groups of its pages and those before.
        """
        self.check()
        kept = np.zeros(len(self.frames.frame_of), np.bool_)
        left, wanted = self.frames.capacity, []
        for pages in groups:
            some = pages[~kept[pages]][:left]
            kept[some] = True
            left -= len(some)
            wanted.append(some)
        while wanted:
            some = wanted.pop(0)
            while wanted and len(some) < LEAST_HELD:
                some = np.append(some, wanted.pop(0))
            self._hold(some, kept)

    def _hold(self, pages: np.ndarray, kept: np.ndarray) -> None:
        """Start to bring pages, (N,), in one transfer out and in; those that are kept stay."""
        frames = self.frames
        missing = np.sort(pages[frames.frame_of[pages] < 0])
        room = min(len(missing), frames.capacity - frames.resident)
        if room:
            self._bring(missing[:room], write=False, ahead=True)
        if room < len(missing):
            leaving = np.flatnonzero(frames.page_of >= 0)
            leaving = leaving[~kept[frames.page_of[leaving]]]
            order = np.argsort(frames.page_of[leaving], kind="stable")  # both runs of pages ascend
            self._exchange(leaving[order][: len(missing) - room], missing[room:], pin=False)

    def _exchange(self, leaving: np.ndarray, pages: np.ndarray, *, pin: bool) -> None:
        """Start to put pages (N,), ascending, in the place of those of frames (N,): one transfer out and in."""
        frames, stats = self.frames, self._stats
        for job in np.unique(frames.loading[leaving]).tolist():
            self._wait(job)
        old, dirty, stored = frames.page_of[leaving], frames.has(DIRTY, leaving), self.in_file[pages] != NEVER
        self._wait_for_writes(np.concatenate([old[dirty], pages]))
        stats.prefetched_unused += int(np.count_nonzero(frames.has(PINNED, leaving)))
        self._number += 1
        self._jobs[self._number] = self.reader.exchange(old, dirty, pages, stored, leaving, self.columns), old[dirty]
        self.in_file[old[dirty]] = ON_ITS_WAY
        frames.replace(leaving, pages, pin=pin)
        frames.load(leaving, self._number)
        stats.evictions += len(old)
        stats.dirty_writes += int(np.count_nonzero(dirty))
        stats.prefetched += int(np.count_nonzero(stored))
        if not stored.all():
            self._wait(self._number)
            self._fill(pages[~stored], leaving[~stored], self.columns)

    def _make_room(self, num: int) -> None:
        if num:
            self._evict(self.frames.victims(num))

    def _evict(self, chosen: np.ndarray) -> None:
        """Let the pages of frames go; dirty ones are on their way to the file when it returns."""
        if not len(chosen):
            return
        frames, stats = self.frames, self._stats
        for job in np.unique(frames.loading[chosen]).tolist():  # a prefetch must not arrive in another page's frame
            self._wait(job)
        stats.prefetched_unused += int(np.count_nonzero(frames.has(PINNED, chosen)))
        dirty = chosen[frames.has(DIRTY, chosen)]
        job = self._write(dirty)
        frames.remove(chosen, job)
        stats.evictions += len(chosen)
        stats.dirty_writes += len(dirty)

    def _write(self, frames: np.ndarray) -> int:
        """Start to write the pages of frames; the job's number."""
        if not len(frames):
            return 0
        pages = self.frames.page_of[frames]
        self._wait_for_writes(pages)
        self._number += 1
        self._jobs[self._number] = self.reader.write(pages, frames, self.columns), pages
        self.in_file[pages] = ON_ITS_WAY
        return self._number

    def _bring(self, pages: np.ndarray, *, write: bool, ahead: bool = False) -> None:
        """Fill frames with pages that are not in memory; those of a call are there when it returns."""
        frames = self.frames
        targets = frames.take(len(pages))
        for job in np.unique(frames.writing[targets]).tolist():
            self._wait(job)
        self._wait_for_writes(pages)
        frames.insert(pages, targets, write=write, pin=ahead)
        stored = self.in_file[pages] == STORED
        if stored.any():
            self._number += 1
            self._jobs[self._number] = self.reader.read(pages[stored], targets[stored], self.columns), pages[:0]
            frames.load(targets[stored], self._number)
        job = self._number if stored.any() else 0
        if not stored.all():
            self._fill(pages[~stored], targets[~stored], self.columns)
        if not ahead:
            self._wait(job)

    def _fill(self, pages: np.ndarray, targets: np.ndarray, columns: Sequence[Tensor]) -> None:
        """First values for pages that were never written, in their places among the columns' frames."""
        order = np.argsort(pages)
        most = max(1, FILL_BYTES // self.reader.layout.page_bytes)
        for low in range(0, len(order), most):
            some = order[low : low + most]
            self._fill_some(pages[some], targets[some], columns)

    def _fill_some(self, pages: np.ndarray, targets: np.ndarray, columns: Sequence[Tensor]) -> None:
        """The same of few pages, ascending."""
        span = np.arange(self._rows)
        ids, slots = ((some[:, None] << self.frames.shift | span).ravel() for some in (pages, targets))
        inside = ids < self.num_rows
        ids, places = ids[inside], torch.from_numpy(slots[inside])
        made = [column.new_empty((len(ids), *column.shape[1:])) for column in columns]
        self.first_values(ids, made)
        for column, values in zip(columns, made, strict=True):
            column.index_copy_(0, places.to(column.device), values)

    def _wait(self, job: int) -> None:
        """Return when a job has ended."""
        if job == 0 or job not in self._jobs:
            return
        transfer, pages = self._jobs[job]
        began = time.perf_counter()
        try:
            transfer.wait()
        except StorageError as error:
            self._failure = error
            raise
        finally:
            self._stats.seconds_waited += time.perf_counter() - began
        del self._jobs[job]
        self.in_file[pages] = STORED

    def _wait_through(self, job: int) -> None:
        """Return when a job and all before it have ended: threads do not end them in order."""
        for number in [number for number in self._jobs if number <= job]:
            self._wait(number)

    def _wait_for_writes(self, of: np.ndarray | None = None) -> None:
        """Return when pages that are on their way to the file are there: all, or some (N,)."""
        if of is not None and not len(of := of[self.in_file[of] == ON_ITS_WAY]):
            return
        for job, (_, pages) in list(self._jobs.items()):
            if len(pages) and (of is None or np.isin(pages, of).any()):
                self._wait(job)

    # Calls that pass the cache by

    def peek(self, rows: np.ndarray, section: int, out: Tensor) -> None:
        """Copy one column of rows, (B,), into out, the newest values, without a trace in the cache.

        Args:
            section: The column's place among the sections of a page.
            out: Shape (B, ...), of the column's dtype.
        """
        self.check()
        if not len(rows):
            return
        shift, most = self.frames.shift, max(1, SCAN_BYTES // self.reader.layout.page_bytes)
        pages = rows >> shift
        order = None if bool((pages[1:] >= pages[:-1]).all()) else np.argsort(pages, kind="stable")
        ordered = pages if order is None else pages[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))[::most]
        for low, high in zip(starts, [*starts[1:], len(rows)], strict=True):
            chosen = slice(low, high) if order is None else order[low:high]
            out[chosen] = self._looked_up(rows[chosen], section).to(out.device)

    def _looked_up(self, rows: np.ndarray, section: int) -> Tensor:
        """One column of rows of few pages, ascending by page."""
        frames, column = self.frames, self.columns[section]
        pages, inverse = np.unique(rows >> frames.shift, return_inverse=True)
        held = frames.frame_of[pages]
        for job in np.unique(frames.loading[held[held >= 0]]).tolist():
            self._wait(job)
        if (self.in_file[pages] == ON_ITS_WAY).any():
            self._wait_for_writes()
        scratch = column.new_empty((len(pages) * self._rows, *column.shape[1:]))
        own, mask = np.arange(len(pages)), self._rows - 1
        stored = (held < 0) & (self.in_file[pages] == STORED)
        if stored.any():
            into: list[Tensor | None] = [None] * len(self.columns)
            into[section] = scratch
            began = time.perf_counter()
            self.reader.read(pages[stored], own[stored], into).wait()
            self._stats.seconds_waited += time.perf_counter() - began
            self._stats.scanned += int(stored.sum())
        for k in np.flatnonzero((held < 0) & ~stored).tolist():
            ids = np.arange(pages[k] << frames.shift, min((pages[k] + 1) << frames.shift, self.num_rows))
            made: list[Tensor | None] = [None] * len(self.columns)
            made[section] = scratch[k << frames.shift : (k << frames.shift) + len(ids)]
            self.first_values(ids, made)
        places = torch.from_numpy((inverse << frames.shift) | (rows & mask))
        found = scratch[places.to(column.device)]
        here = np.flatnonzero(held[inverse] >= 0)
        if len(here):
            at = (held[inverse[here]].astype(np.int64) << frames.shift) | (rows[here] & mask)
            found[torch.from_numpy(here).to(column.device)] = column[torch.from_numpy(at).to(column.device)]
        return found

    def flush(self) -> None:
        """Write every dirty page; they stay in memory, clean."""
        self.check()
        frames = self.frames
        dirty = frames.dirty()
        for job in np.unique(frames.loading[dirty]).tolist():
            self._wait(job)
        job = self._write(dirty)
        frames.clean(dirty)
        self._wait(job)
        self._wait_for_writes()

    def keep(self) -> KeptPages | None:
        """The pages as they are now, until they are closed; None where the lower tier is in memory."""
        self.check()
        self._wait_for_writes()
        frames = self.frames
        dirty = frames.dirty()
        for job in np.unique(frames.loading[dirty]).tolist():
            self._wait(job)
        return self.reader.keep(self.in_file == STORED, frames.page_of[dirty], dirty, self.columns)

    def store_first_values(self) -> None:
        """Write the pages that are neither in memory nor in the lower tier, some at a time."""
        self.check()
        most = max(1, SCAN_BYTES // self.reader.layout.page_bytes)
        missing = np.flatnonzero((self.frames.frame_of < 0) & (self.in_file == NEVER))
        for pages in np.array_split(missing, -(-len(missing) // most)) if len(missing) else ():
            places = np.arange(len(pages))
            made = [column.new_empty((len(pages) << self.frames.shift, *column.shape[1:])) for column in self.columns]
            self._fill(pages, places, made)
            self.reader.write(pages, places, made).wait()
            self.in_file[pages] = STORED

    def leave_memory(self) -> None:
        """``drop``, and give back the frames' memory: what was stored can still be peeked at."""
        self.drop()
        self._wait_for_writes()
        self.columns = [column.new_empty((0, *column.shape[1:])) for column in self.columns]

    def drop(self) -> None:
        """Let every page go, after those that the lower tier lacks are written."""
        self.flush()
        self._evict(np.flatnonzero(self.frames.page_of >= 0))

    def changed_pages(self) -> np.ndarray:
        """The pages that have other values than their first ones, or may have, ascending."""
        frames = self.frames
        return np.union1d(np.flatnonzero(self.in_file), frames.page_of[frames.dirty()])

    def close(self) -> None:
        """Wait for what is on its way, and free the lower tier."""
        self.reader.close()
