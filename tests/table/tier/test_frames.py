"""The residency map against a model in plain Python: who hits, who leaves, and what is written."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from graph_emb.table.placement import POLICIES
from graph_emb.table.tier.frames import DIRTY, LAST, MOST_COUNT, UNKNOWN, Frames

GOLDEN = 0x9E3779B97F4A7C15


class Model:
    """The policies again, a page at a time."""

    def __init__(self, capacity: int, num_frames: int, policy: str) -> None:
        self.capacity, self.policy = capacity, policy
        self.frames: list[int | None] = [None] * num_frames
        self.count, self.hand = [0] * num_frames, 0
        self.free = deque(range(num_frames))
        self.dirty: set[int] = set()
        self.announced: list[tuple[int, ...]] = []
        self.bits = max(4, (4 * capacity).bit_length())
        self.sketch, self.noted = [0] * (1 << self.bits), 0

    def slot(self, page: int) -> int:
        return ((page * GOLDEN) % 2**64) >> (64 - self.bits)

    def next_use(self, page: int) -> float:
        return next((k for k, batch in enumerate(self.announced) if page in batch), float("inf"))

    def call(self, pages: list[int], write: bool) -> tuple[int, list[int], list[int], int]:
        """Hits, misses, victims, and how many of these were dirty."""
        pages = list(dict.fromkeys(pages))
        if tuple(sorted(pages)) in self.announced:
            del self.announced[: self.announced.index(tuple(sorted(pages))) + 1]
        top = MOST_COUNT if self.policy == "lfu" else 1
        here = [page for page in pages if page in self.frames]
        for page in here:
            frame = self.frames.index(page)
            self.count[frame] = min(top, self.count[frame] + 1)
            if write:
                self.dirty.add(page)
        missing = [page for page in pages if page not in here]
        resident = sum(page is not None for page in self.frames)
        victims: list[int] = []
        num = max(0, resident + len(missing) - self.capacity)
        idle = 0
        while len(victims) < num and idle < len(self.frames):
            frame, self.hand = self.hand, (self.hand + 1) % len(self.frames)
            page = self.frames[frame]
            known = self.policy == "lookahead" and page is not None and self.next_use(page) < float("inf")
            if page is None or page in pages or page in victims or known:
                idle += 1
                continue
            idle = 0
            if self.count[frame]:
                self.count[frame] -= 1
            else:
                victims.append(page)
        rest = [p for p in self.frames if p is not None and p not in pages and p not in victims]
        rest.sort(key=lambda p: (-self.next_use(p), self.frames.index(p)))
        victims += rest[: num - len(victims)]
        written = len(self.dirty & set(victims))
        for page in victims:
            frame = self.frames.index(page)
            if self.policy == "lfu":
                self.sketch[self.slot(page)] = max(self.sketch[self.slot(page)], self.count[frame])
            self.frames[frame], self.count[frame] = None, 0
            self.free.append(frame)
            self.dirty.discard(page)
        counts = [self.sketch[self.slot(page)] for page in missing]
        for page, count in zip(missing, counts, strict=True):
            frame = self.free.popleft()
            self.frames[frame], self.count[frame] = page, count if self.policy == "lfu" else 1
            self.sketch[self.slot(page)] = min(MOST_COUNT, count + 1)
            if write:
                self.dirty.add(page)
        self.noted += len(missing)
        if missing and self.noted >= 8 * self.capacity:
            self.sketch, self.noted = [count // 2 for count in self.sketch], 0
        return len(here), missing, victims, written


def run(frames: Frames, rows: np.ndarray, write: bool) -> tuple[int, list[int], list[int], int]:
    """As ``PageCache`` calls them, without a file."""
    assert frames.fits(rows)
    frames.arrived(rows)
    touched = frames.touch(rows, write)
    victims = frames.victims(frames.excess(len(touched.missing)))
    pages, dirty = frames.page_of[victims].tolist(), int(frames.has(DIRTY, victims).sum())
    frames.remove(victims, 0)
    if len(touched.missing):
        frames.insert(touched.missing, frames.take(len(touched.missing)), write=write, pin=False)
        frames.fill_places(rows, touched.places)
    found = (frames.page_of[touched.places >> frames.shift] << frames.shift) | (touched.places % (1 << frames.shift))
    assert np.array_equal(found, rows)
    return touched.hits, touched.missing.tolist(), pages, dirty


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(70))
def test_a_model_in_python_predicts_hits_misses_victims_and_dirty_writes(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, num_pages = int(rng.integers(1, 12)), int(rng.integers(12, 60))
    num_frames, shift = capacity + int(rng.integers(0, 4)), int(rng.integers(0, 3))
    frames, model = Frames(num_pages, capacity, num_frames, shift, policy), Model(capacity, num_frames, policy)
    batches = []
    for _ in range(60):
        pages = rng.choice(num_pages, int(rng.integers(1, capacity + 1)), p=zipf(num_pages, seed % 3))
        batches.append((pages << shift) | rng.integers(0, 1 << shift, len(pages)))
    ahead = int(rng.integers(0, 5))
    for k, rows in enumerate(batches):
        if k == 20 and seed % 2:
            frames._now = LAST - 2  # as after some million calls: soon their numbers begin anew
        if policy == "lookahead":
            for coming in batches[: ahead + 1] if k == 0 else batches[k + ahead : k + ahead + 1]:
                frames.announce(coming)
                model.announced.append(tuple(sorted(set((coming >> shift).tolist()))))
        write = bool(rng.random() < 0.5)
        assert run(frames, rows, write) == model.call((rows >> shift).tolist(), write), f"call {k}"


def zipf(num: int, exponent: int) -> np.ndarray:
    weights = 1.0 / np.arange(1, num + 1) ** exponent
    return np.asarray(weights / weights.sum())


def test_a_batch_of_more_pages_than_memory_holds_leaves_no_mark() -> None:
    frames = Frames(10, 2, 2, 1, "lru")
    run(frames, np.array([0, 1, 2]), False)
    before = frames.frame_of.copy()
    assert not frames.fits(np.array([0, 5, 9, 8]))
    assert np.array_equal(frames.frame_of, before)
    assert frames.fits(np.array([0, 1, 18, 19, 0]))


def test_lookahead_keeps_the_page_that_is_used_soonest() -> None:
    frames = Frames(4, 2, 2, 0, "lookahead")
    run(frames, np.array([0]), False)
    run(frames, np.array([1]), False)
    for coming in ([2], [0], [1]):
        frames.announce(np.array(coming))
    assert run(frames, np.array([2]), False)[2] == [1]  # LRU would let 0 go


def test_lfu_keeps_the_page_that_was_used_often() -> None:
    frames = Frames(9, 2, 2, 0, "lfu")
    for page in (0, 0, 0, 0, 0, 1, 2, 3, 4):
        run(frames, np.array([page]), False)
    assert frames.frame_of[0] >= 0


def test_a_prefetch_spares_pinned_pages_and_those_needed_before() -> None:
    frames = Frames(9, 3, 3, 0, "lookahead")
    frames.insert(np.array([0]), frames.take(1), write=False, pin=True)
    run(frames, np.array([1]), False)
    run(frames, np.array([2]), False)
    number, _ = frames.announce(np.array([1]))
    assert frames.victims(3, later_than=number).tolist() == []  # 2 is of the last call, 1 comes sooner
    assert (frames._next_use != UNKNOWN).sum() == 1


def test_an_announced_batch_is_its_pages_once_and_leaves_the_map_alone() -> None:
    frames = Frames(9, 3, 3, 1, "lookahead")
    run(frames, np.array([2, 6]), False)
    before = frames.frame_of.copy()
    for rows, pages in (([7, 6, 2, 17, 3, 16, 7], [3, 1, 8]), ([7, 0], [3, 0]), ([], [])):
        number, found = frames.announce(np.array(rows, np.int64))
        assert (found.tolist(), frames.announced[-1][0]) == (pages, number)
    assert np.array_equal(frames.frame_of, before)
