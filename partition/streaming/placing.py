"""The part of every node, its new id, and the buckets that follow from both.

Legend: N nodes, E edges, P parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.core.progress import Advance
from graph_emb.graph.readers.source import WEIGHT
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment
from partition.constraints import Constraints
from partition.methods.assign import finish
from partition.methods.base import Problem
from partition.options import BuildOptions
from partition.relabel import Ranges, relabel
from partition.streaming.edges import ShuffleLayout, check_largest, cut_buckets, number_type
from partition.streaming.links import STREAMED, Links, check_streamed, limits_of, streamed_options
from partition.streaming.plan import Budget
from partition.streaming.scan import Scan
from partition.streaming.shared_stages import Workplace

WITHOUT_EDGES = ("hash", "random", "range")
"""Methods that need no edge, so they run as they are on a graph without any."""
AUTO = "ldg"
AUTO_WHY = "auto: the lowest cut within the limits that needs no graph in memory"


def streaming_method(options: BuildOptions) -> str | None:
    """The streaming method that assigns the nodes; None where no edge is needed for that."""
    method = AUTO if options.method == "auto" else options.method
    return method if options.assignment is None and method in STREAMED else None


def check_method(options: BuildOptions) -> None:
    """Raise a ConfigError for a method, or an option of it, that needs the whole graph in memory."""
    streamed = streaming_method(options)
    if streamed is not None:
        check_streamed(streamed, options.balance, options.seed, options.method_options or {})
    elif options.assignment is None and options.method not in WITHOUT_EDGES:
        known = ", ".join(sorted((*WITHOUT_EDGES, *STREAMED)))
        raise ConfigError(f"method {options.method!r} needs the whole graph in memory; with memory= there are: {known}")


def num_passes(options: BuildOptions) -> int:
    """Passes over all neighbours."""
    streamed = streaming_method(options)
    return 0 if streamed is None else streamed_options(streamed, options.method_options or {})[0]


class Placing:
    """Assigns nodes and lays out the result, once, for all workers.

    Args:
        links: What a streaming method streams over; None for the others.
    """

    def __init__(
        self, workplace: Workplace, options: BuildOptions, budget: Budget, scan: Scan, name: str, links: Links | None
    ) -> None:
        self.options, self.budget, self.scan, self.name = options, budget, scan, name
        self.links = links
        self.folder = workplace.folder("nodes")

    def place(self, num_nodes: int, weighted: bool, tick: Advance) -> dict[str, Any]:
        """Write the maps of the nodes; returns what describes the layout, see ``layout_of``.

        Args:
            weighted: Whether edges have weights to keep.
            tick: Called with the nodes that a streaming method has placed.
        """
        graph = graph_without_edges(num_nodes, self.name)
        assignment = self._assigned(graph, tick)
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
        check_largest(degrees, most, "in-edges")
        sizes = np.diff(np.append(0, np.cumsum(degrees))[starts])
        if weighted and not sizes.all():
            raise PartitionError(
                f"part {int(np.argmin(sizes))} of {len(sizes)} owns no edge, but edges have weights: DGL's "
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

    def _assigned(self, graph: HeteroGraph, tick: Advance) -> Assignment:
        from partition.methods import assign

        options = self.options
        if options.assignment is not None:
            return options.assignment
        if self.links is not None:
            return self._streamed(graph, self.links, tick)
        return assign(
            graph,
            options.total_parts,
            options.method,
            seed=options.seed,
            balance=options.balance,
            tolerance=options.tolerance,
            **(options.method_options or {}),
        )

    def _streamed(self, graph: HeteroGraph, links: Links, tick: Advance) -> Assignment:
        options, num_parts = self.options, self.options.total_parts
        method = streaming_method(options)
        assert method is not None
        degrees = self.scan.degrees("in", graph.total_nodes)
        wanted = limits_of(graph, degrees, method, options.balance, options.tolerance)
        del degrees
        parts = np.zeros(graph.total_nodes, np.int32)
        if num_parts > 1:
            parts = links.stream(wanted, num_parts, options.seed, method, options.method_options or {}, tick)
        why = AUTO_WHY if options.method == "auto" else "asked for"
        why += finish(Problem(graph, num_parts, wanted), parts, method, "destination", with_cut=False)
        return Assignment({NODE_TYPE: parts}, num_parts, method, options.seed, why)

    def _balance(self, assignment: Assignment, parts: np.ndarray, degrees: np.ndarray) -> dict[str, float]:
        """Of nodes and of edges; an assignment that was given keeps what it says of itself."""
        if self.options.assignment is not None:
            return dict(assignment.balance)
        found: dict[str, float] = {}
        for name, weights in (("nodes", np.ones(len(parts), np.int64)), ("edges", degrees)):
            found |= Constraints((name,), weights[None], np.zeros(1)).balance(parts, assignment.num_parts)
        return found

    def node_ids(self) -> np.ndarray:
        """New id of each node, (N,)."""
        return np.load(self.folder / "node_ids.npy")

    def order(self) -> np.ndarray:
        """Original position of each new id, (N,)."""
        return np.load(self.folder / "order.npy")


def graph_without_edges(num_nodes: int, name: str, weight: np.dtype | None = None) -> HeteroGraph:
    """The graph's nodes and names alone."""
    none = np.empty(0, np.int64)
    data = {} if weight is None else {EDGE_TYPE: {WEIGHT: np.empty(0, weight)}}
    return HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: (none, none)}, edge_data=data, name=name)


def layout_of(placed: Mapping[str, Any], slice_rows: list[int], weight: np.dtype | None) -> ShuffleLayout:
    """The layout that ``Placing.place`` described."""
    nodes, edges = (Ranges.of_sizes(np.array(placed[key], np.int64)[:, None]) for key in ("node_sizes", "edge_sizes"))
    first_nodes, parts, first_edges = (
        np.array(placed[key], np.int64) for key in ("first_nodes", "bucket_parts", "first_edges")
    )
    first_rows = np.append(0, np.cumsum(slice_rows)).astype(np.int64)
    return ShuffleLayout(nodes, edges, first_nodes, parts, first_edges, first_rows, placed["position_rows"], weight)


def described(assignment: Assignment | None) -> str | None:
    """Checksum of a given assignment; None without one."""
    if assignment is None:
        return None
    import hashlib

    digest = hashlib.sha256(
        repr((assignment.num_parts, assignment.method, assignment.seed, assignment.balance)).encode()
    )
    for name, parts in assignment.parts.items():
        digest.update(name.encode() + np.ascontiguousarray(parts, np.int32).tobytes())
    return digest.hexdigest()
