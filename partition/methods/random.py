"""Nodes dealt out in random order: even counts of nodes and of every node type, no regard for edges."""

from __future__ import annotations

import numpy as np

from partition.methods.base import Problem, method, node_counts_only


@method("random", refusal=node_counts_only, balance=("nodes",), follows_edges=False)
def random(problem: Problem) -> np.ndarray:
    """Shuffle each type, then deal the types one after the other, so that counts differ by 1 at most."""
    rng = problem.rng()
    parts = np.empty(problem.num_nodes, np.int32)
    dealt = 0
    for ntype, start in problem.graph.node_offsets.items():
        num = problem.graph.num_nodes[ntype]
        order = rng.permutation(num)
        parts[start + order] = (np.arange(dealt, dealt + num) % problem.num_parts).astype(np.int32)
        dealt += num
    return parts
