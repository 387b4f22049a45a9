"""Ranks of triples that the ranks of a job share out: the first one has the triples and the rows, all count.

The queries of heads, then those of tails, are dealt in stretches of whole blocks, so that each rank multiplies the same
matrices as one process would, and counts the same candidates. Entities come from the first rank a block at a time:
no other rank holds the table. Where a data set gives each triple the entities to rank it among, their ids travel too.

Legend: W ranks, E entities, R relations, D width of a row, B triples, n ids, Q queries of some blocks, M entities given
for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import DataError, GraphEmbError
from graph_emb.core.json_codec import pack, unpack
from graph_emb.evaluate import triple_ranks
from graph_emb.evaluate.ranks import rank as ranked_among
from graph_emb.evaluate.triple_ranks import (
    SideQueries,
    TripleRanks,
    TripleScorer,
    candidates_text,
    check_ranked,
    entity_blocks,
    given_sides,
    given_text,
    judged_triples,
    positions,
    rank_part,
    scores_of,
    with_true,
)
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.transport.process_group import ProcessGroup

WHAT = "ranks of triples"
BLOCKS_AT_ONCE = 64
"""Blocks of queries whose rows a rank holds while all entities pass."""
GIVEN_AT_ONCE = 1 << 25
"""Given entities, of all ranks, that travel at once, and are held while all entities pass: 256 MiB of ids."""
NO_NUMBER = -1
"""The count of a triple one of whose scores is NaN."""

Place = tuple[int, int]
"""A side, and the number of a block of its queries."""


@torch.no_grad()
def rank_part_dealt(
    group: ProcessGroup | None,
    scorer: TripleScorer,
    rows: tuple[Tensor, Tensor] | None,
    graph: KnowledgeGraph | None,
    part: str,
    *,
    chosen: np.ndarray | None = None,
    known: Sequence[KnownAnswers] | None = None,
    num_candidates: int | None = None,
    seed: int = 0,
) -> TripleRanks | None:
    """``rank_part`` by all ranks; every rank calls it. The ranks are those of one process, bit for bit.

    Args:
        group: The ranks; None: the one that has the rows ranks alone.
        scorer: The model's arithmetic, on every rank.
        rows: Entities (E, D) and relations (R, W), float32 or float64, on the CPU, on the first rank.
        graph, part, chosen, known, num_candidates, seed: As of ``rank_part``, on the first rank.
    Returns:
        The ranks, on the first rank; None elsewhere.
    Raises:
        DataError, ConfigError, ShapeError: as ``rank_part``, on the first rank; the others return.
        PeerError: a rank is gone.
    """
    options: dict[str, Any] = {"num_candidates": num_candidates, "seed": seed}
    if group is None or group.world_size == 1:
        if rows is None or graph is None:
            return None
        return rank_part(scorer, *rows, graph, part, chosen=chosen, known=known, **options)
    deal, sides, error = None, [], None
    if rows is not None and graph is not None:
        try:
            triples = judged_triples(graph, part, chosen, num_candidates)
            check_ranked(*rows, triples)
            sides = _sides(graph, triples, given_sides(graph, part, chosen), known)
            deal = Deal.of(rows, sides, group.world_size, num_candidates, seed)
        except GraphEmbError as found:
            error = found
    deal = group.gather_objects(deal, WHAT, (Deal,))[0]
    if error is not None:
        raise error
    if deal is None:
        return None
    counted = _Counting(group, scorer, rows, deal, _dealt(group, deal, sides), sides).run()
    return _collected(group, deal, sides, counted)


def _sides(
    graph: KnowledgeGraph,
    triples: np.ndarray,
    given: tuple[np.ndarray, np.ndarray] | None,
    known: Sequence[KnownAnswers] | None,
) -> list[SideQueries]:
    """The queries of heads and of tails, on the first rank."""
    if given is not None:
        both = zip((HEAD, TAIL), given, strict=True)
        return [SideQueries.among(triples, side, own, graph.num_entities) for side, own in both]
    answers = KnownAnswers.to(triples, graph) if known is None else known
    return [SideQueries.of(triples, side, graph.num_relations, answers) for side in (HEAD, TAIL)]


@dataclass(frozen=True)
class Deal:
    """Who counts which blocks, and what they count among.

    Attributes:
        blocks: Blocks of the queries of heads and of tails.
        bounds: Rank r has the blocks [bounds[r], bounds[r + 1]) of both sides one after the other, (W + 1,).
        num_entities, num_candidates, seed: E, and as of ``rank_triples``.
        widths: D of entities and of relations.
        wide: Whether rows are float64.
        given: M of heads and of tails; empty: none are given.
    """

    blocks: tuple[int, int]
    bounds: tuple[int, ...]
    num_entities: int
    num_candidates: int | None
    seed: int
    widths: tuple[int, int]
    wide: bool
    given: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        rows: tuple[Tensor, Tensor],
        sides: Sequence[SideQueries],
        num_ranks: int,
        num_candidates: int | None,
        seed: int,
    ) -> Deal:
        """An even deal of the blocks of both sides."""
        heads, tails = (side.num_blocks for side in sides)
        bounds = tuple((heads + tails) * rank // num_ranks for rank in range(num_ranks + 1))
        wide = rows[0].dtype == torch.float64
        widths = rows[0].shape[1], rows[1].shape[1]
        given = tuple(side.given.shape[1] for side in sides if side.given is not None)
        return cls((heads, tails), bounds, len(rows[0]), num_candidates, seed, widths, wide, given)

    @property
    def most(self) -> int:
        """The most blocks of a rank."""
        return int(np.diff(self.bounds).max())

    @property
    def at_once(self) -> int:
        """Blocks of a rank that are counted at a time."""
        if self.given:
            of_ranks = (len(self.bounds) - 1) * triple_ranks.QUERY_BLOCK * max(self.given)
            return max(1, GIVEN_AT_ONCE // max(1, of_ranks))
        return BLOCKS_AT_ONCE if self.num_candidates is None else 1

    def stretch(self, rank: int, side: int) -> tuple[int, int]:
        """The blocks [low, high) of a side, 0 for heads and 1 for tails, that a rank counts."""
        before, num = (0, self.blocks[0])[side], self.blocks[side]
        low, high = (min(max(bound - before, 0), num) for bound in self.bounds[rank : rank + 2])
        return low, high

    def window(self, rank: int, side: int, first: int) -> tuple[int, int]:
        """Of a rank's blocks, those of its heads before those of its tails, the ones of a side among ``at_once`` from
        ``first`` on: [low, high).
        """
        low, high = self.stretch(rank, side)
        before = 0 if side == 0 else int(np.diff(self.stretch(rank, 0))[0])
        begin, end = (min(max(at - before, 0), high - low) for at in (first, first + self.at_once))
        return low + begin, low + end


def _cut(asked: SideQueries, low: int, high: int) -> SideQueries:
    """The blocks [low, high) of a side, with the answers to their queries alone.

    The triples' order and the entities that a data set gives are left out.
    """
    size = triple_ranks.QUERY_BLOCK
    first, end = low * size, min(high * size, len(asked.queries))
    ranked = slice(*np.searchsorted(asked.of_query, [first, max(first, end)]).tolist())
    places = asked.places[first:end]
    found = places[places >= 0]
    counts = asked.starts[found + 1] - asked.starts[found]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    answers = asked.answers[np.repeat(asked.starts[found] - starts[:-1], counts) + np.arange(starts[-1])]
    renumbered = np.where(places >= 0, np.cumsum(places >= 0) - 1, -1)
    return SideQueries(
        asked.side,
        asked.queries[first:end],
        np.empty(0, np.int64),
        asked.of_query[ranked] - first,
        asked.true[ranked],
        starts,
        answers,
        renumbered,
    )


def _dealt(group: ProcessGroup, deal: Deal, sides: Sequence[SideQueries]) -> list[SideQueries]:
    """This rank's stretches of both sides, from the first rank."""
    ranks = range(group.world_size)
    messages = [
        pack([_cut(asked, *deal.stretch(rank, number)) for number, asked in enumerate(sides)], WHAT)
        for rank in (ranks if sides else [])
    ]
    sizes = group.gather_objects([len(message) for message in messages], WHAT)[0]
    sent = torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8) if messages else torch.empty(0).byte()
    to_receive = [sizes[group.rank] if rank == 0 else 0 for rank in ranks]
    came = group.exchange(sent, sizes if messages else [0] * len(ranks), to_receive, WHAT)
    found: list[SideQueries] = unpack(came.numpy().tobytes(), (SideQueries,))
    return found


