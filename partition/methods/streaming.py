"""What the streaming methods share: passes over the nodes, then whatever is too full is mended.

Restreaming: Nishimura and Ugander, "Restreaming graph partitioning" (KDD 2013).
"""

from __future__ import annotations

import numpy as np

from graph_emb.errors import unknown_name
from partition.kernels import streaming as kernels
from partition.methods.base import Problem, at_least
from partition.methods.coarsening import Level, random_order
from partition.methods.refining import Parts

ORDERS = ("random", "natural")
EXPONENT = 1.5
"""Fennel's gamma."""


def stream(problem: Problem, passes: int, order: str, *, fennel: bool) -> np.ndarray:
    """(N,), int32, after ``passes`` over all nodes; the later ones see where everything was."""
    passes = at_least("passes", passes, 1)
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    adjacency, num_parts, rng = problem.adjacency, problem.num_parts, problem.rng()
    node_weights = np.ascontiguousarray(problem.constraints.weights.T)
    limits = problem.constraints.limits(num_parts)
    parts = np.full(problem.num_nodes, -1, np.int32)
    loads = np.zeros((num_parts, len(limits)), np.int64)
    shares = problem.num_nodes / np.maximum(problem.constraints.weights.sum(axis=1), 1)
    weight = adjacency.weight_array.sum(dtype=np.int64) if adjacency.weights is not None else adjacency.num_entries
    alpha = np.sqrt(num_parts) * float(weight) / 2 / max(problem.num_nodes, 1) ** EXPONENT
    for _ in range(passes):
        nodes = random_order(problem.num_nodes, rng) if order == "random" else np.arange(problem.num_nodes)
        kernels.stream(
            nodes.astype(np.int32), adjacency.indptr, adjacency.indices, adjacency.weight_array, node_weights, limits,
            parts, loads, np.zeros(num_parts, np.int64), fennel, alpha, EXPONENT, shares,
        )  # fmt: skip
    level = Level(adjacency.indptr, adjacency.indices, adjacency.weight_array, node_weights, np.empty(0, np.int32))
    Parts(level, parts, limits, num_parts).rebalance(rng)
    return parts
