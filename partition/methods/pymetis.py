"""METIS by the pymetis package: one constraint, edge weights, a seed and a tolerance."""

from __future__ import annotations

import numpy as np

from partition.methods.base import Problem, method, one_only
from partition.methods.external import edge_weights, load, single_constraint


@method("pymetis", refusal=one_only, balance=("nodes",))
def pymetis(problem: Problem) -> np.ndarray:
    """``pymetis.part_graph``, k-way. Raises CompatError where pymetis is not installed."""
    package = load("pymetis")
    weights, tolerance = single_constraint(problem)
    adjacency = problem.adjacency
    rows = package.CSRAdjacency(adjacency.indptr, adjacency.indices.astype(np.int64))
    # METIS counts imbalance in thousandths, at least one
    options = package.Options(seed=problem.seed % 2**31, ufactor=max(1, int(tolerance * 1000)))
    _, parts = package.part_graph(
        problem.num_parts,
        adjacency=rows,
        vweights=weights,
        eweights=edge_weights(problem),
        recursive=False,
        options=options,
    )
    return np.asarray(parts, np.int32)
