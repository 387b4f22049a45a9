"""Compressed rows of a typed graph, and sums over neighbours on several threads with the same result on any number."""

# N nodes and E edges of all types, G groups, C columns

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from graph_emb.core.threads import ThreadPool
from partition.kernels.relabel import count_ids
from partition.report import loops
from partition.report.flat import FlatGraph

CHUNKS = 64
"""Ranges of rows, whatever the number of threads is: sums over them are added in their order."""
_NOTHING = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def on_ranges(threads: ThreadPool, size: int, run: Callable[[int, int], None]) -> None:
    """Call ``run(low, high)`` for ranges that cover [0, size)."""
    cuts = np.linspace(0, size, CHUNKS + 1).astype(np.int64).tolist()
    threads.run([partial(run, low, high) for low, high in pairwise(cuts)])


@dataclass(frozen=True)
class CompressedRows:
    """For each node the columns that its edges name.

    Attributes:
        indptr: Shape (N + 1,), int64.
        indices: Shape (E,), int32 where it can be, below the rows of the tables that are summed.
        values: Weight of each entry, (E,), float32; empty: all are 1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    def add(self, threads: ThreadPool, table: np.ndarray, out: np.ndarray) -> None:
        """Add to ``out`` (N, C) the weighted sums of the rows of ``table`` that each node names."""
        run = loops.add_neighbours
        on_ranges(
            threads, len(out), lambda low, high: run(self.indptr, self.indices, self.values, table, low, high, out)
        )


def sources_by_destination(flat: FlatGraph) -> CompressedRows:
    """Row v: the sources of the edges that enter v, homogeneous ids, with weights where every type has them."""
    return _rows(flat, row_end=1)


def destinations_by_source(flat: FlatGraph) -> CompressedRows:
    """Row u: the destinations of the edges that leave u, in the same way."""
    return _rows(flat, row_end=0)


def _rows(flat: FlatGraph, row_end: int) -> CompressedRows:
    offsets, edges, weights = flat.graph.node_offsets, flat.graph.edges, flat.weights
    row_type, column_type = 2 * row_end, 2 - 2 * row_end
    indptr = np.zeros(flat.num_nodes + 1, np.int64)
    for etype, ends in edges.items():
        count_ids(ends[row_end], offsets[etype[row_type]] + 1, indptr)
    np.cumsum(indptr, out=indptr)
    indices = _indices(indptr[-1], flat.num_nodes)
    values = _NO_VALUES if weights is None else np.empty(indptr[-1], np.float32)
    filled = indptr[:-1].copy()
    for etype, ends in edges.items():
        own = _NO_VALUES if weights is None else weights[etype]
        start, column_start = offsets[etype[row_type]], offsets[etype[column_type]]
        loops.fill_rows(ends[row_end], start, ends[1 - row_end], column_start, own, filled, indices, values)
    return CompressedRows(indptr, indices, values)


@dataclass(frozen=True)
class Groups:
    """Edges by edge type and destination: sampling draws from each group on its own.

    Attributes:
        starts, sources: The sources of the edges of each group, (G + 1,), int64, and (E,), homogeneous.
        node_starts, node_groups: The groups of each node, (N + 1,), int64, and (G,), int64.
    """

    starts: np.ndarray
    sources: np.ndarray
    node_starts: np.ndarray
    node_groups: np.ndarray


def groups_by_destination(flat: FlatGraph) -> Groups:
    """The groups of all types; a node that no edge of a type enters has no group of that type."""
    offsets, edges = flat.graph.node_offsets, flat.graph.edges
    degrees = {e: np.bincount(dst, minlength=flat.graph.num_nodes[e[2]]) for e, (_, dst) in edges.items()}
    entered = {etype: np.flatnonzero(degree) for etype, degree in degrees.items()}
    nodes = np.concatenate([_NOTHING, *(own + offsets[etype[2]] for etype, own in entered.items())])
    sizes = np.concatenate([_NOTHING, *(degrees[etype][own] for etype, own in entered.items())])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sources, filled, first = _indices(starts[-1], flat.num_nodes), starts[:-1].copy(), 0
    for etype, (src, dst) in edges.items():
        group_of = np.cumsum(degrees[etype] > 0) + (first - 1)
        first += len(entered[etype])
        loops.fill_rows(group_of[dst], 0, src, offsets[etype[0]], _NO_VALUES, filled, sources, _NO_VALUES)
    node_starts = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=flat.num_nodes))])
    return Groups(starts, sources, node_starts, np.argsort(nodes, kind="stable"))


def _indices(size: int, limit: int) -> np.ndarray:
    return np.empty(size, np.int32 if limit < 2**31 else np.int64)
