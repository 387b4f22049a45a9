"""A graph in one id space, types one after the other as ``graph.node_offsets`` says: masks, neighbours, groups."""

# N nodes and E edges of all types, P parts, G groups

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from graph_emb.core.threads import ThreadPool
from graph_emb.graph.readers.source import MASKS, WEIGHT
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment
from partition.kernels import forecast as kernels
from partition.kernels.relabel import count_ids

CHUNKS = 64
"""Ranges of rows, whatever the number of threads is: sums over them are added in their order."""
_NOTHING = np.empty(0, np.int64)
_NO_VALUES = np.empty(0, np.float32)


def on_ranges(threads: ThreadPool, size: int, run: Callable[[int, int], None]) -> None:
    """Call ``run(low, high)`` for ranges that cover [0, size)."""
    cuts = np.linspace(0, size, CHUNKS + 1).astype(np.int64).tolist()
    threads.run([partial(run, low, high) for low, high in pairwise(cuts)])


class CompressedRows(NamedTuple):
    """For each node the nodes at the other end of its edges.

    Attributes:
        indptr: Shape (N + 1,), int64.
        indices: Shape (E,), int32 where it can be, homogeneous ids.
        values: Weight of each entry, (E,), float32; empty: all are 1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Groups(NamedTuple):
    """Edges by edge type and destination: sampling draws from each group on its own.

    Attributes:
        starts, sources: The sources of the edges of each group, (G + 1,), int64, and (E,), homogeneous.
        node_starts, node_groups: The groups of each node, (N + 1,), int64, and (G,), int64.
    """

    starts: np.ndarray
    sources: np.ndarray
    node_starts: np.ndarray
    node_groups: np.ndarray


@dataclass(frozen=True)
class FlatGraph:
    """Arrays of a graph by homogeneous id, computed once for both assignments that a report compares.

    Attributes:
        graph: The graph itself.
    """

    graph: HeteroGraph

    @property
    def num_nodes(self) -> int:
        return self.graph.total_nodes

    def parts_of(self, assignment: Assignment) -> np.ndarray:
        """The part of each node, (N,), int32."""
        return np.concatenate([assignment.parts[ntype] for ntype in self.graph.ntypes]).astype(np.int32, copy=False)

    @cached_property
    def types(self) -> dict[str, slice]:
        """Where each node type lies among the homogeneous ids."""
        starts = self.graph.node_offsets
        return {ntype: slice(starts[ntype], starts[ntype] + num) for ntype, num in self.graph.num_nodes.items()}

    @cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """``train``, ``valid`` and ``test`` where some node type has the mask, (N,), bool.

        Masks of several splits at once, one a column as in DGL's WikiCS, say nothing of one split and are left out.
        """
        masks = {}
        for part, column in MASKS.items():
            found = {n: c[column] for n, c in self.graph.node_data.items() if column in c}
            marked = {ntype: mask for ntype, mask in found.items() if mask.size == len(mask)}
            if marked:
                masks[part] = np.zeros(self.num_nodes, dtype=bool)
                for ntype, mask in marked.items():
                    masks[part][self.types[ntype]] = mask.reshape(-1).astype(bool)
        return masks

    @cached_property
    def seeds(self) -> np.ndarray:
        """Nodes that training starts from, (N,), bool: those of the train mask, or all."""
        train = self.masks.get("train")
        return train if train is not None and train.any() else np.ones(self.num_nodes, dtype=bool)

    @cached_property
    def weights(self) -> dict[EdgeType, np.ndarray] | None:
        """The column ``weight`` of every edge type, where all have one of positive numbers; else None."""
        found = {}
        for etype, (src, _) in self.graph.edges.items():
            column = self.graph.edge_data.get(etype, {}).get(WEIGHT)
            if column is None or column.shape != (len(src),) or not (np.isfinite(column) & (column > 0)).all():
                return None
            found[etype] = column.astype(np.float32)
        return found or None

    def rows(self, row_end: int) -> CompressedRows:
        """Row u: the destinations of the edges that leave u (``row_end`` 0), or the sources of those that enter it (1).

        Weights are there where every type has them.
        """
        offsets, edges, weights = self.graph.node_offsets, self.graph.edges, self.weights
        row_type, column_type = 2 * row_end, 2 - 2 * row_end
        indptr = np.zeros(self.num_nodes + 1, np.int64)
        for etype, ends in edges.items():
            count_ids(ends[row_end], offsets[etype[row_type]] + 1, indptr)
        np.cumsum(indptr, out=indptr)
        indices = self._room_for_ids(indptr[-1])
        values = _NO_VALUES if weights is None else np.empty(indptr[-1], np.float32)
        filled = indptr[:-1].copy()
        for etype, ends in edges.items():
            own = _NO_VALUES if weights is None else weights[etype]
            start, column_start = offsets[etype[row_type]], offsets[etype[column_type]]
            kernels.fill_rows(ends[row_end], start, ends[1 - row_end], column_start, own, filled, indices, values)
        return CompressedRows(indptr, indices, values)

    def groups_by_destination(self) -> Groups:
        """The groups of all types; a node that no edge of a type enters has no group of that type."""
        offsets, edges = self.graph.node_offsets, self.graph.edges
        degrees = {e: np.bincount(dst, minlength=self.graph.num_nodes[e[2]]) for e, (_, dst) in edges.items()}
        entered = {etype: np.flatnonzero(degree) for etype, degree in degrees.items()}
        nodes = np.concatenate([_NOTHING, *(own + offsets[etype[2]] for etype, own in entered.items())])
        sizes = np.concatenate([_NOTHING, *(degrees[etype][own] for etype, own in entered.items())])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        sources, filled, first = self._room_for_ids(starts[-1]), starts[:-1].copy(), 0
        for etype, (src, dst) in edges.items():
            group_of = np.cumsum(degrees[etype] > 0) + (first - 1)
            first += len(entered[etype])
            kernels.fill_rows(group_of[dst], 0, src, offsets[etype[0]], _NO_VALUES, filled, sources, _NO_VALUES)
        node_starts = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=self.num_nodes))])
        return Groups(starts, sources, node_starts, np.argsort(nodes, kind="stable"))

    def _room_for_ids(self, size: int) -> np.ndarray:
        return np.empty(size, np.int32 if self.num_nodes < 2**31 else np.int64)
