"""An order of training in which few parts of a table are in memory at a time: buckets of triples between two parts.

The entities lie in p parts, so each triple in one of p x p buckets. A *state* is the set of c parts that are in memory;
the next one differs in one part, which is a *swap*. The states follow BETA (Mohoney et al. 2021, "Marius: Learning
Massive Graph Embeddings on a Single Machine"): c - 1 parts stay while all others pass through the last place, so that
these c - 1 are done with; then c - 1 of the others take their places. A bucket trains in one of the states that hold
both of its parts, drawn at random as in COMET (Waleffe et al. 2023, "MariusGNN"), and the triples of a state are
shuffled. An epoch may pass over all states several times, named and drawn anew each time; a pass trains its share of
the triples of every bucket, so that rows rest less long while others train.

Everything is a function of (seed, epoch, p, c, P), whatever the placement of the table, the threads and the ranks.

Legend: E entities, T triples, S states of an epoch, p parts, c of them in memory, P passes.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from graph_emb.core.errors import ConfigError

PIECE = 1 << 17
"""Triples that are sorted at a time."""


def beta_states(parts: int, resident: int) -> np.ndarray:
    """The parts that are in memory in each state of an epoch, (S, c); neighbours differ in one place."""
    held, rest = list(range(resident)), list(range(resident, parts))
    states = [list(held)]

    def swap(place: int, part: int) -> None:
        held[place] = part
        states.append(list(held))

    while rest:
        waiting = [held[-1], *rest[:-1]]
        for part in rest:
            swap(-1, part)
        for place in range(min(resident - 1, len(waiting))):  # those in the other places have met all
            swap(place, waiting[place])
        rest = waiting[resident - 1 :]
    return np.array(states)


def num_swaps(parts: int, resident: int) -> int:
    """Swaps of an epoch; the parts that are in memory at its begin do not count."""
    return len(beta_states(parts, resident)) - 1


def bucket_of(
    schedule: BucketSchedule, owner: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    """The bucket of triples (n, 3), (n,), of p x p.

    Args:
        owner: The parts of entities, (B,) to (B,).
    """
    return lambda triples: owner(triples[:, 0]) * schedule.parts + owner(triples[:, 2])


@dataclass(frozen=True, eq=False)
class BucketEpoch:
    """The order of an epoch.

    Attributes:
        states: The parts in memory, (S, c).
        state: In which state a pass trains its share of the bucket of two parts, (P, p, p).
    """

    states: np.ndarray
    state: np.ndarray


class BucketSchedule:
    """The buckets of a table's parts, epoch for epoch.

    An epoch begins with the parts that the last one ended with.

    Args:
        parts: p, at least 2.
        resident: c, at least 2, at most p.
        num_rows: Of the table; part k has the rows ``bounds[k]`` to ``bounds[k + 1]``.
        seed: Any integer.
        passes: P.
    Attributes:
        bounds: Shape (p + 1,).
    Raises:
        ConfigError: numbers out of their limits.
    Example:
        >>> from graph_emb.sampling.buckets import BucketSchedule
        >>> schedule = BucketSchedule(4, 2, num_rows=100)
        >>> schedule.bounds.tolist(), len(schedule.epoch(0).states) - 1  # BETA's 5 swaps
        ([0, 25, 50, 75, 100], 5)
    """

    def __init__(self, parts: int, resident: int, num_rows: int, seed: int = 0, passes: int = 1) -> None:
        if not 2 <= resident <= parts <= num_rows:
            raise ConfigError(
                f"buckets of {parts} parts, {resident} of them in memory, of {num_rows} rows: parts must be at least 2 "
                "and at most the rows, those in memory at least 2 and at most all"
            )
        self.parts, self.resident, self.passes, self._seed = parts, resident, passes, seed
        self.bounds = np.arange(parts + 1) * num_rows // parts
        self._names: list[np.ndarray] = []

    @cached_property
    def _states(self) -> np.ndarray:
        return beta_states(self.parts, self.resident)

    @property
    def num_swaps(self) -> int:
        """Swaps of an epoch."""
        return self.passes * (len(self._states) - 1)

    def epoch(self, epoch: int) -> BucketEpoch:
        """The order of an epoch, from 0."""
        states, state = zip(*(self._pass(epoch * self.passes + k) for k in range(self.passes)), strict=True)
        before = np.arange(self.passes)[:, None, None] * len(self._states)
        return BucketEpoch(np.concatenate(states), np.stack(state) + before)

    def _pass(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The states of a pass, counted through all epochs, and in which of them each bucket trains."""
        states = self._name(number)[self._states]
        held = np.zeros((len(states), self.parts), np.bool_)
        np.put_along_axis(held, states, True, axis=1)
        draws = np.random.default_rng((self._seed, number, 1)).random((self.parts, self.parts))
        state = np.empty((self.parts, self.parts), np.int64)
        for first in range(self.parts):
            for second in range(self.parts):
                able = np.flatnonzero(held[:, first] & held[:, second])
                state[first, second] = able[int(draws[first, second] * len(able))]
        return states, state

    def _name(self, which: int) -> np.ndarray:
        """Which part takes the place of each one of ``beta_states`` in a pass, (p,)."""
        for number in range(len(self._names), which + 1):
            rng = np.random.default_rng((self._seed, number, 0))
            names = np.arange(self.parts)
            if number:
                last = np.zeros(self.parts, np.bool_)
                last[self._names[-1][self._states[-1]]] = True
                names = np.concatenate([rng.permutation(names[last]), rng.permutation(names[~last])])
            else:
                names = rng.permutation(names)
            self._names.append(names)
        return self._names[which]

    def part_of(self, rows: np.ndarray) -> np.ndarray:
        """The part of each row, (B,)."""
        return np.searchsorted(self.bounds, rows, side="right") - 1


