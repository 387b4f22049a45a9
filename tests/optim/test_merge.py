"""Duplicates become one gradient, in a fixed order."""

from __future__ import annotations

import math

import pytest
import torch

from graph_emb.core.compiled import group
from graph_emb.core.errors import ConfigError
from graph_emb.optim.apply import merge, presum

IDS = torch.tensor([5, 2, 5, 9, 2, 5])
GRADS = torch.tensor([[1.0, 0.0], [2.0, 1.0], [4.0, 0.0], [8.0, 2.0], [16.0, 1.0], [32.0, 3.0]])


def test_sum_adds_every_occurrence() -> None:
    rows, grads = merge(IDS, GRADS, "sum")
    assert rows.tolist() == [2, 5, 9]
    assert grads.tolist() == [[18.0, 2.0], [37.0, 3.0], [8.0, 2.0]]


def test_mean_divides_by_the_number_of_occurrences() -> None:
    rows, grads = merge(IDS, GRADS, "mean")
    assert rows.tolist() == [2, 5, 9]
    torch.testing.assert_close(grads, torch.tensor([[9.0, 1.0], [37 / 3, 1.0], [8.0, 2.0]]))


def test_the_order_of_a_float32_sum_is_the_position() -> None:
    # big + small - big loses the small one; any other order keeps it.
    values = torch.tensor([[1e9], [1.0], [-1e9]])
    _, grads = merge(torch.tensor([0, 0, 0]), values, "sum")
    assert grads.item() == 0.0
    _, kept = merge(torch.tensor([0, 0, 0]), values[[0, 2, 1]], "sum")
    assert kept.item() == 1.0


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0]])
def test_a_float64_sum_keeps_what_each_addition_rounds_away(order: list[int]) -> None:
    values = torch.tensor([[1e18], [1.0], [-1e18]], dtype=torch.float64)[order]
    _, grads = merge(torch.tensor([0, 0, 0]), values, "sum")
    assert grads.item() == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_a_float64_sum_has_the_same_bits_however_senders_grouped_it(seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 7, (200,), generator=gen)
    grads = torch.randn(200, 3, generator=gen, dtype=torch.float64)
    whole = merge(rows, grads, "sum")
    parts = [presum(rows[part], grads[part]) for part in torch.arange(200).chunk(3 + seed)]
    again = merge(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), "sum")
    assert torch.equal(whole[0], again[0])
    assert torch.equal(whole[1], again[1])
    naive = torch.zeros(7, 3, dtype=torch.float64)
    for part in torch.arange(200).chunk(3 + seed):
        naive += torch.zeros(7, 3, dtype=torch.float64).index_add_(0, rows[part], grads[part])
    assert not torch.equal(whole[1], naive), "the plain sum must differ, or the test shows nothing"


def test_presum_counts_the_occurrences_of_each_row_once() -> None:
    rows, grads, counts = presum(torch.tensor([4, 4, 4]), torch.tensor([[1e18], [1.0], [1e18]], dtype=torch.float64))
    assert rows.tolist() == [4, 4]
    assert grads.flatten().tolist() == [2e18, 1.0]
    assert counts.tolist() == [3, 0]


def test_infinities_stay_infinities_in_a_float64_sum() -> None:
    values = torch.tensor([[math.inf, math.inf], [1.0, -math.inf]], dtype=torch.float64)
    _, grads = merge(torch.tensor([0, 0]), values, "sum")
    assert grads[0, 0].item() == math.inf
    assert math.isnan(grads[0, 1].item())


def test_distinct_rows_come_back_sorted_with_their_own_gradients() -> None:
    rows, grads = merge(torch.tensor([3, 1, 2]), torch.tensor([[3.0], [1.0], [2.0]]), "sum")
    assert rows.tolist() == [1, 2, 3]
    assert grads.flatten().tolist() == [1.0, 2.0, 3.0]


def test_an_empty_batch_merges_to_nothing() -> None:
    rows, grads = merge(torch.empty(0, dtype=torch.int64), torch.empty(0, 3), "mean")
    assert rows.shape == (0,)
    assert grads.shape == (0, 3)


def test_an_unknown_merge_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mean'"):
        merge(IDS, GRADS, "meen")  # type: ignore[arg-type]


@pytest.mark.parametrize(("least", "most"), [(0, 1), (0, 50), (0, 2**11), (0, 2**33), (0, 2**62), (-(2**63), 2**62)])
@pytest.mark.parametrize("num", [0, 1, 7, 400])
def test_groups_chain_occurrences_in_order_and_positions_ascend(least: int, most: int, num: int) -> None:
    gen = torch.Generator().manual_seed(num)
    known = torch.randint(least, most, (max(1, num // 3),), generator=gen)
    rows = known[torch.randint(0, len(known), (num,), generator=gen)]
    distinct, first, following = group(rows.numpy())
    found = distinct.tolist()
    assert (found if most <= 2**33 else sorted(found)) == sorted(set(rows.tolist()))
    assert len(following) == num
    for row, start in zip(found, first.tolist(), strict=True):
        chain = []
        while start >= 0:
            chain.append(start)
            start = int(following[start])
        assert chain == (rows == row).nonzero().flatten().tolist()
