"""Ours, the default: cluster, contract, split the coarsest graph, refine on the way back, under all limits at once.

The coarsest level is split by recursive bisection: greedy growing, several tries, the best kept. Legend: N nodes,
M stored entries, P parts, C constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import clustering as kernels
from partition.kernels import refinement
from partition.kernels.sorting import cut_of
from partition.methods.base import Problem, any_but_none, method
from partition.methods.coarsening import Level, alone_or, coarsen, random_order
from partition.methods.effort import MIXED, Effort, MultilevelSettings, Search

SWAP_TRIES = 2_000
PROPAGATION_ROUNDS = 6


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
SETTLED, MOST_SETTLED = 0.005, 0.05
"""The share of the edges' weight, for each million entries and at most, below which a cut is taken as it is: parts are
those of the graph itself there, and other ways take as long as where more is cut."""
SURE_WAYS, SURE_ENTRIES = 3, 4_000_000
"""Ways before a cut is taken as it is, from so many entries on: cuts of some tenths of a percent differ by a third from
way to way, and two more take a quarter of the time."""
ROUNDS = 8
LEAST_PATIENCE = 50
LEAST_REFINED = 6


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
    settings = settings.on(len(finest.indices), finest.num_nodes)
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
        ways = settings.ways(len(finest.indices), num_parts)
        caps = [settings.caps(finest.totals, limits, turn + way) for way in range(ways)]
        made = descend(start, num_parts, limits, caps, settings, rng, threads)
        if runs == 1:
            return made.parts
        score = made.score
        if best is None or score < best:
            best, parts = score, made.parts
    return parts


def descend(
    start: Level, num_parts: int, limits: np.ndarray, caps: Sequence[np.ndarray], settings: MultilevelSettings,
    rng: np.random.Generator, threads: ThreadPool,
) -> Parts:  # fmt: skip
    """Down to the coarsest level and back; with groups, from these parts on.

    Args:
        limits: What a part holds at most, (C,) or, with groups that keep to them, (P, C).
        caps: What a cluster does, (C,) each. The first is for the way from ``start``; the others for further ways from
            the level after it, which cost little beside that one. The best parts of that level go on.
    """
    given, entries, target = settings.effort, len(start.indices), settings.target(num_parts)
    inner = inner_limits(start.totals, limits, num_parts) if limits.ndim == 1 else limits

    def back(levels: list[Level], made: Parts) -> Parts:
        """Up the levels that are left, each with the parts of the coarser one."""
        while levels:
            level = levels.pop()
            assert level.labels is not None  # only the coarsest has none
            made = Parts(level, made.parts[level.labels], limits if level is start else inner, num_parts)
            made.rebalance(rng)
            made.refine(given.searches(len(level.indices), entries), rng, threads)
            level.labels = None
        return made

    def found(levels: list[Level], ways: int) -> Parts:
        """New parts of the coarsest level, and back from there."""
        coarsest = levels.pop()
        return back(levels, first_parts(coarsest, num_parts, limits, given, entries, rng, threads, ways=ways))

    levels = coarsen(start, caps[0], given, target, rng, threads)
    if settings.mixed is not None and len(levels) > 1 and levels[1].weight > MIXED * start.weight:
        given, caps = settings.mixed, caps[: settings.mixed.ways]
        levels = coarsen(start, caps[0], given, target, rng, threads)
    if len(start.groups):
        coarsest = levels.pop()
        made = Parts(coarsest, coarsest.groups.copy(), inner if levels else limits, num_parts)
        made.refine(given.searches(len(coarsest.indices), entries), rng, threads)
        return back(levels, made)
    if len(caps) == 1 or len(levels) < 3:
        return found(levels, 1)
    second, settled = levels[1], (0.0, int(min(SETTLED * entries / 1e6, MOST_SETTLED) * start.weight))
    best = found(levels[1:], len(caps))
    score = best.score
    for ways, cap in enumerate(caps[1:], 1):
        if score < settled and (ways >= SURE_WAYS or entries < SURE_ENTRIES):
            break
        made = found(coarsen(replace(second, labels=None), cap, given, target, rng, threads), len(caps))
        if (its := made.score) < score:
            best, score = made, its
    return back([start], best)


def first_parts(
    level: Level, num_parts: int, limits: np.ndarray, effort: Effort, entries: int,
    rng: np.random.Generator, threads: ThreadPool, *, ways: int = 1,
) -> Parts:  # fmt: skip
    """The best of several starts by recursive bisection: least overload, then least cut.

    Args:
        entries: Of the graph. A coarsest level with many of them gets fewer starts, and at least ``LEAST_REFINED`` are
            refined.
        ways: Down to coarsest levels, which share the starts.
    """
    starts = effort.num_starts(len(level.indices), entries, num_parts, ways)
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
