"""Balance constraints: the weights that must be even between parts, and how even.

Legend: C constraints, N nodes of all types, P parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.core.threads import ThreadPool, counting_threads
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import EdgeOwner
from partition.kernels.sorting import count_ids

DEFAULT_TOLERANCE = 0.05
MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
FLOAT_STEPS = 1_000_000
"""A float column is counted in this many steps of its largest value."""


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
        """Check that no part holds more than its limit.

        Raises:
            PartitionError: the worst part, with its constraint, balance and limit.
        """
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
    return Constraints(tuple(names), weights, _tolerances(names, tolerance))


def _tolerances(names: list[str], tolerance: float | Mapping[str, float] | None) -> np.ndarray:
    given = tolerance if isinstance(tolerance, Mapping) else {}
    other = DEFAULT_TOLERANCE if tolerance is None or isinstance(tolerance, Mapping) else tolerance
    for name in given:
        if name not in names:
            raise ConfigError(f"tolerance: {name!r} is not balanced; balanced: {', '.join(names) or 'nothing'}")
    named = {f"tolerance of {name!r}": value for name, value in given.items()}
    for what, value in {"tolerance": other, **named}.items():
        if not np.isfinite(value) or value < 0:
            raise ConfigError(f"{what} is {value}; it must be finite and at least 0")
    return np.array([given.get(name, other) for name in names], np.float64)


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
                threads.run([partial(count_ids, ids[a:b], start, own) for (a, b), own in zip(spans, out, strict=True)])
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
