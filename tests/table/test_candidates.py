"""Ids that wait for a row: uses by step, what is forgotten, and what a checkpoint gives back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.graph.hash_book import keys_of
from graph_emb.table.candidates import Candidates
from graph_emb.table.selection import summed
from tests.table.test_growth import Owners

IDS = np.array([-7, 3, 1 << 40])
ONCE = np.ones(3, np.int64)


def waiting() -> Candidates:
    """The first two ids used in step 4, the last two in step 5."""
    found = Candidates(ge.SeenAtLeast(3, candidate_steps=10), "table 't'")
    for step, ids in ((4, IDS[:2]), (5, IDS[1:])):
        found.count(ids, found.used(ids, step, ONCE[: len(ids)]), step)
    return found


def listed(candidates: Candidates) -> list[list[int]]:
    return [column.tolist() for column in candidates.items().values()]


def test_each_step_is_one_use() -> None:
    assert listed(waiting()) == [IDS.tolist(), [1, 2, 1], [4, 5, 5]]
    assert waiting().used(IDS, 6, ONCE).tolist() == [2, 3, 2]


def test_a_step_may_be_several_uses() -> None:
    assert waiting().used(IDS, 6, np.array([1, 4, 9])).tolist() == [2, 6, 10]
    assert waiting().used(IDS, 15, np.array([3, 4, 9])).tolist() == [3, 6, 10]


def test_uses_count_anew_after_candidate_steps_without_one() -> None:
    assert waiting().used(IDS, 14, ONCE).tolist() == [2, 3, 2]
    assert waiting().used(IDS, 15, ONCE).tolist() == [1, 3, 2]


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


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_the_least_recently_used_of_all_owners_leave_beyond_the_limit(owners: int) -> None:
    rng = np.random.default_rng(owners)
    ids = rng.permutation(np.concatenate([rng.integers(-(2**63), 2**63 - 1, 60), [-(2**63), -1, 0, 2**63 - 1]]))
    last, at = rng.integers(1, 6, 64), rng.integers(0, owners, 64)
    order = sorted(zip(last.tolist(), ids.tolist(), strict=True))
    for most in (1, 20, 63, 64):
        held, group = [], Owners(owners)
        for owner in range(owners):
            held.append(Candidates(ge.SeenAtLeast(9, max_candidates=most), "table 't'"))
            held[owner].restore(ids[at == owner], np.ones(np.sum(at == owner), np.int64), last[at == owner])
        with ThreadPoolExecutor(owners) as pool:
            for job in [pool.submit(summed, one.leaving(), group.total_of(k)) for k, one in enumerate(held)]:
                job.result()
        left = sorted(id for one in held for id in listed(one)[0])
        assert left == sorted(id for _, id in (order if most == 64 else order[64 - int(0.95 * most) :]))


def test_without_a_limit_no_owner_asks_the_others() -> None:
    assert list(waiting().leaving()) == []
