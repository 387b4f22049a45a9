"""A first partition of the coarsest graph: recursive bisection by greedy growing, several tries, the best kept.

Legend: N nodes, P parts, C constraints.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import bisection as kernels
from partition.methods.coarsening import Level
from partition.methods.refining import Parts, scales_of

ROUNDS = 8
LEAST_PATIENCE = 50
LEAST_REFINED = 8
WORK = 4_000_000
"""Entries that all starts together may look at in one try of each bisection."""


def first_parts(
    level: Level,
    num_parts: int,
    limits: np.ndarray,
    most: int,
    tries: int,
    refined: float,
    rng: np.random.Generator,
    threads: ThreadPool,
) -> Parts:
    """The best of several starts: least overload, then least cut.

    Args:
        limits: (C,): what a part may hold.
        most: Starts times the depth of the bisection at most; a coarsest graph with many edges gets fewer.
        tries: Of each bisection in a start: fewer make the starts more different.
        refined: The share of the starts, the best, that are refined; at least ``LEAST_REFINED`` of them.
    """
    depth = max(1.0, float(np.log2(num_parts)))
    starts = int(np.clip(WORK / (tries * max(len(level.indices), 1)), 1, most) / depth) or 1
    # A generator for each start: what it draws does not depend on the thread that runs it.
    made = threads.run([partial(_start, level, num_parts, limits, tries, own) for own in rng.spawn(starts)])
    made.sort(key=lambda start: _score(start[0]))
    best = made[: max(LEAST_REFINED, int(np.ceil(refined * starts)))]
    return min(threads.run([partial(_refined, *start) for start in best]), key=_score)


def _score(parts: Parts) -> tuple[float, int]:
    return parts.overload, parts.cut()


def _start(
    level: Level, num_parts: int, limits: np.ndarray, tries: int, rng: np.random.Generator
) -> tuple[Parts, np.random.Generator]:
    made = Parts(level, _bisect_recursively(level, num_parts, limits, tries, rng), limits, num_parts)
    made.rebalance(rng)
    return made, rng


def _refined(made: Parts, rng: np.random.Generator) -> Parts:
    with ThreadPool(1) as alone:
        made.refine(rng, alone)
    return made


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
        node_weights = np.ascontiguousarray(level.node_weights[nodes])
        piece = Level(indptr, indices, weights, node_weights, np.empty(0, np.int32))
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
