"""Counts of an assignment: cut, balance, halo, replication, edges between parts."""

# N nodes and E edges of all types, P parts

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graph_emb.graph.typed import EdgeType
from partition.assignment import Assignment, EdgeOwner
from partition.kernels import forecast as kernels
from partition.report.flat import FlatGraph
from partition.vertex_cut import balanced_owners, edges_of_parts


@dataclass(frozen=True)
class Cut:
    """Counts of one assignment.

    Attributes:
        edge_matrix: Edges from part i to part j, (P, P), int64.
        edges: Edges that each part owns, (P,), int64.
        cut_by_relation: Cut share of each edge type's edges; types without edges are left out.
        nodes: Nodes of each part, (P,), int64.
        balance: Largest part over the mean: ``nodes``, ``edges``, ``type:T`` of each of several node types, and
            the masks ``train``, ``valid``, ``test`` of one value a node. Kinds without a member are left out.
        halo: Nodes of other parts that a part of DGL's layout (one hop) holds copies of, (P,), int64: the other
            ends of the edges that enter or leave it.
        halo_inbound: The same of the inbound-only layout: sources of entering edges.
    """

    edge_matrix: np.ndarray
    edges: np.ndarray
    cut_by_relation: dict[EdgeType, float]
    nodes: np.ndarray
    balance: dict[str, float]
    halo: np.ndarray
    halo_inbound: np.ndarray

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.nodes)

    @property
    def cut(self) -> float:
        """Share of the edges with ends in two parts; 0 of a graph without edges."""
        total = int(self.edge_matrix.sum())
        return 1.0 - float(np.trace(self.edge_matrix)) / total if total else 0.0

    @property
    def replication_factor(self) -> float:
        """Copies of a node on average, its own part's included, in DGL's layout."""
        return 1.0 + float(self.halo.sum() / self.nodes.sum())

    @property
    def replication_factor_inbound(self) -> float:
        """The same in the inbound-only layout."""
        return 1.0 + float(self.halo_inbound.sum() / self.nodes.sum())


def measure_cut(flat: FlatGraph, parts: np.ndarray, num_parts: int, edge_owner: EdgeOwner = "destination") -> Cut:
    """All counts in one pass over the edges of each type.

    Args:
        parts: The part of each node, (N,).
        edge_owner: Whose edges count as a part's own, see ``partition.vertex_cut.edge_owner``.
    """
    whole = np.zeros((num_parts, num_parts), np.int64)
    by_relation: dict[EdgeType, float] = {}
    seen = np.zeros((flat.num_nodes, num_parts), np.uint8)
    offsets = flat.graph.node_offsets
    for etype, (src, dst) in flat.graph.edges.items():
        matrix = np.zeros_like(whole)
        kernels.count_edges(src, dst, offsets[etype[0]], offsets[etype[2]], parts, matrix, seen)
        if len(src):
            by_relation[etype] = 1.0 - float(np.trace(matrix)) / len(src)
        whole += matrix
    nodes = np.bincount(parts, minlength=num_parts)
    edges = _owned(flat, parts, whole, edge_owner)
    sizes = {"nodes": nodes, "edges": edges}
    if len(flat.types) > 1:
        sizes |= {f"type:{t}": np.bincount(parts[own], minlength=num_parts) for t, own in flat.types.items()}
    sizes |= {part: np.bincount(parts[mask], minlength=num_parts) for part, mask in flat.masks.items()}
    return Cut(
        edge_matrix=whole,
        edges=edges,
        cut_by_relation=by_relation,
        nodes=nodes,
        balance={kind: float(size.max() / size.mean()) for kind, size in sizes.items() if size.any()},
        halo=np.count_nonzero(seen, axis=0),
        halo_inbound=np.count_nonzero(seen & kernels.ENTERS, axis=0),
    )


def _owned(flat: FlatGraph, parts: np.ndarray, matrix: np.ndarray, edge_owner: EdgeOwner) -> np.ndarray:
    """Edges that each part owns, (P,), from the (P, P) matrix of parts where it tells them."""
    if edge_owner != "balanced":
        return matrix.sum(axis=1 if edge_owner == "source" else 0)
    assignment = Assignment.of_homogeneous(flat.graph, parts, len(matrix))
    return edges_of_parts(balanced_owners(flat.graph, assignment), len(matrix))
