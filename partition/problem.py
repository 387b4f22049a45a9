"""Input of a partitioning method: the symmetric graph that it cuts, and the weights that must be even between parts.

Legend: N nodes of all types, E directed edges of all types, M stored entries, C constraints, P parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.core.threads import ThreadPool, counting_threads
from graph_emb.graph.readers.source import MASKS
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import EdgeOwner
from partition.kernels import sorting as kernels

MAX_WEIGHT = 2**31 - 1
RelationWeights = Mapping[EdgeType, int] | Mapping[str, int]
"""A weight by edge type: three names, or the same joined by ":"."""
DEFAULT_TOLERANCE = 0.05
FLOAT_STEPS = 1_000_000
"""A float column is counted in this many steps of its largest value."""


@dataclass
class Problem:
    """Input of a method.

    Attributes:
        num_parts: P, at least 2.
        constraints: What must be even; only names that the method promised.
        seed: Where all random choices come from.
        num_threads: Changes the time, not the result.
        relation_weights: What edges of a type weigh in the cut; others weigh 1.
    """

    graph: HeteroGraph
    num_parts: int
    constraints: Constraints
    seed: int = 0
    num_threads: int = 1
    relation_weights: RelationWeights | None = None

    @cached_property
    def adjacency(self) -> SymmetricAdjacency:
        """The symmetric graph, built when first asked for."""
        return symmetric(self.graph, self.relation_weights, num_threads=self.num_threads)

    @property
    def num_nodes(self) -> int:
        return self.graph.total_nodes


@dataclass(frozen=True)
class SymmetricAdjacency:
    """Neighbours of homogeneous node ids (types one after the other, ``graph.node_offsets``).

    Attributes:
        indptr: (N + 1,), int64; the neighbours of u are ``indices[indptr[u]:indptr[u + 1]]``, each once, never u.
        indices: (M,), int32, or int64 from 2^31 nodes on.
        weights: (M,), int32: the directed edges between two nodes in either direction (times the weight of their
            relation); None: all the same.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_entries(self) -> int:
        """M: two for each pair of neighbours."""
        return len(self.indices)

    @property
    def weight_array(self) -> np.ndarray:
        """The weights for a compiled loop: empty where all are the same."""
        return np.empty(0, np.int32) if self.weights is None else self.weights

    def cut(self, parts: np.ndarray) -> int:
        """Weight of the pairs of neighbours in different parts, 1 each without weights, for the (N,) part of each node.

        Raises:
            PartitionError: parts has another length.
        """
        if parts.shape != (self.num_nodes,):
            raise PartitionError(f"parts has shape {parts.shape}; expected ({self.num_nodes},)")
        return int(kernels.cut_of(self.indptr, self.indices, self.weight_array, parts)) // 2


def symmetric(
    graph: HeteroGraph, relation_weights: RelationWeights | None = None, *, num_threads: int = 1
) -> SymmetricAdjacency:
    """The symmetric adjacency of a graph, self loops dropped; peak memory near 8 bytes an input edge plus the result.

    Args:
        relation_weights: What an edge of a type weighs in the cut, integers of at least 0; types left out weigh 1, and
            an edge type of weight 0 is left out.
        num_threads: Changes the time, not the result.
    Raises:
        ConfigError: an unknown edge type, a weight outside [0, 2^31), or two nodes whose edges weigh more together.
    """
    cost = _checked_costs(graph, relation_weights)
    offsets, num_nodes = graph.node_offsets, graph.total_nodes
    lists = [
        (np.ascontiguousarray(src), np.ascontiguousarray(dst), offsets[etype[0]], offsets[etype[2]], cost[etype])
        for etype, (src, dst) in graph.edges.items()
        if cost[etype] > 0 and len(src)
    ]
    uneven = len({part[-1] for part in lists}) > 1
    num_threads = counting_threads(num_threads, num_nodes, graph.total_edges)
    with ThreadPool(num_threads) as threads:
        places = np.int32 if graph.total_edges < 2**30 else np.int64  # of twice as many entries
        counts, incoming = (np.zeros((num_threads, num_nodes), places) for _ in range(2))
        shares = _shares(lists, num_threads)
        calls = [
            partial(_each, kernels.count, share, (own, other))
            for share, own, other in zip(shares, counts, incoming, strict=True)
        ]
        # Lists that hold every edge in both directions already, as most do, are half the work.
        both = sum(threads.run(calls)) % 2**64 != 0
        if both:
            counts += incoming
        del calls, incoming
        indptr = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(counts.sum(axis=0), out=indptr[1:])
        kernels.begin(indptr, counts)
        indices = np.empty(indptr[-1], np.int32 if num_nodes < 2**31 else np.int64)
        weights = np.empty(indptr[-1] if uneven else 0, np.int32)
        calls = [
            partial(_each, kernels.scatter, share, (both, own, indices, weights))
            for share, own in zip(shares, counts, strict=True)
        ]
        threads.run(calls)
        del calls, counts
        return merged(indptr, indices, weights, 1 if both else 2, threads)


