"""Contiguous ranges of ids: good where the input's order already keeps neighbours together, as in crawls."""

from __future__ import annotations

import numpy as np

from partition.methods.base import Problem, method, node_counts_only


@method("range", refusal=node_counts_only, balance=("nodes",), seeded=False, follows_edges=False)
def id_range(problem: Problem) -> np.ndarray:
    """Each type's ids in equal ranges; the parts that get one more go round from type to type."""
    parts = np.empty(problem.num_nodes, np.int32)
    extra = 0
    for ntype, start in problem.graph.node_offsets.items():
        num, rest = divmod(problem.graph.num_nodes[ntype], problem.num_parts)
        sizes = np.full(problem.num_parts, num)
        sizes[(extra + np.arange(rest)) % problem.num_parts] += 1
        extra += rest
        stop = start + problem.graph.num_nodes[ntype]
        parts[start:stop] = np.repeat(np.arange(problem.num_parts, dtype=np.int32), sizes)
    return parts
