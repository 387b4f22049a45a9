"""Ranks of triples that any number of ranks share out are those of one process, triple by triple."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, PeerError
from graph_emb.evaluate import dealt_triples, triple_ranks
from graph_emb.evaluate.dealt_triples import Deal, rank_part_dealt
from graph_emb.evaluate.triple_ranks import SideQueries, TripleRanks
from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers
from graph_emb.transport.process_group import ProcessGroup
from tests.models.kge.references import normal
from tests.ranks import Ranks

ENTITIES = 23


def graph_of(num: int, given: bool = False) -> KnowledgeGraph:
    """``num`` judged triples of few entities, so that queries have several answers, known ones among them."""
    triples = np.unique(np.random.default_rng(3).integers(0, [ENTITIES, 2, ENTITIES], (150, 3)), axis=0)
    triples = np.random.default_rng(4).permutation(triples)
    negatives = {}
    if given:  # more heads than tails, true entities among them
        drawn = np.random.default_rng(5).integers(0, ENTITIES, (2, num, 9))
        negatives = {"test": GivenNegatives(drawn[0], drawn[1, :, :6])}
    parts = {"train": triples[num:], "test": triples[:num]}
    return KnowledgeGraph("made", ENTITIES, 2, parts, negatives=negatives)


def rows_of(scorer: Any, dtype: torch.dtype = torch.float32, tied: bool = True) -> tuple[Tensor, Tensor]:
    """Rows of which some are alike, so that there are ties."""
    entities = normal(ENTITIES, scorer.dim, dtype=dtype)
    if tied:
        entities[5:9] = entities[1]
    return entities, normal(2, scorer.relation_dim, seed=1, dtype=dtype)


def told(ranks: TripleRanks | None) -> Any:
    """All numbers of the ranks of both sides."""
    if ranks is None:
        return None
    sides = [(one.optimistic.tolist(), one.pessimistic.tolist(), one.num_negatives) for one in (ranks.head, ranks.tail)]
    return sides, ranks.filtered, ranks.candidates, ranks.as_dict()


def small_blocks(patch: pytest.MonkeyPatch, blocks: tuple[int, int, int]) -> None:
    patch.setattr(triple_ranks, "QUERY_BLOCK", blocks[0])
    patch.setattr(triple_ranks, "ENTITY_BLOCK", blocks[1])
    patch.setattr(dealt_triples, "BLOCKS_AT_ONCE", blocks[2])
    patch.setattr(dealt_triples, "GIVEN_AT_ONCE", blocks[0] * 9 * blocks[2])


def ranked(rank: int, group: ProcessGroup | None, model: str, num: int, blocks: tuple[int, int, int], how: Any) -> Any:
    scorer = SCORERS[model](KGEConfig(model=model, dim=8))
    options = dict(how)
    dtype = options.pop("dtype", torch.float32)
    given, tied = options.pop("given", False), options.pop("tied", True)
    graph = graph_of(num, given) if rank == 0 else None
    rows = rows_of(scorer, dtype, tied) if rank == 0 else None
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, blocks)
        return told(rank_part_dealt(group, scorer, rows, graph, "test", **options))


def on_a_rank(shared_memory: bool, *work: Any) -> Any:
    torch.set_num_threads(1)
    group = ProcessGroup(timeout=60, shared_memory=shared_memory)
    try:
        return [ranked(group.rank, group, *one) for one in work]
    finally:
        group.close()


CASES: list[tuple[str, int, tuple[int, int, int], dict[str, Any]]] = [
    ("complex", 40, (4, 1 << 16, 64), {}),  # one block of entities
    ("complex", 40, (4, 7, 2), {}),  # several, whose scores of true entities come first; a few blocks at once
    ("transe", 40, (4, 7, 64), {"chosen": np.array([3, 5, 8, 13, 21, 34])}),
    ("rotate", 40, (3, 5, 3), {"dtype": torch.float64}),
    ("distmult", 2, (256, 7, 64), {}),  # fewer blocks than ranks
    ("simple", 1, (256, 1 << 16, 64), {}),
    ("complex", 40, (4, 7, 64), {"num_candidates": 9, "seed": 2}),
    ("transe", 40, (5, 1 << 16, 64), {"num_candidates": 9, "seed": 1}),
    ("distmult", 30, (4, 7, 64), {"given": True}),
    ("complex", 40, (4, 1 << 16, 64), {"given": True}),  # all entities come at once
    ("rotate", 40, (3, 5, 4), {"given": True, "dtype": torch.float64}),  # a few blocks at once, of both sides
    ("transe", 40, (4, 7, 3), {"given": True, "chosen": np.array([3, 5, 8, 13, 21, 34])}),
    ("simple", 1, (256, 7, 64), {"given": True}),
]


@pytest.mark.dist
@pytest.mark.parametrize(("num_ranks", "shared_memory"), [(1, True), (2, True), (3, True), (3, False)])
def test_any_number_of_ranks_finds_the_ranks_of_one(ranks: Ranks, num_ranks: int, shared_memory: bool) -> None:
    expected = [ranked(0, None, *case) for case in CASES]
    first, *others = ranks.run(on_a_rank, num_ranks, shared_memory, *CASES)
    assert first == expected
    assert others == [[None] * len(CASES)] * (num_ranks - 1)


@pytest.mark.parametrize("model", SCORERS)
def test_blocks_of_entities_change_no_rank(model: str) -> None:
    """Distances are sums of a fixed order, so that ties of several blocks stay ties; products round by their size."""
    how = {"tied": model in ("transe", "rotate")}
    assert ranked(0, None, model, 40, (4, 7, 64), how) == ranked(0, None, model, 40, (4, 1 << 16, 64), how)


def test_blocks_of_entities_are_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triple_ranks, "ENTITY_BLOCK", 4)
    expected = {1: [(0, 1)], 4: [(0, 4)], 5: [(0, 2), (2, 5)], 9: [(0, 3), (3, 6), (6, 9)]}
    assert {num: triple_ranks.entity_blocks(num) for num in expected} == expected


def test_a_deal_is_even_contiguous_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, (4, 7, 64))
    graph, rows = graph_of(40), (torch.zeros(ENTITIES, 8), torch.zeros(2, 8))
    known = KnownAnswers.to(graph.parts["test"], graph)
    sides = [SideQueries.of(graph.parts["test"], side, 2, known) for side in (HEAD, TAIL)]
    for num_ranks in range(1, 30):
        deal = Deal.of(rows, sides, num_ranks, None, 0)
        sizes = np.diff(deal.bounds)
        assert sizes.max() - sizes.min() <= 1
        assert deal.most == sizes.max()
        for side, asked in enumerate(sides):
            stretches = [deal.stretch(rank, side) for rank in range(num_ranks)]
            covered = [number for low, high in stretches for number in range(low, high)]
            assert covered == [*range(asked.num_blocks)]


def test_blocks_that_are_ranked_at_once_are_all_blocks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, (4, 7, 5))
    graph, rows = graph_of(40, given=True), (torch.zeros(ENTITIES, 8), torch.zeros(2, 8))
    given = graph.negatives["test"]
    sides = [
        SideQueries.among(graph.parts["test"], side, ids, ENTITIES)
        for side, ids in ((HEAD, given.heads), (TAIL, given.tails))
    ]
    for num_ranks in range(1, 8):
        deal = Deal.of(rows, sides, num_ranks, None, 0)
        assert deal.at_once == max(1, 5 // num_ranks)
        for rank in range(num_ranks):
            found: list[list[int]] = [[], []]
            for first in range(0, deal.most, deal.at_once):
                windows = [deal.window(rank, side, first) for side in range(2)]
                assert sum(high - low for low, high in windows) <= deal.at_once
                for side, window in enumerate(windows):
                    found[side] += range(*window)
            assert found == [[*range(*deal.stretch(rank, side))] for side in range(2)]


def refused_on_a_rank(what: str) -> str:
    group = ProcessGroup(timeout=60)
    scorer = SCORERS["transe"](KGEConfig(model="transe", dim=8))
    try:
        first = group.rank == 0
        rows = rows_of(scorer) if first else None
        if rows is not None and what == "infinite":
            rows[0][3] = torch.inf
        if rows is not None and what == "overflow":  # inf - inf
            scorer, rows = SCORERS["distmult"](KGEConfig(model="distmult", dim=8)), (rows[0] * 1e20, rows[1] * 1e20)
        options: dict[str, Any] = {"num_candidates": ENTITIES} if what == "candidates" else {}
        graph = graph_of(40, given=what == "overflow") if first else None
        rank_part_dealt(group, scorer, rows, graph, "nowhere" if what == "part" else "test", **options)
        said = "nothing"
    except (ConfigError, DataError) as error:
        said = str(error)
    try:
        group.barrier()  # the ranks are in step still
        return said
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("infinite", "entity rows are not finite"),
        ("candidates", "num_candidates is 23"),
        ("part", "has no part 'nowhere'"),
        ("overflow", "scores of NaN; the model diverged"),
    ],
)
def test_what_cannot_be_ranked_is_an_error_of_the_first_rank(ranks: Ranks, what: str, message: str) -> None:
    first, second = ranks.run(refused_on_a_rank, 2, what)
    assert message in first
    assert second == "nothing"


def lost_on_a_rank(folder: str, given: bool) -> None:
    """The last rank is killed when some of its blocks are counted; the others write what they are told."""
    group, scorer = ProcessGroup(timeout=60), SCORERS["distmult"](KGEConfig(model="distmult", dim=8))
    block, calls = dealt_triples._Counting._block, []

    def until_killed(self: Any, low: int, high: int) -> Tensor:
        calls.append(low)
        if group.rank == group.world_size - 1 and len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return block(self, low, high)

    first = group.rank == 0
    rows, graph = rows_of(scorer) if first else None, graph_of(40, given) if first else None
    try:
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, (4, 7, 2))
            patch.setattr(dealt_triples._Counting, "_block", until_killed)
            rank_part_dealt(group, scorer, rows, graph, "test")
    except PeerError as error:
        Path(folder, str(group.rank)).write_text(str(error))
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("given", [False, True])
def test_a_rank_that_dies_while_triples_are_ranked_is_named(tmp_path: Path, given: bool) -> None:
    workers = Ranks()
    try:
        with pytest.raises(AssertionError, match="rank 2: died with exit code -9"):
            workers.run(lost_on_a_rank, 3, str(tmp_path), given)
    finally:
        workers.close()
    for rank in range(2):
        told = (tmp_path / str(rank)).read_text()
        # A rank that waits for one that has been told of the error does not answer either.
        assert re.search(r"in ranks of triples: rank ([01], )?2 no longer answers", told), told
