"""The triples that a rank trains in each step, with their negatives: of a graph in this process, or of its share."""

# T triples, n of some steps, K chunks, C triples and N candidates of a chunk.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig, TripleSettings
from graph_emb.models.kge.model import TripleBatch
from graph_emb.sampling.bucket_answers import BucketAnswers
from graph_emb.sampling.bucket_counts import PartOccurrences, count_answers
from graph_emb.sampling.buckets import BucketOrder, BucketSchedule, HeldTriples, bucket_of
from graph_emb.sampling.known_triples import HEAD, TAIL, ChunkNegatives, EntityParts, KnownAnswers
from graph_emb.sampling.partitioned_triples import OwnTriples
from graph_emb.sampling.stored_triples import StoredTriples, TriplesOnDisk, triples_of

FIRST_COUNT = 3.0
"""Added to a pair's occurrences: RotatE's code counts the first one as 4."""
TRIPLES_AT_ONCE = 1 << 15
"""Triples of the steps for which ranks with triples of their own meet once."""
Placed = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Places of triples in an epoch's order, which triples these are, and their records where they are not in memory."""
Chunks = tuple[np.ndarray, np.ndarray, int]
"""Triples (K, C, 3), candidates (K, N), and the corrupted side."""


@dataclass(frozen=True, eq=False)
class TripleStep:
    """A step of all ranks that train it.

    Attributes:
        number: In the epoch.
        side: Which one is corrupted.
        places: Of the triples among those of some steps, shape (K, C).
        weights: Of the triples, (K, C); 0 for one that only pads its chunk.
        rank: Who trains each chunk, shape (K,).
        own: Numbers of the chunks that this rank trains; None: it takes no part in the step.
    """

    number: int
    side: int
    places: np.ndarray
    weights: np.ndarray
    rank: np.ndarray
    own: np.ndarray | None


@dataclass(frozen=True, eq=False)
class StepPlaces:
    """Some steps' places in an epoch's order.

    Attributes:
        part: Whose part the head of each triple is, shape (n,); None: chunks hold triples of all parts.
        kinds: By side the type of each triple's end, (n,) each; None: entities have no types.
        weights: ``TripleSettings.subsampling``, shape (n,), float32.
    """

    part: np.ndarray | None
    kinds: dict[int, np.ndarray] | None
    weights: np.ndarray


