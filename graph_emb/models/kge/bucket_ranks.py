"""Training by rounds of buckets: several at once, each on a rank of its own, or one after another in one process.

The rule: a step is one batch of each place's bucket, for each batch the loss is the mean over its own triples, and the
rows are those of before the step. Entities of two places are disjoint, so a step of a rank's own entities is one as if
the others were not there. Relations are shared: their gradients are summed within each place, then in the order of
places, and applied once a step. So the result is a function of the schedule, not of who trains it: one process takes
the same steps, bit for bit (``train_places``).
"""

# T triples, K chunks, C triples and N candidates of a chunk, W places.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.all_entities import QueryBatch
from graph_emb.models.kge.batches import triple_weights
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel, TripleBatch
from graph_emb.optim.apply import merge
from graph_emb.sampling.bucket_rounds import NONE, RoundSchedule
from graph_emb.sampling.buckets import HeldTriples
from graph_emb.sampling.known_triples import HEAD, TAIL, ChunkNegatives, EntityParts
from graph_emb.sparse_optimizer import SparseOptimizer
from graph_emb.table.spec import accumulation_dtype
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.held_rows import HeldRows


class RoundBatches:
    """The training triples of each epoch, bucket for bucket, in steps of a batch at each place.

    A round has as many steps as its longest bucket; a shorter one has empty batches at its end. Draws are functions of
    (seed, epoch, step, place).

    Args:
        graph: Triples.
        config: The recipe.
        seed: Of order and negatives.
        rank, world_size: This rank trains the place of its number; one process all of them.
        schedule: The rounds.
        rows: The row of each entity, (E,); None: entity k has row k.
    Raises:
        ConfigError: entities with types, or another number of ranks than one or W.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        config: KGEConfig,
        seed: int,
        rank: int,
        world_size: int,
        schedule: RoundSchedule,
        rows: np.ndarray | None = None,
    ) -> None:
        if world_size not in (1, schedule.places):
            raise ConfigError(
                f"train.at_once = {schedule.places}: {world_size} trainers; take as many as buckets at once, or one"
            )
        if graph.entity_types is not None and len(graph.entity_types) > 1:
            raise ConfigError(
                f"train.buckets = {schedule.parts}: negatives come from the parts in memory, and those of "
                f"{graph.name} follow the types of its entities; leave it out"
            )
        self.schedule, self._config, self._seed = schedule, config, seed
        self._places = [rank] if world_size > 1 else [*range(schedule.places)]
        parts = EntityParts(schedule.bounds, rows)
        self._triples = graph.train
        self._buckets = HeldTriples(graph.train, lambda t: self._bucket(parts.owner(t[:, ::2])), schedule.parts**2)
        self._weights = triple_weights(graph) if config.subsampling else None
        self._negatives = ChunkNegatives(
            graph,
            config.num_negatives,
            config.negative_power,
            in_batch=config.in_batch,
            filtered=config.filter_negatives,
            seed=seed,
            parts=parts,
        )
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._coming: tuple[tuple[int, int], np.ndarray | None] = (-1, -1), None  # after a round of an epoch
        self.steps_per_epoch = int(self._rounds(0)[1][-1])

    def _rounds(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rounds of an epoch, and the steps of it when each of them ends, (R,); two neighbours are kept."""
        if epoch not in self._epochs:
            now = self.schedule.epoch(epoch)
            sizes = np.where(now[..., 0] == NONE, 0, self._buckets.sizes[self._bucket(now)])
            self._epochs = {number: own for number, own in self._epochs.items() if abs(number - epoch) == 1}
            self._epochs[epoch] = now, np.cumsum(-(-sizes.max(axis=1) // self._config.batch_size))
        return self._epochs[epoch]

    def _bucket(self, parts: np.ndarray) -> np.ndarray:
        """The number of each bucket (..., 2), (...); any for ``NONE``."""
        return np.asarray(parts[..., 0] * self.schedule.parts + parts[..., 1])

    def parts(self, epoch: int, step: int) -> np.ndarray:
        """The parts that each place needs in a step, ascending, (W, 2)."""
        now, ends = self._rounds(epoch)
        return np.sort(now[np.searchsorted(ends, step, side="right")], axis=-1)

    def next_parts(self, epoch: int, step: int) -> np.ndarray | None:
        """``parts`` of the next round that has others than a step, in the next epoch too; None: no such one follows."""
        at = epoch, int(np.searchsorted(self._rounds(epoch)[1], step, side="right"))
        if self._coming[0] != at:
            own = self.parts(epoch, step)
            self._coming = at, next((parts for parts in self._after(*at) if not np.array_equal(parts, own)), None)
        return self._coming[1]

    def _after(self, epoch: int, at: int) -> Iterator[np.ndarray]:
        """The parts, as of ``parts``, of the rounds after one that train something, in the next epoch too."""
        for number in range(epoch, min(epoch + 2, self._config.epochs)):
            now, ends = self._rounds(number)
            trained = np.flatnonzero(np.diff(ends, prepend=0))
            yield from np.sort(now[trained[trained > at] if number == epoch else trained], axis=-1)

    def ranges(self, epoch: int, step: int) -> list[tuple[int, int]]:
        """Rows [low, high) of the parts of all places in a step, then of those that the next round adds."""
        own, following = self.parts(epoch, step), self.next_parts(epoch, step)
        return self.schedule.ranges(own if following is None else np.stack([own, following]))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[int, tuple[TripleBatch, ...]]]:
        """The batches of this rank's places in each step of an epoch, from one on, with its number."""
        now, ends = self._rounds(epoch)
        for number in range(int(np.searchsorted(ends, first, side="right")), len(now)):
            begin = int(ends[number - 1]) if number else 0
            own = [(place, now[number, place], self._order(epoch, now[number, place])) for place in self._places]
            for step in range(max(begin, first), int(ends[number])):
                low = (step - begin) * self._config.batch_size
                cut = slice(low, low + self._config.batch_size)
                yield step, tuple(self._batch(epoch, step, place, parts, rows[cut]) for place, parts, rows in own)

    def _order(self, epoch: int, parts: np.ndarray) -> np.ndarray:
        """Numbers of a bucket's triples, shuffled."""
        if parts[0] == NONE:
            return np.empty(0, np.int64)
        bucket = int(self._bucket(parts))
        rows, _ = self._buckets.of(bucket)
        return np.random.default_rng((self._seed, epoch, bucket, 5)).permutation(rows)

    def _batch(self, epoch: int, step: int, place: int, parts: np.ndarray, rows: np.ndarray) -> TripleBatch:
        """A batch of triples of a bucket, which may be none."""
        config, size = self._config, self._config.chunk_size
        num = -(-len(rows) // size)
        filled = np.concatenate([rows, np.full(num * size - len(rows), rows[-1] if len(rows) else 0)])
        weights = np.ones(len(filled), np.float32) if self._weights is None else self._weights[filled]
        weights[len(rows) :] = 0.0
        triples, share = self._triples[filled].reshape(num, size, 3), weights.reshape(num, size)
        begun = epoch * self.steps_per_epoch + step
        side = TAIL if begun % 2 == 0 else HEAD
        most = -(-config.batch_size // size)
        chunks = np.arange(num) + (step * self.schedule.places + place) * most
        among = np.repeat(np.unique(parts)[None], num, axis=0)
        found = self._negatives.candidates(triples, chunks, side, epoch, among)
        known = self._negatives.known(triples, found, side) if config.filter_negatives else None
        excluded = self._negatives.excluded(triples, found, side, known)
        if config.in_batch:  # a copy that pads the chunk is no negative
            excluded[:, :, config.num_negatives :] |= (share == 0)[:, None, :]
        total = float(share.sum(dtype=np.float64)) or 1.0  # of no triples there is no mean
        return TripleBatch(triples, share, total, side, found[:, : config.num_negatives], excluded, begun)


def check_exact(optimizer: SparseOptimizer, schedule: RoundSchedule) -> None:
    """Raise a ConfigError for rules whose sums and draws do not follow the rule above."""
    rule = optimizer.rule_of(optimizer.param_groups[0])
    chosen = optimizer.choices
    reasons = {
        "averages the gradients of a row over places": chosen["merge"] != "sum",
        "takes each occurrence of a row by itself": rule.per_occurrence,
        "lets rows decay in steps that do not touch them": rule.lazy,
        "rounds by chance": bool(rule.stochastic_rounding or chosen.get("state_dtype")),
    }
    for reason, there in reasons.items():
        if there:
            raise ConfigError(
                f"train.at_once = {schedule.places}: {type(optimizer).__name__} with these options {reason}, and "
                "buckets that train at once would differ from those in turn; leave the option or train.at_once out"
            )


def train_places(
    model: KGEModel, optimizer: SparseOptimizer, batches: Sequence[TripleBatch | QueryBatch]
) -> np.ndarray:
    """A step of this process's places; the sum of its triples' losses and of their weights, (2,)."""
    told, sums = np.zeros(2), []
    for batch in batches:
        loss = model.loss(batch)
        loss.backward()
        told += (float(loss.detach()) * batch.total_weight, float(batch.weights.sum()))
        if len(batches) > 1:  # as a rank sums its own
            sums.append(merge(*_pending(model.relation)))
            model.relation.clear_gradients()
    if sums:
        ids, grads = (torch.cat(columns) for columns in zip(*sums, strict=True))
        optimizer.update(ids, grads, model.relation)
    optimizer.step()
    return told


def _pending(table: DistEmbedding) -> tuple[torch.Tensor, torch.Tensor]:
    ids, grads = table.joined_pending()
    return ids, grads.to(accumulation_dtype(table.dtype))


class HeldParts(HeldRows):
    """The parts of a rank's place, which move when a round begins that has others.

    Args:
        model: Whose entities are held.
        batches: Say which parts when.
        early: As of ``HeldRows``.
    """

    def __init__(self, model: KGEModel, batches: RoundBatches, early: int = 0) -> None:
        transport = model.entity.transport
        if not isinstance(transport, CollectiveTransport):
            raise ConfigError(
                f"train.at_once = {batches.schedule.places}: trainers of {transport.mode} mode push to servers and "
                "hold no rows; take parallel.mode=collective"
            )
        super().__init__(transport, model.entity.name, 2 * int(np.diff(batches.schedule.bounds).max()), early)
        self._batches, self._parts = batches, np.empty((0, 2), np.int64)

    def begin(self, epoch: int, step: int) -> None:
        """Hold the parts of a step, and begin with those of the next round. Joint: all ranks know whether any moves."""
        parts, schedule = self._batches.parts(epoch, step), self._batches.schedule
        if np.array_equal(parts, self._parts):
            return
        self.hold([schedule.ranges(own) for own in parts])
        self._parts = parts
        if (following := self._batches.next_parts(epoch, step)) is not None:
            self.announce([schedule.ranges(own) for own in following])
