"""Exact nearest neighbours of embeddings, in blocks of rows."""

# N rows, D width, Q asked rows, K neighbours.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.evaluate.ranks import as_embeddings
from graph_emb.formats.embedding_files import checked_ids, exact_ids
from graph_emb.graph.ids import find_ids

METRICS = ("cosine", "dot", "euclidean")
ROWS_AT_ONCE = 1 << 15
ASKED_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Neighbours of some rows, nearest first.

    Attributes:
        ids: Of the neighbours, shape (Q, K).
        scores: Shape (Q, K): cosines or dot products, or distances.
    """

    ids: NDArray[Any]
    scores: NDArray[np.floating]


class NearestNeighbors:
    """The nearest rows of a table, found by comparing with all of them.

    Rows of equal score come in their order. Memory beside the rows: their norms, and one block of scores.

    Args:
        rows: Shape (N, D), floating, torch or numpy; float32 is compared in float32.
        ids: Shape (N,), distinct integers or strings; None: 0 .. N-1.
        metric: "cosine", "dot" (highest first) or "euclidean" (lowest first).
    Raises:
        ShapeError, DataError: no such rows, a value that is not finite, or ids that do not fit.
        ConfigError: an unknown metric.
    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> ge.NearestNeighbors(rows, ["a", "b", "c"]).nearest(["a"], k=1).ids.tolist()
        [['b']]
    """

    def __init__(self, rows: Any, ids: Any = None, metric: str = "cosine") -> None:
        if metric not in METRICS:
            raise unknown_name("metric", metric, METRICS)
        self.rows, self.metric = as_embeddings(rows), metric
        self.ids = np.arange(len(self.rows)) if ids is None else checked_ids(ids, len(self.rows))
        blocks = (self.rows[low : low + ROWS_AT_ONCE] for low in range(0, len(self.rows), ROWS_AT_ONCE))
        self._squares = np.concatenate([np.einsum("nd,nd->n", block, block) for block in blocks])
        self._norms = np.maximum(np.sqrt(self._squares), 1e-12)

    def nearest(self, ids: Any, k: int = 10) -> Neighbors:
        """The k nearest of each of some rows of the table, itself left out.

        Args:
            ids: Shape (Q,).
            k: K, below N.
        Raises:
            DataError: an id that no row has.
            ConfigError: k outside [1, N - 1].
        """
        asked = exact_ids(ids, "ids")
        places = find_ids(self.ids, len(self.ids), asked)
        if (places < 0).any():
            raise DataError(f"id {asked[places < 0][0].item()!r} has no row; is it an id of this graph?")
        return self.nearest_rows(places, k)

    def nearest_rows(self, places: NDArray[np.integer], k: int = 10) -> Neighbors:
        """As ``nearest``, of rows by their numbers (Q,)."""
        return self._search(self.rows[places], k, places)

    def search(self, vectors: Any, k: int = 10) -> Neighbors:
        """The k rows of the table nearest to each vector, (Q, D); k at most N. Errors as ``nearest``."""
        asked = as_embeddings(vectors)
        if asked.shape[1] != self.rows.shape[1]:
            raise ShapeError(f"vectors have {asked.shape[1]} numbers, the rows {self.rows.shape[1]}; make them equal")
        return self._search(asked, k, None)

    def _search(self, asked: NDArray[np.floating], k: int, own: NDArray[np.integer] | None) -> Neighbors:
        most = len(self.rows) - (own is not None)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
            raise ConfigError(f"k={k} nearest of {len(self.rows)} rows: give one in [1, {most}]")
        asked = asked.astype(self.rows.dtype, copy=False)
        scores = np.full((len(asked), k), -np.inf, self.rows.dtype)
        places = np.full((len(asked), k), -1)
        for first in range(0, len(asked), ASKED_AT_ONCE):
            part = slice(first, first + ASKED_AT_ONCE)
            for low in range(0, len(self.rows), ROWS_AT_ONCE):
                found = self._scores(asked[part], slice(low, low + ROWS_AT_ONCE))
                if own is not None:
                    here = np.flatnonzero((own[part] >= low) & (own[part] < low + ROWS_AT_ONCE))
                    found[here, own[part][here] - low] = -np.inf
                for row, best, at in zip(found, scores[part], places[part], strict=True):
                    _keep_best(row, low, best, at)
        if self.metric == "euclidean":
            scores = np.sqrt(np.maximum(-scores, 0))
        return Neighbors(self.ids[places], scores)

    def _scores(self, asked: NDArray[np.floating], rows: slice) -> NDArray[np.floating]:
        """Of each asked vector with each row, higher is nearer: (Q, rows)."""
        if self.metric == "cosine":
            asked = asked / np.maximum(np.linalg.norm(asked, axis=1, keepdims=True), 1e-12)
        found = asked @ self.rows[rows].T
        if self.metric == "cosine":
            found /= self._norms[rows]
        elif self.metric == "euclidean":
            found *= 2
            found -= self._squares[rows]
            found -= np.einsum("qd,qd->q", asked, asked)[:, None]
        return found


def _keep_best(
    found: NDArray[np.floating], low: int, scores: NDArray[np.floating], places: NDArray[np.integer]
) -> None:
    """Put the scores of a block's rows among the best so far, (K,) each, which change in place.

    Args:
        found: Shape (rows,).
        low: Number of the block's first row; later than every row so far.
    """
    k = len(scores)
    better = np.flatnonzero(found > scores[-1])
    if len(better) > 4 * k:  # few of a block pass once the first block has set the bar
        least = np.partition(found[better], -k)[-k]
        better = better[found[better] >= least]
    if len(better):
        all_scores = np.concatenate([scores, found[better]])
        order = np.argsort(-all_scores, kind="stable")[:k]
        places[:] = np.concatenate([places, better + low])[order]
        scores[:] = all_scores[order]
