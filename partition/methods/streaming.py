"""LDG and Fennel, restreamed: passes over the nodes; parts above a limit are rebalanced after the last.

Restreaming: Nishimura and Ugander, "Restreaming graph partitioning" (KDD 2013).
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.errors import unknown_name
from partition.constraints import Constraints
from partition.kernels import streaming as kernels
from partition.methods.base import Problem, any_but_none, at_least, method
from partition.methods.levels import Level, Parts, random_order

ORDERS = ("random", "natural")
EXPONENT = 1.5
"""Fennel's gamma."""


@method("ldg", refusal=any_but_none)
def ldg(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part times its free share (Stanton and Kliot, KDD 2012), every limit kept.

    Args:
        passes: 1 is LDG, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return _stream(problem, passes, order, fennel=False)


@method("fennel", refusal=any_but_none)
def fennel(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part less a price for its size (Tsourakakis et al., WSDM 2014; gamma 1.5), every limit kept.

    The size is that of the constraint that is fullest, in units of nodes.

    Args:
        passes: 1 is Fennel, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return _stream(problem, passes, order, fennel=True)


def _stream(problem: Problem, passes: int, order: str, *, fennel: bool) -> np.ndarray:
    """(N,), int32, after ``passes`` over all nodes; the later ones see where everything was."""
    passes = checked_passes(passes, order)
    adjacency, rng = problem.adjacency, problem.rng()
    weight = adjacency.weight_array.sum(dtype=np.int64) if adjacency.weights is not None else adjacency.num_entries
    placed = Placed(problem.constraints, problem.num_parts, float(weight), fennel=fennel)
    for _ in range(passes):
        nodes = random_order(problem.num_nodes, rng) if order == "random" else np.arange(problem.num_nodes)
        placed.place(nodes, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    placed.mend(rng, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    return placed.parts


def checked_passes(passes: int, order: str) -> int:
    """passes, when both options can be used; else a ConfigError."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    return at_least("passes", passes, 1)


class Placed:
    """Where nodes are so far; ``place`` puts some more, or the same ones again.

    Args:
        constraints: What must be even.
        num_parts: P.
        weight: Of all entries of the adjacency: every edge counts twice.
        fennel: Fennel's score; else LDG's.
    """

    def __init__(self, constraints: Constraints, num_parts: int, weight: float, *, fennel: bool) -> None:
        num_nodes = constraints.weights.shape[1]
        self.node_weights = np.ascontiguousarray(constraints.weights.T)
        self.limits = constraints.limits(num_parts)
        self.parts = np.full(num_nodes, -1, np.int32)
        self._loads = np.zeros((num_parts, len(self.limits)), np.int64)
        self._shares = num_nodes / np.maximum(constraints.weights.sum(axis=1), 1)
        self._alpha = np.sqrt(num_parts) * weight / 2 / max(num_nodes, 1) ** EXPONENT
        self._fennel = fennel

    def place(self, nodes: np.ndarray, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> None:
        """Give each of these nodes, in this order, its best part; the rest of ``indptr`` is not looked at."""
        kernels.stream(
            nodes.astype(np.int32), indptr, indices, weights, self.node_weights, self.limits, self.parts, self._loads,
            np.zeros(len(self._loads), np.int64), self._fennel, self._alpha, EXPONENT, self._shares,
        )  # fmt: skip

    def mend(self, rng: np.random.Generator, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> None:
        """Move nodes out of parts above a limit, those first that lose the fewest of the given neighbours."""
        level = Level(indptr, indices, weights, self.node_weights)
        Parts(level, self.parts, self.limits, len(self._loads)).rebalance(rng)
