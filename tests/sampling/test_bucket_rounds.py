"""Rounds of buckets: each once an epoch, of disjoint parts, few of them, seeded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.sampling.bucket_rounds import NONE, RoundSchedule

SIZES = [(4, 2), (5, 2), (6, 2), (6, 3), (7, 3), (8, 3), (16, 4), (19, 4), (33, 5)]


@pytest.mark.parametrize(("parts", "places"), SIZES)
def test_each_bucket_trains_once_and_no_two_of_a_round_share_a_part(parts: int, places: int) -> None:
    schedule = RoundSchedule(parts, places, 100, seed=3)
    for epoch in range(3):
        rounds = schedule.epoch(epoch)
        assert rounds.shape[1:] == (places, 2)
        buckets = [tuple(own) for own in rounds.reshape(-1, 2).tolist() if own[0] != NONE]
        assert sorted(buckets) == [(i, j) for i in range(parts) for j in range(parts)]
        for places_of_round in rounds.tolist():
            held = [set(own) - {NONE} for own in places_of_round]
            assert len(set().union(*held)) == sum(map(len, held))
        assert len(rounds) <= 1.1 * parts**2 / places + 1


def test_the_rounds_follow_from_seed_and_epoch_and_their_buckets_from_the_seed() -> None:
    first, second = RoundSchedule(8, 3, 100, seed=2), RoundSchedule(8, 3, 100, seed=2)
    second.epoch(4)
    assert np.array_equal(first.epoch(1), second.epoch(1))
    assert not np.array_equal(first.epoch(1), first.epoch(2))
    assert not np.array_equal(first.epoch(1), RoundSchedule(8, 3, 100, seed=5).epoch(1))

    def groups(rounds: np.ndarray) -> set[frozenset[tuple[int, ...]]]:
        return {frozenset(tuple(own) for own in places) for places in rounds.tolist()}

    assert groups(first.epoch(1)) == groups(first.epoch(2))  # so all epochs have as many steps
    assert groups(first.epoch(1)) != groups(RoundSchedule(8, 3, 100, seed=5).epoch(1))


def test_both_buckets_of_a_pair_follow_each_other_and_places_keep_parts() -> None:
    schedule = RoundSchedule(16, 2, 100, seed=1)
    rounds = schedule.epoch(0)
    pairs = [frozenset(map(frozenset, places)) for places in rounds.tolist()]
    assert sum(now == then for now, then in pairwise(pairs)) == 60  # of 120 with two parts each
    moved = sum(len({*then} - {*now}) for a, b in pairwise(rounds) for now, then in zip(a, b, strict=True))
    assert schedule.num_moves(rounds) == moved
    assert moved <= 0.6 * 2 * 2 * 68  # of the moves where all parts leave after each round of other pairs


@pytest.mark.parametrize(("parts", "places"), [(8, 2), (16, 2), (16, 4), (32, 4)])
def test_most_parts_that_come_rest_in_the_round_before(parts: int, places: int) -> None:
    schedule, came, rested = RoundSchedule(parts, places, 100, seed=2), 0, 0
    for now, then in pairwise(schedule.epoch(1).tolist()):
        busy = {part for own in now for part in own}
        new = [part for old, own in zip(now, then, strict=True) for part in {*own} - {*old} - {NONE}]
        came, rested = came + len(new), rested + sum(part not in busy for part in new)
    assert came <= 0.55 * parts**2  # as without this wish
    assert rested > 0.85 * came


def test_ranges_are_those_of_the_parts_once() -> None:
    schedule = RoundSchedule(4, 2, 10)
    assert schedule.ranges(np.array([[3, 1], [NONE, NONE], [1, 3]])) == [(7, 10), (2, 5)]


@pytest.mark.parametrize(("parts", "places", "rows"), [(3, 2, 9), (4, 1, 9), (10, 2, 9), (5, 3, 9)])
def test_numbers_that_the_schedule_cannot_serve_are_refused(parts: int, places: int, rows: int) -> None:
    with pytest.raises(ConfigError, match=f"buckets of {parts} parts of {rows} rows, {places} buckets at once"):
        RoundSchedule(parts, places, rows)