EdgeList = tuple[np.ndarray, np.ndarray, int, int, int]
"""Sources, destinations, the ids of their types' first nodes, and what an edge weighs."""


def _shares(lists: Sequence[EdgeList], num: int) -> list[list[tuple[EdgeList, int, int]]]:
    """Split all edges, list after list, into ``num`` even runs: the lists of each run, with first and last edge."""
    starts = np.cumsum([0, *(len(one[0]) for one in lists)])
    cuts = np.linspace(0, starts[-1], num + 1).astype(np.int64)
    return [
        [
            (one, max(0, int(low - start)), min(len(one[0]), int(high - start)))
            for one, start in zip(lists, starts[:-1], strict=True)
            if low < start + len(one[0]) and high > start
        ]
        for low, high in pairwise(cuts)
    ]


def _each(
    kernel: Callable[..., Any], share: list[tuple[EdgeList, int, int]], arrays: tuple[bool | np.ndarray, ...]
) -> int:
    """Run a loop over each piece of a share: the sum of its results."""
    return sum(
        int(kernel(src, dst, first, second, low, high, weight, *arrays) or 0)
        for (src, dst, first, second, weight), low, high in share
    )


def merged(
    indptr: np.ndarray, indices: np.ndarray, given: np.ndarray, unit: int, threads: ThreadPool
) -> SymmetricAdjacency:
    """Merge repeated neighbours; only the pages that end up used are ever touched, and the rest is given back."""
    num_nodes = len(indptr) - 1
    weights = given if len(given) else np.empty(len(indices), np.int32)
    degrees = np.empty(num_nodes, np.int64)
    widest = int(np.diff(indptr).max(initial=0))
    spans = threads.ranges(num_nodes, indptr)
    calls = [
        partial(
            kernels.merge,
            indptr, indices, given, unit, a, b, np.full(num_nodes, -1), np.empty(widest, np.int64), degrees, weights,
        )
        for a, b in spans
    ]  # fmt: skip
    merged = threads.run(calls)
    del calls
    largest = max(most for _, _, most in merged)
    if largest > MAX_WEIGHT:
        raise ConfigError(
            f"relation_weights: the edges between two nodes weigh {largest} together; at most {MAX_WEIGHT}, "
            "use smaller weights"
        )
    starts, stops = [int(indptr[low]) for low, _ in spans], [stop for stop, _, _ in merged]
    weights_of = {even for _, even, _ in merged if even}
    uneven = -1 in weights_of or len(weights_of) > 1
    for start, (stop, even, _) in zip(starts, merged, strict=True):
        if uneven and even > 0:
            weights[start:stop] = even
    size = close_gaps(starts, stops, (indices, weights) if uneven else (indices,))
    np.cumsum(degrees, out=indptr[1:])
    del degrees
    indices.resize(size, refcheck=False)
    if not uneven:
        return SymmetricAdjacency(indptr, indices)
    weights.resize(size, refcheck=False)
    return SymmetricAdjacency(indptr, indices, weights)


def close_gaps(starts: list[int], stops: list[int], arrays: tuple[np.ndarray, ...]) -> int:
    """Compact the filled ranges of each array, in place: the number of entries that remain."""
    size = 0
    for start, stop in zip(starts, stops, strict=True):
        for values in arrays if start > size else ():
            kernels.move_down(values, start, size, stop - start)
        size += stop - start
    return size


