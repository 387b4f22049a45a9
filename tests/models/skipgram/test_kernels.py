"""The fused kernel takes the steps that the autograd form takes, block by block."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.small_products import LANES
from graph_emb.models.skipgram.kernels import LOSS_EVERY, drop_frequent, shorten_steps, sigmoid_in_place
from graph_emb.models.skipgram.model import WalkBlocks, cut_blocks, num_blocks
from graph_emb.models.skipgram.steps import Kernel
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig
from graph_emb.optimizer import SparseSGD
from graph_emb.sampling.negatives import NegativeSampler

WALKS = np.array(
    [[0, 1, 2, 3, 1, 4, 0], [5, 0, 5, 0, 5, -1, -1], [3, 3, 2, -1, -1, -1, -1], [4, -1, -1, -1, -1, -1, -1]],
    np.int32,
)
DEGREES = np.array([3.0, 2, 5, 1, 4, 2])
SHARED = 4


def trained_by_kernel(
    config: SkipGramConfig, rows: list[np.ndarray], lr: float, slope: float, first: int, most: float = np.inf
) -> list:
    tables = [row.copy() for row in rows]
    pair = (tables[0], tables[-1])
    kernel = Kernel(config, NegativeSampler(DEGREES, seed=1))
    index = first + np.arange(len(WALKS))
    rates = (lr + slope * np.arange(len(WALKS))).astype(np.float32)
    return [*tables, kernel.run(WALKS, kernel.draw(WALKS, 3, index), pair, pair, rates, most, index)]


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("block", [1, 3, 7, 50])
@pytest.mark.parametrize(("window", "weighting"), [(1, "linear"), (3, "linear"), (3, "uniform"), (20, "linear")])
def test_the_kernel_takes_the_steps_of_the_autograd_form(tables: int, block: int, window: int, weighting: str) -> None:
    config = SkipGramConfig(
        dim=18,
        window=window,
        window_weighting=weighting,
        num_negatives=3,
        shared_negatives=SHARED,
        block=block,
        tables=tables,
    )
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 0.4, size=(6, 18)).astype(np.float32) for _ in range(tables)]
    lr, slope, first = 0.1, -0.01, 0
    model = SkipGram(6, config)
    for table, values in zip(model.tables, rows, strict=True):
        table.weight[:] = torch.from_numpy(values)
    optimizer = SparseSGD(model.tables, lr=lr)
    drawn = NegativeSampler(DEGREES, seed=1).sample(4, num_blocks(7, config) * SHARED, epoch=3)
    first_loss, pairs = 0.0, 0.0
    for b in range(4):
        blocks = cut_blocks(WALKS[b : b + 1], drawn[b : b + 1], config)
        optimizer.param_groups[0]["lr"] = lr + b * slope
        for s in range(len(blocks.tokens)):
            one = WalkBlocks(*(part[s : s + 1] for part in vars(blocks).values()))
            loss = model.loss(one)
            if b == 0:
                first_loss, pairs = first_loss + float(loss.detach()), pairs + one.num_pairs
            loss.backward()
            optimizer.step()
    *fused, sums = trained_by_kernel(config, rows, lr, slope, first)
    for table, values, before in zip(model.tables, fused, rows, strict=True):
        np.testing.assert_allclose(values, table.weight[:].numpy(), rtol=2e-5, atol=2e-6)
        assert np.abs(values - before).max() > 1e-2
    np.testing.assert_allclose(sums, (first_loss, pairs), rtol=1e-4)


def test_the_loss_is_sampled_by_the_index_of_the_walk() -> None:
    config = SkipGramConfig(dim=4, window=2, shared_negatives=SHARED)
    rows = [np.ones((6, 4), np.float32)] * 2
    at_second = trained_by_kernel(config, rows, 0.0, 0.0, first=LOSS_EVERY - 1)[2]
    assert at_second[1] == pytest.approx(2 * (4 * 1 + 3 * 0.5))  # walk 1 has 5 tokens
    assert trained_by_kernel(config, rows, 0.0, 0.0, first=1)[2] == (0.0, 0.0)


def test_the_sigmoid_is_exact_to_float32() -> None:
    x = np.linspace(-30, 30, 4001).astype(np.float32)
    y = x.copy()
    sigmoid_in_place(y)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.float64))), atol=3e-7)
    assert y[2000] == 0.5


def test_steps_are_shortened_to_the_change_of_scores_that_is_allowed() -> None:
    steps, squares = np.zeros((4, LANES), np.float32), np.zeros(4, np.float32)
    steps[:, :2] = [[3.0, 4.0], [0.3, 0.4], [0.03, 0.04], [0.3, 0.4]]
    # partners of length 2: changes of 10, 1, .1 and, as node 8 stands twice, 2 * 1 where 1.5 is allowed
    shorten_steps(steps, np.array([5, 8, 6, 8], np.int32), 2, np.float32(4), np.float32(1.5), squares)
    np.testing.assert_allclose(steps[:, :2], [[0.45, 0.6], [0.225, 0.3], [0.03, 0.04], [0.225, 0.3]], rtol=1e-6)


def test_both_sides_of_a_block_are_shortened() -> None:
    config = SkipGramConfig(dim=4, window=2, shared_negatives=SHARED, block=50)
    rows = [np.full((6, 4), 0.5, np.float32), np.full((6, 4), -1.0, np.float32)]
    most = 0.01
    x, c, _ = trained_by_kernel(config, rows, lr=1.0, slope=0.0, first=0, most=most)
    # three blocks, each at most .01 against partners of length 2 and 1
    assert 0 < np.linalg.norm(x - rows[0], axis=1).max() <= 3 * most / 2 * 1.02
    assert 0 < np.linalg.norm(c - rows[1], axis=1).max() <= 3 * most / 1 * 1.02


def test_frequent_tokens_are_dropped_by_their_chance_and_gaps_closed() -> None:
    keep = np.array([0.25, 1.0, 0.0], np.float32)
    walks = np.tile(np.array([0, 1, 2, 0, 1, -1], np.int32), (4000, 1))
    drop_frequent(walks, keep, np.uint64(9), np.arange(4000))
    kinds, counts = np.unique(walks, axis=0, return_counts=True)
    shares = {tuple(kind): count / 4000 for kind, count in zip(kinds, counts, strict=True)}
    expected = {
        (1, 1, -1, -1, -1, -1): 0.5625,
        (0, 1, 1, -1, -1, -1): 0.1875,
        (1, 0, 1, -1, -1, -1): 0.1875,
        (0, 1, 0, 1, -1, -1): 0.0625,
    }
    assert shares.keys() == expected.keys()
    for kind, share in expected.items():
        assert shares[kind] == pytest.approx(share, abs=0.03)
    later = np.tile(np.array([0, 1, 2, 0, 1, -1], np.int32), (1000, 1))
    drop_frequent(later, keep, np.uint64(9), np.arange(3000, 4000))
    np.testing.assert_array_equal(later, walks[3000:])


def test_each_walk_has_its_own_rate() -> None:
    config = SkipGramConfig(dim=4, window=2, shared_negatives=SHARED)
    kernel = Kernel(config, NegativeSampler(DEGREES, seed=1))
    start = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    index = np.array([5, 25, 31])
    together, alone = start.copy(), start.copy()
    drawn = kernel.draw(WALKS[:3], 0, index)
    rates = np.array([0.1, 0.06, 0.048], np.float32)
    kernel.run(WALKS[:3], drawn, tuple(together), tuple(together), rates, np.inf, index)
    for b in range(3):
        own = slice(b, b + 1)
        kernel.run(WALKS[own], drawn[own], tuple(alone), tuple(alone), rates[own], np.inf, index[own])
    np.testing.assert_array_equal(together, alone)
    assert np.abs(together - start).max() > 1e-2


def test_rows_past_the_table_are_trained_in_the_far_one() -> None:
    config = SkipGramConfig(dim=4, window=2, shared_negatives=SHARED)
    kernel = Kernel(config, NegativeSampler(DEGREES, seed=1))
    whole = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    own, far = whole[:, :4].copy(), whole[:, 4:].copy()
    index = np.arange(4)
    drawn = kernel.draw(WALKS, 0, index)
    rates = np.full(4, 0.1, np.float32)
    rest = (WALKS, drawn, tuple(own), tuple(own), rates, np.inf, index, tuple(far))
    assert kernel.run(*rest) == kernel.run(WALKS, drawn, tuple(whole), tuple(whole), rates, np.inf, index)
    np.testing.assert_array_equal(np.concatenate([own, far], axis=1), whole)
