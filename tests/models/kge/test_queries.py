from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.queries import QueryBatches

TRIPLES = np.array([[0, 0, 1], [0, 0, 2], [0, 1, 2], [3, 0, 1], [3, 0, 1], [2, 1, 0]])
GRAPH = KnowledgeGraph("small", 4, 2, {"train": TRIPLES})
CONFIG = KGEConfig(model="distmult", dim=4, training="kvsall", batch_size=3)
TAILS = {(0, 0): {1, 2}, (0, 1): {2}, (3, 0): {1}, (2, 1): {0}}
HEADS = {(1, 0): {0, 3}, (2, 0): {0}, (2, 1): {0}, (0, 1): {2}}


def asked(batches: QueryBatches, epoch: int = 0, first: int = 0) -> list[tuple[str, int, int, tuple[int, ...]]]:
    found = []
    for _, batch in batches.epoch(epoch, first):
        for q in range(len(batch.given)):
            answers = tuple(sorted(batch.answers[batch.starts[q] : batch.starts[q + 1]].tolist()))
            side = "tail" if q < batch.num_tails else "head"
            found.append((side, int(batch.given[q]), int(batch.relations[q]), answers))
    return found


def test_an_epoch_asks_each_query_once_with_all_its_answers() -> None:
    wanted = {("tail", *key, tuple(sorted(own))) for key, own in TAILS.items()}
    wanted |= {("head", *key, tuple(sorted(own))) for key, own in HEADS.items()}
    found = asked(QueryBatches(GRAPH, CONFIG, 1, 0, 1, True))
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_epochs_and_seeds_shuffle_anew_and_repeat() -> None:
    steps = [
        [sorted(batch.given.tolist()) for _, batch in QueryBatches(GRAPH, CONFIG, seed, 0, 1, True).epoch(epoch)]
        for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert steps[0] == steps[1]
    assert steps[0] not in steps[2:]


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_in_lockstep_share_every_step(world_size: int) -> None:
    alone = list(QueryBatches(GRAPH, CONFIG, 1, 0, 1, True).epoch(2))
    ranks = [list(QueryBatches(GRAPH, CONFIG, 1, rank, world_size, True).epoch(2)) for rank in range(world_size)]
    for at, (number, whole) in enumerate(alone):
        shares = [rank[at] for rank in ranks]
        assert all(step == number and share.total_weight == len(whole.given) for step, share in shares)
        given = Counter(e for _, share in shares for e in share.given.tolist())
        assert given == Counter(whole.given.tolist())


def test_ranks_without_lockstep_take_whole_steps_in_turn() -> None:
    alone = QueryBatches(GRAPH, CONFIG, 1, 0, 1, True)
    assert alone.steps_per_epoch == 3
    for epoch, turns in ((0, [0, 1, 0]), (1, [1, 0, 1])):
        steps = {}
        for rank in (0, 1):
            for number, batch in QueryBatches(GRAPH, CONFIG, 1, rank, 2, False).epoch(epoch):
                steps[number] = rank
                assert batch.step == 3 * epoch + number
        assert [steps[number] for number in range(3)] == turns


def test_an_epoch_can_begin_in_the_middle() -> None:
    batches = QueryBatches(GRAPH, CONFIG, 1, 0, 1, True)
    assert asked(batches, 0, 1) == asked(batches)[3:]
