"""Negatives of triples, shared by the triples of a chunk: the chunk's scores are then one matrix product.

Legend: E entities, K chunks, C triples and N negatives of a chunk.
"""

from __future__ import annotations

import numpy as np

from graph_emb.data.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.data.negatives import NegativeSampler
from graph_emb.data.triples import KnowledgeGraph


class ChunkNegatives:
    """Entities that take the place of a chunk's heads, or of its tails.

    A draw is a function of (seed, epoch, number of the chunk in the epoch, its own number), so it depends neither on
    threads nor on which rank trains the chunk.

    Args:
        graph: Triples to train on.
        num: Drawn for each chunk.
        power: They follow ``occurrences ** power``; 0 is uniform over all entities.
        in_batch: Add the entities that stand in the chunk's own triples on the corrupted side.
        filtered: Leave out negatives that make a training triple true; without it only the triple itself.
        seed: Any integer.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        num: int,
        power: float = 0.0,
        *,
        in_batch: bool = False,
        filtered: bool = True,
        seed: int = 0,
    ) -> None:
        self._sampler = NegativeSampler(graph.occurrences(), power, seed=seed)
        self._num_entities, self._num, self._in_batch = graph.num_entities, num, in_batch
        self._known = {side: KnownAnswers.of(graph.train, side, graph.num_relations) for side in (HEAD, TAIL)}
        self._filtered = filtered

    def draw(self, triples: np.ndarray, chunks: np.ndarray, side: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Negatives of chunks, and which of them do not count.

        Args:
            triples: Shape (K, C, 3), int64.
            chunks: Number of each chunk in the epoch, shape (K,), int64.
            side: ``HEAD`` or ``TAIL``.
            epoch: Each epoch has draws of its own.
        Returns:
            Entities (K, N) int64, where N counts the chunk's own C as well if ``in_batch``; and (K, C, N) bool, True
            where the negative would make the triple true.
        """
        found = np.empty((len(chunks), 0), np.int64)
        if self._num:
            found = self._sampler.sample_for(chunks, self._num, epoch=epoch).astype(np.int64)
        answers = triples[:, :, 0 if side == HEAD else 2]
        if self._in_batch:
            found = np.concatenate([found, answers], axis=1)
        if not self._filtered:
            return found, found[:, None, :] == answers[:, :, None]
        queries = self._known[side].find(triples.reshape(-1, 3)).reshape(triples.shape[:2])
        return found, self._known[side].among(queries, found, self._num_entities)
