"""Duplicates become one gradient, in a fixed order."""

from __future__ import annotations

import pytest
import torch

from graph_emb.errors import ConfigError
from graph_emb.optim import kernels
from graph_emb.optim.merge import merge

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_order_of_summation_is_the_position(dtype: torch.dtype) -> None:
    # big + small - big loses the small one; any other order keeps it.
    big = 1e9 if dtype == torch.float32 else 1e18
    values = torch.tensor([[big], [1.0], [-big]], dtype=dtype)
    _, grads = merge(torch.tensor([0, 0, 0]), values, "sum")
    assert grads.item() == 0.0
    _, kept = merge(torch.tensor([0, 0, 0]), values[[0, 2, 1]], "sum")
    assert kept.item() == 1.0


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


def test_group_chains_occurrences_in_order_even_when_hashes_collide() -> None:
    rows = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0)) * 2**40
    distinct, first, following = kernels._group(rows.numpy())
    assert sorted(distinct.tolist()) == sorted(set(rows.tolist()))
    for row, start in zip(distinct.tolist(), first.tolist(), strict=True):
        chain = []
        while start >= 0:
            chain.append(start)
            start = int(following[start])
        assert chain == (rows == row).nonzero().flatten().tolist()
