"""The kernel of a bucket takes the steps of its pairs and negatives, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.compiled import GOLDEN, mix64, unit_draw
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.kernels import LOSS_EVERY
from graph_emb.models.skipgram.model import distance_ramp
from graph_emb.models.skipgram.pair_kernels import sort_by_part, train_pairs
from graph_emb.sampling.negatives import PartNegatives
from graph_emb.sampling.walk_kernels import pick

WALKS = np.array(
    [[0, 1, 2, 3, 1, 4, 0], [5, 0, 5, 0, 5, -1, -1], [0, 1, 0, 3, 3, 2, -1], [4, -1, -1, -1, -1, -1, -1]],
    np.int32,
)
BOUNDS = np.array([0, 2, 6])
NEGATIVES = PartNegatives(np.array([3.0, 2, 5, 1, 4, 2]), BOUNDS, 5, seed=1)
LR, SLOPE = 0.1, -0.01


def ramp_of(window: int) -> tuple[np.ndarray, np.ndarray]:
    ramp = distance_ramp(SkipGramConfig(window=window, block=9))
    reach = len(ramp) // 2
    ramp = ramp[reach - window : reach + window + 1].copy()
    return ramp, np.concatenate([[0.0], np.cumsum(ramp)]).astype(np.float32)


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(0, 0.4, size=(6, 18)).astype(np.float32) for _ in range(2)]


def part(number: int) -> tuple[int, int]:
    return int(BOUNDS[number]), int(BOUNDS[number + 1])


def trained(
    tables: list[np.ndarray], bucket: tuple[int, int], window: int, stretch: int, most: float = np.inf
) -> tuple:
    """The two losses; the rows lie in the tables back to front."""
    sides = []
    for table, number in zip(tables, bucket, strict=True):
        low, high = part(number)
        sides += [table, 5 - np.arange(low, high), low]
    drawn, weight, key = NEGATIVES.num_drawn[bucket[1]], NEGATIVES.weights[bucket[1]], NEGATIVES.key(2, *bucket)
    drawing = (*NEGATIVES.tables(bucket[1]), drawn, np.float32(3) * weight, key)
    rate = ((LR + SLOPE * np.arange(4)).astype(np.float32), np.float32(most))
    by_part = np.full(WALKS.shape, -1, np.int32), np.empty((4, 3), np.int32)
    sort_by_part(WALKS, BOUNDS, *by_part)
    return train_pairs(WALKS, np.arange(4), *by_part, *bucket, *sides, *drawing, *ramp_of(window), stretch, *rate)


def in_words(tables: list[np.ndarray], bucket: tuple[int, int], window: int, stretch: int) -> tuple[float, float]:
    """The same, pair for pair in float64."""
    low, high = part(bucket[1])
    sigmoid, loss, pairs = (lambda x: 1 / (1 + np.exp(-x))), 0.0, 0.0
    accept, other = NEGATIVES.tables(bucket[1])
    count, share = NEGATIVES.num_drawn[bucket[1]], 3 * NEGATIVES.weights[bucket[1]]
    for number, walk in enumerate(WALKS):
        nodes = walk[walk >= 0]
        stream = np.uint64(mix64(np.uint64((int(NEGATIVES.key(2, *bucket)) + number * int(GOLDEN)) % 2**64)))
        for begin in range(0, len(nodes) if len(nodes) > 1 else 0, stretch):
            steps = [np.zeros((6, 18)), np.zeros((6, 18))]
            draws = [
                pick(unit_draw(stream, begin // stretch * count + n), 0, high - low, accept, other)
                for n in range(count)
            ]
            for a in range(begin, min(begin + stretch, len(nodes))):
                if not part(bucket[0])[0] <= nodes[a] < part(bucket[0])[1]:
                    continue
                x, mass = tables[0][nodes[a]], 0.0
                for c, node in enumerate(nodes):
                    weight = 1 - (abs(a - c) - 1) / window if 0 < abs(a - c) <= window else 0.0
                    mass += weight
                    if low <= node < high:
                        chance = sigmoid(x @ tables[1][node])
                        loss, pairs = loss - (number == 0) * weight * np.log(chance), pairs + (number == 0) * weight
                        steps[0][nodes[a]] += weight * (1 - chance) * tables[1][node]
                        steps[1][node] += weight * (1 - chance) * x
                for node in [low + draw for draw in draws]:
                    chance = sigmoid(x @ tables[1][node])
                    loss -= (number == 0) * share * mass * np.log(1 - chance)
                    steps[0][nodes[a]] -= share * mass * chance * tables[1][node]
                    steps[1][node] -= share * mass * chance * x
            for table, step in zip(tables, steps, strict=True):
                table += (LR + number * SLOPE) * step
    return loss, pairs


def test_places_are_sorted_by_part_and_a_walk_of_one_node_has_none() -> None:
    order, starts = np.full(WALKS.shape, -1, np.int32), np.full((4, 3), -1, np.int32)
    sort_by_part(WALKS, BOUNDS, order, starts)
    assert order[0].tolist() == [0, 1, 4, 6, 2, 3, 5]
    assert order[1].tolist() == [1, 3, 0, 2, 4, -1, -1]
    assert starts.tolist() == [[0, 4, 7], [0, 2, 5], [0, 3, 6], [0, 0, 0]]


@pytest.mark.parametrize("bucket", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("window", "stretch"), [(1, 50), (3, 50), (3, 2), (20, 7)])
def test_a_block_takes_the_steps_of_its_pairs_and_negatives(bucket: tuple[int, int], window: int, stretch: int) -> None:
    found, expected = [table[::-1].copy() for table in rows()], [table.astype(np.float64) for table in rows()]
    losses = trained(found, bucket, window, stretch)
    wanted = in_words(expected, bucket, window, stretch)
    for table, other, number in zip(found, expected, bucket, strict=True):
        np.testing.assert_allclose(table[::-1], other, atol=2e-6)
        low, high = part(number)
        outside = np.r_[0:low, high:6]
        assert np.array_equal(table[::-1][outside], rows()[0 if table is found[0] else 1][outside])
    assert LOSS_EVERY > 4  # the first walk alone is sampled
    assert losses == pytest.approx(wanted, rel=1e-5)


def test_no_step_changes_a_score_by_more_than_the_limit() -> None:
    tables = [3 * table[::-1].copy() for table in rows()]
    before = [table.copy() for table in tables]
    trained(tables, (0, 1), 3, 50, most=1e-3)
    for table, old, other in zip(tables, before, before[::-1], strict=True):
        moved = np.linalg.norm(table - old, axis=1)
        assert moved.max() > 0
        assert moved.max() * np.linalg.norm(other, axis=1).mean() < 0.02  # of three walks, some rows several times
