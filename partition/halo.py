"""Graph of one part: its own nodes and edges, and the halo of nodes and edges of other parts.

Legend: n inner nodes and h halo nodes of a part, e inner and o outer edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.dgl_format import Column
from partition.assignment import Halo
from partition.kernels import sorting as kernels
from partition.relabel import Ranges, Relabelled


@dataclass(frozen=True)
class PartArrays:
    """The graph of one part, inner nodes and edges first, each in the order of their ids.

    Attributes:
        num_inner_nodes, num_inner_edges: n and e.
        src, dst: Local node ids, (e + o,), int64.
        node_ids, edge_ids: Homogeneous partition-order ids, (n + h,) and (e + o,), int64.
        node_parts: Owner of each node, (n + h,), int64.
        node_types, edge_types: Of each node, (n + h,), int16, and edge, (e + o,), int32.
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
        self._in_edges = self._by_destination() if num_hops > 1 else None

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

    def _by_destination(self) -> tuple[np.ndarray, np.ndarray]:
        """(start of each node's in-edges, homogeneous edge ids) over the whole graph."""
        made = self.relabelled
        dst = np.empty(made.edges.total, np.int64)
        for part in range(made.num_parts):
            dst[slice(*made.edges.of_part(part))] = self._owned_ends(part)[1]
        ids, starts = kernels.group(dst, made.nodes.total)
        return starts, ids

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
        halo = self._halo_of(src, dst, start, stop)
        self._local[halo] = np.arange(stop - start, stop - start + len(halo))
        kernels.to_local(src, start, stop, self._local)
        kernels.to_local(dst, start, stop, self._local)
        self._local[halo] = -1
        node_ids = np.concatenate([np.arange(start, stop), halo])
        edge_ids = np.concatenate([np.arange(first_edge, end_edge), outer])
        halo_parts, halo_types, _ = made.nodes.split(halo)
        parts = np.concatenate([np.full(stop - start, part), halo_parts])
        node_types = _types(made.nodes, part, halo_types, np.int16)
        edge_types = _types(made.edges, part, made.edges.split(outer)[1], np.int32)
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
            ends = made.ends(etype)
            kernels.gather_ends(positions, *ends, src[inside], dst[inside])
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

    def _halo_of(self, src: np.ndarray, dst: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Nodes outside the part among the ends, each once, ascending."""
        found = np.empty(min(len(src) + len(dst), len(self._local)), np.int64)
        num_found = kernels.mark_outside(src, start, stop, self._local, found, 0)
        num_found = kernels.mark_outside(dst, start, stop, self._local, found, num_found)
        return np.sort(found[:num_found])

    def _more_hops(self, part: int, outer: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """outer and the in-edges of the nodes up to num_hops - 1 steps upstream of the part, ascending.

        As in DGL, nodes that are only reached along out-edges of the part are not followed further.
        """
        assert self._in_edges is not None
        starts, ids = self._in_edges
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


def _types(ranges: Ranges, part: int, of_others: np.ndarray, dtype: type[np.signedinteger]) -> np.ndarray:
    """The type of each id of a part: its own lie in the order of the types."""
    own = np.repeat(np.arange(ranges.sizes.shape[1], dtype=dtype), ranges.sizes[part])
    return np.concatenate([own, of_others.astype(dtype)])


def _outside(ids: np.ndarray, bounds: tuple[int, int]) -> np.ndarray:
    """The ids outside [start, stop), each once, ascending."""
    return np.unique(ids[(ids < bounds[0]) | (ids >= bounds[1])])