class _Counting:
    """One rank's counts of candidates above and equal to the true entities of its triples.

    Args:
        group: The ranks.
        scorer: Compares queries with entities.
        rows: Of entities and relations, on the first rank.
        deal: What is counted.
        sides: This rank's stretches.
        whole: All queries, on the first rank.
    """

    def __init__(
        self,
        group: ProcessGroup,
        scorer: TripleScorer,
        rows: tuple[Tensor, Tensor] | None,
        deal: Deal,
        sides: Sequence[SideQueries],
        whole: Sequence[SideQueries],
    ) -> None:
        self._group, self._scorer, self._rows, self._deal = group, scorer, rows, deal
        self._sides, self._whole = sides, whole
        self._dtype = torch.float64 if deal.wide else torch.float32
        self._places = [(side, number) for side in range(2) for number in range(sides[side].num_blocks)]
        self._above, self._equal = ([np.zeros(len(one.true), np.int64) for one in sides] for _ in range(2))
        self._position = np.full(deal.num_entities, -1, np.int64)

    def run(self) -> Tensor:
        """Counts above and equal of heads, then of tails, (2, n), int64; every rank calls it."""
        step, draws = self._deal.at_once, self._draws()
        for first in range(0, self._deal.most, step):  # the same number of calls on every rank
            places = self._places[first : first + step]
            queries = self._queries(places)
            if self._deal.given:
                self._among_given(places, queries, first)
            elif self._deal.num_candidates is None:
                self._among_all(places, queries)
            else:
                self._among_drawn(places, queries, draws)
        return torch.from_numpy(np.stack([np.concatenate(self._above), np.concatenate(self._equal)]))

    def _queries(self, places: Sequence[Place]) -> list[Tensor]:
        """The rows of the queries of blocks, (q, D) each."""
        sides = [self._sides[side] for side, _ in places]
        asked = [side.queries[side.block(number)[0]] for side, (_, number) in zip(sides, places, strict=True)]
        given = [own[:, 0 if side.side == TAIL else 2] for side, own in zip(sides, asked, strict=True)]
        related, sizes = [own[:, 1] for own in asked], [len(own) for own in asked]
        entities, relations = (
            self._fetch(table, np.concatenate([np.empty(0, np.int64), *ids])).split(sizes)
            for table, ids in enumerate((given, related))
        )
        scorer = self._scorer
        return [
            scorer.tail_query(entity, relation) if side.side == TAIL else scorer.head_query(relation, entity)
            for side, entity, relation in zip(sides, entities, relations, strict=False)
        ]

    def _among_all(self, places: Sequence[Place], queries: Sequence[Tensor]) -> None:
        """Count among all entities, which pass once, or twice where they are several blocks: for the scores of the true
        ones, which are those of the same products, and for the others.
        """
        blocks = entity_blocks(self._deal.num_entities)
        own = [np.zeros(self._ranked(place).stop - self._ranked(place).start) for place in places]
        for counts in (True,) if len(blocks) == 1 else (False, True):
            for low, high in blocks:
                piece = self._block(low, high)
                self._position[low:high] = np.arange(high - low)
                for place, rows, true_scores in zip(places, queries, own, strict=True):
                    scores = scores_of(self._scorer, rows, piece)
                    if counts:
                        self._count(place, scores, true_scores)
                    else:
                        self._note(place, scores, true_scores)
                self._position[low:high] = -1

    def _among_drawn(self, places: Sequence[Place], queries: Sequence[Tensor], draws: Iterator[np.ndarray]) -> None:
        """Count among the candidates of one block, or help the others with theirs."""
        drawn = next(draws) if places else np.empty(0, np.int64)
        true = self._sides[places[0][0]].true[self._ranked(places[0])] if places else np.empty(0, np.int64)
        pool, entities = self._fetch(0, np.concatenate([drawn, true])).split([len(drawn), len(true)])
        for place, rows in zip(places, queries, strict=True):
            asked = self._sides[place[0]]
            block, ranked = asked.block(place[1])
            local = torch.from_numpy(asked.of_query[ranked] - block.start)
            positions(drawn, self._position)
            own = self._scorer.comparison.pairs(rows[local], entities).numpy()
            self._count(place, scores_of(self._scorer, rows, pool), own)

    def _among_given(self, places: Sequence[Place], queries: Sequence[Tensor], first: int) -> None:
        """Count among the entities that the data set gives to each triple, as all entities pass."""
        listed = self._listed(first)
        scores = [torch.empty(ids.shape, dtype=self._dtype) for ids in listed]
        for low, high in entity_blocks(self._deal.num_entities):
            piece = self._block(low, high)
            for rows, ids, out in zip(queries, listed, scores, strict=True):
                self._scorer.comparison.lists(rows, piece, ids, out, low)
        for place, of_block in zip(places, scores, strict=True):
            at = self._ranked(place)
            above, equal = self._above[place[0]], self._equal[place[0]]
            if of_block.isnan().any():  # an error of the first rank, when all have counted
                above[at] = NO_NUMBER
                continue
            found = ranked_among(of_block[:, 0], of_block[:, 1:])
            above[at] = found.optimistic.numpy() - 1
            equal[at] = (found.pessimistic - found.optimistic).numpy()

    def _listed(self, first: int) -> list[np.ndarray]:
        """Of each of this rank's blocks from ``first`` on that are counted at a time the true entity of each query and
        those that are given, (Q, 1 + M), from the first rank.
        """
        deal, group, size, found = self._deal, self._group, triple_ranks.QUERY_BLOCK, []
        for side, (own, num_given) in enumerate(zip(self._sides, deal.given, strict=True)):
            windows = [deal.window(rank, side, first) for rank in range(group.world_size)]
            sent, to_send = torch.empty(0, num_given, dtype=torch.int64), [0] * group.world_size
            if self._whole and (given := self._whole[side].given) is not None:
                pieces = [given[low * size : high * size] for low, high in windows]
                sent = torch.from_numpy(np.concatenate(pieces, dtype=np.int64))
                to_send = [len(piece) for piece in pieces]
            low, high = (block - deal.stretch(group.rank, side)[0] for block in windows[group.rank])
            true = own.true[low * size : high * size]
            coming = [len(true) if rank == 0 else 0 for rank in range(group.world_size)]
            listed = with_true(true, group.exchange(sent, to_send, coming, WHAT).numpy())
            found += [listed[at : at + size] for at in range(0, len(listed), size)]
        return found

    def _ranked(self, place: Place) -> slice:
        return self._sides[place[0]].block(place[1])[1]

    def _note(self, place: Place, scores: Tensor, true_scores: np.ndarray) -> None:
        """Take the scores of the true entities that are among these."""
        asked = self._sides[place[0]]
        block, ranked = asked.block(place[1])
        at = self._position[asked.true[ranked]]
        here = np.flatnonzero(at >= 0)
        true_scores[here] = scores.numpy()[asked.of_query[ranked][here] - block.start, at[here]]

    def _count(self, place: Place, scores: Tensor, own: np.ndarray) -> None:
        above, equal = (np.empty(len(own), np.int64) for _ in range(2))
        self._sides[place[0]].count(place[1], scores, own, self._position, above, equal)
        self._above[place[0]][self._ranked(place)] += above
        self._equal[place[0]][self._ranked(place)] += equal

    def _draws(self) -> Iterator[np.ndarray]:
        """The candidates of this rank's blocks, those of one process."""
        deal = self._deal
        for number, asked in enumerate(self._sides):
            if deal.num_candidates is not None and asked.num_blocks:
                low, high = deal.stretch(self._group.rank, number)
                upto = replace(asked, queries=np.empty((high * triple_ranks.QUERY_BLOCK, 0)))
                for block, drawn in enumerate(upto.draws(deal.num_entities, deal.num_candidates, deal.seed)):
                    if block >= low:
                        yield drawn

    def _block(self, low: int, high: int) -> Tensor:
        """Rows [low, high) of the entities, the first rank's, on every rank."""
        rows = self._rows
        piece = torch.empty(high - low, self._deal.widths[0], dtype=self._dtype)
        piece = piece if rows is None else rows[0][low:high].contiguous()
        self._group.copy_first([piece], WHAT)
        return piece

    def _fetch(self, table: int, ids: np.ndarray) -> Tensor:
        """The first rank's rows of ids (n,), of entities (0) or relations (1), (n, D); every rank calls it."""
        group, none = self._group, [0] * self._group.world_size
        counts = torch.zeros(group.world_size, 1, dtype=torch.int64)
        counts[0] = len(ids)
        to_send, coming = counts[:, 0].tolist(), group.exchange_numbers(counts, WHAT)[:, 0].tolist()
        asked = group.exchange(torch.from_numpy(ids), to_send, coming, WHAT)
        served = torch.empty(0, self._deal.widths[table], dtype=self._dtype)
        if self._rows is not None:
            served = self._rows[table][asked]
        return group.exchange(served, coming if self._rows is not None else none, to_send, WHAT)


