"""Methods that look at edges on a graph whose edges lie on the disk: LDG and Fennel in passes, and multilevel.

Multilevel coarsens out of memory: nodes, read in chunks with their neighbours, join clusters, and the clusters' graph
is written by an external sort, until one fits into memory. That one is partitioned as any graph in memory; on the way
back the parts of each larger graph are refined a buffer at a time. The model of a buffer has its nodes, and a node for
each part that stands for all that the part holds outside (HeiStream: Faraj, Schulz, "Buffered streaming graph
partitioning", ACM JEA 2022). The rest follows Akhremtsev, Sanders, Schulz, "(Semi-)external algorithms for graph
partitioning and clustering" (ALENEX 2015).

Legend: N nodes, M stored entries, P parts, C constraints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from graph_emb.core.terminal import Advance
from graph_emb.core.threads import ThreadPool
from partition.kernels import clustering as kernels
from partition.kernels import sorting
from partition.methods.coarsening import Level, batch_of, cluster, random_order
from partition.methods.effort import MultilevelSettings
from partition.methods.multilevel import Parts, best_parts, inner_limits
from partition.methods.nodewise import Placed
from partition.problem import Constraints, merged
from partition.streaming.edges import bucket_of, cut_buckets, number_type
from partition.streaming.shared_stages import FileArray, Runs, Workplace, append_groups, write
from partition.streaming.source import Budget

CHUNK_LINKS = 1 << 20
"""Entries of a chunk of nodes; a node with more is a chunk of its own. It does not follow the memory."""
REFINEMENTS = 2
"""Times that the buffers of a level are refined."""
SHRINK = 0.6
"""Of the nodes of a level: a coarser one with more is not worth a pass, and its arrays would not fit."""
FALLBACK_PASSES = 5
NONE = np.empty(0, np.int32)


class DiskLevel:
    """A graph with its edges on the disk; ``methods.coarsening.Level`` is one in memory.

    Attributes:
        ends: (N + 1,), int64: the entries of node v are ``ends[v] .. ends[v + 1]``.
        others: (M,): neighbours; of each pair both have the other, and parallel edges may repeat.
        weights: (M,); None: 1 each.
        node_weights: (N, C), int64.
        groups: Empty: any nodes may merge.
    """

    def __init__(
        self, counts: np.ndarray, others: FileArray, weights: FileArray | None, node_weights: np.ndarray
    ) -> None:
        self.others, self.weights, self.node_weights, self.groups = others, weights, node_weights, NONE
        self.ends = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self.ends[1:])

    @property
    def num_nodes(self) -> int:
        return len(self.ends) - 1

    @cached_property
    def total(self) -> int:
        """Of the weights of all entries."""
        if self.weights is None:
            return len(self.others)
        return sum(int(block.sum(dtype=np.int64)) for block in self.weights.chunks())

    @property
    def sums(self) -> np.dtype:
        """The type that holds any sum of the weights."""
        return number_type(self.total)

    def chunks(self, most: int) -> list[tuple[int, int]]:
        """Runs of nodes with at most ``most`` entries together, or one node: first and end of each."""
        first = cut_buckets(np.diff(self.ends), np.array([0, self.num_nodes]), most)[0].tolist()
        return list(zip(first, [*first[1:], self.num_nodes], strict=True))

    @contextmanager
    def rows(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(indptr, indices, weights or empty) of some nodes; inside, the rest of ``indptr`` means nothing."""
        first, last = int(self.ends[start]), int(self.ends[stop])
        weights = NONE if self.weights is None else self.weights[first:last]
        self.ends[start : stop + 1] -= first  # in place: no second array of N numbers
        try:
            yield self.ends, self.others[first:last], weights
        finally:
            self.ends[start : stop + 1] += first

    def propagation(
        self, labels: np.ndarray, loads: np.ndarray, limits: np.ndarray, threads: ThreadPool
    ) -> DiskPropagation:
        """Label propagation on this level, in one thread."""
        return DiskPropagation(self, labels, loads, limits)


