"""Refinement of a partition on one level under every limit at once.

Legend: N nodes, P parts, C constraints.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import refinement as kernels
from partition.kernels.adjacency import cut_of
from partition.kernels.clustering import add_weights
from partition.methods.coarsening import Level, Propagation, random_order

SWAP_TRIES = 2_000
PROPAGATION_ROUNDS = 6


def scales_of(means: np.ndarray) -> np.ndarray:
    """Powers of two near 1 / mean, so that sums of overloads are exact in any order."""
    return np.exp2(-np.floor(np.log2(np.maximum(means, 1.0))))


def overload_of(loads: np.ndarray, limits: np.ndarray, scales: np.ndarray) -> float:
    """How far (P, C) loads are above (P, C) limits, in units of the scales."""
    return float((np.maximum(loads - limits, 0) * scales).sum())


@dataclass(frozen=True)
class Search:
    """Rounds of local search with the same parameters.

    Attributes:
        rounds: At most; a round that gains less than ``LEAST_GAIN`` of the cut is the last.
        per_search: Boundary nodes that each search starts from; 0: all at once.
        patience: Moves without a better state that end a search.
        after: Left out where the round before gained less than this share of the cut.
    """

    rounds: int
    per_search: int
    patience: int
    after: float = 0.0


SMALL = Search(rounds=3, per_search=0, patience=400), Search(rounds=3, per_search=20, patience=60)
LARGE = Search(rounds=2, per_search=0, patience=400), Search(rounds=1, per_search=200, patience=100, after=0.005)
HUGE = LARGE[:1]
"""First from the whole boundary at once, then from a few nodes each, which finds what the first does not, but little of
it on the largest levels, where it takes longest."""
SMALL_ENTRIES, LARGE_ENTRIES = 3_000_000, 15_000_000
LEAST_GAIN = 0.002
TABLE_BYTES_PER_ENTRY = 12
LEAST_TABLE_BYTES = 1 << 27
"""A larger table of connections is not made: label propagation refines alone."""


class Parts:
    """A partition of one level and what each part holds.

    Attributes:
        parts: (N,), int32.
        loads: (P, C), int64.
        limits: (C,), int64.
    """

    def __init__(self, level: Level, parts: np.ndarray, limits: np.ndarray, num_parts: int) -> None:
        self.level, self.parts, self.limits, self.num_parts = level, parts, limits, num_parts
        self.loads = np.zeros((num_parts, len(limits)), np.int64)
        add_weights(parts, level.node_weights, self.loads)
        self.scales = scales_of(level.totals / num_parts)
        self.bounds = np.repeat(limits[None, :], num_parts, axis=0)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Arrays of the graph that the loops take."""
        level = self.level
        return level.indptr, level.indices, level.weights, level.node_weights

    @property
    def overload(self) -> float:
        """0.0 where every limit holds."""
        return overload_of(self.loads, self.bounds, self.scales)

    def rebalance(self, rng: np.random.Generator) -> float:
        """Mend what is above its limit: the overload that is left."""
        if self.overload == 0.0:
            return 0.0
        order = rng.permutation(self.level.num_nodes).astype(np.int32)
        left = kernels.rebalance(*self.rows, self.parts, self.loads, self.bounds, self.scales, order)
        for _ in range(3):
            if left == 0.0:
                break
            left = kernels.swap(
                self.level.node_weights, self.parts, self.loads, self.bounds, self.scales, order, SWAP_TRIES
            )
            left = kernels.rebalance(*self.rows, self.parts, self.loads, self.bounds, self.scales, order)
        return left

    @property
    def score(self) -> tuple[float, int]:
        """Overload, then the weight of the edges between parts, counted from both ends: the less the better."""
        return self.overload, int(cut_of(*self.rows[:3], self.parts))

    def refine(self, rng: np.random.Generator, threads: ThreadPool) -> None:
        """Lower the cut; nothing goes further above its limit than it was."""
        level, entries = self.level, len(self.level.indices)
        table_bytes = level.num_nodes * self.num_parts * level.sums.itemsize
        if table_bytes > max(LEAST_TABLE_BYTES, TABLE_BYTES_PER_ENTRY * entries):
            self._propagate(rng, threads)
            return
        table = np.empty((level.num_nodes, self.num_parts), level.sums)
        spans = threads.ranges(level.num_nodes, level.indptr)
        threads.run([partial(kernels.connect, *self.rows[:3], self.parts, a, b, table) for a, b in spans])
        last = cut = int(kernels.outside(table, self.parts))
        for search in SMALL if entries < SMALL_ENTRIES else LARGE if entries < LARGE_ENTRIES else HUGE:
            if last >= search.after * cut:
                gain, last = self._search(search, table, LEAST_GAIN * cut, rng, spans, threads)
                cut -= gain

    def _search(
        self,
        search: Search,
        table: np.ndarray,
        least: float,
        rng: np.random.Generator,
        spans: list[tuple[int, int]],
        threads: ThreadPool,
    ) -> tuple[int, int]:
        """The cut taken away in all rounds and in the last one, counted from both ends."""
        total, gain, marks = 0, 0, np.empty(self.level.num_nodes, np.int8)
        for _ in range(search.rounds):
            threads.run([partial(kernels.mark_boundary, table, self.parts, a, b, marks) for a, b in spans])
            seeds = kernels.marked(marks, random_order(self.level.num_nodes, rng))
            gain = 2 * kernels.search(
                *self.rows, self.parts, self.loads, self.bounds, self.bounds, self.scales, table, seeds,
                search.per_search or len(seeds), search.patience,
            )  # fmt: skip
            total += gain
            if gain <= least:
                break
        return total, gain

    def _propagate(self, rng: np.random.Generator, threads: ThreadPool) -> None:
        nothing = np.empty(0, np.int32)
        propagation = Propagation(self.level, self.parts, self.loads, self.limits, threads)
        for _ in range(PROPAGATION_ROUNDS):
            moved, _ = propagation.round(rng, sizes=nothing, favoured=nothing, grouped=False)
            if moved < LEAST_GAIN * self.level.num_nodes:
                return
