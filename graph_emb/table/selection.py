"""The lowest of all owners' rows by score, ties by id: radix selections whose counts are summed over the owners.

Legend: P places of an owner, R rows, D width, W threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np
from numba import prange

from graph_emb.core.compiled import INSIDE, njit
from graph_emb.core.threads import threads_for
from graph_emb.table.row_memory import prefetch_to_read

T = TypeVar("T")
TotalOf = Callable[[np.ndarray], np.ndarray]
"""Sums a vector of int64 over all owners of a table: every owner calls it, with vectors of one length."""
Sums = Generator[np.ndarray, np.ndarray, T]
"""Work of an owner that yields vectors of int64 and goes on with their sums over all owners."""
NONE, SIGN = np.uint64(0), np.uint64(1 << 63)
DIGIT = 10
"""Bits that a pass looks at: 8 KiB of counts."""
SAMPLE = 8192
"""Values that tell where to look, and at most twice as many."""
BLOCK = 128
"""Values among which those of a range are looked for one by one, if any is there."""
AHEAD = 12
"""Rows that are asked for before they are needed."""
LANES = 4
"""Counts of a thread: an addition must wait for the last one at the same place, and neighbours are often alike."""


def summed(work: Sums[T], total_of: TotalOf) -> T:
    """The result of work that every owner does at once."""
    try:
        vector = next(work)
        while True:
            vector = work.send(total_of(vector))
    except StopIteration as end:
        found: T = end.value
        return found


def lowest(scores: np.ndarray, ids: np.ndarray, among: np.ndarray, num: int) -> Sums[np.ndarray]:
    """The ``num`` lowest of all owners' (score, id) pairs among those marked, (P,) bool.

    Args:
        scores: (P,), unsigned.
        ids: (P,), int64.
        among: (P,), bool; at least ``num`` of all owners' are.
    """
    if num <= 0:
        return np.zeros(len(ids), bool)
    order, given = np.ascontiguousarray(ids).view(np.uint64), Marked(scores, among)
    _, low = yield from _shared_bits(given.sample())
    if low == 0:  # most have the same score
        _, low = yield from _shared_bits(given)
    if low == 0:
        chosen, at, _ = yield from _cut(Marked(order, among, SIGN), num)
    else:
        chosen, ties, rest = yield from _cut(given, num)
        of_ties, at, _ = yield from _cut(Marked(order[ties], None, SIGN), rest)
        chosen[ties[of_ties]] = True
        at = ties[at]
    chosen[at] = True
    return chosen


class Marked:
    """Values of an owner among which a selection looks.

    Args:
        values: (P,), unsigned, compared as ``values ^ flip``: ids in the order of signed numbers.
        among: (P,), bool; None: all.
    """

    def __init__(self, values: np.ndarray, among: np.ndarray | None, flip: np.uint64 = NONE) -> None:
        self.values, self.flip = values, values.dtype.type(flip)
        self.among = np.ones(len(values), bool) if among is None else among

    def sample(self) -> Marked:
        """Some of the values, at equal distances; few are all taken."""
        apart = max(1, len(self.values) // SAMPLE)
        some, among = np.ascontiguousarray(self.values[::apart]), np.ascontiguousarray(self.among[::apart])
        return Marked(some, among, self.flip)

    def bits(self) -> np.ndarray:
        """The bits that are 1 in some, and those that are 0 in some, (2,)."""
        with threads_for(len(self.values)) as parts:
            _bits(self.values, self.among, self.flip, found := np.empty((parts, 2), self.values.dtype), parts)
        return np.bitwise_or.reduce(found, axis=0)

    def digits(self, known: int, low: int, high: int) -> np.ndarray:
        """How many that have ``known``'s bits from ``high`` on have each digit of the bits between, (digits,)."""
        with threads_for(len(self.values)) as parts:
            counts = np.zeros((parts, LANES, (1 << (high - low)) + 1), np.int64)
            _count_digits(self.values, self.among, self.flip, self.values.dtype.type(known), low, counts, parts)
        return counts.sum(axis=(0, 1))[:-1]

    def split(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Whether each is below ``first``, (P,) bool, and the places of those from there to ``last``, (S,)."""
        num, of = len(self.values), self.values.dtype.type
        with threads_for(num) as parts:
            below, places, ends = np.empty(num, bool), np.empty(num, np.int64), np.empty(parts, np.int64)
            _split(self.values, self.among, self.flip, (of(first), of(last)), below, places, ends, parts)
        begins = [part * num // parts for part in range(parts)]
        found = [places[begin : begin + count] for begin, count in zip(begins, ends.tolist(), strict=True)]
        return below, np.concatenate(found)

    def taken(self, places: np.ndarray) -> Marked:
        """Those at places, (S,), of marked ones."""
        return Marked(self.values[places], None, self.flip)


def _shared_bits(given: Marked) -> Sums[tuple[int, int]]:
    """Of all owners' values the bits that all have in common, and from which bit on they have: steps differ in few."""
    seen = yield np.unpackbits(given.bits().view(np.uint8), bitorder="little").astype(np.int64)
    ones, zeros = seen.reshape(2, -1) > 0
    differing = np.flatnonzero(ones & zeros)
    low = int(differing[-1]) + 1 if len(differing) else 0
    return sum(1 << bit for bit in range(low, len(ones)) if ones[bit]), low


def _cut(given: Marked, num: int) -> Sums[tuple[np.ndarray, np.ndarray, int]]:
    """Whether each value is below the ``num``-th lowest of all owners', (P,) bool; the places of those that have it,
    (S,), and how many of all owners' such are among the ``num``.

    A range in which a sample supposes that value leaves few to look at; where it is not there, it is beside it.
    """
    first, last = yield from _range(given, num)
    while True:
        below, places = given.split(first, last)
        before, inside = (yield np.array([np.count_nonzero(below), len(places)])).tolist()
        if before < num <= before + inside:
            break
        first, last = (0, first - 1) if num <= before else (last + 1, int(np.iinfo(given.values.dtype).max))
    some = given.taken(places)
    if first < last:
        value, num = yield from _radix(some, num - before)
        lower, ties = some.split(value, value)
        below[places[lower]] = True
        return below, places[ties], num
    return below, places, num - before


def _range(given: Marked, num: int) -> Sums[tuple[int, int]]:
    """The first and last of the values among which the ``num``-th lowest most likely is."""
    sample = given.sample()
    found, low = yield from _shared_bits(sample)
    high, low = low, max(0, low - DIGIT)
    counts = yield np.append(sample.digits(found, low, high), np.count_nonzero(given.among))
    ends, total = np.cumsum(counts[:-1]), int(counts[-1])
    rank, apart = num / total * int(ends[-1]), 3.0 * float(ends[-1]) ** 0.5
    start, stop = np.searchsorted(ends, [rank - apart, rank + apart]).tolist()
    if high == 0:
        return found, found
    first = found | start << low if rank > apart else 0
    last = (found | stop << low) + (1 << low) - 1 if stop < len(ends) else int(np.iinfo(given.values.dtype).max)
    return first, last


def _radix(given: Marked, num: int) -> Sums[tuple[int, int]]:
    """The ``num``-th lowest of all owners' values, and how many of that value are among the ``num``."""
    found, low = yield from _shared_bits(given)
    while low:
        high, low = low, max(0, low - DIGIT)
        ends = np.cumsum((yield given.digits(found, low, high)))
        digit = int(np.searchsorted(ends, num))
        num -= int(ends[digit - 1]) if digit else 0
        found |= digit << low
        if low:
            given = given.taken(given.split(found, found + (1 << low) - 1)[1])
    return found, num


@njit(parallel=True, cache=True, nogil=True)
def _bits(values, among, flip, found, parts):
    """The bits that are 1 in some of the marked values, and those that are 0 in some: ``found``, (W, 2), by thread."""
    num = len(values)
    for part in prange(parts):
        some, wanted = values[part * num // parts : (part + 1) * num // parts], among[part * num // parts :]
        ones, zeros = np.uint64(0), np.uint64(0)
        for k in range(len(some)):
            mask = np.uint64(0) - np.uint64(wanted[k])  # all bits or none
            ones |= (some[k] ^ flip) & mask
            zeros |= ~(some[k] ^ flip) & mask
        found[part, 0], found[part, 1] = ones, zeros


@njit(parallel=True, cache=True, nogil=True)
def _count_digits(values, among, flip, known, low, counts, parts):
    """How many of the marked values that agree with ``known`` above the bits of a digit, which begins at the bit
    ``low``, have each digit; ``counts``, (W, LANES, digits + 1), is added to; its last one is of the others."""
    num, shift = len(values), np.uint64(low)
    other, prefix = np.uint64(counts.shape[2] - 1), np.uint64(known) >> shift
    for part in prange(parts):
        some, wanted = values[part * num // parts : (part + 1) * num // parts], among[part * num // parts :]
        of_part, step = counts[part], len(some) // LANES
        for k in range(step):
            for lane in range(LANES):
                at = k + lane * step
                away = ((some[at] ^ flip) >> shift) ^ prefix
                of_part[lane, away if wanted[at] & (away < other) else other] += 1
        for at in range(LANES * step, len(some)):
            away = ((some[at] ^ flip) >> shift) ^ prefix
            of_part[0, away if wanted[at] & (away < other) else other] += 1


@njit(parallel=True, cache=True, nogil=True)
def _split(values, among, flip, ends_of_range, below, places, ends, parts):
    """``below``: whether each is marked and below a range; the places of the marked inside to the begin of each share
    of ``places``; ``ends``, (W,): how many."""
    num, (first, last) = len(values), ends_of_range
    for part in prange(parts):
        begin, stop = part * num // parts, (part + 1) * num // parts
        block, end, to = np.empty(BLOCK, values.dtype), np.uint64(0), places[begin:stop]
        for start in range(begin, stop, BLOCK):
            some, wanted = values[start : min(start + BLOCK, stop)], among[start : start + BLOCK]
            lower, near, any_inside = below[start : start + BLOCK], block[: len(some)], False
            for k in range(len(some)):  # side by side, for vectors
                near[k] = some[k] ^ flip
            for k in range(len(near)):
                lower[k] = wanted[k] & (near[k] < first)
                any_inside |= wanted[k] & (near[k] >= first) & (near[k] <= last)
            if any_inside:
                for k in range(len(near)):  # without a jump for each
                    to[end] = start + k
                    end += np.uint64(wanted[k] & (near[k] >= first) & (near[k] <= last))
        ends[part] = end


@njit(fastmath={"reassoc", "nsz", "contract"}, **INSIDE)
def _square(row):
    """The sum of the squares of numbers in float64, in an order that their number decides."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


@njit(parallel=True, cache=True, nogil=True)
def _row_norms(rows, known, last, since, parts):
    num = len(rows)
    for part in prange(parts):
        begin, stop = part * num // parts, (part + 1) * num // parts
        changed = np.empty(BLOCK, np.int64)
        for start in range(begin, stop, BLOCK):
            end = np.int64(0)
            for k in range(start, min(start + BLOCK, stop)):  # without a jump for each
                changed[end] = k
                end += np.int64((known[k] == 0.0) | (last[k] > since))
            for n in range(end):
                if n + AHEAD < end:
                    prefetch_to_read(rows, changed[n + AHEAD])
                known[changed[n]] = np.sqrt(_square(rows[changed[n]]))


def row_norms(rows: np.ndarray, known: np.ndarray, last: np.ndarray, since: int) -> None:
    """The Euclidean norms of rows, (R, D), float32 or float64, which may have changed since they were taken.

    Args:
        known: Those taken before, 0 of others, (R,) float64; changed where a row is of a later step.
        last: The last step that changed each row, (R,) uint32.
        since: The step after which they were taken.
    """
    with threads_for(len(rows)) as parts:
        _row_norms(rows, known, last, np.uint32(since), parts)


@njit(parallel=True, cache=True, nogil=True)
def _marked(mask, places, ends, parts):
    num = len(mask)
    for part in prange(parts):
        begin, stop = part * num // parts, (part + 1) * num // parts
        to, end = places[begin:stop], np.int64(0)
        for k in range(begin, stop - 1):  # without a jump for each
            to[end] = k
            end += np.int64(mask[k])
        if begin < stop and mask[stop - 1]:
            to[end] = stop - 1
            end += 1
        ends[part] = end


def marked_places(mask: np.ndarray) -> np.ndarray:
    """``np.flatnonzero`` of (P,) bool, which takes several times as long where many marks lie anywhere."""
    if np.count_nonzero(mask) < len(mask) // BLOCK:
        return np.flatnonzero(mask)
    with threads_for(len(mask)) as parts:
        places, ends = np.empty(len(mask), np.int64), np.empty(parts, np.int64)
        _marked(mask, places, ends, parts)
    begins = [part * len(mask) // parts for part in range(parts)]
    return np.concatenate([places[low : low + num] for low, num in zip(begins, ends.tolist(), strict=True)])
