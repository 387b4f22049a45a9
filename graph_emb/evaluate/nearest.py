"""Nearest neighbours of some nodes by cosine, for inspection."""

# N nodes, Q asked nodes, K neighbours.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.arrays import as_embeddings


@dataclass(frozen=True, eq=False)
class NearestNodes:
    """Neighbours by cosine, nearest first.

    Attributes:
        asked: Names of the asked nodes, Q.
        nearest: Names of their neighbours, (Q, K).
        cosines: Shape (Q, K).
    """

    asked: list[str]
    nearest: list[list[str]]
    cosines: NDArray[np.float64]

    def as_dict(self) -> dict[str, Any]:
        """Names and cosines for a JSON file."""
        rows = zip(self.asked, self.nearest, self.cosines.round(4).tolist(), strict=True)
        return {name: [[other, cosine] for other, cosine in zip(near, far, strict=True)] for name, near, far in rows}

    def __str__(self) -> str:
        from tabulate import tabulate

        columns = {name: near for name, near in zip(self.asked, self.nearest, strict=True)}
        return tabulate(columns, headers="keys")


def nearest_nodes(embeddings: Any, names: NDArray[np.str_], asked: NDArray[np.integer], k: int = 9) -> NearestNodes:
    """The k nodes of highest cosine for each asked node, itself left out.

    Args:
        embeddings: Shape (N, D), floating.
        names: Shape (N,), strings.
        asked: Shape (Q,), node numbers.
        k: K, below N.
    Raises:
        DataError: names of another number of nodes, or an asked node that is none.
        ConfigError: k outside [1, N - 1].

    Example:
        >>> from graph_emb.evaluate.nearest import nearest_nodes
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> nearest_nodes(rows, np.array(["a", "b", "c"]), np.array([0]), k=1).nearest
        [['b']]
    """
    rows = as_embeddings(embeddings).astype(np.float64)
    if len(names) != len(rows):
        raise DataError(f"{len(names)} names for {len(rows)} nodes; expected one for each")
    if not 1 <= k < len(rows):
        raise ConfigError(f"k={k} nearest of {len(rows)} nodes: give one in [1, {len(rows) - 1}]")
    asked = np.asarray(asked)
    if len(asked) and not 0 <= asked.min() <= asked.max() < len(rows):
        raise DataError(f"asked for nodes {asked.min()} to {asked.max()} of {len(rows)}")
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosines = rows[asked] @ rows.T
    cosines[np.arange(len(asked)), asked] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    found = [[str(name) for name in names[row]] for row in order]
    return NearestNodes([str(name) for name in names[asked]], found, np.take_along_axis(cosines, order, axis=1))