def _checked_costs(graph: HeteroGraph, relation_weights: RelationWeights | None) -> dict[EdgeType, int]:
    if relation_weights is None:
        return dict.fromkeys(graph.edges, 1)
    if not isinstance(relation_weights, Mapping):
        raise ConfigError(
            f"relation_weights is {relation_weights!r}; give a weight by edge type, such as {{'a:to:b': 5}}"
        )
    names = {":".join(etype): etype for etype in graph.edges}
    costs: dict[EdgeType, int] = {}
    for key, weight in relation_weights.items():
        etype = names.get(key) if isinstance(key, str) else key
        if etype is None or etype not in graph.edges:
            raise ConfigError(f"relation_weights: unknown edge type {key!r}; known: {', '.join(names)}")
        if etype in costs:
            raise ConfigError(f"relation_weights: {':'.join(etype)} is given twice")
        number = isinstance(weight, int | float | np.integer | np.floating)
        if not number or not 0 <= weight <= MAX_WEIGHT or int(weight) != weight:
            raise ConfigError(f"relation_weights: {':'.join(etype)} has weight {weight!r}; integers 0 .. {MAX_WEIGHT}")
        costs[etype] = int(weight)
    return {etype: costs.get(etype, 1) for etype in graph.edges}


@dataclass(frozen=True)
class Constraints:
    """Weights of the nodes that every part must have its share of.

    Attributes:
        names: C names such as ``"nodes"``.
        weights: (C, N), int64, at least 0, by homogeneous node id.
        tolerances: (C,): a part holds at most ``(1 + tolerance)`` of the mean.
    """

    names: tuple[str, ...]
    weights: np.ndarray
    tolerances: np.ndarray

    def limits(self, num_parts: int) -> np.ndarray:
        """(C,), int64: the most that a part may hold, and never less than the mean rounded up."""
        totals = self.weights.sum(axis=1)
        even = -(-totals // num_parts)
        return np.maximum(even, np.floor(totals / num_parts * (1 + self.tolerances) + 1e-9).astype(np.int64))

    def loads(self, parts: np.ndarray, num_parts: int) -> np.ndarray:
        """(C, P), int64: what each part holds, for the (N,) part of each node."""
        out = np.zeros((len(self.names), num_parts), np.int64)
        for row, weights in zip(out, self.weights, strict=True):
            # a float64 sum of integers is exact below 2^53
            row[:] = np.bincount(parts, weights=weights, minlength=num_parts).astype(np.int64)
        return out

    def balance(self, parts: np.ndarray, num_parts: int) -> dict[str, float]:
        """The fullest part's load over the mean by name; 1.0 where nothing is to be shared out."""
        loads = self.loads(parts, num_parts)
        totals = loads.sum(axis=1)
        return {
            name: float(row.max() * num_parts / total) if total else 1.0
            for name, row, total in zip(self.names, loads, totals, strict=True)
        }

    def check(self, parts: np.ndarray, num_parts: int, method: str) -> None:
        """Raise a PartitionError that names the worst part, its balance and limit, where one holds more than that."""
        loads, limits = self.loads(parts, num_parts), self.limits(num_parts)
        excess = loads / np.maximum(limits, 1)[:, None]
        if not len(self.names) or excess.max() <= 1:
            return
        row, part = np.unravel_index(int(np.argmax(excess)), excess.shape)
        total, largest = int(loads[row].sum()), int(self.weights[row].max())
        mean = total / num_parts
        heavy = f"; one node alone weighs {largest}" if largest > limits[row] else ""
        raise PartitionError(
            f"{method}: part {part} holds {loads[row, part]} of {total} {self.names[row]!r}, balance "
            f"{loads[row, part] / mean:.3f}, above the limit {limits[row]} ({limits[row] / mean:.3f}){heavy}; "
            "raise the tolerance, use fewer parts or balance less"
        )


def constraints(
    graph: HeteroGraph,
    balance: Sequence[str] = ("nodes", "edges"),
    tolerance: float | Mapping[str, float] | None = None,
    *,
    edge_owner: EdgeOwner = "destination",
    num_threads: int = 1,
) -> Constraints:
    """Constraints of a graph by name.

    Args:
        balance: Any of ``"nodes"``; ``"edges"``, counted where ``edge_owner`` puts them; ``"types"``, every node type;
            ``"type:NAME"``, one; ``"train"``, ``"valid"``, ``"test"``, the nodes under ``train_mask``, ``val_mask``,
            ``test_mask``; ``"weight:COLUMN"``, any column of node data with values of at least 0.
        tolerance: What a part may hold above the mean, at least 0: one number, or by name (others take 0.05).
        edge_owner: ``"destination"`` counts in-degrees, ``"source"`` out-degrees, ``"balanced"`` both.
        num_threads: Changes the time, not the result.
    Raises:
        ConfigError: an unknown or repeated name, or a tolerance outside [0, inf).
        DataError: a mask or column is missing, not one number a node, negative or not finite.
    """
    types = [f"type:{ntype}" for ntype in graph.ntypes]
    names = [each for name in balance for each in (types if name == "types" else [name])]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"balance: {name!r} is given twice")
    rows = [_weights(graph, name, edge_owner, num_threads) for name in names]
    weights = np.stack(rows) if rows else np.empty((0, graph.total_nodes), np.int64)
    given = tolerance if isinstance(tolerance, Mapping) else {}
    other = DEFAULT_TOLERANCE if tolerance is None or isinstance(tolerance, Mapping) else tolerance
    for name in given:
        if name not in names:
            raise ConfigError(f"tolerance: {name!r} is not balanced; balanced: {', '.join(names) or 'nothing'}")
    named = {f"tolerance of {name!r}": value for name, value in given.items()}
    for what, value in {"tolerance": other, **named}.items():
        if not isinstance(value, int | float | np.number) or not np.isfinite(value) or value < 0:
            raise ConfigError(f"{what} is {value!r}; it must be finite and at least 0")
    tolerances = np.array([given.get(name, other) for name in names], np.float64)
    return Constraints(tuple(names), weights, tolerances)


