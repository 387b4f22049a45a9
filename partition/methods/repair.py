"""Moves that give every part a node of each kind that it must have.

A DGL server dies where a part has no row of a node or edge type with data. Legend: N nodes, P parts.
"""

from __future__ import annotations

import numpy as np

from partition.assignment import EdgeOwner
from partition.methods.base import Problem


def needed(problem: Problem, edge_owner: EdgeOwner) -> list[np.ndarray]:
    """Boolean masks, (N,): every part must hold one node of each.

    All nodes; the nodes of each type with data; the owning ends of each edge type with data (the destination where the
    owner depends on the load: its part keeps one edge). Kinds of fewer nodes than parts cannot be had by all and are
    left out.
    """
    graph, offsets = problem.graph, problem.graph.node_offsets
    masks = [np.ones(problem.num_nodes, bool)]
    for ntype, columns in graph.node_data.items():
        if columns:
            mask = np.zeros(problem.num_nodes, bool)
            mask[offsets[ntype] : offsets[ntype] + graph.num_nodes[ntype]] = True
            masks.append(mask)
    for etype, columns in graph.edge_data.items():
        if columns:
            mask = np.zeros(problem.num_nodes, bool)
            side = 0 if edge_owner == "source" else 1
            mask[graph.edges[etype][side] + offsets[etype[2 * side]]] = True
            masks.append(mask)
    return [mask for mask in masks if mask.sum() >= problem.num_parts]


def repair(problem: Problem, parts: np.ndarray, edge_owner: EdgeOwner, *, with_cut: bool) -> int:
    """Move the cheapest nodes, in place, until every part holds one of each kind: how many were moved.

    Args:
        with_cut: Whether the cost of a move is the cut it adds; else the lightest node moves.
    """
    masks = needed(problem, edge_owner)
    counts = np.stack([np.bincount(parts[mask], minlength=problem.num_parts) for mask in masks])
    if (counts > 0).all():
        return 0
    limits = problem.constraints.limits(problem.num_parts)
    loads = problem.constraints.loads(parts, problem.num_parts)
    member = np.stack(masks)
    moved = 0
    for kind, part in np.argwhere(counts == 0):
        if counts[kind, part]:
            continue  # an earlier move brought one
        spare = np.ones(problem.num_nodes, bool)
        for mask, count in zip(member, counts, strict=True):
            spare &= ~mask | (count[parts] > 1)
        candidates = np.flatnonzero(member[kind] & spare)
        if not len(candidates):
            continue  # the last of some other kind everywhere: the check that follows names what is missing
        weights = problem.constraints.weights[:, candidates]
        room = (loads[:, part, None] + weights <= limits[:, None]).all(axis=0)
        costs = _costs(problem, parts, candidates, int(part)) if with_cut else weights.sum(axis=0)
        node = candidates[np.lexsort((costs, ~room))[0]]
        own = parts[node]
        loads[:, own] -= problem.constraints.weights[:, node]
        loads[:, part] += problem.constraints.weights[:, node]
        counts[:, own] -= member[:, node]
        counts[:, part] += member[:, node]
        parts[node] = part
        moved += 1
    return moved


def _costs(problem: Problem, parts: np.ndarray, candidates: np.ndarray, part: int) -> np.ndarray:
    from partition.kernels.adjacency import move_costs

    adjacency = problem.adjacency
    return move_costs(adjacency.indptr, adjacency.indices, adjacency.weight_array, parts, candidates, part)