class TriplesByBucket(Protocol):
    """The triples of each bucket.

    Attributes:
        sizes: How many, (p * p,).
    """

    sizes: np.ndarray

    def of(self, bucket: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers of a bucket's triples in the graph, rising, (n,), and their records, (n,), where they are not
        those of an array with these numbers."""


class HeldTriples:
    """Triples in memory by bucket: a number of 4 bytes each (8 of 2^31 and more).

    Args:
        triples: Shape (T, 3).
        bucket: The bucket of triples (n, 3), (n,).
        num_buckets: N.
    Attributes:
        sizes: Triples of each bucket, (N,).
    """

    def __init__(self, triples: np.ndarray, bucket: Callable[[np.ndarray], np.ndarray], num_buckets: int) -> None:
        pieces = [slice(low, low + PIECE) for low in range(0, len(triples), PIECE)]
        self.sizes = np.zeros(num_buckets, np.int64)
        for piece in pieces:
            self.sizes += np.bincount(bucket(triples[piece]), minlength=num_buckets)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._numbers = np.empty(len(triples), np.int32 if len(triples) < 1 << 31 else np.int64)
        following = self._starts[:-1].copy()
        for piece in pieces:  # a counting sort
            own = bucket(triples[piece])
            order = np.argsort(own, kind="stable")
            sizes = np.bincount(own, minlength=num_buckets)
            within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            self._numbers[following[own[order]] + within] = order + piece.start
            following += sizes

    def of(self, bucket: int) -> tuple[np.ndarray, None]:
        """See ``TriplesByBucket``."""
        return self._numbers[self._starts[bucket] : self._starts[bucket + 1]], None


class BucketOrder:
    """The triples of a graph in the order of a schedule: state by state, shuffled in each.

    It holds the records of a state's triples in their order, or their numbers.

    Args:
        schedule: Of the entities' parts.
        triples: By the buckets of ``bucket_of``.
        seed: Of the shuffles.
    """

    def __init__(self, schedule: BucketSchedule, triples: TriplesByBucket, seed: int = 0) -> None:
        self._schedule, self._triples, self._seed = schedule, triples, seed
        self._epochs: dict[int, tuple[BucketEpoch, np.ndarray]] = {}
        self._state = -1, -1  # the epoch and state whose triples are shuffled
        self._shuffled: tuple[np.ndarray, np.ndarray | None] = np.empty(0, np.int64), None

    def _epoch(self, epoch: int) -> tuple[BucketEpoch, np.ndarray]:
        """An epoch, and the triples of it when each of its states ends, (S,); two neighbours are kept."""
        if epoch not in self._epochs:
            now, passes = self._schedule.epoch(epoch), self._schedule.passes
            shares = (self._triples.sizes + np.arange(passes)[::-1, None]) // passes  # every P-th, from its own on
            sizes = np.bincount(now.state.ravel(), shares.ravel(), len(now.states))
            self._epochs = {number: own for number, own in self._epochs.items() if abs(number - epoch) == 1}
            self._epochs[epoch] = now, np.cumsum(sizes.astype(np.int64))
        return self._epochs[epoch]

    def places(self, epoch: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers of the triples at places [low, high) of the order of an epoch, low < high, int64, and their records,
        (high - low,), where ``TriplesByBucket`` gives them.
        """
        _, ends = self._epoch(epoch)
        first, last = np.searchsorted(ends, (low, high - 1), side="right")
        numbers, given = [], []
        for state in range(first, last + 1):
            begin = int(ends[state - 1]) if state else 0
            own, records = self._of_state(epoch, state)
            here = slice(max(0, low - begin), high - begin)
            numbers.append(own[here])
            if records is not None:
                given.append(records[here])
        return np.concatenate(numbers), np.concatenate(given) if given else None

    def _of_state(self, epoch: int, state: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers of the triples of a state of an epoch, shuffled, and their records."""
        if self._state != (epoch, state):
            self._shuffled = np.empty(0, np.int64), None  # before the next ones are there
            now, _ = self._epoch(epoch)
            passes = self._schedule.passes
            which = state // (len(now.states) // passes)
            runs = [self._triples.of(bucket) for bucket in np.flatnonzero(now.state[which].ravel() == state).tolist()]
            numbers = np.concatenate([np.empty(0, np.int64), *(own[which::passes] for own, _ in runs)])
            given = [records[which::passes] for _, records in runs if records is not None]
            del runs
            order = np.random.default_rng((self._seed, epoch, state, 2)).permutation(len(numbers))
            self._shuffled = numbers[order], np.concatenate(given)[order] if given else None
            self._state = epoch, state
        return self._shuffled

    def held_at(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """The parts in memory when the triples at places (K,) of the order of an epoch train: (K, c)."""
        now, ends = self._epoch(epoch)
        return now.states[np.searchsorted(ends, places, side="right")]

    def ranges(self, epoch: int, low: int, high: int, *, last: bool = False) -> list[tuple[int, int]]:
        """The rows [low, high) of the parts that triples at places [low, high) of the order need, then of those that
        the next state adds which needs others.

        Args:
            last: No epoch follows; else the next state may be one of the next epoch, which comes while this one ends.
        """
        now, ends = self._epoch(epoch)
        first, final = np.searchsorted(ends, (low, high - 1), side="right").tolist()
        parts = dict.fromkeys(now.states[first : final + 1].ravel().tolist())
        new = self._added(epoch, final, parts)
        if not new and not last:
            new = self._added(epoch + 1, -1, parts)
        bounds = self._schedule.bounds
        return [(int(bounds[part]), int(bounds[part + 1])) for part in [*parts, *new]]

    def _added(self, epoch: int, state: int, parts: Container[int]) -> list[int]:
        """The parts beside others of the first state after one of the epoch that trains something and adds any."""
        now, ends = self._epoch(epoch)
        trained = np.flatnonzero(np.diff(ends, prepend=0))
        for later in trained[np.searchsorted(trained, state, side="right") :].tolist():
            if new := [part for part in now.states[later].tolist() if part not in parts]:
                return new
        return []


class GridSchedule:
    """The buckets of two tables of the same parts, episode for episode: each token part with each context part once.

    One token part stays while all context parts pass; the next token part meets them in an order of its own that begins
    with the last one. So does the next episode, with the last parts of both. An episode has P - 1 swaps of token parts
    and P (P - 1) of context parts.

    Args:
        parts: P, at least 2.
        num_rows: Of each table; part k has the rows ``bounds[k]`` to ``bounds[k + 1]``.
        seed: Any integer.
    Attributes:
        bounds: Shape (P + 1,).
    Raises:
        ConfigError: numbers out of their limits.
    Example:
        >>> from graph_emb.sampling.buckets import GridSchedule
        >>> GridSchedule(2, num_rows=10).buckets(0).tolist()
        [[0, 0], [0, 1], [1, 1], [1, 0]]
    """

    def __init__(self, parts: int, num_rows: int, seed: int = 0) -> None:
        if not 2 <= parts <= num_rows:
            raise ConfigError(f"buckets of {parts} parts of {num_rows} rows: at least 2, and at most the rows")
        self.parts, self._seed = parts, seed
        self.bounds = np.arange(parts + 1) * num_rows // parts
        self._ends: list[tuple[int, int]] = []

    def buckets(self, episode: int) -> np.ndarray:
        """Token and context part of each bucket of an episode, counted over the whole training; (P * P, 2)."""
        for number in range(len(self._ends), episode):
            self._draw(number)
        return self._draw(episode)

    def _draw(self, episode: int) -> np.ndarray:
        rng = np.random.default_rng((self._seed, episode, 2))
        token, context = (None, None) if episode == 0 else self._ends[episode - 1]
        buckets = np.empty((self.parts, self.parts, 2), np.int64)
        for row, part in enumerate(self._order(rng, token)):
            columns = self._order(rng, context)
            buckets[row, :, 0], buckets[row, :, 1] = part, columns
            context = int(columns[-1])
        if episode == len(self._ends):
            self._ends.append((int(buckets[-1, -1, 0]), context or 0))
        return buckets.reshape(-1, 2)

    def _order(self, rng: np.random.Generator, first: int | None) -> np.ndarray:
        """All parts, at random, but for the first one."""
        order = rng.permutation(self.parts)
        if first is not None:
            order = np.concatenate([[first], order[order != first]])
        return order