class Batches:
    """The training triples of each epoch, shuffled, in chunks with their negatives.

    The order and the draws depend on (seed, epoch) alone, so that the steps are those of one process whatever the
    parts. Ranks in lockstep share each step's chunks, so that any number of them trains the same steps; other ranks
    take whole steps in turn. With ``KGEConfig.triple_scope`` local, or local negatives, the steps depend on the parts
    too: triples whose heads lie in one part come together, and a rank takes those of its own as far as all have equally
    much to do.

    Args:
        graph: Triples, which are not read with ``own``.
        config: The recipe.
        seed: Of order and negatives.
        rank, world_size, lockstep: As of the transport.
        parts: Where entities lie.
        own: The training triples of this rank; all ranks then begin and end each epoch together, and meet in it.
        buckets: The order of triples and the source of negatives, instead of a shuffle of all.
        rows: The row of each entity, (E,), for ``buckets``; None: entity k has row k.
        on_disk: The training triples, for ``buckets``, where the graph holds none.
    Raises:
        ConfigError: local negatives or triples without parts; buckets of triples that are elsewhere, or of entities
            with types; triples on the disk without buckets.
        StorageError: the disk has no room for triples by bucket.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        config: TripleSettings,
        seed: int,
        rank: int,
        world_size: int,
        lockstep: bool,
        parts: EntityParts | None = None,
        own: OwnTriples | None = None,
        buckets: BucketSchedule | None = None,
        rows: np.ndarray | None = None,
        on_disk: TriplesOnDisk | None = None,
    ) -> None:
        self._config, self._seed, self._own = config, seed, own
        self._num = graph.num_triples if own is None else own.num_triples
        self._size = config.batch_size or self._num
        self._rank, self._world_size, self._lockstep = rank, world_size, lockstep
        self._chunk = 1 if config.against_all else config.chunk_size
        self._filters = config.filter_negatives and not config.against_all
        self._num_negatives = 0 if config.against_all else config.num_negatives
        local = {"negatives": False, "triples": False}
        self._epochs = 0  # those of other recipes have no buckets
        if isinstance(config, KGEConfig):
            self._epochs = config.epochs
            local = {"negatives": config.negative_scope == "local", "triples": config.triple_scope == "local"}
        for name, chosen in local.items():
            if chosen and parts is None:
                raise ConfigError(
                    f"parallel.{name} = 'local' needs parts: set parallel.partition or parallel.method, or give a "
                    "part_policy of several"
                )
        if on_disk is not None and buckets is None:
            raise ConfigError(
                "training without train.buckets needs all training triples in memory; they are read from the disk here"
            )
        self._parts = parts if any(local.values()) else None
        self._order, self._answers = None, None
        occurrences: np.ndarray | PartOccurrences | None = None if own is None else own.occurrences()
        if buckets is not None:
            if own is not None or (world_size > 1 and not lockstep):
                raise ConfigError(
                    f"train.buckets = {buckets.parts} orders triples that each process holds, in steps that all take "
                    "together; here trainers hold their own or take turns, set parallel.trainers=1 or leave it out"
                )
            if graph.entity_types is not None and len(graph.entity_types) > 1:
                raise ConfigError(
                    f"train.buckets = {buckets.parts}: negatives come from the parts in memory, and those of "
                    f"{graph.name} follow the types of its entities; leave it out"
                )
            parts = EntityParts(buckets.bounds, rows)
            bucket, num_buckets = bucket_of(buckets, parts.owner), buckets.parts**2
            by_bucket: HeldTriples | StoredTriples
            if on_disk is None:
                by_bucket = HeldTriples(graph.train, bucket, num_buckets)
            else:
                by_bucket = StoredTriples(on_disk.pieces, bucket, num_buckets, on_disk.folder)
                self._answers = BucketAnswers(by_bucket, parts.owner, buckets.parts, graph.num_relations)
                if config.negative_power > 0:
                    occurrences = PartOccurrences(by_bucket, parts, on_disk.folder)
                if config.subsampling:
                    count_answers(by_bucket, buckets.parts, graph.num_relations)
            self._order = BucketOrder(buckets, by_bucket, seed)
        self._negatives = ChunkNegatives(
            graph,
            self._num_negatives,
            config.negative_power,
            in_batch=config.in_batch,
            filtered=self._filters and on_disk is None,
            seed=seed,
            parts=parts if local["negatives"] or buckets is not None else None,
            occurrences=occurrences,
        )
        if on_disk is None:
            self._triples = graph.train if own is None else own.triples
        self._weights: np.ndarray | None = None
        if config.subsampling and on_disk is None:
            self._weights = triple_weights(graph) if own is None else _weights(own.counts)
        self.steps_per_epoch = -(-self._num // self._size)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[int, TripleBatch]]:
        """This rank's batches of an epoch, from a step on, with the number of their step in it."""
        together = 1 if self._lockstep else self._world_size  # steps that train at a time
        at_once = together
        if self._own is not None:
            at_once *= max(1, TRIPLES_AT_ONCE // (together * self._size))
        places = self._order_of(epoch)
        for start in range(first - first % together, self.steps_per_epoch, at_once):
            low, high = start * self._size, min((start + at_once) * self._size, self._num)
            for number, batch in self._batches(epoch, start, high - low, *places(low, high)):
                if number >= first:
                    yield number, batch

    def _order_of(self, epoch: int) -> Callable[[int, int], Placed]:
        """Of places [low, high) of an epoch's order those here, counted from low, which triples lie there, and these
        where memory has no others.
        """
        if self._own is not None:
            at, own = self._own.places((self._seed, epoch))

            def of_own(low: int, high: int) -> Placed:
                here = slice(*np.searchsorted(at, (low, high)))
                return at[here] - low, own[here], None

            return of_own
        if self._order is not None:
            order = self._order
            return lambda low, high: (np.arange(high - low), *order.places(epoch, low, high))
        rows = np.random.default_rng((self._seed, epoch)).permutation(self._num)
        return lambda low, high: (np.arange(high - low), rows[low:high], None)

    def ranges(self, epoch: int, step: int) -> list[tuple[int, int]] | None:
        """Rows [low, high) that a step needs, and then those that the next ones do, in the next epoch too; None: any of
        all."""
        if self._order is None:
            return None
        low, last = step * self._size, epoch + 1 == self._epochs
        return self._order.ranges(epoch, low, min(low + self._size, self._num), last=last)

    def _batches(
        self, epoch: int, start: int, length: int, at: np.ndarray, rows: np.ndarray, given: np.ndarray | None
    ) -> Iterator[tuple[int, TripleBatch]]:
        """The batches of some steps.

        Args:
            length: Triples of these steps, of all ranks.
            at: The places among them of those that are here, rising.
            rows: Which triples these are.
            given: These, (n,) of ``STORED``; None: those in memory.
        """
        triples = self._triples[rows] if given is None else triples_of(given)
        weights = np.ones(len(rows), np.float32) if self._weights is None else self._weights[rows]
        if given is not None and self._config.subsampling:
            weights = _weights(given["answers"])
        config, places = self._config, self._places(at, triples, weights, length)
        plans = [self._step(epoch, start + n, start, places) for n in range(-(-length // self._size))]
        if self._own is not None:
            trainer = np.empty(length, np.int64)
            for step in plans:
                trainer[step.places] = step.rank[:, None]
            triples = self._own.sent(rows, at, trainer[at], length)
        own, chunks = [], []
        for step in plans:
            if step.own is not None:
                chosen = triples[step.places[step.own]]
                numbers = step.own + step.number * -(-self._size // self._chunk)
                middle = start * self._size + step.places[step.own, self._chunk // 2]
                among = None if self._order is None else self._order.held_at(epoch, middle)
                found = self._negatives.candidates(chosen, numbers, step.side, epoch, among)
                own.append((step, step.weights[step.own]))
                chunks.append((chosen, found, step.side))
        for (step, share), (chosen, found, side), known in zip(own, chunks, self._known(chunks), strict=True):
            excluded = self._negatives.excluded(chosen, found, side, known)
            if config.in_batch:  # a copy that pads the chunk is no negative
                excluded[:, :, self._num_negatives :] |= (share == 0)[:, None, :]
            total = float(step.weights.sum(dtype=np.float64))
            drawn, place = found[:, : self._num_negatives], epoch * self.steps_per_epoch + step.number
            yield step.number, TripleBatch(chosen, share, total, side, drawn, excluded, place)

    def _places(self, at: np.ndarray, triples: np.ndarray, weights: np.ndarray, length: int) -> StepPlaces:
        """What decides about chunks, of all ranks' triples; of those at ``at`` it is here."""
        part = kinds = None
        if self._parts is not None:
            part = self._everywhere(at, self._parts.owner(triples[:, 0]), length)
        if self._negatives.types is not None:
            ends = {HEAD: triples[:, 0], TAIL: triples[:, 2]}
            kinds = {side: self._everywhere(at, self._negatives.types[own], length) for side, own in ends.items()}
        if self._config.subsampling:
            weights = self._everywhere(at, weights, length)
        elif self._own is not None:
            weights = np.ones(length, np.float32)
        return StepPlaces(part, kinds, weights)

    def _everywhere(self, at: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
        return values if self._own is None else self._own.spread(at, values, length)

    def _step(self, epoch: int, number: int, start: int, places: StepPlaces) -> TripleStep:
        """A step of the epoch; ``places`` begin with the step ``start``."""
        together, size, chunk = 1 if self._lockstep else self._world_size, self._size, self._chunk
        begun = epoch * self.steps_per_epoch
        turn = (begun + number) % together
        first = number - number % together
        chosen = np.arange((first - start) * size, min((first - start + together) * size, len(places.weights)))
        if places.part is not None:
            chosen = chosen[np.argsort(places.part[chosen], kind="stable")]
        place = turn if first + together <= self.steps_per_epoch else number - first
        chosen = chosen[place * size : (place + 1) * size]
        side = TAIL if (begun + number) // together % 2 == 0 else HEAD
        if places.kinds is not None:
            chosen = chosen[np.argsort(places.kinds[side][chosen], kind="stable")]
        if places.part is not None:
            chosen = chosen[np.argsort(places.part[chosen], kind="stable")]
        num_chunks = -(-len(chosen) // chunk)
        filled = np.concatenate([chosen, np.full(num_chunks * chunk - len(chosen), chosen[-1])])
        weights = places.weights[filled]
        weights[len(chosen) :] = 0.0
        rank = np.full(num_chunks, turn)
        if self._lockstep:
            shares = np.array_split(np.arange(num_chunks), self._world_size)
            rank = np.repeat(np.arange(self._world_size), [len(share) for share in shares])
        own = np.flatnonzero(rank == self._rank) if self._lockstep or turn == self._rank else None
        return TripleStep(number, side, filled.reshape(-1, chunk), weights.reshape(-1, chunk), rank, own)

    def _known(self, chunks: Sequence[Chunks]) -> Iterator[np.ndarray | None]:
        """The candidates of each step that make a triple true; None each where negatives are not filtered."""
        if not self._filters:
            return iter([None] * len(chunks))
        if self._own is not None:
            return self._own.among(chunks)
        return ((self._answers or self._negatives).known(*one) for one in chunks)


def triple_weights(graph: KnowledgeGraph) -> np.ndarray:
    """``KGEConfig.subsampling`` of each training triple, shape (T,), float32."""
    answers = [KnownAnswers.of(graph.train, side, graph.num_relations) for side in (HEAD, TAIL)]
    return _weights(answers[0].counts(graph.train) + answers[1].counts(graph.train))


def _weights(answers: np.ndarray) -> np.ndarray:
    """By the answers to both queries of each triple."""
    return (1.0 / np.sqrt(answers + 2 * FIRST_COUNT)).astype(np.float32)
