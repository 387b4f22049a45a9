"""The order of buckets covers all pairs of parts, swaps no more than BETA, and is a function of its numbers."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.sampling import buckets
from graph_emb.sampling.buckets import (
    BucketOrder,
    BucketSchedule,
    GridSchedule,
    HeldTriples,
    bucket_of,
    num_swaps,
)

BETA = {(8, 2): 27, (8, 4): 9, (16, 4): 42, (16, 8): 17, (32, 4): 173, (32, 8): 78, (32, 16): 33, (64, 8): 308}
"""Swaps of an epoch by (p, c), counted with Marius's own order."""


@pytest.mark.parametrize(("parts", "resident"), BETA)
def test_swaps_are_no_more_than_those_of_beta(parts: int, resident: int) -> None:
    assert num_swaps(parts, resident) <= BETA[parts, resident]
    bound = -(-(parts * (parts - 1) - resident * (resident - 1)) // (2 * (resident - 1)))
    assert num_swaps(parts, resident) <= 1.3 * bound
    assert num_swaps(32, 8) <= 1.17 * 67


@pytest.mark.parametrize(("parts", "resident"), [*BETA, (5, 5), (2, 2), (7, 3), (9, 8)])
@pytest.mark.parametrize(("epoch", "passes"), [(0, 1), (3, 1), (2, 3)])
def test_each_bucket_trains_once_a_pass_in_a_state_that_holds_both_parts(
    parts: int, resident: int, epoch: int, passes: int
) -> None:
    schedule = BucketSchedule(parts, resident, 1000, seed=5, passes=passes)
    found = schedule.epoch(epoch)
    each = num_swaps(parts, resident) + 1
    assert len(found.states) == passes * each
    assert schedule.num_swaps == passes * num_swaps(parts, resident)
    for place, (one, following) in enumerate(zip(found.states[:-1], found.states[1:], strict=True), 1):
        new = len(set(one.tolist()) - set(following.tolist()))
        assert new == (0 if place % each == 0 else 1)  # a pass begins with the parts of the last
    assert all(len(set(one.tolist())) == resident for one in found.states)
    for which, first, second in np.ndindex(passes, parts, parts):
        state = found.state[which, first, second]
        assert state // each == which
        assert {first, second} <= set(found.states[state].tolist())


def test_the_passes_of_an_epoch_are_those_of_as_many_epochs_of_one() -> None:
    once, thrice = BucketSchedule(8, 3, 100, seed=2), BucketSchedule(8, 3, 100, seed=2, passes=3)
    alone, found = [once.epoch(epoch) for epoch in (6, 7, 8)], thrice.epoch(2)
    assert np.array_equal(found.states, np.concatenate([own.states for own in alone]))
    assert not np.array_equal(alone[0].states, alone[1].states)
    each = len(alone[0].states)
    assert np.array_equal(found.state, np.concatenate([own.state + k * each for k, own in enumerate(alone)]))


def test_an_epoch_begins_with_the_parts_that_the_last_one_ended_with() -> None:
    schedule = BucketSchedule(9, 4, 100, seed=1)
    for epoch in range(4):
        ended, begins = schedule.epoch(epoch).states[-1], schedule.epoch(epoch + 1).states[0]
        assert set(ended.tolist()) == set(begins.tolist())


def test_the_order_follows_from_seed_and_epoch_whatever_was_asked_before() -> None:
    first, second = (BucketSchedule(8, 3, 100, seed=2) for _ in range(2))
    ahead = second.epoch(6)
    again = first.epoch(6)
    assert np.array_equal(ahead.states, again.states)
    assert np.array_equal(ahead.state, again.state)
    assert not np.array_equal(ahead.states, first.epoch(5).states)
    assert not np.array_equal(ahead.state, BucketSchedule(8, 3, 100, seed=3).epoch(6).state)


def test_parts_are_even_ranges_of_rows() -> None:
    schedule = BucketSchedule(4, 2, 10)
    assert schedule.bounds.tolist() == [0, 2, 5, 7, 10]
    assert schedule.part_of(np.array([0, 1, 2, 4, 5, 9])).tolist() == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(("piece", "passes"), [(64, 1), (1 << 17, 1), (64, 3)])
def test_places_of_the_order_need_the_parts_of_their_triples_and_then_those_of_the_next_state(
    piece: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "PIECE", piece)
    rng = np.random.default_rng(0)
    schedule = BucketSchedule(6, 3, 60, seed=4, passes=passes)
    rows = rng.permutation(60)
    triples = np.stack([rng.integers(0, 60, 300), np.zeros(300, int), rng.integers(0, 60, 300)], axis=1)
    owner = schedule.part_of(rows)
    bucket = bucket_of(schedule, lambda entities: owner[entities])
    by_bucket = HeldTriples(triples, bucket, 36)
    order = BucketOrder(schedule, by_bucket, seed=4)
    sequence, none = order.places(2, 0, 300)
    assert none is None
    assert sorted(sequence.tolist()) == list(range(300))
    for low, high in ((0, 1), (17, 160), (299, 300), (140, 141)):
        assert np.array_equal(order.places(2, low, high)[0], sequence[low:high])
    another = BucketOrder(schedule, by_bucket, seed=5)
    others = [order.places(3, 0, 300)[0], another.places(2, 0, 300)[0]]
    assert all(not np.array_equal(sequence, other) for other in others)
    before: set[int] = set()
    now = schedule.epoch(2)
    share_of = np.empty(300, np.int64)  # every third of a bucket's triples is of the same pass
    for one in range(36):
        share_of[by_bucket.of(one)[0]] = np.arange(by_bucket.sizes[one]) % passes
    trained = now.state[share_of[sequence], owner[triples[sequence, 0]], owner[triples[sequence, 2]]]
    assert (np.diff(trained) >= 0).all()
    for low in range(0, 300, 20):
        own = triples[sequence[low : low + 20]]
        states = np.unique(now.state[share_of[sequence[low : low + 20]], owner[own[:, 0]], owner[own[:, 2]]])
        needed = {int(part) for state in states for part in now.states[state]}
        ranges = order.ranges(2, low, low + 20)
        parts = [int(owner[np.flatnonzero(rows == start)[0]]) for start, _ in ranges]
        assert set(parts[: len(needed)]) == needed
        assert len(set(parts) - needed) <= 1
        assert set(owner[own[:, [0, 2]]].ravel().tolist()) <= needed
        if before and len(states) == 1:
            assert needed <= before or len(needed - before) <= 1
        before = set(parts)
        held = order.held_at(2, np.arange(low, low + 20))
        assert np.array_equal(held, now.states[trained[low : low + 20]])


@pytest.mark.parametrize("empty", [False, True])
def test_the_first_part_that_the_next_epoch_adds_comes_while_the_last_state_trains(empty: bool) -> None:
    rng, schedule = np.random.default_rng(0), BucketSchedule(6, 3, 60, seed=4)
    ends = rng.integers(0, 10 if empty else 60, (300, 2))  # all in one part: each other state trains nothing
    triples = np.insert(ends, 1, 0, axis=1)
    by_bucket = HeldTriples(triples, bucket_of(schedule, schedule.part_of), 36)
    order = BucketOrder(schedule, by_bucket, seed=4)
    now, then = schedule.epoch(2), schedule.epoch(3)
    ranges = [order.ranges(2, 299, 300, last=last) for last in (True, False)]
    needed, found = ([low // 10 for low, _ in own] for own in ranges)
    assert found[: len(needed)] == needed
    assert len(needed) == schedule.resident
    if empty:  # of the next epoch's states one alone trains, with part 0
        following = then.states[then.state[0, 0, 0]]
        assert set(needed) == {*now.states[now.state[0, 0, 0]].tolist()}
    else:
        assert set(needed) == {*now.states[-1].tolist()}
        following = then.states[1]
        assert order.ranges(2, 0, 1) == order.ranges(2, 0, 1, last=True)  # within an epoch it is as ever
    assert set(found) - set(needed) == {*following.tolist()} - set(needed)


@pytest.mark.parametrize(("parts", "resident", "rows"), [(1, 1, 9), (4, 1, 9), (4, 5, 9), (10, 2, 9)])
def test_numbers_out_of_their_limits_are_refused(parts: int, resident: int, rows: int) -> None:
    with pytest.raises(ConfigError, match=f"buckets of {parts} parts, {resident} of them in memory, of {rows} rows"):
        BucketSchedule(parts, resident, rows)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_grid_has_each_block_once_and_one_side_stays_from_block_to_block(parts: int) -> None:
    schedule, before = GridSchedule(parts, 100, seed=4), None
    for episode in range(4):
        buckets = schedule.buckets(episode)
        assert sorted(map(tuple, buckets.tolist())) == [(i, j) for i in range(parts) for j in range(parts)]
        swaps = (np.diff(buckets, axis=0) != 0).sum(axis=0)
        assert swaps.tolist() == [parts - 1, parts * (parts - 1)]
        assert (np.diff(buckets, axis=0) != 0).sum(axis=1).max() == 1
        assert before is None or buckets[0].tolist() == before
        before = buckets[-1].tolist()


def test_the_order_of_a_grid_follows_from_seed_and_episode_whatever_was_asked_before() -> None:
    first, second = (GridSchedule(5, 100, seed=2) for _ in range(2))
    ahead = second.buckets(6)
    first.buckets(1)
    assert np.array_equal(first.buckets(6), ahead)
    assert np.array_equal(first.buckets(3), second.buckets(3))
    assert not np.array_equal(ahead, first.buckets(5))
    assert not np.array_equal(ahead, GridSchedule(5, 100, seed=3).buckets(6))
    assert first.bounds.tolist() == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize(("parts", "rows"), [(1, 10), (11, 10)])
def test_a_grid_of_one_part_or_of_empty_ones_is_refused(parts: int, rows: int) -> None:
    with pytest.raises(ConfigError, match=f"{parts} parts of {rows} rows"):
        GridSchedule(parts, rows)