class DiskPropagation:
    """Label propagation, as ``methods.coarsening.Propagation``: chunks in random order, nodes in random order within.

    Args:
        labels, loads, limits: See there.
    """

    def __init__(self, level: DiskLevel, labels: np.ndarray, loads: np.ndarray, limits: np.ndarray) -> None:
        self.level, self.labels, self.loads, self.limits = level, labels, loads, limits
        self.chunks, self.ratings = level.chunks(CHUNK_LINKS), np.zeros(len(loads), level.sums)

    def round(
        self, rng: np.random.Generator, *, sizes: np.ndarray, favoured: np.ndarray, grouped: bool
    ) -> tuple[int, int]:
        """One pass over all nodes: (nodes moved, labels left without a node)."""
        level, seed, moved, emptied = self.level, np.uint64(rng.integers(2**63)), 0, 0
        for chunk in rng.permutation(len(self.chunks)).tolist():
            start, stop = self.chunks[chunk]
            order = random_order(stop - start, rng) + np.int32(start)
            batch = batch_of(stop - start)
            with level.rows(start, stop) as (indptr, indices, weights):
                widest = int(np.diff(indptr[start : stop + 1]).max(initial=0))
                seen = np.empty(min(widest, len(self.loads)) + 1, np.int32)
                done = kernels.sweep(
                    order, batch, indptr, indices, weights, level.node_weights, self.labels, self.loads, self.limits,
                    level.groups, seed, self.ratings, seen, favoured, sizes,
                )  # fmt: skip
            moved += done[0]
            emptied += done[1]
        return moved, emptied


def streamed(
    level: DiskLevel, wanted: Constraints, num_parts: int, rng: np.random.Generator, method: str,
    passes: int, order: str, tick: Advance,
) -> np.ndarray:  # fmt: skip
    """(N,), int32: parts by LDG or Fennel.

    The nodes stream in chunks of consecutive ids: chunks in random order, nodes in random order within. The chunks do
    not depend on the memory or on the workers, so neither do the parts. Parallel edges need no merging: the kernel adds
    up what the neighbours weigh.
    """
    placed = Placed(wanted, num_parts, float(level.total), fennel=method == "fennel")
    chunks = level.chunks(CHUNK_LINKS)
    for _ in range(passes):
        numbers = range(len(chunks))
        for chunk in rng.permutation(len(numbers)).tolist() if order == "random" else numbers:
            start, stop = chunks[chunk]
            inside = random_order(stop - start, rng) if order == "random" else np.arange(stop - start)
            with level.rows(start, stop) as rows:
                placed.place(start + inside, *rows)
            tick(stop - start)
    del chunks
    # what little is left above a limit moves without a look at its neighbours
    placed.mend(rng, np.zeros(level.num_nodes + 1, np.int64), NONE, NONE)
    return placed.parts