def _weights(graph: HeteroGraph, name: str, edge_owner: EdgeOwner, num_threads: int) -> np.ndarray:
    if name == "nodes":
        return np.ones(graph.total_nodes, np.int64)
    if name == "edges":
        return _degrees(graph, edge_owner, num_threads)
    if name in MASKS:
        return _column(graph, MASKS[name], name)
    kind, _, rest = name.partition(":")
    if kind == "weight" and rest:
        return _column(graph, rest, name)
    if kind == "type" and rest in graph.num_nodes:
        out = np.zeros(graph.total_nodes, np.int64)
        start = graph.node_offsets[rest]
        out[start : start + graph.num_nodes[rest]] = 1
        return out
    types = ", ".join(f"type:{ntype}" for ntype in graph.ntypes)
    raise ConfigError(
        f"balance: unknown constraint {name!r}; known: nodes, edges, types, {types}, train, valid, test, weight:COLUMN"
    )


def _degrees(graph: HeteroGraph, edge_owner: EdgeOwner, num_threads: int) -> np.ndarray:
    ends = {"destination": (1,), "source": (0,), "balanced": (0, 1)}
    if edge_owner not in ends:
        raise ConfigError(f"unknown edge_owner {edge_owner!r}; known: {', '.join(ends)}")
    num_threads = counting_threads(num_threads, graph.total_nodes, graph.total_edges)
    out = np.zeros((num_threads, graph.total_nodes), np.int64)
    with ThreadPool(num_threads) as threads:
        for etype, pair in graph.edges.items():
            for side in ends[edge_owner]:
                ids, start = pair[side], graph.node_offsets[etype[2 * side]]
                spans = threads.ranges(len(ids))
                threads.run(
                    [partial(kernels.count_ids, ids[a:b], start, own) for (a, b), own in zip(spans, out, strict=True)]
                )
    return out.sum(axis=0)


def _column(graph: HeteroGraph, column: str, name: str) -> np.ndarray:
    """A column of node data by homogeneous id, 0 in types without it."""
    out = np.zeros(graph.total_nodes, np.float64)
    found, whole = False, True
    for ntype, start in graph.node_offsets.items():
        values = graph.node_data.get(ntype, {}).get(column)
        if values is None:
            continue
        found = True
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise DataError(f"balance {name!r}: {ntype}/{column} is {values.dtype} {values.shape}; needs (N,) numbers")
        if len(values) and not (np.isfinite(values).all() and values.min() >= 0):
            raise DataError(f"balance {name!r}: {ntype}/{column} has a value below 0 or not finite")
        whole &= values.dtype.kind in "biu"
        out[start : start + len(values)] = values
    if not found:
        raise DataError(f"balance {name!r}: no node type has data {column!r}")
    if not whole and out.any():
        out = np.rint(out * (FLOAT_STEPS / out.max()))
    return out.astype(np.int64)
