"""Which pages are in memory, in which frames, and which leave: the residency map and its policies.

Pages of one call are *touched* once, whatever the number of their rows. A call's pages cannot leave before the next
call. Policies:

- ``lru``: CLOCK (Corbato 1968). A hand goes round the frames; a page that was touched since it last came by stays.
- ``lfu``: the same with counts up to 15, of which each passing of the hand takes one; a small sketch, which decays,
  remembers the counts of pages that left (Einziger, Friedman and Manes 2017, "TinyLFU: a highly efficient cache
  admission policy").
- ``lookahead``: pages that no announced batch uses leave first, in CLOCK's order, then those whose next use is farthest
  (Belady 1966, as far as the future is known).

Everything is a function of the calls, not of when a transfer ends: a model in plain Python predicts each victim.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from graph_emb.core.compiled import GOLDEN, njit
from graph_emb.table.row_memory import prefetch, prefetch_to_read

NONE, WANTED = -1, -2
"""In place of a frame: the page is not in memory; a call has asked for it and not got it yet."""
UNKNOWN = np.iinfo(np.int64).max
"""The next use of a page that no announced batch has."""
COUNT, PINNED, DIRTY, LOADING, STAMP = np.uint32(15), np.uint32(16), np.uint32(32), np.uint32(64), 8
"""A frame's word, which is all that a call asks of most frames, so that it meets little memory: bits of its count;
whether a prefetch filled it and no call has used it, its page is newer than the file, and a job may still fill it; and
from which bit on the call is told that used it last."""
FLAGS = np.uint32((1 << STAMP) - 1)
LAST = 1 << (32 - STAMP)
"""Calls after which their numbers begin anew."""
AHEAD = 16
"""Rows whose place in the map is asked for before it is needed."""
MOST_COUNT = 15
MOST_ANNOUNCED = 64
"""Batches that are remembered before they come; later announcements push out the oldest."""


class Touched(NamedTuple):
    """A call's pages.

    Attributes:
        places: The position of each row among the rows of all frames, (B,); -1 where its page is missing.
        missing: Pages to be brought, in the order of their first occurrence.
        hits: Pages that are here.
        hit_rows: Rows of them, repeats counted.
        early: Of the hits, pages that a prefetch brought and nothing had used before.
        job: The latest load that has to end before the rows may be used; 0: none.
    """

    places: np.ndarray
    missing: np.ndarray
    hits: int
    hit_rows: int
    early: int
    job: int


@njit(cache=True, nogil=True)
def _touch(
    rows: Any, shift: int, frame_of: Any, words: Any, now: int, top: int, loading: Any, ended: int, write: bool,
    places: Any, missing: Any,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    hits, num, hit_rows, early, job = 0, 0, 0, 0, 0
    mask, written = (1 << shift) - 1, DIRTY if write else np.uint32(0)
    for i in range(len(rows)):
        if i + 2 * AHEAD < len(rows):
            prefetch_to_read(frame_of, rows[i + 2 * AHEAD] >> shift)
        if i + AHEAD < len(rows):
            coming = frame_of[rows[i + AHEAD] >> shift]
            if coming >= 0:
                prefetch(words, np.int64(coming))
        page = rows[i] >> shift
        frame = frame_of[page]
        if frame >= 0:
            word = words[frame]
            if (word >> STAMP) != now:
                hits += 1
                if (word & COUNT) < top:
                    word += np.uint32(1)
                if word & PINNED:
                    early += 1
                if word & LOADING:
                    if loading[frame] > ended:
                        job = max(job, loading[frame])
                    else:
                        word &= ~LOADING
                words[frame] = np.uint32(now << STAMP) | (word & (COUNT | DIRTY | LOADING)) | written
            hit_rows += 1
            places[i] = (np.int64(frame) << shift) | (rows[i] & mask)
        else:
            if frame == NONE:
                frame_of[page] = WANTED
                missing[num] = page
                num += 1
            places[i] = -1
    return num, hits, hit_rows, early, job


@njit(cache=True, nogil=True)
def _distinct_up_to(rows: Any, shift: int, frame_of: Any, words: Any, now: int, most: int) -> bool:
    """Whether rows lie in at most ``most`` pages; leaves no mark but stamps."""
    found, end = 0, len(rows)
    for i in range(len(rows)):
        page = rows[i] >> shift
        frame = frame_of[page]
        if frame >= 0:
            if (words[frame] >> STAMP) != now:
                words[frame] = np.uint32(now << STAMP) | (words[frame] & FLAGS)
                found += 1
        elif frame == NONE:
            frame_of[page] = WANTED
            found += 1
        if found > most:
            end = i + 1
            break
    for i in range(end):
        page = rows[i] >> shift
        if frame_of[page] == WANTED:
            frame_of[page] = NONE
    return found <= most


@njit(cache=True, nogil=True)
def _distinct(rows: Any, shift: int, frame_of: Any, marks: Any, mark: int, out: Any) -> int:
    """The pages of rows, each once; leaves no trace but marks of frames."""
    found = 0
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch_to_read(frame_of, rows[i + AHEAD] >> shift)
        page = rows[i] >> shift
        frame = frame_of[page]
        if frame >= 0:
            if marks[frame] == mark:
                continue
            marks[frame] = mark
        elif frame == NONE:
            frame_of[page] = WANTED
        else:
            continue
        out[found] = page
        found += 1
    for i in range(found):
        if frame_of[out[i]] == WANTED:
            frame_of[out[i]] = NONE
    return found


@njit(cache=True, nogil=True)
def _fill_places(rows: Any, shift: int, frame_of: Any, places: Any) -> None:
    mask = (1 << shift) - 1
    for i in range(len(rows)):
        if places[i] < 0:
            places[i] = (np.int64(frame_of[rows[i] >> shift]) << shift) | (rows[i] & mask)


@njit(cache=True, nogil=True)
def _clock(num: int, hand: Any, page_of: Any, words: Any, now: int, next_use: Any, out: Any) -> int:
    """Choose up to ``num`` victims by the hand; chosen ones are stamped, so that none is chosen twice."""
    found, idle = 0, 0
    at, frames = hand[0], len(page_of)
    while found < num and idle < frames:
        frame, at = at, (at + 1) % frames
        word = words[frame]
        if page_of[frame] < 0 or (word >> STAMP) == now or word & PINNED or next_use[frame] != UNKNOWN:
            idle += 1
        elif word & COUNT:
            words[frame] = word - np.uint32(1)
            idle = 0
        else:
            words[frame] = np.uint32(now << STAMP) | (word & FLAGS)
            out[found] = frame
            found += 1
            idle = 0
    hand[0] = at
    return found


class Frames:
    """The residency map of a table.

    Args:
        num_pages: Of the table.
        capacity: Pages that are resident at most.
        num_frames: Places for them; those above the capacity hold pages that are being written.
        shift: A page has ``1 << shift`` rows.
        policy: Of ``graph_emb.table.placement.POLICIES``.

    Attributes:
        frame_of: The frame of each page, (num_pages,), or ``NONE``.
        page_of: The page of each frame, (num_frames,), or ``NONE``.
        num_pinned: Frames that a prefetch filled and no call has used.
        loading: The job that filled each frame last, or does; 0: none did.
        writing: The job that writes each free frame's last page.
        announced: The batches to come: their rows and distinct pages, oldest first.
    """

    def __init__(self, num_pages: int, capacity: int, num_frames: int, shift: int, policy: str) -> None:
        self.capacity, self.shift, self.policy = capacity, shift, policy
        self.frame_of = np.full(num_pages, NONE, np.int32)
        self.page_of = np.full(num_frames, NONE, np.int64)
        self._words, self._next_use = np.zeros(num_frames, np.uint32), np.full(num_frames, UNKNOWN, np.int64)
        self.loading, self.writing = np.zeros(num_frames, np.int64), np.zeros(num_frames, np.int64)
        self._number, self._marks = 0, np.zeros(num_frames, np.int32)  # the last batch to come that has the page
        self.announced: deque[tuple[int, np.ndarray, np.ndarray]] = deque()
        self.resident, self.num_pinned = 0, 0
        self._now, self._hand = 0, np.zeros(1, np.int64)
        self._top = MOST_COUNT if policy == "lfu" else 1
        self._sketch = np.zeros(1 << max(4, (4 * capacity).bit_length()) if policy == "lfu" else 0, np.uint8)
        self._noted = 0
        self._known = np.empty(0, np.int64)  # frames with a next use
        self._free = np.arange(num_frames, dtype=np.int64)  # a ring of free frames, oldest first
        self._first, self._num_free = 0, num_frames

    def fits(self, rows: np.ndarray) -> bool:
        """Whether the pages of rows fit into memory at once."""
        if min(len(rows), len(self.frame_of)) <= self.capacity:
            return True
        self._begin()
        return bool(_distinct_up_to(rows, self.shift, self.frame_of, self._words, self._now, self.capacity))

    def _begin(self) -> None:
        """Give a call its number."""
        self._now += 1
        if self._now == LAST:
            self._words &= FLAGS
            self._now = 1

    def touch(self, rows: np.ndarray, write: bool, ended: int = 0) -> Touched:
        """Begin a call: note the use of the pages of rows, (B,), int64, which fit.

        Args:
            ended: The jobs up to this one have ended.
        """
        self._begin()
        places, missing = np.empty(len(rows), np.int64), np.empty(min(len(rows), len(self.frame_of)), np.int64)
        num, hits, hit_rows, early, job = _touch(
            rows, self.shift, self.frame_of, self._words, self._now, self._top, self.loading, ended, write, places,
            missing,
        )  # fmt: skip
        self.num_pinned -= early
        return Touched(places, missing[:num], hits, hit_rows, early, job)

    def has(self, flag: np.uint32, frames: np.ndarray) -> np.ndarray:
        """Which of some frames have a flag of their word."""
        return (self._words[frames] & flag) != 0

    def dirty(self) -> np.ndarray:
        """The frames whose page is newer than the file, ascending."""
        return np.flatnonzero(self._words & DIRTY)

    def clean(self, frames: np.ndarray) -> None:
        """Note that the pages of frames are on their way to the file."""
        self._words[frames] &= ~DIRTY

    def load(self, frames: np.ndarray, job: int) -> None:
        """Note the job that fills frames."""
        self.loading[frames] = job
        self._words[frames] |= LOADING

    def forget(self, missing: np.ndarray) -> None:
        """Take back that pages were asked for, which could not be brought."""
        self.frame_of[missing[self.frame_of[missing] == WANTED]] = NONE

    def excess(self, num: int) -> int:
        """How many pages must leave before ``num`` can come."""
        return max(0, self.resident + num - self.capacity)

    def victims(self, num: int, later_than: int = -1) -> np.ndarray:
        """Choose pages to leave; the frames, in the order of choice.

        Args:
            num: At most; a call's own pages fit, so as many are found for it.
            later_than: Above -1 (a prefetch): spare pinned pages, and those with a next use up to this batch.
        """
        if self.policy == "lookahead":
            self._note_next_uses()
        chosen = np.empty(num, np.int64)
        found = _clock(num, self._hand, self.page_of, self._words, self._now, self._next_use, chosen)
        if found < num:
            able = (self.page_of >= 0) & (self._words >> STAMP != self._now)
            if later_than >= 0:
                able &= ((self._words & PINNED) == 0) & (self._next_use > later_than)
            frames = np.flatnonzero(able)
            frames = frames[np.argsort(-self._next_use[frames], kind="stable")][: num - found]
            chosen[found : found + len(frames)] = frames
            found += len(frames)
        return chosen[:found]

    def _note_next_uses(self) -> None:
        self._next_use[self._known] = UNKNOWN
        known = []
        for number, _, pages in reversed(self.announced):
            frames = self.frame_of[pages]
            frames = frames[frames >= 0]
            self._next_use[frames] = number
            known.append(frames)
        self._known = np.concatenate(known) if known else np.empty(0, np.int64)

    def remove(self, frames: np.ndarray, job: int) -> None:
        """Let the pages of frames go; dirty ones are written by a job, after which their frames are free."""
        pages = self.page_of[frames]
        self._note_counts(frames)
        self.writing[frames] = np.where(self.has(DIRTY, frames), job, 0)
        self.num_pinned -= int(np.count_nonzero(self.has(PINNED, frames)))
        self.frame_of[pages], self.page_of[frames] = NONE, NONE
        self._words[frames], self.loading[frames] = self._words[frames] & ~FLAGS, 0
        ring = len(self._free)
        self._free[(self._first + self._num_free + np.arange(len(frames))) % ring] = frames
        self._num_free += len(frames)
        self.resident -= len(frames)

    def take(self, num: int) -> np.ndarray:
        """The frames that have been free longest."""
        assert num <= self._num_free, f"{num} frames wanted, {self._num_free} free"
        frames = self._free[(self._first + np.arange(num)) % len(self._free)]
        self._first = (self._first + num) % len(self._free)
        self._num_free -= num
        return frames

    def insert(self, pages: np.ndarray, frames: np.ndarray, *, write: bool, pin: bool) -> None:
        """Give pages their frames: of this call, or (``pin``) of one to come."""
        self.frame_of[pages], self.page_of[frames] = frames, pages
        self._words[frames] = self._counts(pages) | np.uint32(DIRTY * write | (PINNED if pin else self._now << STAMP))
        self.num_pinned += pin * len(pages)
        self._next_use[frames] = UNKNOWN
        self.resident += len(pages)

    def replace(self, frames: np.ndarray, pages: np.ndarray, *, pin: bool) -> None:
        """Give the frames of pages that leave, (N,), to other pages, of which a call to come (``pin``) asks."""
        self._note_counts(frames)
        self.num_pinned += pin * len(pages) - int(np.count_nonzero(self.has(PINNED, frames)))
        self.frame_of[self.page_of[frames]] = NONE
        self.frame_of[pages], self.page_of[frames] = frames, pages
        self._words[frames] = self._counts(pages) | np.uint32(PINNED * pin)
        self._next_use[frames] = UNKNOWN

    def _note_counts(self, frames: np.ndarray) -> None:
        """Keep what ``lfu`` has counted for pages that leave."""
        if self.policy == "lfu":
            slots = self._slots(self.page_of[frames])
            self._sketch[slots] = np.maximum(self._sketch[slots], self._words[frames] & COUNT)

    def _counts(self, pages: np.ndarray) -> Any:
        """What pages that come begin with."""
        if self.policy != "lfu":
            return np.uint32(1)
        slots = self._slots(pages)
        counts = self._sketch[slots]
        self._sketch[slots] = np.minimum(counts + 1, MOST_COUNT)
        self._noted += len(pages)
        if self._noted >= 8 * self.capacity:
            self._sketch >>= 1
            self._noted = 0
        return counts.astype(np.uint32)

    def _slots(self, pages: np.ndarray) -> np.ndarray:
        """Where the sketch counts pages."""
        bits = len(self._sketch).bit_length() - 1
        return ((pages.astype(np.uint64) * GOLDEN) >> np.uint64(64 - bits)).astype(np.int64)

    def fill_places(self, rows: np.ndarray, places: np.ndarray) -> None:
        """Put in the places of rows whose pages have come."""
        _fill_places(rows, self.shift, self.frame_of, places)

    def announce(self, rows: np.ndarray) -> tuple[int, np.ndarray]:
        """Note a batch to come; its number, and its distinct pages in the order of their first occurrence."""
        self._number += 1
        pages = np.empty(min(len(rows), len(self.frame_of)), np.int64)
        mark = self._number % (1 << 31)
        pages = pages[: _distinct(rows, self.shift, self.frame_of, self._marks, mark, pages)]
        self.announced.append((self._number, rows.copy(), pages))
        if len(self.announced) > MOST_ANNOUNCED:
            self.announced.popleft()
        return self._number, pages

    def arrived(self, rows: np.ndarray) -> None:
        """Note that a batch has come: it, and those announced before it, are no longer ahead."""
        for place, (_, batch, _) in enumerate(self.announced):
            if len(batch) == len(rows) and np.array_equal(batch, rows):
                for _ in range(place + 1):
                    self.announced.popleft()
                return