class DiskMultilevel:
    """Multilevel partitioning of a graph on the disk within a limit on memory.

    Args:
        workplace: Receives the coarser levels.
        wanted: The constraints; those of another level have its node weights.
        settings: The options of ``multilevel``; runs and cycles are those of the graph that fits into memory.
        tick: Told the nodes of the finest level that were read.
    """

    def __init__(
        self,
        workplace: Workplace,
        budget: Budget,
        wanted: Constraints,
        num_parts: int,
        settings: MultilevelSettings,
        tick: Advance,
    ) -> None:
        self.workplace, self.budget, self.wanted, self.num_parts = workplace, budget, wanted, num_parts
        self.settings, self.tick, self._work = settings, tick, budget.work_bytes(wanted.weights.shape[1])
        self.threads = ThreadPool(1)

    def parts(self, finest: DiskLevel, seed: int) -> tuple[np.ndarray, str]:
        """(N,), int32, and how it came about."""
        rng, num_parts = np.random.default_rng(seed), self.num_parts
        limits, totals = self.wanted.limits(num_parts), finest.node_weights.sum(axis=0)
        inner = inner_limits(totals, limits, num_parts)
        # 1. Coarsen on the disk until memory holds the graph, or clusters no longer help.
        levels, labels = [finest], []
        while not self._fits(levels[-1]):
            found = self._coarser(levels[-1], self.settings.caps(totals, limits), len(levels), rng)
            if found is None:
                break
            levels.append(found[0])
            labels.append(found[1])
        # 2. Parts of the coarsest level: in memory where it fits, else node by node.
        coarsest = levels.pop()
        bounds = inner if levels else limits
        if self._fits(coarsest):
            self._tell(coarsest, finest)
            parts = best_parts(in_memory(coarsest), num_parts, bounds, self.settings, rng, self.threads)
            why = f"{coarsest.num_nodes:,} clusters fit into memory" if levels else "the graph fits into memory"
        else:
            weights = Constraints(self.wanted.names, coarsest.node_weights.T, self.wanted.tolerances)
            parts = streamed(coarsest, weights, num_parts, rng, "fennel", FALLBACK_PASSES, "random", lambda count: None)
            parts = self._refined(coarsest, parts, bounds, finest, rng)
            why = f"{coarsest.num_nodes:,} clusters do not fit into memory, so Fennel placed them"
        del coarsest
        # 3. Back to the graph: each level takes the parts of the coarser one and refines them, buffer by buffer.
        while levels:
            level = levels.pop()
            parts = self._refined(level, parts[labels.pop()], inner if levels else limits, finest, rng)
        return parts, why

    def _fits(self, level: DiskLevel) -> bool:
        return self.budget.holds(level.num_nodes, len(level.others), self.num_parts, self._work)

    def _tell(self, level: DiskLevel, finest: DiskLevel) -> None:
        if level is finest:
            self.tick(level.num_nodes)

    def _coarser(
        self, level: DiskLevel, caps: np.ndarray, number: int, rng: np.random.Generator
    ) -> tuple[DiskLevel, np.ndarray] | None:
        """The graph of clusters and the cluster of each node, (N,), int32; None where there are too many."""
        settings = self.settings
        labels = cluster(level, caps, settings.effort.rounds, settings.target(self.num_parts), rng, self.threads)
        labels, num_labels = kernels.number(labels)
        if num_labels > SHRINK * level.num_nodes:
            return None
        folder, step = self.workplace.folder(f"level-{number}"), self.budget.block_rows(self._work)
        return contracted(level, labels, num_labels, folder, self.budget.bucket_rows(self._work), step), labels

    def _refined(
        self, level: DiskLevel, parts: np.ndarray, limits: np.ndarray, finest: DiskLevel, rng: np.random.Generator
    ) -> np.ndarray:
        """The parts, changed in place, after ``REFINEMENTS`` passes over all buffers."""
        searches = self.settings.effort.searches(len(level.others), len(finest.others))
        buffers = buffers_of(level, self.budget.buffer_costs(self.num_parts), self._work)
        loads = np.zeros((self.num_parts, len(limits)), np.int64)
        kernels.add_weights(parts, level.node_weights, loads)
        for _ in range(REFINEMENTS):
            for buffer in rng.permutation(len(buffers)).tolist():
                start, stop = buffers[buffer]
                model = modelled(level, start, stop, parts, loads)
                pins = np.arange(self.num_parts, dtype=np.int32)
                found = Parts(model, np.concatenate([parts[start:stop], pins]), np.append(limits, 1), self.num_parts)
                found.refine(searches, rng, self.threads)
                parts[start:stop], loads = found.parts[: stop - start], found.loads[:, :-1].copy()
                if level is finest:
                    self.tick(stop - start)
        return parts


def buffers_of(level: DiskLevel, costs: tuple[int, int], most: int) -> list[tuple[int, int]]:
    """Runs of nodes whose models take at most ``most`` bytes each, or of one node; costs: of an entry and of a node."""
    entry, node = costs
    first = cut_buckets(np.diff(level.ends) * entry + node, np.array([0, level.num_nodes]), most)[0].tolist()
    return list(zip(first, [*first[1:], level.num_nodes], strict=True))


def modelled(level: DiskLevel, start: int, stop: int, parts: np.ndarray, loads: np.ndarray) -> Level:
    """The model of a buffer: its nodes, then a node for each part with all that the part holds outside the buffer.

    The last constraint is of these nodes alone: each weighs 1, so that under a limit of 1 none ever moves. They have no
    rows, only nodes of the buffer know them.
    """
    num_parts, inside = len(loads), stop - start
    with level.rows(start, stop) as (ends, indices, weights):
        indptr = np.concatenate([ends[start : stop + 1], np.full(num_parts, ends[stop])])
    sorting.to_buffer(indices, start, stop, parts)
    node_weights = np.zeros((inside + num_parts, loads.shape[1] + 1), np.int64)
    node_weights[:inside, :-1] = level.node_weights[start:stop]
    held = np.zeros_like(loads)
    kernels.add_weights(parts[start:stop], level.node_weights[start:stop], held)
    node_weights[inside:, :-1], node_weights[inside:, -1] = loads - held, 1
    return Level(indptr, indices.astype(np.int32, copy=False), weights, node_weights)


