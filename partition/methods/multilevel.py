"""Ours, the default: cluster, contract, split the coarsest graph, refine on the way back, under all limits at once.

The coarsest graph is split by recursive bisection: greedy growing, several tries, the best kept.
Legend: N nodes, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import refinement as kernels
from partition.methods.base import Problem, any_but_none, at_least, method
from partition.methods.levels import Level, Parts, coarsen, scales_of


@dataclass(frozen=True)
class Effort:
    """How much work a graph of some size is worth.

    Attributes:
        repeats, cycles: Runs from scratch, and runs that start from the best parts.
        starts: On the coarsest level at most, over the depth of the bisection.
        tries: Of each bisection in a start: fewer make the starts more different.
        refined: The share of the starts that are refined, the best of them.
        growth: Mean nodes that may merge in one coarsening; 1e9 leaves it to the limit on clusters.
        shares: Of a part's limit: the most that a cluster may hold, one after the other in repeated runs.
        coarsest, per_part: Nodes of the coarsest level, in all and for each part; the larger counts.
    """

    repeats: int
    cycles: int
    starts: int
    tries: int
    refined: float
    growth: float
    shares: tuple[float, ...]
    coarsest: int
    per_part: int


SMALL = Effort(
    3, 1, starts=108, tries=2, refined=1, growth=40, shares=(1 / 10, 1 / 20, 1 / 40), coarsest=1500, per_part=60
)
LARGE = Effort(
    1, 0, starts=108, tries=2, refined=1 / 4, growth=1e9, shares=(1 / 5, 1 / 10, 1 / 20), coarsest=400, per_part=40
)
LARGE_EDGES = 4_000_000
"""Directed edges from which a graph is large."""
INNER_ROOM = 0.95
"""Of what a part may hold above an even share: the most that it may on the levels between the coarsest and the finest.
Between parts that arrive there full, each of something else, the last and strongest search finds no move."""
ROUNDS = 8
LEAST_PATIENCE = 50
LEAST_REFINED = 8
WORK = 4_000_000
"""Entries that all starts together may look at in one try of each bisection."""


@method("multilevel", refusal=any_but_none)
def multilevel(problem: Problem, *, repeats: int | None = None, cycles: int | None = None) -> np.ndarray:
    """The best of several multilevel runs, refined again by cycles that keep its parts.

    Args:
        repeats: Runs from scratch with clusters of other sizes, at least 1; None: 3, and 1 from 4 million edges on.
        cycles: Coarsenings inside the best parts (Walshaw, 2004), at least 0; None: 1, and 0 from 4 million edges on.
    """
    adjacency, num_parts, rng = problem.adjacency, problem.num_parts, problem.rng()
    effort = SMALL if problem.graph.total_edges < LARGE_EDGES else LARGE
    repeats = effort.repeats if repeats is None else at_least("repeats", repeats, 1)
    cycles = effort.cycles if cycles is None else at_least("cycles", cycles, 0)
    limits = problem.constraints.limits(num_parts)
    finest = Level(
        adjacency.indptr, adjacency.indices, adjacency.weight_array, np.ascontiguousarray(problem.constraints.weights.T)
    )
    with ThreadPool(problem.num_threads) as threads:
        best: tuple[float, int] | None = None
        parts = np.empty(0, np.int32)
        for turn in range(repeats + cycles):
            start = finest if turn < repeats else replace(finest, groups=parts, labels=None)
            share = effort.shares[turn % len(effort.shares)]
            made = _run(start, num_parts, limits, share, effort, rng, threads)
            if repeats + cycles == 1:
                return made.parts
            score = made.overload, adjacency.cut(made.parts)
            if best is None or score < best:
                best, parts = score, made.parts
    return parts


def _run(
    finest: Level,
    num_parts: int,
    limits: np.ndarray,
    share: float,
    effort: Effort,
    rng: np.random.Generator,
    threads: ThreadPool,
) -> Parts:
    """Down to the coarsest level and back; with groups, from these parts on."""
    even = -(-finest.totals // num_parts)
    inner = even + (INNER_ROOM * (limits - even)).astype(np.int64)  # a limit is never below the even share
    caps = np.maximum((limits * share).astype(np.int64), 1)
    target = max(effort.coarsest, effort.per_part * num_parts)
    levels = coarsen(finest, caps, effort.growth, target, rng, threads)
    coarsest = levels.pop()
    if len(coarsest.groups):
        made = Parts(coarsest, coarsest.groups.copy(), inner if levels else limits, num_parts)
        made.refine(rng, threads)
    else:
        made = first_parts(coarsest, num_parts, limits, effort, rng, threads)
    while levels:
        level = levels.pop()
        assert level.labels is not None  # only the coarsest has none
        made = Parts(level, made.parts[level.labels], inner if levels else limits, num_parts)
        made.rebalance(rng)
        made.refine(rng, threads)
        level.labels = None
    return made


def first_parts(
    level: Level, num_parts: int, limits: np.ndarray, effort: Effort, rng: np.random.Generator, threads: ThreadPool
) -> Parts:
    """The best of several starts by recursive bisection: least overload, then least cut.

    A coarsest graph with many edges gets fewer starts than ``effort`` says, and at least ``LEAST_REFINED`` are refined.
    """
    depth = max(1.0, float(np.log2(num_parts)))
    starts = int(np.clip(WORK / (effort.tries * max(len(level.indices), 1)), 1, effort.starts) / depth) or 1

    def start(own: np.random.Generator) -> tuple[Parts, np.random.Generator]:
        parts = Parts(level, _bisect_recursively(level, num_parts, limits, effort.tries, own), limits, num_parts)
        parts.rebalance(own)
        return parts, own

    def refined(parts: Parts, own: np.random.Generator) -> Parts:
        with ThreadPool(1) as alone:
            parts.refine(own, alone)
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
        indptr, indices, weights = kernels.induced(level.indptr, level.indices, level.weights, nodes, local)
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
    kernels.bisect(
        level.indptr, level.indices, level.weights, level.node_weights, shares[1], bounds, soft, scales, orders, ROUNDS,
        max(LEAST_PATIENCE, level.num_nodes), best,
    )  # fmt: skip
    return best
