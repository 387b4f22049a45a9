"""One rank's share of a partitioned graph: the out-arcs of the nodes that it owns."""

# N nodes of the whole graph, R nodes of a rank, E arcs that leave them, M given arcs, W ranks.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from graph_emb.core.errors import ConfigError, DataError, PartitionError, ShapeError
from graph_emb.graph.csr import Graph, checked_weights, frozen, to_rows
from graph_emb.graph.ids import as_ids
from graph_emb.graph.partition_book import RankRanges
from graph_emb.transport.process_group import ProcessGroup


@dataclass(frozen=True, eq=False)
class PartGraph:
    """Neighbour lists of the nodes [low, low + R) of a graph of N nodes in partition order.

    Attributes:
        indptr: Shape (R+1,), int64; the out-neighbours of node low + r are ``indices[indptr[r]:indptr[r+1]]``.
        indices: Shape (E,), int32, partition-order numbers in the whole graph, sorted and distinct within a row.
        weights: Shape (E,), float32, finite and above 0; None: all are 1.
        directed: Whether an arc may lack its reverse.
        layout: The rank that owns each node; the one of the embedding tables, or rows travel without need.
        rank: Whose part this is.
    Raises:
        ShapeError: an array's dtype or length does not fit the others or the layout.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    directed: bool
    layout: RankRanges
    rank: int

    def __post_init__(self) -> None:
        low, high = self.layout.owned(self.rank)
        wanted: dict[str, tuple[type, int]] = {
            "indptr": (np.int64, high - low + 1),
            "indices": (np.int32, int(self.indptr[-1])),
        }
        if self.weights is not None:
            wanted["weights"] = (np.float32, len(self.indices))
        for name, (dtype, length) in wanted.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (length,):
                raise ShapeError(
                    f"{name} of rank {self.rank}: dtype {array.dtype}, shape {array.shape}; "
                    f"expected {np.dtype(dtype)}, ({length},)"
                )
            object.__setattr__(self, name, frozen(array))

    @property
    def num_nodes(self) -> int:
        """N, nodes of the whole graph."""
        return int(self.layout.bounds[-1])

    @property
    def low(self) -> int:
        """The first node that this rank owns."""
        return self.layout.owned(self.rank)[0]

    @property
    def num_own_nodes(self) -> int:
        """R."""
        return len(self.indptr) - 1

    @classmethod
    def of_graph(cls, graph: Graph, layout: RankRanges, rank: int) -> PartGraph:
        """The rank's rows of a graph that is in this process whole.

        Raises:
            PartitionError: the layout is that of another number of nodes.
        """
        if layout.bounds[-1] != graph.num_nodes:
            raise PartitionError(f"the layout covers {layout.bounds[-1]} nodes, the graph has {graph.num_nodes}")
        low, high = layout.owned(rank)
        start, end = graph.indptr[low], graph.indptr[high]
        weights = None if graph.weights is None else graph.weights[start:end]
        indptr = graph.indptr[low : high + 1] - start
        return cls(indptr, graph.indices[start:end], weights, graph.directed, layout, rank)

    @classmethod
    def whole(cls, graph: Graph) -> PartGraph:
        """All rows of a graph that is in this process whole, the only one that walks."""
        return cls.of_graph(graph, RankRanges([0, graph.num_nodes], [0], 1), 0)

    @classmethod
    def from_arcs(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        layout: RankRanges,
        rank: int,
        *,
        weights: ArrayLike | None = None,
        directed: bool = False,
        group: ProcessGroup | None = None,
    ) -> PartGraph:
        """The rank's rows from arcs src -> dst; of arcs that are given twice the first one counts.

        A part in DGL's format holds the arcs that arrive at its nodes. Those of an undirected graph, turned round,
        are the ones that leave them. Those of a directed graph go to their owners: pass ``group``.

        Args:
            src, dst: Shape (M,), partition-order numbers.
            layout, rank: As the attributes.
            weights: Shape (M,), above 0; on every rank that has an arc, or on none.
            directed: False: every arc's reverse is given as well, on the rank that owns its end.
            group: Sends every arc to the owner of ``src``; every rank must call. None: all are this rank's own.
        Raises:
            ShapeError: arrays of different length, or of a wrong dtype.
            DataError: a node is negative or not below N, or a weight is not finite and above 0.
            PartitionError: without a group, an arc leaves a node of another rank.
        """
        heads, tails = as_ids(src, "src").astype(np.int64), as_ids(dst, "dst").astype(np.int64)
        if len(heads) != len(tails):
            raise ShapeError(f"src has {len(heads)} ids, dst has {len(tails)}; expected the same number")
        num_nodes = int(layout.bounds[-1])
        for nodes in (heads, tails):
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
                wrong = nodes[(nodes < 0) | (nodes >= num_nodes)][0]
                raise DataError(f"part of rank {rank}: node {wrong} is outside [0, {num_nodes}); pass partition order")
        values = None if weights is None else checked_weights(weights, len(heads))
        if group is not None and group.world_size > 1:
            heads, tails, values = _to_owners(heads, tails, values, layout, group)
        low, high = layout.owned(rank)
        strangers = heads[(heads < low) | (heads >= high)]
        if len(strangers):
            raise PartitionError(
                f"part of rank {rank}: an arc leaves node {strangers[0]}, outside of its range [{low}, {high}); "
                "pass group= to send arcs to their owners"
            )
        indptr, indices, kept = to_rows(heads, tails, values, num_nodes, directed=True)
        if values is not None and kept is None:  # all are 1 here, but perhaps not on other ranks
            kept = np.ones(len(indices), np.float32)
        return cls(indptr[low : high + 1] - indptr[low], indices, kept, directed, layout, rank)

    def arcs_at(self, nodes: NDArray[np.integer]) -> PartGraph:
        """The same nodes with those arcs alone that have an end among some, (S,)."""
        chosen = np.zeros(self.num_nodes, bool)
        chosen[nodes] = True
        sources = np.repeat(np.arange(self.low, self.low + self.num_own_nodes), self.degrees())
        kept = chosen[sources] | chosen[self.indices]
        indptr = np.concatenate([[0], np.cumsum(kept)])[self.indptr]
        weights = None if self.weights is None else self.weights[kept]
        return PartGraph(indptr, self.indices[kept], weights, self.directed, self.layout, self.rank)

    def degrees(self) -> NDArray[np.int64]:
        """Arcs that leave each own node, shape (R,)."""
        return np.diff(self.indptr)


def _to_owners(
    heads: NDArray[np.int64],
    tails: NDArray[np.int64],
    weights: NDArray[np.float32] | None,
    layout: RankRanges,
    group: ProcessGroup,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Every arc at the rank that owns its head, rank after rank in the order in which they were given there."""
    what = "exchange of arcs"
    weighted = group.gather_objects(None if not len(heads) else weights is not None, what)
    if {True, False} <= set(weighted):
        raise ConfigError(f"{what}: ranks with weights: {weighted}; give them on every rank or on none")
    if not len(heads):  # nothing to send tells nothing
        weights = np.empty(0, np.float32) if True in weighted else None
    found, columns = to_owners(heads, (tails,) if weights is None else (tails, weights), layout, group)
    return found, columns[0], None if weights is None else columns[1]


