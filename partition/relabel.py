"""New ids, and the graph of one part: its own nodes and edges, and the halo of nodes and edges of other parts.

Each part owns one contiguous range of every node type and of every edge type. Homogeneous ids count parts first and
types within a part, as DGL's range partition book wants them; the id of a node within its type counts its type's nodes
of all earlier parts.

Legend: P parts, T node types, R edge types; n inner nodes and h halo nodes of a part, e inner and o outer edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.dgl_format import Column
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner, Halo
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
    threads, num_parts = thread_count(num_threads), assignment.num_parts
    parts = {ntype: np.ascontiguousarray(assignment.parts[ntype], np.int32) for ntype in graph.ntypes}
    # 1. Nodes: grouped by part, then numbered by part and type.
    groups = {ntype: kernels.group(parts[ntype], num_parts) for ntype in graph.ntypes}
    nodes = Ranges.of_sizes(np.reshape([np.diff(starts) for _, starts in groups.values()], (-1, num_parts)).T)
    node_order = {ntype: order for ntype, (order, _) in groups.items()}
    node_ids = {ntype: np.empty(num, np.int64) for ntype, num in graph.num_nodes.items()}
    for t, (ntype, (order, starts)) in enumerate(groups.items()):
        for part in range(num_parts):
            inside = order[starts[part] : starts[part + 1]]
            node_ids[ntype][inside] = np.arange(nodes.starts[part, t], nodes.starts[part, t + 1])
    # 2. Edges: grouped by the part of their owner, then sorted by their end inside it.
    owners: dict[EdgeType, np.ndarray] = {}
    if edge_owner != "destination":
        from partition.vertex_cut import edge_owner as owners_by

        owners = owners_by(graph, assignment, edge_owner)
    edge_order, sizes, by_source = {}, [], edge_owner == "source"
    with ThreadPool(threads) as pool:
        for etype, (src, dst) in graph.edges.items():
            of_type = owners[etype] if owners else parts[etype[2]][dst]
            order, starts = kernels.group(of_type, num_parts)
            del of_type
            ends = src, dst, node_ids[etype[0]], node_ids[etype[2]]
            calls = [
                partial(kernels.sort_by_end, order[starts[p] : starts[p + 1]], *ends, *nodes.of_part(p), by_source)
                for p in range(num_parts)
            ]
            pool.run(calls)
            edge_order[etype] = order
            sizes.append(np.diff(starts))
    edges = Ranges.of_sizes(np.reshape(sizes, (-1, num_parts)).T)
    return Relabelled(graph, parts, nodes, edges, node_order, edge_order, node_ids, edge_owner)


@dataclass(frozen=True)
class PartArrays:
    """The graph of one part, inner nodes and edges first, each in the order of their ids.

    Attributes:
        num_inner_nodes, num_inner_edges: n and e.
        src, dst: Local node ids, (e + o,), int64.
        node_ids, edge_ids: Homogeneous partition-order ids, (n + h,) and (e + o,), int64.
        node_parts: Owner of each node, (n + h,), int64.
        node_types, edge_types: Of each node, (n + h,), and edge, (e + o,), int32 as DGL writes both.
    """

    num_inner_nodes: int
    num_inner_edges: int
    src: Column
    dst: Column
    node_ids: Column
    node_parts: Column
    edge_ids: Column
    node_types: np.ndarray
    edge_types: np.ndarray


def check_layout(halo: str, num_hops: int) -> None:
    """Raise a ConfigError for an unknown halo, or for num_hops below 1."""
    if halo not in get_args(Halo):
        raise unknown_name("halo", halo, get_args(Halo))
    if num_hops < 1:
        raise ConfigError(f"num_hops is {num_hops}; at least 1, or a part could not see where its edges end")


class PartBuilder:
    """Makes the parts of a relabelled graph one at a time; extra memory is O(nodes + cut edges + one part).

    Args:
        relabelled: The graph with its new ids.
        halo: ``"dgl"``: every edge with an end inside, as ``dgl.distributed.partition_graph``. ``"inbound"``: the
            edges that the part owns and all in-edges of its nodes, as DGL's ``distpartitioning``.
        num_hops: In-edges of how many steps away from the part's nodes are kept.
        num_threads: Changes the time, not the result; None: all that this process may use.
    Raises:
        ConfigError: unknown halo, or num_hops or num_threads below 1.
    """

    def __init__(
        self, relabelled: Relabelled, *, halo: Halo = "dgl", num_hops: int = 1, num_threads: int | None = None
    ) -> None:
        check_layout(halo, num_hops)
        self._num_threads = thread_count(num_threads)
        self.relabelled = relabelled
        self.halo = halo
        self.num_hops = num_hops
        self._local = np.full(relabelled.nodes.total, -1, np.int64)
        self._outer, self._outer_starts = self._cut_edges()
        if num_hops > 1:  # (homogeneous edge ids, start of each node's in-edges) over the whole graph
            dst = np.empty(relabelled.edges.total, np.int64)
            for part in range(relabelled.num_parts):
                dst[slice(*relabelled.edges.of_part(part))] = self._owned_ends(part)[1]
            self._in_edges = kernels.group(dst, relabelled.nodes.total)

    def _cut_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """(homogeneous edge ids by the part that stores them without owning them, start of each part)."""
        num_parts, found = self.relabelled.num_parts, np.empty(0, np.int64)
        starts = np.zeros(num_parts + 1, np.int64)
        if self.halo == "inbound" and self.relabelled.edge_owner == "destination":
            return found, starts
        # counted by edge type, owner and the part that stores them, then filled in that order within each part
        filled = np.zeros((len(self.relabelled.graph.etypes), num_parts, num_parts), np.int64)
        self._visit_cut_edges(filled, found)
        counts = filled.reshape(-1, num_parts)
        np.cumsum(counts.sum(axis=0), out=starts[1:])
        if starts[-1]:
            found = np.empty(starts[-1], np.int64)
            self._visit_cut_edges((starts[:-1] + np.cumsum(counts, axis=0) - counts).reshape(filled.shape), found)
        return found, starts

    def _visit_cut_edges(self, filled: np.ndarray, found: np.ndarray) -> None:
        made = self.relabelled
        calls = []
        for r, etype in enumerate(made.graph.etypes):
            src, dst = made.graph.edges[etype]
            starts = made.edges.typed_starts[:, r]
            for owner in range(made.num_parts):
                inside = made.edge_order[etype][starts[owner] : starts[owner + 1]]
                call = partial(
                    kernels.outer_edges, inside, src, dst, made.parts[etype[0]], made.parts[etype[2]], owner,
                    int(made.edges.starts[owner, r]), self.halo == "dgl", filled[r, owner], found,
                )  # fmt: skip
                calls.append(call)
        with ThreadPool(self._num_threads) as threads:
            threads.run(calls)

    def build(self, part: int) -> PartArrays:
        """The arrays of one part."""
        made = self.relabelled
        start, stop = made.nodes.of_part(part)
        first_edge, end_edge = made.edges.of_part(part)
        outer = np.sort(self._outer[self._outer_starts[part] : self._outer_starts[part + 1]])
        src, dst = self._owned_ends(part, extra=len(outer))
        self._ends_of(outer, src[end_edge - first_edge :], dst[end_edge - first_edge :])
        if self.num_hops > 1:
            outer = self._more_hops(part, outer, src[(dst >= start) & (dst < stop)])
            num = end_edge - first_edge
            src, dst = np.resize(src, num + len(outer)), np.resize(dst, num + len(outer))
            self._ends_of(outer, src[num:], dst[num:])
        found, num_found = np.empty(min(len(src) + len(dst), len(self._local)), np.int64), 0
        for ends in (src, dst):
            num_found = kernels.mark_outside(ends, start, stop, self._local, found, num_found)
        halo = np.sort(found[:num_found])
        self._local[halo] = np.arange(stop - start, stop - start + len(halo))
        kernels.to_local(src, start, stop, self._local)
        kernels.to_local(dst, start, stop, self._local)
        self._local[halo] = -1
        node_ids = np.concatenate([np.arange(start, stop), halo])
        edge_ids = np.concatenate([np.arange(first_edge, end_edge), outer])
        halo_parts, halo_types, _ = made.nodes.split(halo)
        parts = np.concatenate([np.full(stop - start, part), halo_parts])
        node_types = _types(made.nodes, part, halo_types)
        edge_types = _types(made.edges, part, made.edges.split(outer)[1])
        num_inner = stop - start, end_edge - first_edge
        return PartArrays(*num_inner, src, dst, node_ids, parts, edge_ids, node_types, edge_types)

    def _owned_ends(self, part: int, extra: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Homogeneous ids of both ends of the part's own edges, with room for more behind them."""
        made = self.relabelled
        first, stop = made.edges.of_part(part)
        src, dst = np.empty(stop - first + extra, np.int64), np.empty(stop - first + extra, np.int64)
        typed = made.edges.typed_starts
        for r, etype in enumerate(made.graph.etypes):
            positions = made.edge_order[etype][typed[part, r] : typed[part + 1, r]]
            begin = int(made.edges.starts[part, r]) - first
            inside = slice(begin, begin + len(positions))
            kernels.gather_ends(positions, *made.ends(etype), src[inside], dst[inside])
        return src, dst

    def _ends_of(self, edge_ids: np.ndarray, out_src: np.ndarray, out_dst: np.ndarray) -> None:
        """Homogeneous ids of both ends of any edges."""
        made = self.relabelled
        _, types, typed_ids = made.edges.split(edge_ids)
        for r, etype in enumerate(made.graph.etypes):
            chosen = types == r
            positions = made.edge_order[etype][typed_ids[chosen]]
            src, dst, src_ids, dst_ids = made.ends(etype)
            out_src[chosen], out_dst[chosen] = src_ids[src[positions]], dst_ids[dst[positions]]

    def _more_hops(self, part: int, outer: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """outer and the in-edges of the nodes up to num_hops - 1 steps upstream of the part, ascending.

        As in DGL, nodes that are only reached along out-edges of the part are not followed further.
        """
        ids, starts = self._in_edges
        inner, owned = self.relabelled.nodes.of_part(part), self.relabelled.edges.of_part(part)
        known = frontier = _outside(sources, inner)
        for _ in range(self.num_hops - 1):
            sizes = starts[frontier + 1] - starts[frontier]
            firsts = np.repeat(starts[frontier] - np.cumsum(sizes) + sizes, sizes)
            incoming = ids[firsts + np.arange(len(firsts))]
            outer = np.union1d(outer, _outside(incoming, owned))
            sources, ignored = np.empty(len(incoming), np.int64), np.empty(len(incoming), np.int64)
            self._ends_of(incoming, sources, ignored)
            frontier = np.setdiff1d(_outside(sources, inner), known)
            known = np.union1d(known, frontier)
        return outer


def _types(ranges: Ranges, part: int, of_others: np.ndarray) -> np.ndarray:
    """The type of each id of a part: its own lie in the order of the types."""
    own = np.repeat(np.arange(ranges.sizes.shape[1], dtype=np.int32), ranges.sizes[part])
    return np.concatenate([own, of_others.astype(np.int32)])


def _outside(ids: np.ndarray, bounds: tuple[int, int]) -> np.ndarray:
    """The ids outside [start, stop), each once, ascending."""
    return np.unique(ids[(ids < bounds[0]) | (ids >= bounds[1])])
