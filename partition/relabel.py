"""New ids: each part owns one contiguous range of every node type and of every edge type.

Homogeneous ids count parts first and types within a part, as DGL's range partition book wants them; the id of a node
within its type counts its type's nodes of all earlier parts. Legend: P parts, T node types, R edge types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.kernels import sorting as kernels

RESERVED_DATA = {"_ID", "inner_node", "inner_edge"}
"""Columns that DGL itself leaves out of a partition, as their meaning is its own."""


@dataclass(frozen=True)
class Ranges:
    """Where the ids of one kind (nodes or edges) of each part and type begin.

    Attributes:
        starts: (P, T + 1), int64: homogeneous ids of type t in part p are [starts[p, t], starts[p, t + 1]).
    """

    starts: np.ndarray

    @classmethod
    def of_sizes(cls, sizes: np.ndarray) -> Ranges:
        """Ranges one after the other, for (P, T) sizes; of T = 0 types all are empty."""
        num_parts, num_types = sizes.shape
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(bounds[np.arange(num_parts)[:, None] * num_types + np.arange(num_types + 1)])

    @property
    def sizes(self) -> np.ndarray:
        """(P, T): ids of each type that each part owns."""
        return np.diff(self.starts, axis=1)

    @property
    def typed_starts(self) -> np.ndarray:
        """(P + 1, T): the first id within its type of each part."""
        first = np.zeros((1, self.starts.shape[1] - 1), np.int64)
        return np.concatenate([first, np.cumsum(self.sizes, axis=0)])

    def typed_rows(self, part: int, t: int) -> slice:
        """The ids within type t that a part owns."""
        return slice(*self.typed_starts[part : part + 2, t].tolist())

    @property
    def total(self) -> int:
        """Ids of all parts and types."""
        return int(self.starts[-1, -1])

    def of_part(self, part: int) -> tuple[int, int]:
        """[start, stop) of all homogeneous ids of a part."""
        return int(self.starts[part, 0]), int(self.starts[part, -1])

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """The part of each homogeneous id, int64; ranges without ids own nothing."""
        return np.searchsorted(self.starts[:, -1], ids, side="right")

    def split(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(part, type, id within the type) of each homogeneous id."""
        parts = self.owners(ids)
        num_types = self.starts.shape[1] - 1
        # all ends in one ascending line: the first end above an id names its part and type
        types = np.searchsorted(self.starts[:, 1:].ravel(), ids, side="right") - parts * num_types
        return parts, types, ids - self.starts[parts, types] + self.typed_starts[parts, types]

    def as_json(self, names: list[str]) -> dict[str, list[list[int]]]:
        """``node_map`` or ``edge_map`` of DGL's JSON: [start, stop) of each part by type."""
        return {name: self.starts[:, t : t + 2].tolist() for t, name in enumerate(names)}