def to_owners(
    heads: NDArray[np.int64], columns: Sequence[NDArray[Any]], layout: RankRanges, group: ProcessGroup
) -> tuple[NDArray[np.int64], tuple[NDArray[Any], ...]]:
    """Heads (M,) with columns (M, ...) of the same dtypes on every rank, each row sent to the owner of its head.

    They stand rank after rank, in the order in which they were given there. Every rank calls it.
    """
    found, _ = to_ranks(layout.owner(torch.from_numpy(heads)).numpy(), (heads, *columns), group, "exchange of arcs")
    return found[0], found[1:]


def to_ranks(
    rank: NDArray[np.integer], columns: Sequence[NDArray[Any]], group: ProcessGroup, what: str
) -> tuple[tuple[NDArray[Any], ...], list[int]]:
    """Columns (M, ...) of the same dtypes on every rank, each row sent to a rank. Every rank calls it.

    Args:
        rank: Where each row goes, shape (M,).
        what: The words with which an error names the call.
    Returns:
        The columns that arrive here, rank after rank, in the order in which they were given there; and how many rows
        came from each rank.
    """
    order = np.argsort(rank, kind="stable")
    counts = np.bincount(rank, minlength=group.world_size).astype(np.int64)
    del rank
    coming = group.exchange_numbers(torch.from_numpy(counts), what).tolist()

    def send(column: NDArray) -> NDArray:
        return group.exchange(torch.from_numpy(column[order]), counts.tolist(), coming, what).numpy()

    return tuple(map(send, columns)), coming
