"""Ranks of triples among corrupted ones: both sides, filtered, ties counted in all three ways.

Legend: B ranked triples, E entities, R relations, D and W widths of their rows, M candidates, Q queries of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.core.threads import threads_for
from graph_emb.evaluate.ranks import Ranks, TiedValue, rank
from graph_emb.graph.triples import KnowledgeGraph, check_ids
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers, query_keys

QUERY_BLOCK = 256  # queries whose scores against all candidates are held at once
ENTITY_BLOCK = 1 << 16
"""Candidates of a matrix product: its bits may depend on their number, which is the same for any number of trainers."""
HITS_AT = (1, 3, 10)


class TripleScorer(Protocol):
    """The part of a scorer that ranking uses; ``graph_emb.models.kge.scorers`` implements it."""

    @property
    def comparison(self) -> Any: ...
    def tail_query(self, head: Tensor, relation: Tensor) -> Tensor: ...
    def head_query(self, relation: Tensor, tail: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class TripleRanks:
    """Ranks of B triples, of each by its head and by its tail.

    Attributes:
        head, tail: Rank of the true entity in the place of each side.
        filtered: Whether candidates that make a known triple true were left out.
        candidates: What each was ranked against: "all 14541 entities", "500 given for each triple", ...
    """

    head: Ranks
    tail: Ranks
    filtered: bool
    candidates: str

    def mrr(self) -> TiedValue:
        """Mean of 1 / rank over both sides; the realistic value is the one to report."""
        return _mean(self.head.mrr(), self.tail.mrr())

    def hits(self, k: int) -> TiedValue:
        """Share of ranks of at most k, over both sides."""
        return _mean(self.head.hits(k), self.tail.hits(k))

    def mean_rank(self) -> float:
        """Over both sides, realistic."""
        return float(torch.cat([self.head.realistic, self.tail.realistic]).mean())

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        metrics = {name: value._asdict() for name, value in self._metrics().items()}
        sides = {name: {"mrr": side.mrr().realistic} for name, side in (("head", self.head), ("tail", self.tail))}
        return {
            "candidates": self.candidates,
            "filtered": self.filtered,
            "num_triples": len(self.head.optimistic),
            "mean_rank": self.mean_rank(),
            "both": metrics,
            **sides,
        }

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [[name, *value] for name, value in self._metrics().items()]
        kind = "filtered" if self.filtered else "raw"
        note = f"{kind}, both sides of {len(self.head.optimistic)} triples against {self.candidates}"
        return tabulate(rows, ["metric", "realistic", "optimistic", "pessimistic"], floatfmt=".4f") + f"\n{note}"

    def _metrics(self) -> dict[str, TiedValue]:
        return {"mrr": self.mrr(), **{f"hits@{k}": self.hits(k) for k in HITS_AT}}


@torch.no_grad()
def rank_triples(
    scorer: TripleScorer,
    entities: Tensor,
    relations: Tensor,
    triples: np.ndarray,
    known: Sequence[KnownAnswers] | None = None,
    *,
    num_candidates: int | None = None,
    seed: int = 0,
) -> TripleRanks:
    """Rank the true head and the true tail of every triple among all entities, or among a sample.

    Args:
        scorer: The model's arithmetic.
        entities: Shape (E, D), float32 or float64.
        relations: Shape (R, W).
        triples: Shape (B, 3), int64.
        known: Answers of both sides and all parts, left out except for the ranked triple's own. None: raw ranks.
        num_candidates: None ranks against all entities. A number draws that many, uniformly and without repeats, for
            each block of queries: an estimate of other numbers, not to be compared with full ranks.
        seed: Of the sample.
    Raises:
        ConfigError: num_candidates is below 1 or not below E.
        DataError: rows that are not finite.
        ShapeError: triples of another shape.

    Example:
        >>> from graph_emb.evaluate.triple_ranks import rank_triples
        >>> from graph_emb.models.kge.scorers import TransE
        >>> entities, relations = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]])
        >>> rank_triples(TransE(1), entities, relations, np.array([[0, 0, 1]])).mean_rank()  # 0 + 1 = 1
        1.0
    """
    check_ranked(entities, relations, triples)
    _check_sample(num_candidates, len(entities))
    sides = []
    for side in (HEAD, TAIL):
        asked = SideQueries.of(triples, side, len(relations), known)
        above, equal = _count_side(scorer, entities, relations, asked, num_candidates, seed)
        sides.append(asked.ranks(above, equal, len(entities), num_candidates))
    return TripleRanks(sides[0], sides[1], known is not None, candidates_text(len(entities), num_candidates))


def candidates_text(num_entities: int, num_candidates: int | None) -> str:
    """The words for what triples were ranked against."""
    return f"all {num_entities} entities" if num_candidates is None else f"{num_candidates} sampled entities"


@dataclass(frozen=True, eq=False)
class SideQueries:
    """The distinct queries that B triples ask on one side, with the answers that are left out; or a stretch of them.

    Attributes:
        side: ``HEAD`` or ``TAIL``.
        queries: A triple of each query, in the order of their keys, (Q, 3).
        order: The triples in the order of their queries, (B,).
        of_query: The query of each triple in that order, rising, (B,).
        true: The entity that each of them asks for, (B,).
        starts, answers, places: Answers to query q are ``answers[starts[p] : starts[p + 1]]`` with ``p = places[q]``,
            none where that is -1.
        given: The entities that each query's only triple is ranked among instead of all, (Q, M); None: others are.
    """

    side: int
    queries: np.ndarray
    order: np.ndarray
    of_query: np.ndarray
    true: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    places: np.ndarray
    given: np.ndarray | None = None

    @classmethod
    def of(
        cls, triples: np.ndarray, side: int, num_relations: int, known: Sequence[KnownAnswers] | None
    ) -> SideQueries:
        """Of triples (B, 3); ``known`` as of ``rank_triples``."""
        keys = query_keys(triples, side, num_relations)
        order = np.argsort(keys, kind="stable")
        firsts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        of_query = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(order))))
        queries, true = triples[order[firsts]], triples[order, 2 if side == TAIL else 0]
        if known is None:
            return cls(side, queries, order, of_query, true, *_no_answers(len(queries)))
        answers = next(one for one in known if one.side == side)
        return cls(side, queries, order, of_query, true, answers.starts, answers.answers, answers.find(queries))

    @classmethod
    def among(cls, triples: np.ndarray, side: int, given: np.ndarray, num_entities: int) -> SideQueries:
        """Of triples (B, 3), a query each, that are ranked among entities of their own, (B, M).

        Raises:
            ShapeError: no row of entities for each triple.
            DataError: an entity is outside [0, ``num_entities``).
        """
        if given.ndim != 2 or len(given) != len(triples) or not given.shape[1]:
            raise ShapeError(f"given negatives have shape {given.shape}; expected ({len(triples)}, M) with M > 0")
        numbers, true = np.arange(len(triples)), triples[:, 2 if side == TAIL else 0]
        check_ids("entity", true, num_entities)
        check_ids("given negatives: entity", given, num_entities)
        return cls(side, triples, numbers, numbers, true, *_no_answers(len(triples)), given)

    @property
    def num_blocks(self) -> int:
        """Blocks of ``QUERY_BLOCK`` queries whose scores are held at once."""
        return -(-len(self.queries) // QUERY_BLOCK)

    def block(self, number: int) -> tuple[slice, slice]:
        """The queries of a block, and the triples that ask them, in their order."""
        low, high = number * QUERY_BLOCK, (number + 1) * QUERY_BLOCK
        return slice(low, high), slice(*np.searchsorted(self.of_query, [low, high]).tolist())

    def count(
        self, number: int, scores: Tensor, own: np.ndarray, position: np.ndarray, above: np.ndarray, equal: np.ndarray
    ) -> None:
        """Count the candidates of a block that are above or equal to the true entities of its triples (n,).

        Args:
            number: Of the block.
            scores: Of its queries against candidates, shape (queries, M).
            own: The scores of the true entities that are no candidates, (n,).
            position: Where each entity stands among the candidates, (E,), -1 for none.
            above, equal: Where the counts are written, (n,), int64.
        """
        asked, ranked = self.block(number)
        local = self.of_query[ranked] - asked.start
        values = scores.numpy()
        with threads_for(values.size):
            _count(values, local, own.astype(values.dtype), self.true[ranked], position, self.starts, self.answers,
                   self.places[asked], above, equal)  # fmt: skip

    def ranks(self, above: np.ndarray, equal: np.ndarray, num_entities: int, num_candidates: int | None) -> Ranks:
        """Ranks of the triples as they were given, of counts in the order of their queries, (B,)."""
        turned = np.empty_like(self.order)
        turned[self.order] = np.arange(len(self.order))
        better, same = torch.from_numpy(above[turned]), torch.from_numpy(equal[turned])
        num_negatives = num_entities - 1 if num_candidates is None else num_candidates
        if self.given is not None:
            num_negatives = self.given.shape[1]
        return Ranks(better + 1, better + same + 1, num_negatives)

    def draws(self, num_entities: int, num_candidates: int, seed: int) -> Iterator[np.ndarray]:
        """The candidates of one block after the other, ascending, (M,)."""
        random = np.random.default_rng((seed, self.side))
        for _ in range(self.num_blocks):
            yield np.sort(random.choice(num_entities, num_candidates, replace=False))


def _no_answers(num_queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``starts``, ``answers`` and ``places`` of queries of which none is left out."""
    return np.zeros(2, np.int64), np.empty(0, np.int64), np.full(num_queries, -1)


