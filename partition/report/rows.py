"""Compressed rows of a typed graph, and sums over neighbours on several threads with the same result on any number."""

# N nodes and E edges of all types, G groups, C columns

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from partition.report import loops
from partition.report.flat import FlatGraph
from partition.threads import Threads

CHUNKS = 64
"""Ranges of rows, whatever the number of threads is: sums over them are added in their order."""
_NOTHING = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def on_ranges(threads: Threads, size: int, run: Callable[[int, int], None]) -> None:
    """Call ``run(low, high)`` for ranges that cover [0, size)."""
    cuts = np.linspace(0, size, CHUNKS + 1).astype(np.int64).tolist()
    threads.run([partial(run, low, high) for low, high in pairwise(cuts)])


@dataclass(frozen=True)
class Rows:
    """For each node the columns that its edges name.

    Attributes:
        indptr: Shape (N + 1,), int64.
        indices: Shape (E,), int32 where it can be, below the rows of the tables that are summed.
        values: Weight of each entry, (E,), float32; empty: all are 1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    def add(self, threads: Threads, table: np.ndarray, out: np.ndarray) -> None:
        """Add to ``out`` (N, C) the weighted sums of the rows of ``table`` that each node names."""
        run = loops.add_neighbours
        on_ranges(
            threads, len(out), lambda low, high: run(self.indptr, self.indices, self.values, table, low, high, out)
        )


def sources_by_destination(flat: FlatGraph) -> Rows:
    """Row v: the sources of the edges that enter v, homogeneous ids, with weights where every type has them."""
    offsets, edges = flat.graph.node_offsets, flat.graph.edges
    indptr = _starts(flat.num_nodes, [(dst, offsets[etype[2]]) for etype, (_, dst) in edges.items()])
    weights = flat.weights
    indices = _indices(indptr, flat.num_nodes)
    values = _NO_VALUES if weights is None else np.empty(indptr[-1], np.float32)
    filled = indptr[:-1].copy()
    for etype, (src, dst) in edges.items():
        own = _NO_VALUES if weights is None else weights[etype]
        loops.fill_rows(dst, offsets[etype[2]], src, _NOTHING, offsets[etype[0]], own, filled, indices, values)
    return Rows(indptr, indices, values)


@dataclass(frozen=True)
class Groups:
    """Edges by edge type and destination: sampling draws from each group on its own.

    Attributes:
        rows: Row v: the groups of the edges that leave v.
        nodes: The destination of each group, (G,), int64, homogeneous.
        degrees: Edges of each group, (G,), int64.
        weights: Of each entry of ``rows``, (E,), float32, where every type has weights; else empty.
    """

    rows: Rows
    nodes: np.ndarray
    degrees: np.ndarray
    weights: np.ndarray


def groups_by_source(flat: FlatGraph) -> Groups:
    """The groups of all types and who feeds them."""
    offsets, edges = flat.graph.node_offsets, flat.graph.edges
    indptr = _starts(flat.num_nodes, [(src, offsets[etype[0]]) for etype, (src, _) in edges.items()])
    indices = _indices(indptr, flat.graph.total_edges)
    weights = flat.weights
    values = _NO_VALUES if weights is None else np.empty(indptr[-1], np.float32)
    filled = indptr[:-1].copy()
    nodes, degrees, num_groups = [_NOTHING], [_NOTHING], 0
    for etype, (src, dst) in edges.items():
        in_degree = np.bincount(dst, minlength=flat.graph.num_nodes[etype[2]])
        entered = np.flatnonzero(in_degree)
        group_of = np.zeros(len(in_degree), np.int64)
        group_of[entered] = np.arange(num_groups, num_groups + len(entered))
        own = _NO_VALUES if weights is None else weights[etype]
        loops.fill_rows(src, offsets[etype[0]], dst, group_of, 0, own, filled, indices, values)
        nodes.append(entered + offsets[etype[2]])
        degrees.append(in_degree[entered])
        num_groups += len(entered)
    rows = Rows(indptr, indices, _NO_VALUES)
    return Groups(rows, np.concatenate(nodes), np.concatenate(degrees), values)


def _indices(indptr: np.ndarray, limit: int) -> np.ndarray:
    return np.empty(indptr[-1], np.int32 if limit < 2**31 else np.int64)


def _starts(num_nodes: int, rows: list[tuple[np.ndarray, int]]) -> np.ndarray:
    indptr = np.zeros(num_nodes + 1, np.int64)
    for own, start in rows:
        loops.count_rows(own, start + 1, indptr)
    return np.cumsum(indptr, out=indptr)
