"""Scores of nodes by their degree: whether a model is good for hubs alone."""

# n judged nodes, N nodes.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class DegreeScore(NamedTuple):
    """The share of labels found among the nodes of ``least`` to ``most`` neighbours."""

    least: int
    most: int
    num_nodes: int
    score: float


@dataclass(frozen=True, eq=False)
class JudgedNodes:
    """Labels that were found, by node, over all times that the node was judged.

    Attributes:
        nodes: Shape (n,), distinct node numbers.
        right: Shape (n,), labels that were found.
        asked: Shape (n,), labels that were asked for; 0 for a node that was never judged.
    """

    nodes: NDArray[np.int64]
    right: NDArray[np.int64]
    asked: NDArray[np.int64]

    def by_degree(self, degrees: NDArray[np.integer]) -> list[DegreeScore]:
        """Scores of the degrees 0, 1, 2 to 3, 4 to 7, ... that judged nodes have.

        With as many guesses as labels, the share found is the micro-F1, and of one label each the accuracy.

        Args:
            degrees: Of all nodes, shape (N,).
        """
        own = degrees[self.nodes]
        bucket = np.frexp(own.astype(np.float64))[1]  # 0, 1, 2 to 3: 0, 1, 2
        found = []
        for place in np.unique(bucket[self.asked > 0]):
            chosen = (bucket == place) & (self.asked > 0)
            share = float(self.right[chosen].sum() / self.asked[chosen].sum())
            found.append(DegreeScore(int(own[chosen].min()), int(own[chosen].max()), int(chosen.sum()), share))
        return found


def with_degrees(scores: Any, told: dict[str, Any], graph: Any) -> dict[str, Any]:
    """The numbers of an evaluation with those by degree, where nodes were judged one by one and edges are at hand.

    Args:
        scores: Whose ``judged`` says what was found, if it knows.
        told: Its numbers for JSON.
        graph: A graph with ``degrees``; anything else leaves the numbers as they are.
    """
    judged = getattr(scores, "judged", None)
    if judged is None or not getattr(graph, "num_edges", 0) or not hasattr(graph, "degrees"):
        return told
    return {**told, "by_degree": [row._asdict() for row in judged.by_degree(graph.degrees())]}
