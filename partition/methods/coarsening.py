"""Levels of a graph, each the clusters of the one before, by size-constrained label propagation.

Meyerhenke, Sanders, Schulz, "Partitioning complex networks via size-constrained clustering" (SEA 2014); the pairing of
nodes that favour the same full cluster follows KaMinPar (Gottesbueren et al., ESA 2021). Here a cluster has a limit
for every constraint. Legend: N nodes, M stored entries, P parts, C constraints, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels import clustering as kernels
from partition.kernels.sorting import group
from partition.methods.effort import Effort
from partition.problem import close_gaps

CHUNK = 32
"""Consecutive nodes that stay together in a random order: memory near in the input stays near."""
BATCHES = 48
MIN_BATCH = 64
SERIAL_ENTRIES = 2_000_000
"""Below this a batch costs less than handing it to threads."""
ALONE_ENTRIES = 200_000
"""Below this a whole loop does."""


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
    def weight(self) -> int:
        """The sum of the edges' weights, from both ends."""
        return int(self.weights.sum(dtype=np.int64)) if len(self.weights) else len(self.indices)

    @cached_property
    def sums(self) -> np.dtype[np.signedinteger]:
        """The type that holds any sum of the weights."""
        return np.dtype(np.int32 if self.weight < 2**31 else np.int64)


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
