"""First values of new nodes from the rows of their neighbours.

Legend: N new nodes, K known neighbours, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.core.listed_sums import sum_listed
from graph_emb.graph.typed import HeteroGraph

RowsOf = Callable[[np.ndarray], np.ndarray]
"""Rows of distinct ids, (K, D)."""


class NeighbourMean:
    """What ``emb.grow(ids, values=...)`` takes: a new node begins with the mean of its neighbours' rows.

    Distinct neighbours in both directions, in the ascending order of their ids, are summed in float64. A node all of
    whose neighbours are new gets the mean of those in the next round, and so on; a node that no row reaches keeps its
    first value.

    Args:
        graph: A graph of one node and one edge type, whose ids are the table's; or (sources, destinations), (E,) int64
            ids each.
    Example:
        >>> emb = ge.DistEmbedding(ge.growing(max_rows=10), 1, "node")
        >>> emb.grow([10, 20], torch.tensor([[2.0], [4.0]]))
        >>> emb.grow([30, 40, 50], ge.NeighbourMean(([10, 20, 30], [30, 30, 40])))  # 40 knows 30 alone, 50 nobody
        >>> emb.weight[[30, 40, 50]].flatten().tolist()
        [3.0, 3.0, 0.0]
    """

    def __init__(self, graph: HeteroGraph | tuple[ArrayLike, ArrayLike]) -> None:
        if isinstance(graph, HeteroGraph):
            if len(graph.num_nodes) != 1 or len(graph.edges) != 1:
                raise ConfigError(
                    f"NeighbourMean: the graph has node types {list(graph.num_nodes)} and {len(graph.edges)} edge "
                    "types; give (sources, destinations) of one kind of ids"
                )
            ((src, dst),) = graph.edges.values()
            named = graph.node_ids.get(next(iter(graph.num_nodes)))
            if named is not None:
                if named.dtype.kind not in "iu":
                    raise ConfigError("NeighbourMean: the graph's ids are texts; give edges of the table's ids")
                src, dst = named[src], named[dst]
        else:
            try:
                src, dst = (np.asarray(side) for side in graph)
            except (TypeError, ValueError):
                raise ShapeError(
                    f"NeighbourMean: {graph!r:.60} is no graph; give a HeteroGraph or (sources, destinations)"
                ) from None
        if src.ndim != 1 or src.shape != dst.shape or (len(src) and {src.dtype.kind, dst.dtype.kind} - {"i", "u"}):
            raise ShapeError(f"NeighbourMean: edges of shape {src.shape}, {dst.shape} must be integers, (E,) each")
        node, other = np.concatenate([src, dst]).astype(np.int64), np.concatenate([dst, src]).astype(np.int64)
        if (
            len(node) and node.min() >= 0 and node.max() < 1 << 31
        ):  # both in one number, which sorts several times as fast
            keys = np.sort(node << 31 | other)
            node, other = keys >> 31, keys & ((1 << 31) - 1)
        else:
            order = np.lexsort((other, node))  # by node, then by neighbour
            node, other = node[order], other[order]
        repeated = np.zeros(len(node), bool)
        repeated[1:] = (node[1:] == node[:-1]) & (other[1:] == other[:-1])
        self._ends = np.stack([node[~repeated], other[~repeated]])

    def values(self, new: np.ndarray, known: np.ndarray, rows_of: RowsOf) -> tuple[np.ndarray, np.ndarray]:
        """The ids of ``new`` that a row reaches, ascending, and what they begin with, (N, D) float64.

        Args:
            new: Ids without a row, ascending.
            known: Ids with one, ascending.
            rows_of: Asked once, for known ids, maybe none.
        """
        node, other = self._ends[:, np.isin(self._ends[0], new)]
        asked = np.unique(other[np.isin(other, known)])
        ids, rows = asked, np.asarray(rows_of(asked))  # those that the latest round has reached, ascending
        rows = rows if rows.dtype == np.float32 else rows.astype(np.float64, copy=False)
        reached, means = [np.empty(0, np.int64)], [np.empty((0, rows.shape[1]))]
        while True:
            place = np.searchsorted(ids, other).clip(max=max(0, len(ids) - 1))
            usable = ids[place] == other if len(ids) else np.zeros(len(other), bool)
            if not usable.any():
                order = np.argsort(np.concatenate(reached))
                return np.concatenate(reached)[order], np.concatenate(means)[order]
            fresh, starts, counts = np.unique(node[usable], return_index=True, return_counts=True)
            columns, bounds = place[usable], np.append(starts, usable.sum())
            sums = np.empty((len(fresh), rows.shape[1]))
            sum_listed(bounds, columns, rows, sums)
            sums /= counts[:, None]
            ids, rows = fresh, sums
            reached.append(ids)
            means.append(rows)
            left = ~np.isin(node, fresh)
            node, other = node[left], other[left]
