"""The steps of an epoch: shuffled triples in chunks with their negatives, shared among the ranks."""

# T triples, K chunks, C triples of a chunk.

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import TripleBatch
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.sampling.triple_negatives import ChunkNegatives

FIRST_COUNT = 3.0  # added to a pair's occurrences: RotatE's code counts the first one as 4


class Batches:
    """The training triples of each epoch, shuffled, in chunks with their negatives.

    The order and the draws depend on (seed, epoch) alone. Ranks in lockstep share each step's chunks, so that any
    number of them trains the same steps; other ranks take whole steps in turn.

    Args:
        graph: Triples.
        config: The recipe.
        seed: Of order and negatives.
        rank, world_size: This rank and how many share the work.
        lockstep: Whether they step together.
    """

    def __init__(
        self, graph: KnowledgeGraph, config: KGEConfig, seed: int, rank: int, world_size: int, lockstep: bool
    ) -> None:
        self._triples, self._config, self._seed = graph.train, config, seed
        self._rank, self._world_size, self._lockstep = rank, world_size, lockstep
        self._negatives = ChunkNegatives(
            graph,
            config.num_negatives,
            config.negative_power,
            in_batch=config.in_batch,
            filtered=config.filter_negatives,
            seed=seed,
        )
        self._weights = triple_weights(graph) if config.subsampling else np.ones(len(graph.train), np.float32)
        self.steps_per_epoch = -(-len(graph.train) // config.batch_size)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[int, TripleBatch]]:
        """This rank's batches of an epoch, from a step on, with the number of their step in it."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._triples))
        for step in range(first, self.steps_per_epoch):
            if self._lockstep or (epoch * self.steps_per_epoch + step) % self._world_size == self._rank:
                yield step, self._batch(order, step, epoch)

    def _batch(self, order: np.ndarray, step: int, epoch: int) -> TripleBatch:
        size, chunk = self._config.batch_size, self._config.chunk_size
        chosen = order[step * size : (step + 1) * size]
        side = TAIL if (epoch * self.steps_per_epoch + step) % 2 == 0 else HEAD
        chosen = chosen[self._negatives.by_type(self._triples[chosen], side)]
        num_chunks = -(-len(chosen) // chunk)
        filled = np.concatenate([chosen, np.full(num_chunks * chunk - len(chosen), chosen[-1])])
        weights = self._weights[filled]
        weights[len(chosen) :] = 0.0
        numbers = np.arange(num_chunks)
        if self._lockstep:
            numbers = numbers[self._rank :: self._world_size]
        triples = self._triples[filled.reshape(num_chunks, chunk)[numbers]]
        drawn, excluded = self._negatives.draw(triples, numbers + step * (size // chunk), side, epoch)
        own = drawn[:, : self._config.num_negatives]
        share = weights.reshape(num_chunks, chunk)[numbers]
        if self._config.in_batch:  # a copy that pads the chunk is no negative
            excluded[:, :, self._config.num_negatives :] |= (share == 0)[:, None, :]
        return TripleBatch(triples, share, float(weights.sum(dtype=np.float64)), side, own, excluded)


def triple_weights(graph: KnowledgeGraph) -> np.ndarray:
    """``KGEConfig.subsampling`` of each training triple, shape (T,), float32."""
    counts = sum(
        KnownAnswers.of(graph.train, side, graph.num_relations).counts(graph.train) + FIRST_COUNT
        for side in (HEAD, TAIL)
    )
    return (1.0 / np.sqrt(counts)).astype(np.float32)
