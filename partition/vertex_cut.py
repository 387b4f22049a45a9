"""Owners of edges: the destination, the source, the lighter of both, or a part of a vertex-cut; and PBG's buckets."""

# N nodes and E edges of all types, P parts

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.kernels.clustering import hdrf
from partition.kernels.sorting import move_to_lighter

EdgeParts = dict[EdgeType, np.ndarray]

_PASSES = 20


def edge_owner(graph: HeteroGraph, assignment: Assignment, rule: EdgeOwner = "destination") -> EdgeParts:
    """The part that owns each edge, by edge type, each (E,), int32.

    Args:
        rule: ``destination``: the part of the destination, as DGL does; ``source``: that of the source; ``balanced``:
            begins with the destination and moves cut edges to their source's part while that has fewer edges, so the
            largest part never grows; a part keeps its last edge of a type with data.
    Raises:
        ConfigError: an unknown rule.
        PartitionError: the assignment does not fit the graph.
    """
    if rule not in get_args(EdgeOwner):
        raise unknown_name("rule of edge owners", rule, get_args(EdgeOwner))
    assignment.check(graph)
    if rule == "balanced":
        return balanced_owners(graph, assignment)
    side = 0 if rule == "source" else 1
    return {etype: _part_ends(assignment, etype, ends)[side] for etype, ends in graph.edges.items()}


def balanced_owners(graph: HeteroGraph, assignment: Assignment) -> EdgeParts:
    """``edge_owner`` by the rule ``balanced``; parts may be without a node."""
    sides = {etype: _part_ends(assignment, etype, ends) for etype, ends in graph.edges.items()}
    owners = {etype: destination.copy() for etype, (_, destination) in sides.items()}
    load = edges_of_parts(owners, assignment.num_parts)
    held = {etype: np.bincount(own, minlength=assignment.num_parts) for etype, own in owners.items()}
    least = {etype: int(bool(graph.edge_data.get(etype))) for etype in owners}
    for _ in range(_PASSES):
        moved = sum(move_to_lighter(*sides[etype], owners[etype], load, held[etype], least[etype]) for etype in owners)
        if not moved:
            break
    return owners


def edges_of_parts(owners: EdgeParts, num_parts: int) -> np.ndarray:
    """Edges of all types that each part owns, (P,), int64."""
    return sum((np.bincount(own, minlength=num_parts) for own in owners.values()), np.zeros(num_parts, np.int64))


