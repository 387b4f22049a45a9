"""Known triples by the query that they answer, and negatives of triples without them, shared by a chunk.

Legend: T triples, Q distinct queries, E entities, R relations, K chunks, C triples and N negatives of a chunk, P parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from graph_emb.core.compiled import GOLDEN, njit
from graph_emb.core.errors import ConfigError
from graph_emb.graph.partition_book import Part, PartitionBook
from graph_emb.graph.triples import KnowledgeGraph, pieces_of
from graph_emb.sampling.negatives import NegativeSampler, UniformSampler

OccurrencesOf = Callable[[int, int], np.ndarray]
"""Of the entities at rows [low, high) of a table in how many triples each stands, (high - low,)."""
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

    @classmethod
    def to(
        cls, judged: np.ndarray, graph: KnowledgeGraph, more: Iterable[np.ndarray] | None = None
    ) -> list[KnownAnswers]:
        """The answers of both sides that any part of a graph holds to the queries of some triples (B, 3), by which
        ranks of those are filtered; memory is taken for these answers alone.

        Args:
            more: The training triples, (n, 3) each, where the graph holds none.
        Raises:
            DataError: it holds none, and they are not given.
        """
        parts = {**graph.parts, "train": graph.train} if more is None else graph.parts
        asked = {side: np.unique(query_keys(judged, side, graph.num_relations)) for side in (HEAD, TAIL)}
        found = {side: [judged[:0]] for side in asked}
        for piece in chain(chain.from_iterable(map(pieces_of, parts.values())), more or ()):
            for side, keys in asked.items():
                found[side].append(piece[_are_among(query_keys(piece, side, graph.num_relations), keys)])
        return [cls.of(np.concatenate(same), side, graph.num_relations) for side, same in found.items()]

    def find(self, triples: np.ndarray) -> np.ndarray:
        """The number of each triple's query, or -1 where nothing answers it; shape (T,), int64."""
        return self.places(query_keys(triples, self.side, self.num_relations))

    def places(self, keys: np.ndarray) -> np.ndarray:
        """The number of each of these queries among ``keys``, or -1 where nothing answers it; shape (T,), int64."""
        if len(self.keys) == 0:
            return np.full(len(keys), -1)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)

    def counts(self, triples: np.ndarray) -> np.ndarray:
        """The number of answers to each triple's query, shape (T,), int64."""
        places = self.find(triples)
        return np.where(places >= 0, np.diff(self.starts, append=0)[places], 0)

    def among(self, queries: np.ndarray, candidates: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Mark the candidates that answer the queries of their chunk.

        Args:
            queries: As from ``find``, shape (K, C).
            candidates: Entities, repeats allowed, shape (K, N).
            out: Marks so far, (K, C, N), bool, which are kept; None: none.
        Returns:
            Shape (K, C, N), bool; ``out`` where it is given.
        """
        if out is None:
            out = np.zeros((*queries.shape, candidates.shape[1]), np.bool_)
        _mark(self.starts, self.answers, queries, np.ascontiguousarray(candidates), out)
        return out


def _are_among(keys: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Which keys (T,) are among the chosen ones, which ascend: (T,), bool."""
    if not len(chosen):
        return np.zeros(len(keys), np.bool_)
    return chosen[np.searchsorted(chosen, keys).clip(max=len(chosen) - 1)] == keys


@njit(forceinline=True)
def _slot_of(entity: int, own: np.ndarray, slots: np.ndarray, shift: np.uint64, mask: int) -> int:
    """The slot of an entity, or the empty one where it would be."""
    slot = np.int64((np.uint64(entity) * GOLDEN) >> shift)
    while slots[slot] >= 0 and own[slots[slot]] != entity:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _mark(
    starts: np.ndarray, answers: np.ndarray, queries: np.ndarray, candidates: np.ndarray, out: np.ndarray
) -> None:
    """Find answers among a chunk's candidates by a hash table of these, which the first cache holds."""
    num = candidates.shape[1]
    bits = 1
    while (1 << bits) < 2 * num:
        bits += 1
    shift, mask = np.uint64(64 - bits), (1 << bits) - 1
    slots, following = np.full(1 << bits, -1), np.empty(num, np.int64)
    for k in range(len(queries)):
        if queries[k].max() < 0:
            continue
        own = candidates[k]
        for n in range(num):  # a slot begins a chain of the places that hold the same entity
            slot = _slot_of(own[n], own, slots, shift, mask)
            following[n] = slots[slot]
            slots[slot] = n
        for c in range(queries.shape[1]):
            q = queries[k, c]
            if q >= 0:
                for a in range(starts[q], starts[q + 1]):
                    n = slots[_slot_of(answers[a], own, slots, shift, mask)]
                    while n >= 0:
                        out[k, c, n] = True
                        n = following[n]
        slots[:] = -1


@dataclass(frozen=True, eq=False)
class EntityParts:
    """Where the entities of a partitioned table lie.

    Attributes:
        bounds: The first row of each part, and its end, shape (P + 1,).
        rows: The row of each entity, shape (E,); None: entity k has row k.
    """

    bounds: np.ndarray
    rows: np.ndarray | None = None

    @cached_property
    def _order(self) -> np.ndarray | None:
        return None if self.rows is None else np.argsort(self.rows)

    def entities(self, rows: np.ndarray) -> np.ndarray:
        """Of rows (B,), int64."""
        return rows.astype(np.int64) if self._order is None else self._order[rows]

    def row(self, entities: np.ndarray) -> np.ndarray:
        """Of each entity (B,)."""
        return entities if self.rows is None else self.rows[entities]

    def owner(self, entities: np.ndarray) -> np.ndarray:
        """The part of each entity (B,)."""
        return np.searchsorted(self.bounds, self.row(entities), side="right") - 1

    @classmethod
    def of(cls, book: PartitionBook, rows: np.ndarray | None) -> EntityParts | None:
        """The parts of a table; None where it has one.

        Args:
            book: Who owns which row.
            rows: See ``EntityParts``.
        """
        sizes = [book.part_size(Part(part)) for part in range(book.num_parts)]
        if len(sizes) < 2:
            return None
        return cls(np.cumsum([0, *sizes]), rows)


class ChunkNegatives:
    """Entities that take the place of a chunk's heads, or of its tails.

    A draw is a function of (seed, epoch, number of the chunk in the epoch, its own number), so it depends neither on
    threads nor on which rank trains the chunk. Where entities have types (biokg), negative n is of the type of the
    chunk's triple n modulo C, and counts for triples of that type only, as in OGB's example.

    Args:
        graph: Triples to train on.
        num: Drawn for each chunk.
        power: They follow ``occurrences ** power``; 0 is uniform over all entities.
        in_batch: Add the entities that stand in the chunk's own triples on the corrupted side.
        filtered: Leave out negatives that make a training triple true; without it only the triple itself.
        seed: Any integer.
        parts: Draw for a chunk among the entities of the part that owns the head of its middle triple, or among those
            of the parts that ``candidates`` is told; None: all.
        occurrences: Of each entity in the training triples, shape (E,), where the graph does not hold these: then
            ``candidates`` draws, and the caller finds out which ones make a triple true. None: of the graph's. Or a
            function that gives those of rows [low, high), which is asked for the parts that draws need.
    Attributes:
        types: The type of each entity, shape (E,); None: they have none.
    Raises:
        ConfigError: ``parts`` of entities with types.
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
        parts: EntityParts | None = None,
        occurrences: np.ndarray | OccurrencesOf | None = None,
    ) -> None:
        self._parts = parts
        self._known: dict[int, KnownAnswers] = {}
        if filtered and occurrences is None:
            self._known = {side: KnownAnswers.of(graph.train, side, graph.num_relations) for side in (HEAD, TAIL)}
        if occurrences is None and power > 0:
            occurrences = graph.occurrences()
        self._samplers, self.types = _samplers(graph, occurrences, power, seed, parts)
        self._num, self._in_batch, self._filtered = num, in_batch, filtered

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
        found = self.candidates(triples, chunks, side, epoch)
        return found, self.excluded(triples, found, side, self.known(triples, found, side) if self._filtered else None)

    def candidates(
        self, triples: np.ndarray, chunks: np.ndarray, side: int, epoch: int, among: np.ndarray | None = None
    ) -> np.ndarray:
        """The entities that ``draw`` gives; among: the parts of each chunk, (K, c), that give in turn."""
        answers = triples[:, :, 0 if side == HEAD else 2]
        found = np.empty((len(chunks), 0), np.int64)
        if self._num:
            found = self._drawn(triples, chunks, answers, epoch) if among is None else self._among(chunks, epoch, among)
        return np.concatenate([found, answers], axis=1) if self._in_batch else found

    def known(self, triples: np.ndarray, found: np.ndarray, side: int) -> np.ndarray:
        """Mark the candidates (K, N) that make a triple of their chunk (K, C, 3) true: (K, C, N)."""
        queries = self._known[side].find(triples.reshape(-1, 3)).reshape(triples.shape[:2])
        return self._known[side].among(queries, found)

    def excluded(self, triples: np.ndarray, found: np.ndarray, side: int, known: np.ndarray | None) -> np.ndarray:
        """Mark those of ``candidates`` that do not count, as ``draw`` does; ``known``: those that make a triple true.

        Without ``known``, where negatives are not filtered, it is the triple itself.
        """
        answers = triples[:, :, 0 if side == HEAD else 2]
        excluded = found[:, None, :] == answers[:, :, None] if known is None else known
        if self.types is not None:
            excluded |= self.types[found][:, None, :] != self.types[answers][:, :, None]
        return excluded

    def _among(self, chunks: np.ndarray, epoch: int, among: np.ndarray) -> np.ndarray:
        """Negatives of parts, which take turns: (K, N)."""
        assert self._parts is not None
        turns, chosen = -(-self._num // among.shape[1]), np.unique(among).tolist()
        found, samplers = np.empty((len(chunks), turns, among.shape[1]), np.int64), self._samplers
        if isinstance(samplers, _PartSamplers):
            samplers.keep(chosen)
        for part in chosen:
            chunk, place = np.nonzero(among == part)
            drawn = samplers[part].sample_for(chunks[chunk], turns, epoch=epoch)
            found[chunk, :, place] = self._parts.entities(drawn)
        return found.reshape(len(chunks), turns * among.shape[1])[:, : self._num]

    def _drawn(self, triples: np.ndarray, chunks: np.ndarray, answers: np.ndarray, epoch: int) -> np.ndarray:
        if self._parts is not None:
            owner = self._parts.owner(triples[:, triples.shape[1] // 2, 0])
            found = np.empty((len(chunks), self._num), np.int64)
            for part in np.unique(owner):
                own = owner == part
                drawn = self._samplers[part].sample_for(chunks[own], self._num, epoch=epoch)
                found[own] = self._parts.entities(drawn)
            return found
        draws = [sampler.sample_for(chunks, self._num, epoch=epoch) for sampler in self._samplers]
        if self.types is None:
            return draws[0].astype(np.int64)
        wanted = self.types[answers][:, np.arange(self._num) % answers.shape[1]]
        return np.take_along_axis(np.stack(draws), wanted[None], axis=0)[0].astype(np.int64)


def _samplers(
    graph: KnowledgeGraph,
    occurrences: np.ndarray | OccurrencesOf | None,
    power: float,
    seed: int,
    parts: EntityParts | None,
) -> tuple[Sequence[NegativeSampler], np.ndarray | None]:
    """A sampler for each part or type, and the type of each entity, (E,); one and None where there are none."""
    if parts is not None and graph.entity_types is not None:
        raise ConfigError(
            f"parallel.negatives = 'local': the negatives of {graph.name} follow the types of its entities; take global"
        )
    if parts is not None:
        if not (occurrences is None or isinstance(occurrences, np.ndarray)):
            return _PartSamplers(occurrences, parts.bounds, power, seed), None
        by_row = None if occurrences is None else occurrences[parts.entities(np.arange(graph.num_entities))]
        return _of_ranges(by_row, parts.bounds.tolist(), power, seed), None
    assert occurrences is None or isinstance(occurrences, np.ndarray)
    if graph.entity_types is None:
        return _of_ranges(occurrences, [0, graph.num_entities], power, seed), None
    starts = sorted({low for low in graph.entity_types.values() if low < graph.num_entities})  # some may be empty
    bounds = [*starts, graph.num_entities]
    types = np.repeat(np.arange(len(starts)), np.diff(bounds))
    return _of_ranges(occurrences, bounds, power, seed), types


def _of_ranges(occurrences: np.ndarray | None, bounds: list[int], power: float, seed: int) -> list[NegativeSampler]:
    """A sampler of each range of entities; of all of them for an empty one, for which no triple asks."""
    samplers: list[NegativeSampler] = []
    for low, high in pairwise(bounds):
        low, high = (low, high) if low < high else (0, bounds[-1])
        own = None if occurrences is None else occurrences[low:high]
        samplers.append(_of_range(own, low, high, power, seed))
    return samplers


def _of_range(occurrences: np.ndarray | None, low: int, high: int, power: float, seed: int) -> NegativeSampler:
    if power > 0 and occurrences is not None and occurrences.any():
        return NegativeSampler(occurrences, power, seed=seed, low=low)
    return UniformSampler(high - low, seed=seed, low=low)  # no triple needs a range without occurrences


class _PartSamplers(Sequence[NegativeSampler]):
    """Samplers of parts, made when they are first asked for."""

    def __init__(self, occurrences: OccurrencesOf, bounds: np.ndarray, power: float, seed: int) -> None:
        self._occurrences, self._bounds, self._power, self._seed = occurrences, bounds.tolist(), power, seed
        self._held: dict[int, NegativeSampler] = {}
        self._before: list[int] = []

    def keep(self, parts: list[int]) -> None:
        """Drop those of other parts than these and those of the call before: steps may lie in two states."""
        self._held = {part: own for part, own in self._held.items() if part in parts or part in self._before}
        self._before = parts

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, part: Any) -> Any:
        if part not in self._held:
            low, high = self._bounds[part : part + 2]
            self._held[part] = _of_range(self._occurrences(low, high), low, high, self._power, self._seed)
        return self._held[part]
