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

T = TypeVar("T")
TotalOf = Callable[[np.ndarray], np.ndarray]
"""Sums a vector of int64 over all owners of a table: every owner calls it, with vectors of one length."""
Sums = Generator[np.ndarray, np.ndarray, T]
"""Work of an owner that yields vectors of int64 and goes on with their sums over all owners."""
NONE, SIGN = np.uint64(0), np.uint64(1 << 63)
DIGIT = 10
"""Bits that a pass looks at: 8 KiB of counts."""
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
    chosen = np.zeros(len(ids), bool)
    if num <= 0:
        return chosen
    order = np.ascontiguousarray(ids).view(np.uint64)
    given = Marked(scores, among)
    shared, low = yield from _shared_bits(given)
    cut, rest = yield from _radix(given, num, shared, low)
    ties = Marked(order, among, SIGN) if not low else given.narrowed(cut, 0, order, SIGN)  # in the order of signed ids
    last, _ = yield from _radix(ties, rest, *(yield from _shared_bits(ties)))
    with threads_for(len(ids)) as parts:
        _choose(scores, order, among, scores.dtype.type(cut), np.uint64(last), chosen, parts)
    return chosen


class Marked:
    """Values of an owner among which a selection looks.

    Args:
        values: (P,), unsigned, compared as ``values ^ flip``.
        among: (P,), bool.
    """

    def __init__(self, values: np.ndarray, among: np.ndarray, flip: np.uint64 = NONE) -> None:
        self.values, self.among, self.flip = values, among, values.dtype.type(flip)

    def bits(self) -> np.ndarray:
        """The bits that are 1 in some, and those that are 0 in some, (2,)."""
        with threads_for(len(self.values)) as parts:
            _bits(self.values, self.among, self.flip, found := np.empty((parts, 2), self.values.dtype), parts)
        return np.bitwise_or.reduce(found, axis=0)

    def digits(self, known: int, low: int, high: int) -> np.ndarray:
        """How many that have ``known``'s bits from ``high`` on have each digit of the bits between, (digits,)."""
        with threads_for(len(self.values)) as parts:
            counts = np.zeros((parts, LANES, (1 << DIGIT) + 1), np.int64)
            known = self.values.dtype.type(known)
            _count_digits(self.values, self.among, self.flip, known, (low, high), counts, parts)
        return counts.sum(axis=(0, 1))[: 1 << (high - low)]

    def narrowed(self, known: int, low: int, taken: np.ndarray, flip: np.uint64) -> Marked:
        """What ``taken``, (P,), has at the places of those with ``known``'s bits from ``low`` on."""
        with threads_for(len(self.values)) as parts:
            out, ends = np.empty_like(taken, order="C"), np.empty(parts, np.int64)
            known = self.values.dtype.type(known)
            _narrow(self.values, self.among, self.flip, known, low, taken, out, ends, parts)
        begins = [part * len(taken) // parts for part in range(parts)]
        found = [out[begin : begin + num] for begin, num in zip(begins, ends.tolist(), strict=True)]
        kept = np.concatenate(found) if parts > 1 else found[0]
        return Marked(kept, np.ones(len(kept), bool), flip)


def _shared_bits(given: Marked) -> Sums[tuple[int, int]]:
    """Of all owners' values the bits that all have in common, and from which bit on they have: steps differ in few."""
    seen = yield np.unpackbits(given.bits().view(np.uint8), bitorder="little").astype(np.int64)
    ones, zeros = seen.reshape(2, -1) > 0
    differing = np.flatnonzero(ones & zeros)
    low = int(differing[-1]) + 1 if len(differing) else 0
    return sum(1 << bit for bit in range(low, len(ones)) if ones[bit]), low


def _radix(given: Marked, num: int, found: int, low: int) -> Sums[tuple[int, int]]:
    """The ``num``-th lowest of all owners' values, and how many of that value are among the ``num``.

    Args:
        found, low: As of ``_shared_bits``.
    """
    while low:
        high, low = low, max(0, low - DIGIT)
        ends = np.cumsum((yield given.digits(found, low, high)))
        digit = int(np.searchsorted(ends, num))
        num -= int(ends[digit - 1]) if digit else 0
        found |= digit << low
        if low:
            given = given.narrowed(found, low, given.values, given.flip)
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
def _count_digits(values, among, flip, known, bits, counts, parts):
    """How many of the marked values that agree with ``known`` above the bits [low, high) have each digit of these.

    ``counts``, (W, LANES, digits + 1), is added to; its last one is of the others.
    """
    num, low = len(values), np.uint64(bits[0])
    other = np.uint64(counts.shape[2] - 1)
    prefix, digits = np.uint64(known) >> low, np.uint64(1) << np.uint64(bits[1] - bits[0])
    for part in prange(parts):
        some, wanted = values[part * num // parts : (part + 1) * num // parts], among[part * num // parts :]
        of_part, step = counts[part], len(some) // LANES
        for k in range(step):
            for lane in range(LANES):
                at = k + lane * step
                away = ((some[at] ^ flip) >> low) ^ prefix
                of_part[lane, away if wanted[at] & (away < digits) else other] += 1
        for at in range(LANES * step, len(some)):
            away = ((some[at] ^ flip) >> low) ^ prefix
            of_part[0, away if wanted[at] & (away < digits) else other] += 1


@njit(parallel=True, cache=True, nogil=True)
def _narrow(values, among, flip, known, low, taken, out, ends, parts):
    """What ``taken`` has where marked values agree with ``known`` from the bit ``low`` on, to the begin of each share
    of ``out``; ``ends``, (W,): how many."""
    num, shift = len(values), np.uint64(low)
    prefix = np.uint64(known) >> shift
    for part in prange(parts):
        begin, stop = part * num // parts, (part + 1) * num // parts
        some, wanted, source, to = values[begin:stop], among[begin:stop], taken[begin:stop], out[begin:stop]
        end = np.uint64(0)
        for k in range(len(some)):  # without a jump for each
            to[end] = source[k]
            end += np.uint64(wanted[k] & (((some[k] ^ flip) >> shift) == prefix))
        ends[part] = end


@njit(parallel=True, cache=True, nogil=True)
def _choose(scores, order, among, cut, last, chosen, parts):
    """``chosen``: whether each of the marked is below ``cut``, or is ``cut`` and has an id of at most ``last``."""
    num = len(scores)
    for part in prange(parts):
        begin, stop = part * num // parts, (part + 1) * num // parts
        some, wanted, to, ids = scores[begin:stop], among[begin:stop], chosen[begin:stop], order[begin:stop]
        for k in range(len(some)):
            leaves = some[k] < cut
            if some[k] == cut:
                leaves = (ids[k] ^ SIGN) <= last
            to[k] = wanted[k] & leaves


@njit(fastmath={"reassoc", "nsz", "contract"}, **INSIDE)
def _square(row):
    """The sum of the squares of numbers in float64, in an order that their number decides."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


@njit(parallel=True, cache=True, nogil=True)
def _row_norms(rows, out, parts):
    num = len(rows)
    for part in prange(parts):
        for k in range(part * num // parts, (part + 1) * num // parts):
            out[k] = np.sqrt(_square(rows[k]))


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The Euclidean norm of each row, (R, D), float32 or float64: (R,), float64."""
    out = np.empty(len(rows))
    with threads_for(len(rows)) as parts:
        _row_norms(rows, out, parts)
    return out