def _part_ends(
    assignment: Assignment, etype: EdgeType, ends: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    parts = assignment.parts[etype[0]], assignment.parts[etype[2]]
    return parts[0][ends[0]].astype(np.int32, copy=False), parts[1][ends[1]].astype(np.int32, copy=False)


@dataclass(frozen=True)
class VertexCut:
    """Edges by part; a node has a replica in every part that holds one of its edges.

    Attributes:
        parts: For each edge type the part of each edge, (E,), int32.
        num_replicas: Of each node, types one after the other as in ``graph.node_offsets``, (N,), int32; 0: no edge.
        num_parts: P.
    """

    parts: EdgeParts
    num_replicas: np.ndarray
    num_parts: int

    @property
    def replication_factor(self) -> float:
        """Replicas of a node that has edges, on average."""
        active = self.num_replicas[self.num_replicas > 0]
        return float(active.mean())

    @property
    def edge_balance(self) -> float:
        """Edges of the largest part over the mean."""
        sizes = edges_of_parts(self.parts, self.num_parts)
        return float(sizes.max() / sizes.mean())


def vertex_cut(
    graph: HeteroGraph, num_parts: int, *, seed: int | None = 0, balance_weight: float = 1.0, tolerance: float = 0.05
) -> VertexCut:
    """HDRF, a streaming vertex-cut (Petroni et al., CIKM 2015): it replicates the nodes of high degree first.

    An edge (u, v) with the degrees d seen so far goes to the part with the highest
    ``g(u) + g(v) + balance_weight * (largest - size) / (1 + largest - smallest)``, where ``g(u)`` is
    ``1 + d(v) / (d(u) + d(v))`` if u has a replica there, else 0; the lowest part of equals. State is N * P bits.

    Args:
        seed: Of the order of the stream; None: the graph's own order, type after type.
        balance_weight: Above 1 it outweighs replicas; orders that follow one node after another may need that.
        tolerance: No part gets more than ``(1 + tolerance) * E / P`` edges, rounded up.
    Raises:
        ConfigError: an option is outside its limits.
        DataError: the graph has no edges.
    """
    if not 1 <= num_parts <= 2**15:
        raise ConfigError(f"num_parts={num_parts}: expected 1 to {2**15}")
    if not (np.isfinite(balance_weight) and balance_weight >= 0 and np.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(f"balance_weight={balance_weight}, tolerance={tolerance}: expected finite and at least 0")
    if graph.total_edges == 0:
        raise DataError("a vertex-cut of a graph without edges; expected at least 1 edge")
    offsets = graph.node_offsets
    src = np.concatenate([src + offsets[etype[0]] for etype, (src, _) in graph.edges.items()])
    dst = np.concatenate([dst + offsets[etype[2]] for etype, (_, dst) in graph.edges.items()])
    order = np.arange(len(src)) if seed is None else np.random.default_rng(seed).permutation(len(src))
    limit = int(np.ceil((1 + tolerance) * len(src) / num_parts))
    owner, num_replicas = hdrf(src, dst, order, graph.total_nodes, num_parts, float(balance_weight), limit)
    ends = np.cumsum([len(pair[0]) for pair in graph.edges.values()])
    parts = dict(zip(graph.edges, np.split(owner, ends[:-1]), strict=True))
    return VertexCut(parts, num_replicas, num_parts)


@dataclass(frozen=True)
class ArcBuckets:
    """Edges by (part of the source, part of the destination), as PyTorch-BigGraph trains them (Lerer et al. 2019).

    While bucket (i, j) trains, only the rows of parts i and j are needed.

    Attributes:
        counts: Edges of each bucket, all types, (P, P), int64.
        order: For each edge type its edge ids, bucket after bucket, (E,), int64.
        starts: For each edge type where each bucket begins in ``order``, (P * P + 1,), int64.
    """

    counts: np.ndarray
    order: EdgeParts
    starts: dict[EdgeType, np.ndarray]

    def edges(self, etype: EdgeType, source_part: int, destination_part: int) -> np.ndarray:
        """Ids of the edges of one type in one bucket, ascending, int64."""
        num_parts = len(self.counts)
        for part in (source_part, destination_part):
            if not 0 <= part < num_parts:
                raise ConfigError(
                    f"bucket ({source_part}, {destination_part}): part {part} is outside [0, {num_parts})"
                )
        bucket = source_part * num_parts + destination_part
        return self.order[etype][self.starts[etype][bucket] : self.starts[etype][bucket + 1]]

    @property
    def balance(self) -> float:
        """Edges of the largest bucket over the mean; parts of a good cut make the diagonal heavy."""
        return float(self.counts.max() / self.counts.mean())

    @property
    def diagonal(self) -> float:
        """Share of the edges inside one part."""
        return float(np.trace(self.counts) / self.counts.sum())


def buckets(graph: HeteroGraph, assignment: Assignment) -> ArcBuckets:
    """The bucket view of an assignment of nodes.

    Raises:
        PartitionError: the assignment does not fit the graph.
        DataError: the graph has no edges.
    """
    assignment.check(graph)
    if graph.total_edges == 0:
        raise DataError("buckets of a graph without edges; expected at least 1 edge")
    num = assignment.num_parts
    key_type = np.uint16 if num <= 256 else np.int64  # numpy sorts 16-bit keys by radix
    counts = np.zeros(num * num, np.int64)
    order, starts = {}, {}
    for etype, ends in graph.edges.items():
        source, destination = _part_ends(assignment, etype, ends)
        key = (source.astype(np.int64) * num + destination).astype(key_type)
        sizes = np.bincount(key, minlength=num * num)
        counts += sizes
        order[etype] = np.argsort(key, kind="stable")
        starts[etype] = np.concatenate([[0], np.cumsum(sizes)])
    return ArcBuckets(counts.reshape(num, num), order, starts)
