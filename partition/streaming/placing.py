"""The part of every node, its new id, and the buckets that follow from both.

Legend: N nodes, E edges, P parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_emb.errors import ConfigError, PartitionError
from partition.assignment import Assignment
from partition.constraints import Constraints
from partition.hetero import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.relabel import Ranges, relabel
from partition.streaming.edges import Layout, cut_buckets, number_type
from partition.streaming.plan import Budget
from partition.streaming.scan import Scan
from partition.streaming.workplace import Workplace

METHODS = ("hash", "random", "range")
"""Methods that need no edge, so they run as they are on a graph without any."""


@dataclass(frozen=True)
class Request:
    """What the caller wants; see ``partition.build``."""

    num_parts: int
    method: str
    seed: int
    balance: tuple[str, ...] | None
    tolerance: float | Mapping[str, float] | None
    options: Mapping[str, Any]
    assignment: Assignment | None


class Placing:
    """Assigns nodes and lays out the result, once, for all workers."""

    def __init__(self, workplace: Workplace, request: Request, budget: Budget, scan: Scan, name: str) -> None:
        self.request, self.budget, self.scan, self.name = request, budget, scan, name
        self.folder = workplace.folder("nodes")

    def place(self, num_nodes: int, num_edges: int, weighted: bool) -> dict[str, Any]:
        """Write the maps of the nodes; returns what describes the layout, see ``layout_of``."""
        graph = HeteroGraph(
            {NODE_TYPE: num_nodes}, {EDGE_TYPE: (np.empty(0, np.int64), np.empty(0, np.int64))}, name=self.name
        )
        assignment = self._assigned(graph)
        made = relabel(graph, assignment)
        order = made.node_order[NODE_TYPE]
        np.save(self.folder / "node_ids.npy", made.node_ids[NODE_TYPE].astype(number_type(num_nodes)))
        np.save(self.folder / "order.npy", order.astype(number_type(num_nodes)))
        parts, starts = assignment.parts[NODE_TYPE], np.append(made.nodes.starts[:, 0], num_nodes)
        del made
        degrees = self.scan.degrees("in", num_nodes)
        balance = self._balance(assignment, parts, degrees)
        degrees = degrees[order]
        del order, parts
        most = self.budget.bucket_rows(self.budget.work_bytes(num_nodes))
        first_nodes, bucket_parts, first_edges = cut_buckets(degrees, starts, most)
        self._check_hubs(degrees, most)
        sizes = np.diff(np.append(0, np.cumsum(degrees))[starts])
        if weighted and not sizes.all():
            raise PartitionError(
                f"part {int(np.argmin(sizes))} of {self.request.num_parts} owns no edge, but edges have weights: DGL's "
                "servers die on that; use fewer parts or another method"
            )
        return {
            "first_nodes": first_nodes.tolist(),
            "bucket_parts": bucket_parts.tolist(),
            "first_edges": first_edges.tolist(),
            "node_sizes": np.diff(starts).tolist(),
            "edge_sizes": sizes.tolist(),
            "position_rows": most,
            "assignment": {"method": assignment.method, "why": assignment.why, "balance": balance},
        }

    def _assigned(self, graph: HeteroGraph) -> Assignment:
        from partition.methods import assign

        request = self.request
        if request.assignment is not None:
            return request.assignment
        return assign(
            graph,
            request.num_parts,
            request.method,
            seed=request.seed,
            balance=request.balance,
            tolerance=request.tolerance,
            **request.options,
        )

    def _balance(self, assignment: Assignment, parts: np.ndarray, degrees: np.ndarray) -> dict[str, float]:
        """Of nodes and of edges; an assignment that was given keeps what it says of itself."""
        if self.request.assignment is not None:
            return dict(assignment.balance)
        found: dict[str, float] = {}
        for name, weights in (("nodes", np.ones(len(parts), np.int64)), ("edges", degrees)):
            found |= Constraints((name,), weights[None], np.zeros(1)).balance(parts, assignment.num_parts)
        return found

    def _check_hubs(self, degrees: np.ndarray, most: int) -> None:
        if len(degrees) and degrees.max() > most:
            raise ConfigError(
                f"a node has {int(degrees.max()):,} in-edges, which lie in one bucket; the memory orders {most:,} at a "
                "time, so give more"
            )

    def node_ids(self) -> np.ndarray:
        """New id of each node, (N,)."""
        return np.load(self.folder / "node_ids.npy")

    def order(self) -> np.ndarray:
        """Original position of each new id, (N,)."""
        return np.load(self.folder / "order.npy")


def layout_of(placed: Mapping[str, Any], slice_rows: list[int], weight: np.dtype | None) -> Layout:
    """The layout that ``Placing.place`` described."""
    nodes, edges = (Ranges.of_sizes(np.array(placed[key], np.int64)[:, None]) for key in ("node_sizes", "edge_sizes"))
    first_nodes, parts, first_edges = (
        np.array(placed[key], np.int64) for key in ("first_nodes", "bucket_parts", "first_edges")
    )
    first_rows = np.append(0, np.cumsum(slice_rows)).astype(np.int64)
    return Layout(nodes, edges, first_nodes, parts, first_edges, first_rows, placed["position_rows"], weight)


def described(assignment: Assignment | None) -> str | None:
    """What tells one given assignment from another."""
    if assignment is None:
        return None
    import hashlib

    digest = hashlib.sha256(json.dumps([assignment.num_parts, assignment.method, assignment.balance]).encode())
    for name, parts in assignment.parts.items():
        digest.update(name.encode() + np.ascontiguousarray(parts, np.int32).tobytes())
    return digest.hexdigest()
