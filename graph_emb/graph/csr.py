"""The graph that every model trains on: compressed rows of neighbours, on the host, read-only.

Arc lists become sorted, distinct rows in two counting sorts, without a comparison sort.
"""

# N nodes, E given or stored arcs, M edges, B asked pairs

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.graph.ids import as_ids, distinct_ids, find_ids, number_ids
from graph_emb.graph.typed import summary, summary_card

Duplicates = Literal["first", "sum"]
SelfLoops = Literal["keep", "drop"]
Rows = tuple[NDArray[np.int64], NDArray[np.int32], "NDArray[np.float32] | None"]

MAX_NODES = 2**31 - 1


def frozen(array: NDArray) -> NDArray:
    """A view that cannot be written, so that a graph can be shared between threads and caches."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class Graph:
    """Neighbour lists of N nodes in compressed rows.

    An undirected graph stores both directions of an edge, and a self loop once.

    Attributes:
        indptr: Shape (N+1,), int64; the out-neighbours of u are ``indices[indptr[u]:indptr[u+1]]``.
        indices: Shape (E,), int32, sorted and distinct within a row.
        weights: Shape (E,), float32, finite and above 0; None: all are 1.
        directed: Whether an arc may lack its reverse.
        node_ids: Shape (N,), the ids of the nodes where they came from, int64 or strings; None: 0 .. N-1.
    Raises:
        ShapeError: an array's dtype or length does not fit the others. ``validate`` checks the values.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    directed: bool
    node_ids: NDArray | None = None

    __repr__ = summary
    _repr_html_ = summary_card

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or len(self.indptr) == 0:
            raise ShapeError(f"indptr: shape {self.indptr.shape}; expected (N+1,)")
        self._check("indptr", np.int64, len(self.indptr))
        self._check("indices", np.int32, int(self.indptr[-1]))
        self._check("weights", np.float32, int(self.indptr[-1]))
        if self.node_ids is not None:
            own = self.node_ids.dtype
            self._check("node_ids", own if own.kind == "U" else np.int64, self.num_nodes)

    def _check(self, name: str, dtype: np.dtype | type, length: int) -> None:
        array = getattr(self, name)
        if array is None:
            return
        if array.dtype != dtype or array.shape != (length,):
            raise ShapeError(
                f"{name}: dtype {array.dtype}, shape {array.shape}; expected {np.dtype(dtype)}, ({length},)"
            )
        object.__setattr__(self, name, frozen(array))

    @classmethod
    def from_edges(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        num_nodes: int | None = None,
        weights: ArrayLike | None = None,
        directed: bool = False,
        node_ids: ArrayLike | None = None,
        *,
        duplicates: Duplicates = "first",
        self_loops: SelfLoops = "keep",
    ) -> Graph:
        """A graph of the given arcs, or of the given edges where ``directed`` is False.

        Ids that are the integers 0 .. N-1, each used, stay as they are. Others (gaps, huge ones, strings) are
        numbered in sorted order, and ``graph.node_ids`` keeps them.

        Args:
            src, dst: Shape (E,), integers of at least 0, or strings.
            num_nodes: Ids are node numbers below this; nodes without an edge are kept.
            weights: Shape (E,), above 0. Weights that are all 1 are stored as None.
            node_ids: Shape (N,), distinct; ``src`` and ``dst`` are then node numbers, positions in it.
            duplicates: Of a repeated edge, ``first`` keeps the weight that comes first and ``sum`` adds them
                up; without weights each counts 1. Undirected, (u, v) and (v, u) are the same edge.
            self_loops: ``keep`` or ``drop``.
        Raises:
            ShapeError: arrays of different length or of a wrong dtype.
            DataError: an id is negative or not below ``num_nodes``, a weight is not finite and above 0.
            ConfigError: ``num_nodes`` or a policy is out of range.
        """
        heads, tails = as_ids(src, "src"), as_ids(dst, "dst")
        if len(heads) != len(tails):
            raise ShapeError(f"src has {len(heads)} ids, dst has {len(tails)}; expected the same number")
        if (heads.dtype.kind == "U") != (tails.dtype.kind == "U") and len(heads):
            raise ShapeError(f"src is {heads.dtype}, dst is {tails.dtype}; expected both integers or both strings")
        if num_nodes is not None and not 0 <= num_nodes <= MAX_NODES:
            raise ConfigError(f"num_nodes {num_nodes} is outside [0, {MAX_NODES}]; give the number of nodes")
        names = None if node_ids is None else distinct_ids(node_ids, num_nodes)
        count = num_nodes if names is None else len(names)
        _check_range(heads, count)
        _check_range(tails, count)
        values = None if weights is None else checked_weights(weights, len(heads))
        if count is None:
            (heads, tails), names, count = number_ids([heads], [tails])
        if count > MAX_NODES:
            raise DataError(f"graph: {count} nodes; at most {MAX_NODES} fit the int32 neighbour lists")
        rows = to_rows(heads, tails, values, count, directed=directed, duplicates=duplicates, self_loops=self_loops)
        return cls(*rows, directed=directed, node_ids=names)

    @classmethod
    def without_edges(cls, num_nodes: int, node_ids: ArrayLike | None = None) -> Graph:
        """N nodes alone, by whose ids a file about nodes is read."""
        return cls.from_edges(np.zeros(0, np.int64), np.zeros(0, np.int64), num_nodes, node_ids=node_ids)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        """E, the stored arcs: two for each undirected edge that is no self loop."""
        return len(self.indices)

    @cached_property
    def num_self_loops(self) -> int:
        """Arcs from a node to itself."""
        return int((self.sources() == self.indices).sum())

    @property
    def num_edges(self) -> int:
        """Edges, each undirected one counted once; of a directed graph the arcs."""
        return self.num_arcs if self.directed else (self.num_arcs + self.num_self_loops) // 2

    def degrees(self) -> NDArray[np.int64]:
        """Stored arcs that leave each node, shape (N,); a self loop counts once."""
        return np.diff(self.indptr)

    def sources(self) -> NDArray[np.int32]:
        """The node that each stored arc leaves, shape (E,); with ``indices`` the arc list."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.degrees())

    def edges(self) -> NDArray[np.int64]:
        """Shape (M, 2): each undirected edge once, the smaller node first; of a directed graph each arc."""
        src, dst = self.sources(), self.indices
        if not self.directed:
            keep = src <= dst
            src, dst = src[keep], dst[keep]
        return np.stack([src, dst], axis=1, dtype=np.int64)

    def edge_weights(self) -> NDArray[np.float32] | None:
        """Shape (M,), the weight of each row of ``edges()``; None: all are 1."""
        if self.weights is None or self.directed:
            return self.weights
        return self.weights[self.sources() <= self.indices]

    def has_edges(self, src: ArrayLike, dst: ArrayLike) -> NDArray[np.bool_]:
        """Whether the arc src -> dst is stored, shape (B,).

        Args:
            src, dst: Shape (B,), node numbers, repeats allowed.
        Raises:
            ShapeError: lengths differ, or a dtype that is no integer.
            DataError: a node is outside [0, N).
        """
        heads, tails = as_ids(src, "src"), as_ids(dst, "dst")
        if len(heads) != len(tails):
            raise ShapeError(f"src has {len(heads)} nodes, dst has {len(tails)}; expected the same number")
        _check_range(heads, self.num_nodes)
        _check_range(tails, self.num_nodes)
        low, end = self.indptr[heads], self.indptr[heads.astype(np.int64) + 1]
        high = end.copy()
        while (active := low < high).any():  # one bisection step for all pairs at once
            middle = (low + high) >> 1
            below = active.copy()
            below[active] = self.indices[middle[active]] < tails[active]
            low = np.where(below, middle + 1, low)
            high = np.where(active & ~below, middle, high)
        found = low < end
        found[found] = self.indices[low[found]] == tails[found]
        return found

    def find_nodes(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Node numbers of original ids, shape (B,); -1 where no node has that id."""
        return find_ids(self.node_ids, self.num_nodes, as_ids(ids, "ids"))

    def ids_of(self, nodes: ArrayLike) -> NDArray:
        """Original ids of node numbers, shape (B,), int64 or strings."""
        numbers = np.asarray(nodes, dtype=np.int64)
        _check_range(numbers, self.num_nodes)
        return numbers if self.node_ids is None else self.node_ids[numbers]

    def to_scipy(self) -> sparse.csr_array:
        """The (N, N) adjacency matrix in float32, row = source, a copy."""
        data = np.ones(self.num_arcs, dtype=np.float32) if self.weights is None else self.weights.copy()
        return sparse.csr_array((data, self.indices.copy(), self.indptr.copy()), shape=(self.num_nodes, self.num_nodes))

    def reverse(self) -> Graph:
        """Every arc turned round; an undirected graph is its own reverse."""
        if not self.directed:
            return self
        rows = to_rows(self.indices, self.sources(), self.weights, self.num_nodes, directed=True)
        return Graph(*rows, directed=True, node_ids=self.node_ids)

    def to_undirected(self, duplicates: Duplicates = "first") -> Graph:
        """Every arc in both directions; of u -> v and v -> u the weights are merged as ``duplicates`` says.

        ``first`` takes the weight of the arc that leaves the smaller node, ``sum`` adds both (an arc without
        weight counts 1).
        """
        if not self.directed:
            return self
        if self.weights is None and duplicates == "first":  # these rows are sorted already
            indptr, indices, _ = _both_ways(self.indptr, self.indices, np.ones(self.num_arcs, np.int8))
            return Graph(indptr, indices, None, directed=False, node_ids=self.node_ids)
        rows = to_rows(
            self.sources(), self.indices, self.weights, self.num_nodes, directed=False, duplicates=duplicates
        )
        return Graph(*rows, directed=False, node_ids=self.node_ids)

    def validate(self) -> Graph:
        """Checks every promise of the attributes in time linear in E, and returns the graph.

        Raises:
            DataError: the first promise that does not hold, with the place and the value.
        """
        if self.indptr[0] != 0 or (np.diff(self.indptr) < 0).any():
            raise DataError("graph: indptr must start at 0 and never fall; rebuild the graph with Graph.from_edges")
        _check_range(self.indices, self.num_nodes)
        inner = np.ones(max(self.num_arcs - 1, 0), dtype=bool)
        starts = self.indptr[1:-1]
        inner[starts[(starts > 0) & (starts < self.num_arcs)] - 1] = False
        falls = inner & (np.diff(self.indices) <= 0)
        if falls.any():
            node = int(np.searchsorted(self.indptr, np.argmax(falls), side="right")) - 1
            raise DataError(f"graph: neighbours of node {node} are not sorted and distinct; use Graph.from_edges")
        if self.weights is not None:
            checked_weights(self.weights, self.num_arcs)
        if self.node_ids is not None:
            distinct_ids(self.node_ids, self.num_nodes)
        if not self.directed:
            matrix = self.to_scipy()
            if (matrix != matrix.T.tocsr()).nnz:
                raise DataError("graph: undirected, but an arc lacks its reverse or its weight; use to_undirected()")
        return self


