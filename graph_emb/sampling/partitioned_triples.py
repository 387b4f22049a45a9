"""Triples of a knowledge graph of which each rank holds those of its own entities.

A triple lies with the owner of its head, and answers the queries (t, r) at the owner of its tail. Ranks meet once for
many steps: who trains which triple follows from the parts of the heads, the owners send the triples there, and mark
which negatives make one true. Entities and triples are counted as in the whole graph.
"""

# T triples of all ranks, M of a rank, E entities, K chunks, C triples and N candidates of a chunk, W ranks.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from graph_emb.graph.triples import triples_between
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers, query_keys
from graph_emb.sampling.part_graph import to_ranks
from graph_emb.transport.process_group import ProcessGroup

WHAT = "exchange of triples"
MARKED_AT_ONCE = 1 << 24
"""Pairs of a triple and a candidate that are compared at a time."""


@dataclass(frozen=True, eq=False)
class OwnTriples:
    """A rank's triples.

    Attributes:
        num_triples: T.
        num_entities, num_relations: E and R of the graph.
        triples: Those whose heads this rank owns, shape (M, 3), int64, in the order of the graph.
        numbers: Their places among the triples of the graph, rising, shape (M,), int64.
        known: By side the answers of all triples to the queries of entities that this rank owns.
        counts: Known answers to both queries of each triple together, shape (M,), int64.
        owner: The rank that owns each entity, shape (E,).
        group: The ranks.
    """

    num_triples: int
    num_entities: int
    num_relations: int
    triples: np.ndarray
    numbers: np.ndarray
    known: dict[int, KnownAnswers]
    counts: np.ndarray
    owner: np.ndarray
    group: ProcessGroup

    @classmethod
    def gathered(
        cls, triples: np.ndarray, numbers: np.ndarray, num_relations: int, owner: np.ndarray, group: ProcessGroup
    ) -> OwnTriples:
        """Send triples to the owners of their ends. Every rank calls it.

        Args:
            triples, numbers: As the attributes, (M, 3) and (M,), of any triples, each on one rank.
            num_relations: R.
            owner, group: As the attributes.
        """
        (triples, numbers), _ = to_ranks(owner[triples[:, 2]], (triples, numbers), group, WHAT)
        known = {HEAD: KnownAnswers.of(triples, HEAD, num_relations)}
        counts = known[HEAD].counts(triples)
        (triples, numbers, counts), _ = to_ranks(owner[triples[:, 0]], (triples, numbers, counts), group, WHAT)
        order = np.argsort(numbers)
        triples, numbers = triples[order], numbers[order]
        known[TAIL] = KnownAnswers.of(triples, TAIL, num_relations)
        counts = counts[order] + known[TAIL].counts(triples)
        total = sum(group.gather_objects(len(triples), WHAT))
        return cls(total, len(owner), num_relations, triples, numbers, known, counts, owner, group)

    def between(self, parts: np.ndarray, owner: np.ndarray) -> OwnTriples:
        """The triples between parts of entities, as ``triples_between`` of those of all ranks. Every rank calls it.

        Args:
            parts: The part of each entity, (E,).
            owner: The rank that owns each part, rising.
        """
        made = triples_between(self.triples, parts)
        (made,), _ = to_ranks(owner[made[:, 0]], (made,), self.group, WHAT)
        made = triples_between(made, np.arange(len(owner)))  # several owners of entities had some of them
        before = sum(self.group.gather_objects(len(made), WHAT)[: self.group.rank])
        numbers = before + np.arange(len(made))
        return OwnTriples.gathered(made, numbers, self.num_relations, owner, self.group)

    def occurrences(self) -> np.ndarray:
        """``KnowledgeGraph.occurrences`` of the triples of all ranks, shape (E,). Every rank calls it."""
        own = np.bincount(self.triples[:, [0, 2]].ravel(), minlength=self.num_entities)
        return self.group.sum(torch.from_numpy(own), WHAT).numpy()

    def places(self, seed: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Where this rank's triples stand in a shuffled order of all, rising, and which triples these are: (M,) each.

        The order is ``np.random.default_rng(seed).permutation(T)``; while it is made it takes 5 bytes a triple.
        """
        order = np.arange(self.num_triples, dtype=np.int32 if self.num_triples < 1 << 31 else np.int64)
        np.random.default_rng(seed).shuffle(order)
        own = np.zeros(self.num_triples, dtype=bool)
        own[self.numbers] = True
        found = np.flatnonzero(own[order])
        return found, np.searchsorted(self.numbers, order[found])

    def spread(self, places: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
        """The values of all ranks at their places, shape (length,). Every rank calls it, with other places."""
        out = np.zeros(length, values.dtype)
        out[places] = values
        return self.group.sum(torch.from_numpy(out), WHAT).numpy()

    def sent(self, rows: np.ndarray, places: np.ndarray, rank: np.ndarray, length: int) -> np.ndarray:
        """Triples where they are trained. Every rank calls it.

        Args:
            rows: This rank's triples to send, numbers of rows of ``triples``, (B,).
            places: Where each of them stands, (B,), below ``length``.
            rank: Who trains it, (B,).
        Returns:
            The triples that this rank trains, (length, 3), at their places; others are 0.
        """
        (triples, at), _ = to_ranks(rank, (self.triples[rows], places), self.group, WHAT)
        out = np.zeros((length, 3), np.int64)
        out[at] = triples
        return out

    def among(self, chunks: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> Iterator[np.ndarray]:
        """Mark the candidates that make a triple of their chunk true, as ``KnownAnswers.among`` does.

        The owners of what the queries know find out. Every rank calls it, and takes all that it yields.

        Args:
            chunks: Triples (K, C, 3), candidates (K, N) and the corrupted side of several steps; C and N of all alike.
        Yields:
            Shape (K, C, N), bool, of each step.
        """
        marks = self._marked(chunks)
        first = 0
        for triples, candidates, _ in chunks:
            shape = (*triples.shape[:2], candidates.shape[1])
            last = first + shape[0] * shape[1]
            low, high = np.searchsorted(marks[:, 0], (first, last))
            out = np.zeros((shape[0] * shape[1], shape[2]), dtype=bool)
            out[marks[low:high, 0] - first, marks[low:high, 1]] = True
            yield out.reshape(shape)
            first = last

    def _marked(self, chunks: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> np.ndarray:
        """Pairs (triple, candidate), (hits, 2), by rising triple; triples are counted through all chunks."""
        world = self.group.world_size
        keys, given, width = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        messages = [np.empty((0, 0), np.int64)]
        for triples, candidates, side in chunks:
            flat = triples.reshape(-1, 3)
            keys.append(query_keys(flat, side, self.num_relations))
            given.append(flat[:, 0 if side == TAIL else 2])
            messages.append(np.insert(candidates, 0, side, axis=1))
            width, size = messages[-1].shape[1], triples.shape[1]
        # ranks without a chunk send none, and read no width from their own
        width = max(self.group.gather_objects(width, WHAT))
        asked, key = self.owner[np.concatenate(given)], np.concatenate(keys)
        told = np.concatenate([one for one in messages if len(one)] or [np.empty((0, width), np.int64)])
        chunk = np.arange(len(key)) // size if len(key) else np.empty(0, np.int64)
        needed = np.zeros((world, len(told)), dtype=bool)
        needed[asked, chunk] = True
        to, which = np.nonzero(needed)
        (rows,), from_rank = to_ranks(to, (told[which],), self.group, WHAT)
        slot = (np.cumsum(needed, axis=1) - 1)[asked, chunk]  # of a chunk among those that its owner is sent
        (theirs, slots), from_each = to_ranks(asked, (key, slot), self.group, WHAT)
        slots = slots + np.repeat(np.cumsum(from_rank) - from_rank, from_each)
        query, candidate = self._answer(rows, slots, theirs)
        ends = np.cumsum(from_each)
        back = np.searchsorted(ends, query, side="right")  # the rank that asked
        (found, candidate), came = to_ranks(back, (query - (ends - from_each)[back], candidate), self.group, WHAT)
        order, counts = np.argsort(asked, kind="stable"), np.bincount(asked, minlength=world)
        triple = order[found + np.repeat(np.cumsum(counts) - counts, came)]
        marks = np.stack([triple, candidate], axis=1)
        return marks[np.argsort(triple, kind="stable")]

    def _answer(self, rows: np.ndarray, slots: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Answer queries of other ranks.

        Args:
            rows: Side and candidates of chunks, (K, 1 + N).
            slots: The chunk of each query, rising, (Q,).
            keys: As from ``query_keys``, (Q,).
        Returns:
            Numbers of queries, and of candidates that answer them.
        """
        starts = np.searchsorted(slots, np.arange(len(rows) + 1))
        most, num = int(np.diff(starts).max(initial=1)), max(1, rows.shape[1] - 1)
        at_once = max(1, MARKED_AT_ONCE // (most * num))
        queries, candidates = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for side in (HEAD, TAIL):
            of_side = np.flatnonzero(rows[:, 0] == side) if len(rows) else np.empty(0, np.int64)
            for low in range(0, len(of_side), at_once):
                chunks = of_side[low : low + at_once]
                sizes = starts[chunks + 1] - starts[chunks]
                column = np.arange(most)
                inside = column < sizes[:, None]
                wanted = np.full(inside.shape, -1, np.int64)
                own = (starts[chunks][:, None] + column)[inside]
                wanted[inside] = self.known[side].places(keys[own])
                known = self.known[side].among(wanted, rows[chunks, 1:])
                hits = np.flatnonzero(known)  # of one dimension: numpy takes ten times as long with three
                k, c, n = np.unravel_index(hits, known.shape)
                queries.append(starts[chunks[k]] + c)
                candidates.append(n)
        return np.concatenate(queries), np.concatenate(candidates)

    def known_to(self, triples: np.ndarray) -> dict[int, np.ndarray]:
        """By side the training triples that answer a query of some held-out ones, (A, 3). Every rank calls it.

        Args:
            triples: Shape (B, 3); of ranks that judge none, (0, 3).
        """
        found = {}
        for side in (HEAD, TAIL):
            known = self.known[side]
            keys = np.unique(query_keys(triples, side, self.num_relations))
            owner = self.owner[keys // self.num_relations]
            (asked,), from_each = to_ranks(owner, (keys,), self.group, WHAT)
            places = known.places(asked)
            back = np.repeat(np.arange(len(from_each)), from_each)[places >= 0]
            asked, places = asked[places >= 0], places[places >= 0]
            sizes = known.starts[places + 1] - known.starts[places]
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            answers = known.answers[np.repeat(known.starts[places], sizes) + within]
            (key, answer), _ = to_ranks(np.repeat(back, sizes), (np.repeat(asked, sizes), answers), self.group, WHAT)
            given, relation = np.divmod(key, self.num_relations)
            ends = (given, relation, answer) if side == TAIL else (answer, relation, given)
            found[side] = np.stack(ends, axis=1)
        return found
