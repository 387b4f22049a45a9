"""Ours, the default: cluster, contract, split the coarsest graph, refine on the way back, under all limits at once.

Levels of a graph get coarser by size-constrained label propagation; the coarsest is split by recursive bisection:
greedy growing, several tries, the best kept.

Meyerhenke, Sanders, Schulz, "Partitioning complex networks via size-constrained clustering" (SEA 2014); the pairing of
nodes that favour the same full cluster follows KaMinPar (Gottesbueren et al., ESA 2021). Here a cluster has a limit
for every constraint. Legend: N nodes, M stored entries, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import clustering as kernels
from partition.kernels import refinement
from partition.kernels.sorting import cut_of, group
from partition.methods.base import Problem, any_but_none, method
from partition.methods.effort import Effort, MultilevelSettings, Search
from partition.problem import close_gaps

CHUNK = 32
"""Consecutive nodes that stay together in a random order: memory near in the input stays near."""
BATCHES = 48
MIN_BATCH = 64
SERIAL_ENTRIES = 2_000_000
"""Below this a batch costs less than handing it to threads."""
ALONE_ENTRIES = 200_000
"""Below this a whole loop does."""
SWAP_TRIES = 2_000
PROPAGATION_ROUNDS = 6


@dataclass
class Level:
    """A graph on the way to the coarsest.

    Attributes:
        indptr, indices, weights: Symmetric rows, (N + 1,), (M,), (M,) or empty.
        node_weights: (N, C), int64.
        labels: (N,), int32: the node of the next coarser level that each node is part of; None at the coarsest.
        groups: (N,), int32, or empty: nodes of different groups never merge.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray
    node_weights: np.ndarray
    groups: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    labels: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def propagation(
        self, labels: np.ndarray, loads: np.ndarray, limits: np.ndarray, threads: ThreadPool
    ) -> Propagation:
        """Label propagation on this level."""
        return Propagation(self, labels, loads, limits, threads)

    @cached_property
    def totals(self) -> np.ndarray:
        """(C,): the sum of the node weights."""
        return self.node_weights.sum(axis=0)

    @cached_property
    def sums(self) -> np.dtype[np.signedinteger]:
        """The type that holds any sum of the weights."""
        total = self.weights.sum(dtype=np.int64) if len(self.weights) else len(self.indices)
        return np.dtype(np.int32 if total < 2**31 else np.int64)


def alone_or(threads: ThreadPool, entries: int) -> ThreadPool:
    """The pool, or one thread for a loop over too few entries to share."""
    return threads if entries >= ALONE_ENTRIES else ThreadPool(1)