def positions(drawn: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Where each entity stands among ascending candidates (M,), -1 for none; in ``out``, (E,)."""
    out[:] = -1
    out[drawn] = np.arange(len(drawn))
    return out


def scores_of(scorer: TripleScorer, queries: Tensor, entities: Tensor) -> Tensor:
    """Scores of queries (Q, D) against entities (E, D), shape (Q, E), made for a block of entities at a time."""
    blocks = entity_blocks(len(entities))
    if len(blocks) == 1:
        whole: Tensor = scorer.comparison.chunks(queries[None], entities[None])[0]
        return whole
    out = queries.new_empty(len(queries), len(entities))
    for low, high in blocks:
        out[:, low:high] = scorer.comparison.chunks(queries[None], entities[None, low:high])[0]
    return out


def entity_blocks(num: int) -> list[tuple[int, int]]:
    """Even stretches [low, high) of ``num`` candidates, of ``ENTITY_BLOCK`` at most: no product is much narrower."""
    count = max(1, -(-num // ENTITY_BLOCK))
    return [(num * k // count, num * (k + 1) // count) for k in range(count)]


def _count_side(
    scorer: TripleScorer,
    entities: Tensor,
    relations: Tensor,
    asked: SideQueries,
    num_candidates: int | None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates above and equal to the true entity of each triple, (B,), in the order of the queries."""
    above, equal = np.empty(len(asked.order), np.int64), np.empty(len(asked.order), np.int64)
    position = np.arange(len(entities))
    draws = None if num_candidates is None else asked.draws(len(entities), num_candidates, seed)
    for number in range(asked.num_blocks):
        block, ranked = asked.block(number)
        rows = query_rows(scorer, entities, relations, asked.queries[block], asked.side)
        pool = entities
        if draws is not None:
            drawn = next(draws)
            position, pool = positions(drawn, position), entities[torch.from_numpy(drawn)]
        scores = scores_of(scorer, rows, pool)
        local = torch.from_numpy(asked.of_query[ranked] - block.start)
        own = scorer.comparison.pairs(rows[local], entities[torch.from_numpy(asked.true[ranked])]).numpy()
        asked.count(number, scores, own, position, above[ranked], equal[ranked])
    return above, equal


def query_rows(scorer: TripleScorer, entities: Tensor, relations: Tensor, triples: np.ndarray, side: int) -> Tensor:
    """The row of each triple's query on one side, shape (B, D)."""
    head, relation, tail = torch.from_numpy(triples.T.copy())
    if side == TAIL:
        return scorer.tail_query(entities[head], relations[relation])
    return scorer.head_query(relations[relation], entities[tail])


@njit(parallel=True, cache=True, nogil=True)
def _count(
    scores: np.ndarray,
    query: np.ndarray,
    own: np.ndarray,
    true: np.ndarray,
    position: np.ndarray,
    starts: np.ndarray,
    answers: np.ndarray,
    places: np.ndarray,
    above: np.ndarray,
    equal: np.ndarray,
) -> None:
    """Count the candidates above and equal to the true entity of each triple, less itself and other known answers.

    The true entity's score is taken from its row of scores if it is a candidate, so that equals are equal.
    """
    for b in prange(len(query)):
        row = scores[query[b]]
        at = position[true[b]]
        mine = row[at] if at >= 0 else own[b]
        more, ties = 0, 0
        for e in range(len(row)):
            more += row[e] > mine
            ties += row[e] == mine
        if at >= 0:
            ties -= 1
        q = places[query[b]]
        if q >= 0:
            for a in range(starts[q], starts[q + 1]):
                other = position[answers[a]]
                if answers[a] != true[b] and other >= 0:
                    more -= row[other] > mine
                    ties -= row[other] == mine
        above[b], equal[b] = more, ties


@torch.no_grad()
def score_given(
    scorer: TripleScorer, entities: Tensor, relations: Tensor, triples: np.ndarray, given: np.ndarray, side: int
) -> tuple[Tensor, Tensor]:
    """Scores of triples and of the negatives that a data set gives for one side.

    Args:
        scorer, entities, relations, triples: As in ``rank_triples``.
        given: Entities in the place of the side, shape (B, M), int64.
        side: ``HEAD`` or ``TAIL``.
    Returns:
        Shapes (B,) and (B, M).
    """
    check_ranked(entities, relations, triples)
    asked = SideQueries.among(triples, side, given, len(entities))
    scores = entities.new_empty(len(triples), 1 + given.shape[1])
    for number in range(asked.num_blocks):
        block, _ = asked.block(number)
        rows = query_rows(scorer, entities, relations, triples[block], side)
        scorer.comparison.lists(rows, entities, with_true(asked.true[block], given[block]), scores[block])
    return scores[:, 0], scores[:, 1:]


def with_true(true: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The true entity of each query (Q,) before those it is ranked among (Q, M), shape (Q, 1 + M), int64."""
    return np.concatenate([true[:, None], given], axis=1, dtype=np.int64)


def rank_given(
    scorer: TripleScorer, entities: Tensor, relations: Tensor, triples: np.ndarray, heads: np.ndarray, tails: np.ndarray
) -> TripleRanks:
    """Rank triples among negatives that a data set gives for each, shape (B, M) of either side: OGB's rule."""
    ranks = [
        rank(*score_given(scorer, entities, relations, triples, given, side))
        for given, side in ((heads, HEAD), (tails, TAIL))
    ]
    return TripleRanks(ranks[0], ranks[1], False, given_text(heads.shape[1]))


def given_text(num: int) -> str:
    """``candidates_text`` where a data set gives them."""
    return f"{num} given entities for each triple"


def rank_part(
    scorer: TripleScorer,
    entities: Tensor,
    relations: Tensor,
    graph: KnowledgeGraph,
    part: str,
    *,
    chosen: np.ndarray | None = None,
    known: Sequence[KnownAnswers] | None = None,
    num_candidates: int | None = None,
    seed: int = 0,
) -> TripleRanks:
    """Rank a part of a data set by the rule that belongs to it: given negatives where it has them, else filtered.

    Args:
        chosen: Numbers of the triples to rank; None: all.
        known: Answers of all parts to their queries, to be made once for repeated rankings; None: made here.
        num_candidates, seed: As in ``rank_triples``.
    Raises:
        DataError: the data set has no such part.
        ConfigError: candidates are to be sampled where they are given, or more than there are.
    """
    triples = judged_triples(graph, part, chosen, num_candidates)
    given = given_sides(graph, part, chosen)
    if given is not None:
        return rank_given(scorer, entities, relations, triples, *given)
    if known is None:
        known = KnownAnswers.to(triples, graph)
    return rank_triples(scorer, entities, relations, triples, known, num_candidates=num_candidates, seed=seed)


def judged_triples(
    graph: KnowledgeGraph, part: str, chosen: np.ndarray | None, num_candidates: int | None
) -> np.ndarray:
    """The triples that ``rank_part`` ranks, shape (B, 3); arguments and errors as there."""
    if part not in graph.parts:
        raise DataError(f"{graph.name} has no part {part!r}; it has {', '.join(graph.parts)}")
    check_candidates(graph, [part], num_candidates)
    return graph.parts[part] if chosen is None else graph.parts[part][chosen]


def given_sides(graph: KnowledgeGraph, part: str, chosen: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The negatives of heads and of tails that the data set gives for the triples, (B, M) each; None: it has none."""
    given = graph.negatives.get(part)
    if given is None:
        return None
    return (given.heads, given.tails) if chosen is None else (given.heads[chosen], given.tails[chosen])


def check_candidates(graph: KnowledgeGraph, parts: Iterable[str], num_candidates: int | None) -> None:
    """Check a number of candidates as ``rank_part`` does, before hours of training.

    Raises:
        ConfigError: as ``rank_part``.
    """
    if num_candidates is not None and any(part in graph.negatives for part in parts):
        raise ConfigError(f"candidates = {num_candidates}: {graph.name} gives its own for each triple; leave it out")
    _check_sample(num_candidates, graph.num_entities)


def _check_sample(num_candidates: int | None, total: int) -> None:
    if num_candidates is not None and not 1 <= num_candidates < total:
        raise ConfigError(f"num_candidates is {num_candidates}; it must be in [1, {total}), or None for all entities")


def _mean(left: TiedValue, right: TiedValue) -> TiedValue:
    return TiedValue(*((a + b) / 2 for a, b in zip(left, right, strict=True)))


def check_ranked(entities: Tensor, relations: Tensor, triples: np.ndarray) -> None:
    """Raise a ShapeError for triples of another shape, or none, and a DataError for rows that are not finite."""
    if triples.ndim != 2 or triples.shape[1] != 3 or not len(triples):
        raise ShapeError(f"triples have shape {triples.shape}; expected (B, 3) with B > 0")
    for name, rows in (("entity", entities), ("relation", relations)):
        if not torch.isfinite(rows).all():
            raise DataError(f"{name} rows are not finite; the training diverged, lower the learning rate")