def _check_range(nodes: NDArray, limit: int | None) -> None:
    """Node numbers lie in [0, limit); None allows any id that is not negative, strings included."""
    if not nodes.size or (limit is None and nodes.dtype.kind == "U"):
        return
    if nodes.dtype.kind == "U":
        raise ShapeError("src, dst: strings; with num_nodes or node_ids expected node numbers")
    low, high = int(nodes.min()), int(nodes.max())
    if low < 0:
        raise DataError(f"graph: id {low} of edge {int(nodes.argmin())} is negative; ids start at 0")
    if limit is not None and high >= limit:
        raise DataError(f"graph: id {high} of edge {int(nodes.argmax())} is outside [0, {limit}); raise num_nodes")


def narrow_weights(values: NDArray) -> tuple[NDArray[np.float32], int | None]:
    """Weights in float32, and the position of the first that is not finite and above 0 there."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
    fits = np.isfinite(narrow) & (narrow > 0)
    return narrow, None if fits.all() else int(np.argmin(fits))


def checked_weights(weights: object, num_arcs: int) -> NDArray[np.float32]:
    """Weights as float32, shape (E,).

    Raises:
        ShapeError: not one number for each arc.
        DataError: a weight is not finite or not above 0 in float32.
    """
    given = np.asarray(weights)
    if given.shape != (num_arcs,) or given.dtype.kind not in "biuf":
        raise ShapeError(f"weights: shape {given.shape}, dtype {given.dtype}; expected one for each of {num_arcs} arcs")
    values, bad = narrow_weights(given)
    if bad is not None:
        raise DataError(
            f"weights: value {given[bad]} of arc {bad} is not finite and above 0 in float32; "
            "drop the arc or rescale the weights"
        )
    return values


def to_rows(
    src: NDArray[np.integer],
    dst: NDArray[np.integer],
    weights: NDArray[np.float32] | None,
    num_nodes: int,
    *,
    directed: bool,
    duplicates: Duplicates = "first",
    self_loops: SelfLoops = "keep",
) -> Rows:
    """Row pointers (N+1,), sorted distinct neighbours (arcs,) and their weights.

    Args:
        src, dst: Shape (E,), each at least 0 and below ``num_nodes``.
        directed: False stores both directions; (u, v) and (v, u) are then the same edge.
        duplicates: ``first`` keeps the weight that comes first, ``sum`` adds them (without a weight: 1).
    Raises:
        ConfigError: ``duplicates`` or ``self_loops`` is an unknown word.
    """
    if duplicates not in get_args(Duplicates):
        raise unknown_name("duplicates policy", duplicates, get_args(Duplicates))
    if self_loops not in get_args(SelfLoops):
        raise unknown_name("self_loops policy", self_loops, get_args(SelfLoops))
    src, dst = src.astype(np.int32, copy=False), dst.astype(np.int32, copy=False)
    if self_loops == "drop":
        keep = src != dst
        src, dst = src[keep], dst[keep]
        weights = None if weights is None else weights[keep]
    if not directed:  # the smaller id first, so that both spellings of an edge meet
        src, dst = np.minimum(src, dst), np.maximum(src, dst)
    if weights is None and duplicates == "sum":
        weights = np.ones(len(src), dtype=np.float32)
    rows = _sort(src, dst, weights, num_nodes)
    del src, dst
    rows = _merge_duplicates(*rows, duplicates)
    if not directed:
        rows = _both_ways(*rows)  # of the upper triangle
    indptr, indices, data = rows
    return indptr, indices, None if data.dtype == np.int8 or bool((data == 1).all()) else data


def _both_ways(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], data: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    """Sorted rows with the reverse of every arc; one that is there both ways, as a self loop, stays single."""
    num_nodes = len(indptr) - 1
    arcs = sparse.csr_array((data, indices, indptr), shape=(num_nodes, num_nodes))
    both = arcs.maximum(arcs.T.tocsr())
    return both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False), both.data


def _sort(
    src: NDArray[np.integer], dst: NDArray[np.integer], weights: NDArray[np.float32] | None, num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    """Arcs by (src, dst); equal arcs stay in the order in which they came, as both passes are stable."""
    data = np.ones(len(src), dtype=np.int8) if weights is None else weights
    arcs = sparse.coo_array((data, (dst, src)), shape=(num_nodes, num_nodes))
    arcs.has_canonical_format = True  # else tocsr() would add duplicates up
    by_dst = arcs.tocsr()
    del arcs
    by_src = by_dst.tocsc()
    return by_src.indptr.astype(np.int64), by_src.indices.astype(np.int32, copy=False), by_src.data


def _merge_duplicates(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], data: NDArray, duplicates: Duplicates
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    is_first = np.ones(len(indices), dtype=bool)
    is_first[1:] = indices[1:] != indices[:-1]
    starts = indptr[:-1]
    is_first[starts[starts < len(indices)]] = True
    if is_first.all():
        return indptr, indices, data
    positions = np.flatnonzero(is_first)
    if duplicates == "sum":
        total = np.add.reduceat(data, positions, dtype=np.float64)
        if (most := total.max()) > np.finfo(np.float32).max:
            raise DataError(
                f"graph: weights of a repeated edge add up to {most:g}, past float32; rescale the weights, or take "
                "duplicates='first'"
            )
        data = total.astype(np.float32)
    else:
        data = data[positions]
    before = np.zeros(len(indices) + 1, dtype=np.int64)
    np.cumsum(is_first, out=before[1:])
    return before[indptr], indices[positions], data
