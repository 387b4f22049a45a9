"""Policies of growing tables: arguments, and selections over several owners that equal a sort."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.core.threads import MOST_THREADS, SERIAL_ROWS
from graph_emb.table import selection
from graph_emb.table.growth import Growth
from graph_emb.table.selection import lowest, summed


class Owners:
    """Sums over owners that run as threads."""

    def __init__(self, num: int) -> None:
        self._barrier, self._told = Barrier(num), [np.empty(0)] * num

    def total_of(self, owner: int) -> Callable[[np.ndarray], np.ndarray]:
        def total(numbers: np.ndarray) -> np.ndarray:
            self._told[owner] = numbers
            self._barrier.wait()
            found = sum(self._told[1:], self._told[0].copy())
            self._barrier.wait()
            return found

        return total


SCORES = {
    "few": lambda rng, num: rng.integers(0, 6, num).astype(np.uint64) << np.uint64(40),
    "steps": lambda rng, num: rng.integers(70_000, 75_000, num).astype(np.uint64),
    "norms": lambda rng, num: rng.random(num).view(np.uint64),
    "all bits": lambda rng, num: rng.integers(0, 2**64, num, np.uint64),
    "one": lambda rng, num: np.full(num, 2**63 + 5, np.uint64),
    "nearly one": lambda rng, num: rng.choice(np.array([3, 5, 6], np.uint64), num, p=[0.02, 0.96, 0.02]),
    "every other number": lambda rng, num: rng.integers(0, 1500, 2 * num).astype(np.uint32)[1::2],
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("rows", [90, 3 * SERIAL_ROWS], ids=["by one thread", "by several"])
@pytest.mark.parametrize("sample", [selection.SAMPLE, 8], ids=["all seen", "few seen"])
@pytest.mark.parametrize("owners", [1, 2, 4])
def test_the_lowest_of_all_owners_leave_and_ties_break_by_id(
    owners: int, sample: int, rows: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: MOST_THREADS)
    monkeypatch.setattr(selection, "SAMPLE", sample)
    rng = np.random.default_rng(owners)
    ids = rng.permutation(
        np.concatenate([rng.integers(-(2**63), 2**63 - 1, rows * owners), [-(2**63), -1, 0, 2**63 - 1]])
    )
    scores = SCORES[kind](rng, len(ids))
    among = rng.random(len(ids)) < 0.8
    order = sorted((int(s), int(i)) for s, i, free in zip(scores, ids, among, strict=True) if free)
    place = rng.integers(0, max(1, owners - 1), len(ids))  # the last of several has none
    middle = order[len(order) // 2][0]
    edges = (sum(score < middle for score, _ in order), sum(score <= middle for score, _ in order))
    for num in (0, 1, 7, 40, len(order) // 2, len(order), *edges, edges[0] + 1, min(edges[1] + 1, len(order))):
        group = Owners(owners)
        with ThreadPoolExecutor(owners) as pool:
            jobs = [
                pool.submit(
                    summed, lowest(scores[place == k], ids[place == k], among[place == k], num), group.total_of(k)
                )
                for k in range(owners)
            ]
        gone = np.concatenate([ids[place == k][job.result()] for k, job in enumerate(jobs)])
        assert sorted(gone.tolist()) == sorted(i for _, i in order[:num])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ge.growing(0), r"max_rows=0 must be an integer of at least 1"),
        (lambda: ge.growing(2.5), r"max_rows=2.5 must be an integer"),
        (lambda: ge.growing(5, "none"), r"missing 'none'"),
        (lambda: ge.SeenAtLeast(0), r"SeenAtLeast: uses=0 must be an integer of at least 1"),
        (lambda: ge.SeenAtLeast(2, candidate_steps=True), r"candidate_steps=True"),
        (lambda: ge.SeenAtLeast(2, max_candidates=0), r"max_candidates=0 must be an integer of at least 1"),
        (lambda: ge.SeenAtLeast(1, max_candidates=9), r"max_candidates=9 has no effect where uses=1 admits every id"),
        (lambda: ge.SeenAtLeast(2**32), r"uses=4294967296 must be at most 4294967295"),
        (lambda: ge.SeenAtLeast(2, count="rows"), r"count 'rows'"),
        (lambda: ge.SeenAtLeast(1, count="occurrences"), r"count='occurrences' has no effect where uses=1 admits"),
        (lambda: ge.SeenAtLeast(1, 5), r"candidate_steps=5 has no effect where uses=1 admits"),
        (lambda: ge.LeastUsed(max_rows=5, count="uses"), r"count 'uses'"),
        (lambda: ge.Unused(0), r"Unused: steps=0"),
        (lambda: ge.Unused(5, every=0), r"every=0"),
        (lambda: ge.Unused(5, per_pass=0), r"per_pass=0"),
        (lambda: ge.Unused(5, max_rows=0), r"Unused: max_rows=0 must be an integer of at least 1"),
        (lambda: ge.Unused(5, max_rows=5, floor=6), r"Unused: floor=6 is above max_rows=5"),
        (lambda: ge.Unused(5, low_water=0.5), r"Unused: low_water=0.5 has no effect without max_rows"),
        (lambda: ge.LeastRecent(max_rows=5, floor=6), r"floor=6 is above max_rows=5"),
        (lambda: ge.LeastRecent(max_rows=5, low_water=1.5), r"low_water=1.5 must be from 0 to 1"),
        (lambda: ge.LeastRecent(max_rows=5, low_water="1"), r"low_water='1' must be a number of at least 0"),
        (lambda: ge.LeastRecent(max_rows=5, low_water=True), r"low_water=True must be a number"),
        (lambda: ge.LeastUsed(max_rows=5, half_life=0), r"half_life=0"),
        (lambda: ge.SmallNorm(), r"give threshold or max_rows, one of them"),
        (lambda: ge.SmallNorm(threshold=1.0, low_water=0.5), r"low_water=0.5 has no effect without max_rows"),
        (lambda: ge.SmallNorm(threshold=float("nan")), r"threshold=nan must be a number"),
        (lambda: Growth(5, admission=3), r"admission=3 must be an object such as ge.SeenAtLeast"),
        (lambda: Growth(5, eviction="lru"), r"eviction='lru' must be an object such as ge.Unused"),
        (lambda: Growth(5, eviction=ge.LeastUsed(max_rows=5)), r"max_rows=5 is not below that of the table, 5: it"),
        (lambda: Growth(5, eviction=ge.Unused(1, max_rows=9)), r"Unused: max_rows=9 is not below that of the table, 5"),
        (lambda: ge.HashPolicy(0), r"num_parts=0 must be from 1 to 4096"),
        (lambda: ge.HashPolicy(2.0), r"num_parts=2.0 must be an integer"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize("rule", [ge.LeastRecent, ge.LeastUsed])
def test_a_rule_that_is_a_limit_needs_one(rule: Any) -> None:
    """The limit was inherited from the base class, None, and no row ever left."""
    with pytest.raises(TypeError, match="max_rows"):
        rule()


class FirstFive:
    """An initializer of a user that has values for the ids 0 .. 4 alone."""

    own = ge.initializers.FromArray(torch.arange(10.0).view(5, 2))

    def fill_(self, weight: torch.Tensor, first_id: int) -> None:
        self.own.fill_(weight, first_id)

    def fill_at_(self, weight: torch.Tensor, ids: np.ndarray) -> None:
        self.own.fill_at_(weight, ids)


@pytest.mark.usefixtures("local_mode")
def test_an_array_of_first_values_is_refused() -> None:
    """It was taken, and the first id beyond it ended the training."""
    first = ge.initializers.FromArray(torch.zeros(5, 2))
    with pytest.raises(ConfigError, match=r"FromArray, which has no values for ids that come; .*emb\.grow\(ids, rows"):
        ge.DistEmbedding(ge.growing(max_rows=9), 2, "growing", first)


@pytest.mark.usefixtures("local_mode")
@pytest.mark.parametrize("strange", [5, -1])
def test_an_id_without_a_first_value_gets_no_row(strange: int) -> None:
    """The row was there, with whatever its memory had, after the error."""
    emb = ge.DistEmbedding(ge.growing(max_rows=9), 2, "growing", FirstFive())
    opt = ge.SparseSGD([emb], lr=1.0)
    for make in (lambda: emb.grow([1, strange]), lambda: opt.update([3, strange], torch.ones(2, 2), emb)):
        with pytest.raises(ShapeError, match=rf"FromArray has shape \(5, 2\) but the table needs row {strange}"):
            make()
        assert emb.ids().tolist() == []
    opt.update([3], torch.ones(1, 2), emb)
    assert (emb.ids().tolist(), emb.weight[[3]].tolist()) == ([3], [[5.0, 6.0]])