def in_memory(level: DiskLevel) -> Level:
    """The same graph in memory, parallel edges merged."""
    if level.weights is not None:
        return Level(level.ends, level.others[:], level.weights[:], level.node_weights)
    rows = merged(level.ends.copy(), level.others[:], NONE, 1, ThreadPool(1))
    return Level(rows.indptr, rows.indices, rows.weight_array, level.node_weights)


def contracted(level: DiskLevel, labels: np.ndarray, num_labels: int, folder: Path, most: int, step: int) -> DiskLevel:
    """The graph whose nodes are the clusters, sorted on the disk; entries inside a cluster go, parallel ones merge.

    Args:
        labels: (N,), int32: the cluster of each node, 0 .. num_labels - 1.
        folder: Receives the files.
        most, step: Entries that may be sorted, and read, at a time.
    """
    node_weights = np.zeros((num_labels, level.node_weights.shape[1]), np.int64)
    kernels.add_weights(labels, level.node_weights, node_weights)
    entries = np.bincount(labels, weights=np.diff(level.ends), minlength=num_labels).astype(np.int64)
    first = cut_buckets(entries, np.array([0, num_labels]), most)[0]
    # 1. Each entry between clusters goes to the bucket of its cluster.
    buckets, label = bucket_of(first, num_labels), np.dtype(np.int32)
    record = np.dtype([("node", label), ("other", label), ("weight", level.sums)])
    loose = Runs(folder, len(first), 1, record, step)
    paths = loose.begin(0)
    for start, stop in level.chunks(step):
        with level.rows(start, stop) as (ends, indices, weights):
            nodes, others = np.repeat(labels[start:stop], np.diff(ends[start : stop + 1])), labels[indices]
        kept = nodes != others
        rows = np.empty(int(kept.sum()), record)
        rows["node"], rows["other"] = nodes[kept], others[kept]
        rows["weight"] = weights[kept] if len(weights) else 1
        del nodes, others, kept, indices, weights
        append_groups(rows, buckets[rows["node"]], paths)
    del buckets
    # 2. Each bucket is sorted and merged.
    counts, places = np.zeros(num_labels, np.int64), np.full(num_labels, -1)
    files: list[tuple[Path, Path]] = []
    for bucket, (start, stop) in enumerate(zip(first.tolist(), [*first[1:].tolist(), num_labels], strict=True)):
        if stop - start == 1:
            others, weights = summed(loose.of(bucket), num_labels)
            counts[start] = len(others)
        else:
            others, weights = sorted_rows(loose.of(bucket)[:], start, counts[start:stop], places)
        files.append((folder / f"{bucket}.others", folder / f"{bucket}.weights"))
        write(files[-1][0], others)
        write(files[-1][1], weights.astype(level.sums, copy=False))
        loose.remove(bucket)
    arrays = [
        FileArray(tuple(paths), kind, step)
        for paths, kind in zip(zip(*files, strict=True), (label, level.sums), strict=True)
    ]
    return DiskLevel(counts, arrays[0], arrays[1], node_weights)


def sorted_rows(rows: np.ndarray, start: int, counts: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours and weights of the nodes from ``start`` on, merged.

    Args:
        rows: Records of node, other and weight.
        counts: Receives the neighbours of each node.
        places: (all nodes,), scratch.
    """
    order, starts = sorting.group(rows["node"] - start, len(counts))
    others, weights = rows["other"][order], rows["weight"][order]
    del rows, order
    widest = int(np.diff(starts).max(initial=0))
    places[:] = -1
    size, even, _ = sorting.merge(
        starts, others, weights, 1, 0, len(counts), places, np.empty(widest, np.int64), counts, weights
    )
    if even > 0:
        weights[:size] = even
    return others[:size], weights[:size]


def summed(rows: FileArray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of one node, which may have more entries than are sorted at a time, and their weights."""
    sums = np.zeros(num_labels, np.int64)
    for block in rows.chunks():
        np.add.at(sums, block["other"], block["weight"])
    others = np.flatnonzero(sums).astype(np.int32)
    return others, sums[others]
