"""KaMinPar: one constraint, fast, little memory. Its Python package reads graphs from files only."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from partition.methods.base import Problem, method, one_only
from partition.methods.external import edge_weights, load, single_constraint


@method("kaminpar", refusal=one_only, balance=("nodes",))
def kaminpar(problem: Problem) -> np.ndarray:
    """``KaMinPar.compute_partition`` on one thread: with more, the same seed gives other parts.

    Raises:
        CompatError: kaminpar is not installed.
    """
    package = load("kaminpar")
    weights, tolerance = single_constraint(problem)
    with tempfile.TemporaryDirectory(prefix="kaminpar-") as folder:
        path = Path(folder, "graph.metis")
        write_metis(path, problem, weights)
        package.reseed(problem.seed % 2**31)
        instance = package.KaMinPar(num_threads=1, ctx=package.default_context())
        graph = package.load_graph(str(path), package.GraphFileFormat.METIS, compress=False)
        parts = instance.compute_partition(graph, k=problem.num_parts, eps=tolerance)
    return np.asarray(parts, np.int32)


def write_metis(path: Path, problem: Problem, weights: np.ndarray) -> None:
    """The symmetric graph in METIS's text format with node and edge weights, ids from 1."""
    adjacency, costs = problem.adjacency, edge_weights(problem)
    with path.open("w", encoding="ascii") as out:
        out.write(f"{adjacency.num_nodes} {adjacency.num_entries // 2} 011\n")
        for node in range(adjacency.num_nodes):
            row = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
            pairs = np.stack([adjacency.indices[row] + 1, costs[row]], axis=1).ravel().tolist()
            out.write(" ".join(map(str, [int(weights[node]), *pairs])) + "\n")
