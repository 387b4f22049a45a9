"""The distinct queries of both sides that a rank trains in each step, with all their answers: k-vs-all."""

# Q queries of both sides, A answers, B queries of a step.

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.all_entities import QueryBatch
from graph_emb.models.kge.config import KGEConfig
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers


class QueryBatches:
    """The queries that training triples answer, in the order of an epoch; each counts once, with all its answers.

    The order depends on (seed, epoch) alone. Ranks in lockstep share each step's queries, so that any number of them
    trains the same steps; other ranks take whole steps in turn.

    Args:
        graph: Triples.
        config: The recipe; ``batch_size`` counts queries.
        seed: Of the order.
        rank, world_size, lockstep: As of the transport.
    """

    def __init__(
        self, graph: KnowledgeGraph, config: KGEConfig, seed: int, rank: int, world_size: int, lockstep: bool
    ) -> None:
        self._seed, self._size = seed, config.batch_size
        self._rank, self._world_size, self._lockstep = rank, world_size, lockstep
        sides = [KnownAnswers.of(graph.train, side, graph.num_relations) for side in (TAIL, HEAD)]
        self._num_tails = len(sides[0].keys)
        self._given, self._relations = np.divmod(np.concatenate([side.keys for side in sides]), graph.num_relations)
        self._answers = np.concatenate([side.answers for side in sides])
        self._starts = np.concatenate([sides[0].starts, sides[0].starts[-1] + sides[1].starts[1:]])
        self.steps_per_epoch = -(-len(self._given) // self._size)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[int, QueryBatch]]:
        """This rank's batches of an epoch, from a step on, with the number of their step in it."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._given))
        begun = epoch * self.steps_per_epoch
        for number in range(first, self.steps_per_epoch):
            whole = order[number * self._size : (number + 1) * self._size]
            own = whole
            if self._lockstep:
                own = np.array_split(whole, self._world_size)[self._rank]
            elif (begun + number) % self._world_size != self._rank:
                continue
            yield number, self._batch(np.sort(own), float(len(whole)), begun + number)

    def _batch(self, chosen: np.ndarray, total_weight: float, step: int) -> QueryBatch:
        """A batch of queries by their numbers, which rise: those for tails come first."""
        counts = self._starts[chosen + 1] - self._starts[chosen]
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.repeat(self._starts[chosen] - starts[:-1], counts) + np.arange(starts[-1])
        return QueryBatch(
            self._given[chosen],
            self._relations[chosen],
            int((chosen < self._num_tails).sum()),
            starts,
            self._answers[places],
            np.ones(len(chosen), np.float32),
            total_weight,
            step,
        )