@dataclass(frozen=True)
class Relabelled:
    """A graph's new ids.

    Attributes:
        graph: The graph in its original order.
        parts: The part of each node by type, original order, int32.
        nodes, edges: Ranges of homogeneous ids.
        node_order, edge_order: Original position of each partition-order id, by type.
        node_ids: Homogeneous id of each original position, by node type.
        edge_owner: Which end's part owns an edge.
    """

    graph: HeteroGraph
    parts: dict[str, np.ndarray]
    nodes: Ranges
    edges: Ranges
    node_order: dict[str, np.ndarray]
    edge_order: dict[EdgeType, np.ndarray]
    node_ids: dict[str, np.ndarray]
    edge_owner: EdgeOwner

    @property
    def num_parts(self) -> int:
        return len(self.nodes.starts)

    @property
    def kinds(self) -> dict[str, tuple[Ranges, Mapping[Any, np.ndarray], Mapping[Any, dict[str, np.ndarray]]]]:
        """Of ``"node"`` and ``"edge"`` the ranges, the order by type and the data by type."""
        return {
            "node": (self.nodes, self.node_order, self.graph.node_data),
            "edge": (self.edges, self.edge_order, self.graph.edge_data),
        }

    def ends(self, etype: EdgeType) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(sources, destinations, homogeneous ids of the source type, of the destination type) of an edge type."""
        src, dst = self.graph.edges[etype]
        return src, dst, self.node_ids[etype[0]], self.node_ids[etype[2]]


def type_name(kind: str | EdgeType) -> str:
    """A node type as it is, an edge type as ``source:relation:destination``."""
    return kind if isinstance(kind, str) else ":".join(kind)


def inverse(order: np.ndarray) -> np.ndarray:
    """The permutation that undoes another: inverse(order)[order[i]] == i."""
    out = np.empty_like(order)
    out[order] = np.arange(len(order), dtype=order.dtype)
    return out


def relabel(
    graph: HeteroGraph, assignment: Assignment, edge_owner: EdgeOwner = "destination", *, num_threads: int | None = None
) -> Relabelled:
    """Give the nodes and edges of each part contiguous ids.

    Nodes of one part and type keep their original order. Edges lie in the order of their end inside the part (the
    owning end first), so that the in-edges of a node are neighbours in the file; ties keep the original order.

    Args:
        graph: Any graph; its arrays are not copied.
        assignment: The part of each node.
        edge_owner: ``"destination"`` (DGL's rule), ``"source"``, or ``"balanced"``: a cut edge goes to the part of its
            ends that has fewer edges, see ``partition.vertex_cut.edge_owner``.
        num_threads: Changes the time, not the result; None: all that this process may use.
    Raises:
        PartitionError: the assignment does not fit the graph.
        ConfigError: unknown edge_owner, or num_threads below 1.
    """
    assignment.check(graph)
    threads = thread_count(num_threads)
    parts = {ntype: np.ascontiguousarray(assignment.parts[ntype], np.int32) for ntype in graph.ntypes}
    nodes, node_order, node_ids = _relabel_nodes(graph, parts, assignment.num_parts)
    owners = None
    if edge_owner != "destination":
        from partition.vertex_cut import edge_owner as owners_by

        owners = owners_by(graph, assignment, edge_owner)
    with ThreadPool(threads) as pool:
        edges, edge_order = _relabel_edges(graph, parts, nodes, node_ids, owners, edge_owner == "source", pool)
    return Relabelled(graph, parts, nodes, edges, node_order, edge_order, node_ids, edge_owner)


def _relabel_nodes(graph: HeteroGraph, parts: dict[str, np.ndarray], num_parts: int) -> tuple[Ranges, Any, Any]:
    order, starts = {}, {}
    for ntype in graph.ntypes:
        order[ntype], starts[ntype] = kernels.group(parts[ntype], num_parts)
    nodes = Ranges.of_sizes(np.reshape([np.diff(starts[ntype]) for ntype in graph.ntypes], (-1, num_parts)).T)
    ids = {}
    for t, ntype in enumerate(graph.ntypes):
        ids[ntype] = np.empty(graph.num_nodes[ntype], np.int64)
        for part in range(num_parts):
            inside = order[ntype][starts[ntype][part] : starts[ntype][part + 1]]
            ids[ntype][inside] = np.arange(nodes.starts[part, t], nodes.starts[part, t + 1])
    return nodes, order, ids


def _relabel_edges(
    graph: HeteroGraph,
    parts: dict[str, np.ndarray],
    nodes: Ranges,
    node_ids: dict[str, np.ndarray],
    owners: dict[EdgeType, np.ndarray] | None,
    by_source: bool,
    threads: ThreadPool,
) -> tuple[Ranges, dict[EdgeType, np.ndarray]]:
    """(ranges, original position of each id); owners None: the destination's part, without an array of all of them."""
    num_parts = len(nodes.starts)
    orders, sizes = {}, []
    for etype, (src, dst) in graph.edges.items():
        of_type = parts[etype[2]][dst] if owners is None else owners[etype]
        order, starts = kernels.group(of_type, num_parts)
        del of_type
        ends = src, dst, node_ids[etype[0]], node_ids[etype[2]]
        calls = [
            partial(kernels.sort_by_end, order[starts[p] : starts[p + 1]], *ends, *nodes.of_part(p), by_source)
            for p in range(num_parts)
        ]
        threads.run(calls)
        orders[etype] = order
        sizes.append(np.diff(starts))
    return Ranges.of_sizes(np.reshape(sizes, (-1, num_parts)).T), orders
