from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_emb.graph import triples
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.sampling.known_triples import HEAD, TAIL, ChunkNegatives, KnownAnswers

TRIPLES = np.array([[0, 0, 1], [0, 0, 2], [0, 0, 2], [3, 1, 2], [0, 1, 2]])


def test_answers_by_hand() -> None:
    tails = KnownAnswers.of(TRIPLES, TAIL, 2)
    assert tails.keys.tolist() == [0, 1, 7]  # (0, 0), (0, 1), (3, 1): head * 2 + relation
    assert tails.starts.tolist() == [0, 2, 3, 4]
    assert tails.answers.tolist() == [1, 2, 2, 2]
    heads = KnownAnswers.of(TRIPLES, HEAD, 2)
    assert heads.find(np.array([[9, 1, 2], [9, 0, 2], [9, 0, 3]])).tolist() == [2, 1, -1]
    assert heads.counts(np.array([[9, 1, 2], [9, 0, 2], [9, 0, 3]])).tolist() == [2, 1, 0]


def test_nothing_is_known_of_no_triples() -> None:
    empty = KnownAnswers.of(np.empty((0, 3), np.int64), TAIL, 2)
    assert empty.find(TRIPLES).tolist() == [-1] * 5


def test_candidates_that_answer_are_found_also_when_repeated() -> None:
    tails = KnownAnswers.of(TRIPLES, TAIL, 2)
    queries = tails.find(np.array([[0, 0, 0], [3, 1, 0], [5, 0, 0]])).reshape(1, 3)
    found = tails.among(queries, np.array([[2, 4, 2, 1]]))
    assert found[0].tolist() == [[True, False, True, True], [True, False, True, False], [False] * 4]


def test_chunks_do_not_see_each_others_candidates() -> None:
    tails = KnownAnswers.of(TRIPLES, TAIL, 2)
    queries = np.zeros((2, 1), np.int64)
    found = tails.among(queries, np.array([[4, 1], [2, 4]]))
    assert found.tolist() == [[[False, True]], [[True, False]]]


TRAIN = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 1], [3, 0, 3]])  # occurrences: 2, 2, 1, 3, 0
GRAPH = KnowledgeGraph("tiny", 5, 1, {"train": TRAIN})
CHUNK = TRAIN[:2].reshape(1, 2, 3)


def draw(num: int, side: int = TAIL, number: int = 0, epoch: int = 0, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    return ChunkNegatives(GRAPH, num, **options).draw(CHUNK, np.array([number]), side, epoch)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_negatives_follow_the_power_of_occurrences(power: float) -> None:
    drawn = draw(60_000, power=power)[0]
    expected = np.array([2, 2, 1, 3, 0]) ** power
    np.testing.assert_allclose(np.bincount(drawn[0], minlength=5) / 60_000, expected / expected.sum(), atol=0.01)


def test_draws_depend_on_seed_epoch_and_chunk_alone() -> None:
    same = [draw(50, seed=3, number=4, epoch=1)[0] for _ in range(2)]
    assert (same[0] == same[1]).all()
    assert (same[0] == draw(50, seed=3, number=4, epoch=1, side=HEAD)[0]).all()
    for other in ({"seed": 4, "number": 4, "epoch": 1}, {"seed": 3, "number": 5, "epoch": 1}, {"seed": 3, "number": 4}):
        assert (same[0] != draw(50, **other)[0]).any()


def test_true_triples_are_excluded() -> None:
    drawn, excluded = draw(40)  # both triples ask for the tail of (0, 0): 1 and 2 are true
    assert (excluded[0, 0] == np.isin(drawn[0], [1, 2])).all()
    assert (excluded[0, 1] == excluded[0, 0]).all()
    drawn, excluded = draw(40, side=HEAD)  # heads of (?, 0, 1): 0 and 3; of (?, 0, 2): 0
    assert (excluded[0, 0] == np.isin(drawn[0], [0, 3])).all()
    assert (excluded[0, 1] == (drawn[0] == 0)).all()


def typed(num: int, **options: Any) -> ChunkNegatives:
    """Entities 0 and 1 are drugs, 2 to 4 proteins, 5 is of a type that no triple has."""
    train = np.array([[0, 0, 2], [1, 0, 4], [3, 1, 0]])
    types = {"drug": 0, "empty": 2, "protein": 2, "other": 5, "empty as well": 6}
    return ChunkNegatives(KnowledgeGraph("typed", 6, 2, {"train": train}, entity_types=types), num, **options)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_negatives_are_of_the_type_that_they_replace(power: float) -> None:
    chunk = np.array([[[0, 0, 2], [3, 1, 0]]])  # tails: a protein, a drug
    drawn, excluded = typed(40, power=power, filtered=False).draw(chunk, np.array([0]), TAIL, 0)
    assert set(drawn[0, ::2]) == ({2, 3, 4})
    assert set(drawn[0, 1::2]) == {0, 1}
    assert (excluded[0, 0] == ((drawn[0] < 2) | (drawn[0] == 2))).all()
    assert (excluded[0, 1] == ((drawn[0] > 1) | (drawn[0] == 0))).all()


def test_unfiltered_negatives_exclude_the_triple_itself_only() -> None:
    drawn, excluded = draw(40, filtered=False)
    assert (excluded[0, 0] == (drawn[0] == 1)).all()
    assert (excluded[0, 1] == (drawn[0] == 2)).all()


def test_the_chunks_own_entities_join_the_negatives() -> None:
    drawn, excluded = draw(3, in_batch=True, filtered=False)
    assert drawn[0, 3:].tolist() == [1, 2]
    assert excluded[0, :, 3:].tolist() == [[True, False], [False, True]]
    assert draw(0, side=HEAD, in_batch=True)[0].tolist() == [[0, 0]]


def test_answers_to_judged_triples_are_those_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triples, "PIECE", 7)
    rng = np.random.default_rng(0)
    parts = {part: rng.integers(0, (9, 3, 9), (num, 3)) for part, num in {"train": 40, "valid": 8, "test": 11}.items()}
    graph = KnowledgeGraph("g", 9, 3, parts)
    judged, everything = parts["test"][::2], graph.all_triples()
    for known in KnownAnswers.to(judged, graph):
        whole = KnownAnswers.of(everything, known.side, 3)
        assert len(known.answers) < len(whole.answers)
        for at, full in zip(known.find(judged), whole.find(judged), strict=True):
            assert at >= 0
            mine, all_of = (one.answers[one.starts[k] : one.starts[k + 1]] for one, k in ((known, at), (whole, full)))
            assert mine.tolist() == all_of.tolist()
    assert [len(one.answers) for one in KnownAnswers.to(judged[:0], graph)] == [0, 0]
    assert graph.occurrences().tolist() == np.bincount(parts["train"][:, [0, 2]].ravel(), minlength=9).tolist()
