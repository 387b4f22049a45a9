"""Known answers where memory holds the triples of few buckets: those between the parts that a step meets.

Legend: K chunks, C triples and N candidates of a chunk, P parts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.sampling.stored_triples import StoredTriples, triples_of


class BucketAnswers:
    """The answers of each bucket to the queries of its own triples, read when a step first asks for them.

    A query of a part's entity is answered by an entity of another one in the bucket between both alone, so that they
    tell what those of all triples do. They are dropped when their parts leave the memory.

    Args:
        triples: By the buckets of P x P.
        owner: The parts of entities, (B,) to (B,).
        num_parts: P.
        num_relations: R.
    """

    def __init__(
        self, triples: StoredTriples, owner: Callable[[np.ndarray], np.ndarray], num_parts: int, num_relations: int
    ) -> None:
        self._triples, self._owner, self._num_parts, self._num_relations = triples, owner, num_parts, num_relations
        self._held: dict[tuple[int, int], dict[int, KnownAnswers]] = {}
        self._before: set[int] = set()

    def known(self, triples: np.ndarray, candidates: np.ndarray, side: int) -> np.ndarray:
        """Mark the candidates (K, N) that make a triple of their chunk (K, C, 3) true: (K, C, N), bool."""
        given = self._owner(triples[:, :, 0 if side == TAIL else 2].ravel()).reshape(triples.shape[:2])
        answering = np.unique(self._owner(candidates.ravel())).tolist()
        asking = np.unique(given).tolist()
        self._drop({*answering, *asking})
        out = np.zeros((*given.shape, candidates.shape[1]), np.bool_)
        for part in asking:
            own = given == part
            for other in answering:
                answers = self._of((part, other) if side == TAIL else (other, part))[side]
                queries = np.full(given.shape, -1)
                queries[own] = answers.find(triples[own])
                answers.among(queries, candidates, out)
        return out

    def _of(self, bucket: tuple[int, int]) -> dict[int, KnownAnswers]:
        """By side the answers of a bucket of (head's part, tail's part)."""
        if bucket not in self._held:
            triples = triples_of(self._triples.of(bucket[0] * self._num_parts + bucket[1])[1])
            sides = {side: KnownAnswers.of(triples, side, self._num_relations) for side in (HEAD, TAIL)}
            self._held[bucket] = sides
        return self._held[bucket]

    def _drop(self, parts: set[int]) -> None:
        """Keep the buckets between these parts and those of the step before: steps may lie in two states."""
        kept = parts | self._before
        self._held = {bucket: answers for bucket, answers in self._held.items() if kept.issuperset(bucket)}
        self._before = parts
