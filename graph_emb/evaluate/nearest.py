"""Nearest neighbours of embeddings: exact in blocks of rows, or by an approximate index."""

# N rows, D width, Q asked rows, K neighbours.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.core.notebook import Card
from graph_emb.evaluate.indexes import EFFORT, EXACT, index_of
from graph_emb.evaluate.ranks import as_embeddings
from graph_emb.formats.embedding_files import checked_ids, exact_ids
from graph_emb.graph.ids import as_ids, find_ids, first_outside

METRICS = ("cosine", "dot", "euclidean")
ROWS_AT_ONCE = 1 << 15
ASKED_AT_ONCE = 256
LARGEST = 2.0**30
"""Rows whose largest number is below it, and above its inverse, are squared in their own dtype; others in float64."""
FAR = 16
"""How much larger the square of the rows' mean is than their mean squared distance from it where that is taken off."""


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Neighbours of some rows, nearest first.

    Attributes:
        ids: Of the neighbours, shape (Q, K).
        scores: Shape (Q, K): cosines or dot products, or distances.
    """

    ids: NDArray[Any]
    scores: NDArray[np.floating]


class NearestNeighbors(Card):
    """The nearest rows of a table, found by comparing with all of them, or with those to which an index leads.

    Exact, rows of equal score come in their order, and memory beside the rows are their norms and one block of scores.
    An index takes minutes for a million rows, holds a copy of them in float32, and misses some neighbours:
    ``recall`` measures it. Scores are those of the rows either way.

    Args:
        rows: Shape (N, D), floating, torch or numpy; float32 is compared in float32.
        ids: Shape (N,), distinct integers or strings; None: 0 .. N-1.
        metric: "cosine", "dot" (highest first) or "euclidean" (lowest first).
        index: "exact"; or "hnswlib" or "faiss", of the package of that extra.
        effort: Candidates that a search by an index keeps: more find more and take longer; default 200.
        saved: A file of ``save_index`` over these rows; None: the index is built.
    Raises:
        ShapeError, DataError: no such rows, a value that is not finite, ids that do not fit, or a file of other rows.
        ConfigError: an unknown metric or index, a package that is missing, or an argument without effect.
    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> ge.NearestNeighbors(rows, ["a", "b", "c"]).nearest(["a"], k=1).ids.tolist()
        [['b']]
    """

    def __init__(
        self,
        rows: Any,
        ids: Any = None,
        metric: str = "cosine",
        *,
        index: str = EXACT,
        effort: int | None = None,
        saved: str | Path | None = None,
    ) -> None:
        if metric not in METRICS:
            raise unknown_name("metric", metric, METRICS)
        self.rows, self.metric = as_embeddings(rows), metric
        self.ids = np.arange(len(self.rows)) if ids is None else checked_ids(ids, len(self.rows))
        peak = max(float(np.abs(block).max()) for block in self._blocks())
        in_place = metric == "cosine" or peak == 0 or 1 / LARGEST < peak < LARGEST
        self._dtype = self.rows.dtype if in_place else np.dtype(np.float64)
        if index != EXACT and peak >= LARGEST:
            raise ConfigError(f"rows with numbers of {peak:g}: index={index!r} squares in float32; scale them")
        self._centre = self._far_from_0() if metric == "euclidean" else None
        blocks = (self._framed(block) for block in self._blocks())
        squares = np.concatenate([np.einsum("nd,nd->n", block, block, dtype=np.float64) for block in blocks])
        if metric == "cosine":
            squares = np.where(squares > 0, np.sqrt(squares), 1)
        self._lengths = squares.astype(self._dtype)  # of cosine, else their squares
        self.index, self._effort = index, EFFORT if effort is None else effort
        self._index = index_of(index, self.rows, metric, saved, effort)

    def _blocks(self) -> Iterator[NDArray[np.floating]]:
        return (self.rows[low : low + ROWS_AT_ONCE] for low in range(0, len(self.rows), ROWS_AT_ONCE))

    def _far_from_0(self) -> NDArray[np.floating] | None:
        """The mean of rows far from 0 and near each other, whose distances would be differences of large squares."""
        mean = sum(block.sum(axis=0, dtype=np.float64) for block in self._blocks()) / len(self.rows)
        spread = sum(float(np.square(block - mean).sum()) for block in self._blocks()) / len(self.rows)
        return mean.astype(self._dtype) if np.square(mean).sum() > FAR * spread else None

    def _framed(self, rows: NDArray[np.floating]) -> NDArray[np.floating]:
        """Rows, (B, D), as scores are made of them."""
        rows = rows.astype(self._dtype, copy=False)
        return rows if self._centre is None else rows - self._centre

    def __repr__(self) -> str:
        num_rows, width = self.rows.shape
        return f"NearestNeighbors({num_rows} x {width}, metric={self.metric!r}, index={self.index!r})"

    def _facts(self) -> dict[str, Any]:
        return {"rows": "{:,} x {}".format(*self.rows.shape), "metric": self.metric, "index": self.index}

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

    def nearest_rows(self, places: ArrayLike, k: int = 10) -> Neighbors:
        """As ``nearest``, of rows by their numbers (Q,), integers in [0, N - 1]."""
        asked = as_ids(places, "places")
        outside = 0 if asked.dtype.kind == "U" else first_outside(asked, len(self.rows))
        if outside is not None:
            raise DataError(
                f"row {asked[outside].item()!r} is no number in [0, {len(self.rows) - 1}]; nearest takes ids"
            )
        return self._search(self.rows[asked], k, asked)

    def search(self, vectors: Any, k: int = 10) -> Neighbors:
        """The k rows of the table nearest to each vector, (Q, D); k at most N. Errors as ``nearest``."""
        asked = as_embeddings(vectors)
        if asked.shape[1] != self.rows.shape[1]:
            raise ShapeError(f"vectors have {asked.shape[1]} numbers, the rows {self.rows.shape[1]}; make them equal")
        return self._search(asked, k, None)

    def recall(self, k: int = 10, sample: int = 100, seed: int = 0) -> float:
        """The share of the exact k nearest rows that the index finds, over some rows; 1 without an index.

        Args:
            sample: Rows that are asked for, drawn by ``seed``; all of a smaller table.
        Raises:
            ConfigError: k as of ``nearest``, a sample below 1 or a seed below 0.
        """
        if sample < 1 or seed < 0:
            raise ConfigError(f"recall(sample={sample}, seed={seed}): give at least 1 row, and a seed of at least 0")
        asked = np.random.default_rng(seed).permutation(len(self.rows))[:sample]
        found, exact = self.nearest_rows(asked, k).ids, self._exact(self.rows[asked], k, asked).ids
        return float(np.mean([len(np.intersect1d(*both)) / k for both in zip(found, exact, strict=True)]))

    def save_index(self, path: str | Path) -> Path:
        """Write the index in its library's own format, which numbers the rows from 0.

        Raises:
            ConfigError: there is none.
            OSError: the file cannot be written; one that was there stays.
        """
        if self._index is None:
            raise ConfigError("index='exact' compares with the rows themselves; save an index of 'hnswlib' or 'faiss'")
        self._index.save(path)
        return Path(path)

    def _search(self, asked: NDArray[np.floating], k: int, own: NDArray[np.integer] | None) -> Neighbors:
        """The k nearest rows, exact or by the index; ``own`` are rows that do not count."""
        most = len(self.rows) - (own is not None)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
            raise ConfigError(f"k={k} nearest of {len(self.rows)} rows: give one in [1, {most}]")
        asked = asked.astype(self.rows.dtype, copy=False)
        found = None if self._index is None else self._index.search(asked, k + (own is not None), self._effort)
        return self._exact(asked, k, own) if found is None else self._among(asked, found, k, own)

    def _among(
        self, asked: NDArray[np.floating], found: NDArray[np.int64], k: int, own: NDArray[np.integer] | None
    ) -> Neighbors:
        """The k nearest of the rows that an index found, (Q, k) or one more, by their own scores."""
        scores = np.empty(found.shape, self._dtype)
        for number, rows in enumerate(found):
            scores[number] = self._scores(asked[number : number + 1], rows)[0]
        if own is not None:
            scores[found == own[:, None]] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return self._told(np.take_along_axis(found, order, axis=1), np.take_along_axis(scores, order, axis=1))

    def _exact(self, asked: NDArray[np.floating], k: int, own: NDArray[np.integer] | None) -> Neighbors:
        scores = np.full((len(asked), k), -np.inf, self._dtype)
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
        if (places < 0).any():
            peak = np.abs(asked).max()
            raise DataError(f"vectors with numbers of {peak:g}: scores pass {self.rows.dtype}; scale vectors and rows")
        return self._told(places, scores)

    def _told(self, places: NDArray[np.int64], scores: NDArray[np.floating]) -> Neighbors:
        """Rows by their ids, and distances in the place of their negative squares."""
        if self.metric == "euclidean":
            scores = np.sqrt(np.maximum(-scores, 0))
        with np.errstate(over="ignore"):  # a dot product past the dtype is infinite, in its right place
            scores = scores.astype(self.rows.dtype, copy=False)
        return Neighbors(self.ids[places], scores)

    def _scores(self, asked: NDArray[np.floating], rows: slice | NDArray[np.int64]) -> NDArray[np.floating]:
        """Of each asked vector with each row, higher is nearer: (Q, rows)."""
        asked = self._framed(asked)
        if self.metric == "cosine":
            norms = np.linalg.norm(asked.astype(np.float64), axis=1, keepdims=True)
            asked = (asked / np.where(norms > 0, norms, 1)).astype(self._dtype)
        found = asked @ self._framed(self.rows[rows]).T
        if self.metric == "cosine":
            found /= self._lengths[rows]
        elif self.metric == "euclidean":
            found *= 2
            found -= self._lengths[rows]
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
