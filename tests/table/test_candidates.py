"""Ids that wait for a row: uses by step, what is forgotten, and what a checkpoint gives back."""

from __future__ import annotations

import numpy as np

import graph_emb as ge
from graph_emb.graph.hash_book import keys_of
from graph_emb.table.candidates import Candidates

IDS = np.array([-7, 3, 1 << 40])


def waiting() -> Candidates:
    """The first two ids used in step 4, the last two in step 5."""
    found = Candidates(ge.SeenAtLeast(3, candidate_steps=10), "table 't'")
    for step, ids in ((4, IDS[:2]), (5, IDS[1:])):
        found.count(ids, found.used(ids, step), step)
    return found


def listed(candidates: Candidates) -> list[list[int]]:
    return [column.tolist() for column in candidates.items().values()]


def test_each_step_is_one_use() -> None:
    assert listed(waiting()) == [IDS.tolist(), [1, 2, 1], [4, 5, 5]]
    assert waiting().used(IDS, 6).tolist() == [2, 3, 2]


def test_uses_count_anew_after_candidate_steps_without_one() -> None:
    assert waiting().used(IDS, 14).tolist() == [2, 3, 2]
    assert waiting().used(IDS, 15).tolist() == [1, 3, 2]


def test_forgetting_frees_those_that_would_count_anew() -> None:
    """Else a stream of ids that come once fills the map."""
    candidates = waiting()
    candidates.forget(13)
    assert len(listed(candidates)[0]) == 3
    candidates.forget(14)
    assert listed(candidates) == [IDS[1:].tolist(), [2, 1], [5, 5]]


def test_dropped_ids_wait_no_more_and_others_do() -> None:
    candidates = waiting()
    candidates.drop(keys_of(np.array([3, 99])))
    assert listed(candidates)[0] == [-7, 1 << 40]
    candidates.clear()
    assert listed(candidates) == [[], [], []]


def test_restored_candidates_are_those_that_were_listed() -> None:
    found = Candidates(ge.SeenAtLeast(3, candidate_steps=10), "table 't'")
    found.restore(**waiting().items())
    assert listed(found) == listed(waiting())