def random_order(num_nodes: int, rng: np.random.Generator) -> np.ndarray:
    """Every node once, int32: chunks of neighbours in memory, in random order."""
    chunks = rng.permutation(-(-num_nodes // CHUNK)).astype(np.int32)
    order = (chunks[:, None] * np.int32(CHUNK) + np.arange(CHUNK, dtype=np.int32)).ravel()
    return order[order < num_nodes]


def batch_of(num_nodes: int) -> int:
    """Nodes of a batch of label propagation."""
    return max(MIN_BATCH, -(-num_nodes // BATCHES))


class Propagation:
    """Label propagation on one level: clusters, or parts that get better.

    Args:
        labels: (N,), int32, changed in place.
        loads: (L, C), int64: what each label holds, kept up to date.
        limits: (C,): what a label may hold.
    """

    def __init__(
        self, level: Level, labels: np.ndarray, loads: np.ndarray, limits: np.ndarray, threads: ThreadPool
    ) -> None:
        self.level, self.labels, self.loads, self.limits, self.threads = level, labels, loads, limits, threads
        widest = int(np.diff(level.indptr).max(initial=0))
        count = threads.num_threads if len(level.indices) > SERIAL_ENTRIES else 1
        self._scratch = [
            (np.zeros(len(loads), level.sums), np.empty(min(widest, len(loads)) + 1, np.int32)) for _ in range(count)
        ]

    def round(
        self, rng: np.random.Generator, *, sizes: np.ndarray, favoured: np.ndarray, grouped: bool
    ) -> tuple[int, int]:
        """One pass over all nodes: (nodes moved, labels left without a node)."""
        level = self.level
        order = random_order(level.num_nodes, rng)
        seed = np.uint64(rng.integers(2**63))
        groups = level.groups if grouped else np.empty(0, np.int32)
        batch = batch_of(level.num_nodes)
        if len(self._scratch) == 1:
            return kernels.sweep(
                order, batch, level.indptr, level.indices, level.weights, level.node_weights,
                self.labels, self.loads, self.limits, groups, seed, *self._scratch[0], favoured, sizes,
            )  # fmt: skip
        moved = emptied = 0
        given = (level.indptr, level.indices, level.weights, level.node_weights, self.labels, self.loads, self.limits)
        count = len(self._scratch)

        def propose(nodes: np.ndarray, targets: np.ndarray, thread: int) -> None:
            low, high = thread * len(nodes) // count, (thread + 1) * len(nodes) // count
            kernels.propose(nodes[low:high], *given, groups, seed, *self._scratch[thread], targets[low:high], favoured)

        for start in range(0, level.num_nodes, batch):
            nodes = order[start : start + batch]
            targets = np.empty(len(nodes), np.int32)
            calls = [partial(propose, nodes, targets, thread) for thread in range(count)]
            self.threads.run(calls)
            done = kernels.apply(nodes, targets, self.labels, level.node_weights, self.loads, self.limits, sizes)
            moved += done[0]
            emptied += done[1]
        return moved, emptied


class PropagationRounds(Protocol):
    """Label propagation, as ``Propagation`` is."""

    def round(
        self, rng: np.random.Generator, *, sizes: np.ndarray, favoured: np.ndarray, grouped: bool
    ) -> tuple[int, int]:
        """One pass over all nodes: (nodes moved, labels left without a node)."""


class Clusterable(Protocol):
    """A graph that clusters form on, in memory or not; the members are those of ``Level``."""

    node_weights: np.ndarray
    groups: np.ndarray

    @property
    def num_nodes(self) -> int:
        """N."""

    def propagation(
        self, labels: np.ndarray, loads: np.ndarray, limits: np.ndarray, threads: ThreadPool
    ) -> PropagationRounds:
        """Label propagation on this graph."""


def cluster(
    level: Clusterable, limits: np.ndarray, rounds: int, target: int, rng: np.random.Generator, threads: ThreadPool
) -> np.ndarray:
    """Clusters of at most ``limits``, (N,), int32, any numbers below N; stops early at ``target`` clusters."""
    num_nodes = level.num_nodes
    labels = np.arange(num_nodes, dtype=np.int32)
    loads = level.node_weights.copy()
    sizes = np.ones(num_nodes, np.int32)
    favoured = np.full(num_nodes, -1, np.int32)
    propagation = level.propagation(labels, loads, limits, threads)
    left = num_nodes
    for _ in range(rounds):
        moved, emptied = propagation.round(rng, sizes=sizes, favoured=favoured, grouped=True)
        left -= emptied
        if left <= target or moved < num_nodes // 50:
            break
    if left > target:
        kernels.pair_up(labels, sizes, favoured, level.groups, level.node_weights, loads, limits)
    return labels


def contract(level: Level, labels: np.ndarray, threads: ThreadPool) -> Level:
    """The graph whose nodes are the clusters; ``level.labels`` is set to their numbers."""
    threads = alone_or(threads, len(level.indices))
    numbers, num_labels = kernels.number(labels)
    order, starts = group(numbers, num_labels, np.int32)
    begins = np.append(0, np.cumsum(np.diff(level.indptr)[order]))[starts]  # rows if no edge were merged
    # Only the pages that are written count: the arrays are as long as they could get, then cut.
    indices = np.empty(begins[-1], np.int32)
    weights = np.empty(begins[-1], level.sums)
    degrees = np.empty(num_labels, np.int64)
    widest = min(num_labels, int(np.diff(begins).max(initial=0))) + 1
    spans = threads.ranges(num_labels, begins)
    calls = [
        partial(
            kernels.contract,
            order, starts, low, high, begins[low], level.indptr, level.indices, level.weights, numbers,
            np.zeros(num_labels, level.sums), np.empty(widest, np.int32), indices, weights, degrees,
        )
        for low, high in spans
    ]  # fmt: skip
    stops = threads.run(calls)
    size = close_gaps([int(begins[low]) for low, _ in spans], stops, (indices, weights))
    indices.resize(size, refcheck=False)
    weights.resize(size, refcheck=False)
    indptr = np.zeros(num_labels + 1, np.int64)
    np.cumsum(degrees, out=indptr[1:])
    node_weights = np.zeros((num_labels, level.node_weights.shape[1]), np.int64)
    kernels.add_weights(numbers, level.node_weights, node_weights)
    groups = level.groups[order[starts[:-1]]] if len(level.groups) else level.groups
    level.labels = numbers
    return Level(indptr, indices, weights, node_weights, groups)


def coarsen(
    finest: Level, limits: np.ndarray, effort: Effort, target: int, rng: np.random.Generator, threads: ThreadPool
) -> list[Level]:
    """Levels from the given one to the coarsest: about ``target`` nodes, or where clustering no longer helps.

    Args:
        limits: (C,): what a cluster may hold on any level; on one it holds ``effort.growth`` mean nodes at most.
    """
    levels = [finest]
    while levels[-1].num_nodes > target:
        means = finest.totals / levels[-1].num_nodes
        steady = np.minimum(limits, np.maximum(effort.growth * means, 1)).astype(np.int64)
        labels = cluster(levels[-1], steady, effort.rounds, target, rng, threads)
        coarser = contract(levels[-1], labels, threads)
        if coarser.num_nodes > 0.95 * levels[-1].num_nodes:
            levels[-1].labels = None
            break
        levels.append(coarser)
    return levels


def scales_of(means: np.ndarray) -> np.ndarray:
    """Powers of two near 1 / mean, so that sums of overloads are exact in any order."""
    return np.exp2(-np.floor(np.log2(np.maximum(means, 1.0))))


LEAST_GAIN = 0.002
TABLE_BYTES_PER_ENTRY = 12
LEAST_TABLE_BYTES = 1 << 27
"""A larger table of connections is not made: label propagation refines alone."""


class Parts:
    """A partition of one level and what each part holds.

    Attributes:
        parts: (N,), int32.
        loads: (P, C), int64.
        bounds: (P, C), int64: what each part may hold; given as (C,) for all, or (P, C).
        limits: (C,), int64: the least of them.
    """

    def __init__(self, level: Level, parts: np.ndarray, limits: np.ndarray, num_parts: int) -> None:
        self.level, self.parts, self.num_parts = level, parts, num_parts
        self.bounds = np.broadcast_to(limits, (num_parts, limits.shape[-1])).copy()  # read-only is another type
        self.limits = self.bounds.min(axis=0)
        self.loads = np.zeros(self.bounds.shape, np.int64)
        kernels.add_weights(parts, level.node_weights, self.loads)
        self.scales = scales_of(level.totals / num_parts)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Arrays of the graph that the loops take."""
        level = self.level
        return level.indptr, level.indices, level.weights, level.node_weights

    @property
    def overload(self) -> float:
        """How far the loads are above the limits, in units of the scales; 0.0 where every limit holds."""
        return float((np.maximum(self.loads - self.bounds, 0) * self.scales).sum())

    def rebalance(self, rng: np.random.Generator) -> float:
        """Mend what is above its limit: the overload that is left."""
        if self.overload == 0.0:
            return 0.0
        order = rng.permutation(self.level.num_nodes).astype(np.int32)
        left = refinement.rebalance(*self.rows, self.parts, self.loads, self.bounds, self.scales, order)
        for _ in range(3):
            if left == 0.0:
                break
            left = refinement.swap(
                self.level.node_weights, self.parts, self.loads, self.bounds, self.scales, order, SWAP_TRIES
            )
            left = refinement.rebalance(*self.rows, self.parts, self.loads, self.bounds, self.scales, order)
        return left

    @property
    def score(self) -> tuple[float, int]:
        """Overload, then the weight of the edges between parts, counted from both ends: the less the better."""
        return self.overload, int(cut_of(*self.rows[:3], self.parts))

    def refine(self, searches: tuple[Search, ...], rng: np.random.Generator, threads: ThreadPool) -> None:
        """Lower the cut; nothing goes further above its limit than it was."""
        level, entries = self.level, len(self.level.indices)
        table_bytes = level.num_nodes * self.num_parts * level.sums.itemsize
        if table_bytes > max(LEAST_TABLE_BYTES, TABLE_BYTES_PER_ENTRY * entries):
            nothing = np.empty(0, np.int32)
            propagation = level.propagation(self.parts, self.loads, self.limits, threads)
            for _ in range(PROPAGATION_ROUNDS):
                moved, _ = propagation.round(rng, sizes=nothing, favoured=nothing, grouped=False)
                if moved < LEAST_GAIN * level.num_nodes:
                    break
            return
        threads = alone_or(threads, entries)
        table = np.empty((level.num_nodes, self.num_parts), level.sums)
        spans = threads.ranges(level.num_nodes, level.indptr)
        threads.run([partial(refinement.connect, *self.rows[:3], self.parts, a, b, table) for a, b in spans])
        last = cut = int(refinement.outside(table, self.parts))
        for search in searches:
            if last < search.after * cut:
                continue
            least, marks = LEAST_GAIN * cut, np.empty(level.num_nodes, np.int8)
            for _ in range(search.rounds):
                threads.run([partial(refinement.mark_boundary, table, self.parts, a, b, marks) for a, b in spans])
                seeds = refinement.marked(marks, random_order(level.num_nodes, rng))
                # the gain of a round, from both ends as the cut
                last = 2 * refinement.search(
                    *self.rows, self.parts, self.loads, self.bounds, self.bounds, self.scales, table, seeds,
                    search.per_search or len(seeds), search.patience,
                )  # fmt: skip
                cut -= last
                if last <= least:
                    break


INNER_ROOM = 0.95
"""Of what a part may hold above an even share: the most that it may on the levels between the coarsest and the finest.
Between parts that arrive there full, each of something else, the last and strongest search finds no move."""
ROUNDS = 8
LEAST_PATIENCE = 50
LEAST_REFINED = 8


@method("multilevel", refusal=any_but_none)
def multilevel(
    problem: Problem, *, effort: str = "default", repeats: int | None = None, cycles: int | None = None
) -> np.ndarray:
    """Multilevel partitioning; of several runs the best, refined again by cycles that keep its parts.

    Args:
        effort: ``"default"``, one run, or ``"high"``, three runs and a cycle of more work each.
        repeats: Runs from scratch with clusters of other sizes, at least 1; None: as the effort says.
        cycles: Coarsenings inside the best parts (Walshaw, 2004), at least 0; None: as the effort says.
    Raises:
        ConfigError: an unknown effort, or a count out of range.
    """
    settings, adjacency = MultilevelSettings.of(effort, repeats, cycles), problem.adjacency
    finest = Level(
        adjacency.indptr, adjacency.indices, adjacency.weight_array, np.ascontiguousarray(problem.constraints.weights.T)
    )
    limits, rng = problem.constraints.limits(problem.num_parts), np.random.default_rng(problem.seed)
    with ThreadPool(problem.num_threads) as threads:
        return best_parts(finest, problem.num_parts, limits, settings, rng, threads)


def inner_limits(totals: np.ndarray, limits: np.ndarray, num_parts: int) -> np.ndarray:
    """(C,): limits of a part on the levels between the coarsest and the finest."""
    even = -(-totals // num_parts)
    return even + (INNER_ROOM * (limits - even)).astype(np.int64)  # a limit is never below the even share


def best_parts(
    finest: Level, num_parts: int, limits: np.ndarray, settings: MultilevelSettings, rng: np.random.Generator,
    threads: ThreadPool,
) -> np.ndarray:  # fmt: skip
    """(N,), int32: the best of several runs.

    Args:
        limits: (C,): what a part may hold.
    """
    best: tuple[float, int] | None = None
    parts, runs = np.empty(0, np.int32), settings.repeats + settings.cycles
    for turn in range(runs):
        start = finest if turn < settings.repeats else replace(finest, groups=parts, labels=None)
        caps = settings.caps(finest.totals, limits, turn)
        made = descend(start, num_parts, limits, caps, settings, rng, threads)
        if runs == 1:
            return made.parts
        score = made.score
        if best is None or score < best:
            best, parts = score, made.parts
    return parts


def descend(
    start: Level, num_parts: int, limits: np.ndarray, caps: np.ndarray, settings: MultilevelSettings,
    rng: np.random.Generator, threads: ThreadPool,
) -> Parts:  # fmt: skip
    """Down to the coarsest level and back; with groups, from these parts on.

    A part holds ``limits`` at most, (C,) or, with groups that keep to them, (P, C); a cluster ``caps``, (C,).
    """
    given, entries = settings.effort, len(start.indices)
    inner = inner_limits(start.totals, limits, num_parts) if limits.ndim == 1 else limits
    levels = coarsen(start, caps, given, settings.target(num_parts), rng, threads)
    coarsest = levels.pop()
    if len(coarsest.groups):
        made = Parts(coarsest, coarsest.groups.copy(), inner if levels else limits, num_parts)
        made.refine(given.searches(len(coarsest.indices), entries), rng, threads)
    else:
        made = first_parts(coarsest, num_parts, limits, given, entries, rng, threads)
    while levels:
        level = levels.pop()
        assert level.labels is not None  # only the coarsest has none
        made = Parts(level, made.parts[level.labels], inner if levels else limits, num_parts)
        made.rebalance(rng)
        made.refine(given.searches(len(level.indices), entries), rng, threads)
        level.labels = None
    return made


def first_parts(
    level: Level, num_parts: int, limits: np.ndarray, effort: Effort, entries: int,
    rng: np.random.Generator, threads: ThreadPool,
) -> Parts:  # fmt: skip
    """The best of several starts by recursive bisection: least overload, then least cut.

    Args:
        entries: Of the graph. A coarsest level with many of them gets fewer starts, and at least ``LEAST_REFINED`` are
            refined.
    """
    starts = effort.num_starts(len(level.indices), entries, num_parts)
    searches = effort.searches(len(level.indices), entries)
    threads = alone_or(threads, starts * effort.tries * len(level.indices))

    def start(own: np.random.Generator) -> tuple[Parts, np.random.Generator]:
        parts = Parts(level, _bisect_recursively(level, num_parts, limits, effort.tries, own), limits, num_parts)
        parts.rebalance(own)
        return parts, own

    def refined(parts: Parts, own: np.random.Generator) -> Parts:
        parts.refine(searches, own, ThreadPool(1))
        return parts

    # A generator for each start: what it draws does not depend on the thread that runs it.
    made = threads.run([partial(start, own) for own in rng.spawn(starts)])
    made.sort(key=lambda made: made[0].score)
    best = made[: max(LEAST_REFINED, int(np.ceil(effort.refined * starts)))]
    return min(threads.run([partial(refined, *made) for made in best]), key=lambda parts: parts.score)


def _bisect_recursively(
    level: Level, num_parts: int, limits: np.ndarray, tries: int, rng: np.random.Generator
) -> np.ndarray:
    """(N,), int32: parts near the limits; nodes that do not fit yet are moved later."""
    parts = np.zeros(level.num_nodes, np.int32)
    local = np.full(level.num_nodes, -1, np.int32)
    pieces = [(np.arange(level.num_nodes, dtype=np.int32), 0, num_parts)]
    while pieces:
        nodes, first, count = pieces.pop()
        if count == 1 or not len(nodes):
            parts[nodes] = first
            continue
        indptr, indices, weights = refinement.induced(level.indptr, level.indices, level.weights, nodes, local)
        piece = Level(indptr, indices, weights, np.ascontiguousarray(level.node_weights[nodes]))
        left = count // 2
        side = _bisect(piece, left, count - left, limits, tries, rng)
        pieces.append((nodes[side == 0], first, left))
        pieces.append((nodes[side == 1], first + left, count - left))
    return parts


def _bisect(
    level: Level, left: int, right: int, limits: np.ndarray, tries: int, rng: np.random.Generator
) -> np.ndarray:
    """The best of several tries, (N,), int32, 0 or 1: ``left`` parts' share and ``right`` parts' share."""
    totals = level.totals
    count = left + right
    # Each bisection gets an even share of what all of them may add: (1 + e)^depth is the limit over the mean.
    room = np.maximum(limits * count / np.maximum(totals, 1), 1.0) ** (1 / np.ceil(np.log2(count)))
    shares = np.array([left, right])[:, None] / count * totals[None, :]
    bounds = np.maximum(np.ceil(shares), np.floor(shares * room)).astype(np.int64)
    # A state in between may exceed a bound by one node: clusters are heavy here, and few fit exactly.
    soft = bounds + level.node_weights.max(axis=0)
    scales = scales_of(totals / 2)
    orders = np.empty((tries, level.num_nodes), np.int32)
    for order in orders:
        order[:] = rng.permutation(level.num_nodes)
    best = np.zeros(level.num_nodes, np.int32)
    refinement.bisect(
        level.indptr, level.indices, level.weights, level.node_weights, shares[1], bounds, soft, scales, orders, ROUNDS,
        max(LEAST_PATIENCE, level.num_nodes), np.empty((level.num_nodes, 2), level.sums), best,
    )  # fmt: skip
    return best