def _collected(group: ProcessGroup, deal: Deal, sides: Sequence[SideQueries], counted: Tensor) -> TripleRanks | None:
    """The ranks of all triples from the counts (2, n) of each rank, on the first rank."""
    counts = torch.zeros(group.world_size, 1, dtype=torch.int64)
    counts[0] = counted.shape[1]
    coming = group.exchange_numbers(counts, WHAT)[:, 0].tolist()
    came = group.exchange(counted.T.contiguous(), counts[:, 0].tolist(), coming, WHAT).numpy()
    if not sides:
        return None
    pieces: list[list[np.ndarray]] = [[], []]
    at = 0
    for rank in range(group.world_size):
        for number, asked in enumerate(sides):
            size = len(_cut(asked, *deal.stretch(rank, number)).true)
            pieces[number].append(came[at : at + size])
            at += size
    found = []
    for asked, of_ranks in zip(sides, pieces, strict=True):
        above, equal = np.concatenate(of_ranks).T
        if (above == NO_NUMBER).any():
            raise DataError(
                f"{np.sum(above == NO_NUMBER)} of {len(above)} triples have scores of NaN; the model diverged"
            )
        found.append(asked.ranks(above, equal, deal.num_entities, deal.num_candidates))
    text = given_text(deal.given[0]) if deal.given else candidates_text(deal.num_entities, deal.num_candidates)
    return TripleRanks(found[0], found[1], not deal.given, text)
