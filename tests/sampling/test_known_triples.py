from __future__ import annotations

import numpy as np

from graph_emb.sampling.known_triples import HEAD, TAIL, KnownAnswers

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
    found = tails.among(queries, np.array([[2, 4, 2, 1]]), 6)
    assert found[0].tolist() == [[True, False, True, True], [True, False, True, False], [False] * 4]


def test_chunks_do_not_see_each_others_candidates() -> None:
    tails = KnownAnswers.of(TRIPLES, TAIL, 2)
    queries = np.zeros((2, 1), np.int64)
    found = tails.among(queries, np.array([[4, 1], [2, 4]]), 6)
    assert found.tolist() == [[[False, True]], [[True, False]]]
