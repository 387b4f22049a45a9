"""Known triples by the query that they answer, for filtered ranks and filtered negatives.

Legend: T triples, Q distinct queries, E entities, R relations, K chunks, C triples and N negatives of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

HEAD, TAIL = 0, 1
"""The missing side of a query: the column 0 (HEAD) or 2 (TAIL) of (h, r, t)."""


def query_keys(triples: np.ndarray, side: int, num_relations: int) -> np.ndarray:
    """One number for each triple's query: (h, r) where the tail is asked for, (t, r) where the head is; (T,) int64."""
    given = triples[:, 0] if side == TAIL else triples[:, 2]
    return given.astype(np.int64) * num_relations + triples[:, 1]


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """The entities that answer each query of one side.

    Attributes:
        side: ``HEAD`` or ``TAIL``.
        num_relations: R.
        keys: Of the queries, rising, shape (Q,), int64.
        starts: Query q's answers are ``answers[starts[q] : starts[q + 1]]``; shape (Q + 1,), int64.
        answers: Entities, each once a query, shape (at most T,), int64.
    """

    side: int
    num_relations: int
    keys: np.ndarray
    starts: np.ndarray
    answers: np.ndarray

    @classmethod
    def of(cls, triples: np.ndarray, side: int, num_relations: int) -> KnownAnswers:
        """The answers that triples (T, 3) hold."""
        pairs = np.stack([query_keys(triples, side, num_relations), triples[:, 2 if side == TAIL else 0]], axis=1)
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        if len(pairs):
            pairs = pairs[np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(axis=1)])]
        keys, counts = np.unique(pairs[:, 0], return_counts=True)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(side, num_relations, keys, starts, np.ascontiguousarray(pairs[:, 1], np.int64))

    def find(self, triples: np.ndarray) -> np.ndarray:
        """The number of each triple's query, or -1 where nothing answers it; shape (T,), int64."""
        keys = query_keys(triples, self.side, self.num_relations)
        if len(self.keys) == 0:
            return np.full(len(keys), -1)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)

    def counts(self, triples: np.ndarray) -> np.ndarray:
        """The number of answers to each triple's query, shape (T,), int64."""
        places = self.find(triples)
        return np.where(places >= 0, np.diff(self.starts, append=0)[places], 0)

    def among(self, queries: np.ndarray, candidates: np.ndarray, num_entities: int) -> np.ndarray:
        """Mark the candidates that answer the queries of their chunk.

        Args:
            queries: As from ``find``, shape (K, C).
            candidates: Entities, repeats allowed, shape (K, N).
            num_entities: E.
        Returns:
            Shape (K, C, N), bool.
        """
        out = np.zeros((*queries.shape, candidates.shape[1]), np.bool_)
        _mark(self.starts, self.answers, queries, candidates, np.full(num_entities, -1), out)
        return out


@njit(cache=True, nogil=True)
def _mark(
    starts: np.ndarray,
    answers: np.ndarray,
    queries: np.ndarray,
    candidates: np.ndarray,
    place: np.ndarray,
    out: np.ndarray,
) -> None:
    following = np.empty(candidates.shape[1], np.int64)
    for k in range(len(queries)):
        for n in range(candidates.shape[1]):  # a chain of the places that hold the same entity
            following[n] = place[candidates[k, n]]
            place[candidates[k, n]] = n
        for c in range(queries.shape[1]):
            q = queries[k, c]
            if q >= 0:
                for a in range(starts[q], starts[q + 1]):
                    n = place[answers[a]]
                    while n >= 0:
                        out[k, c, n] = True
                        n = following[n]
        for n in range(candidates.shape[1]):
            place[candidates[k, n]] = -1
