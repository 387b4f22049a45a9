"""The one place where rows meet a rule."""

from __future__ import annotations

import pytest
import torch

from graph_emb.core.errors import ShapeError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rule import Rule
from graph_emb.optim.rules import SGD, Adagrad, Adam, RowAdagrad, RowAdam
from graph_emb.table.initializers import Zeros
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec

NOBODY = torch.empty(0, dtype=torch.int64)


def zeros(dtype: torch.dtype = torch.float32) -> EmbeddingShard:
    return EmbeddingShard(TableSpec("t", 6, 3, RangeBook.even(6), Zeros(), dtype), 0, 6)


def test_integer_gradients_land_exactly_on_their_rows() -> None:
    shard = zeros()
    apply_update(SGD(1.0), shard, torch.tensor([4, 1, 4]), torch.tensor([[1.0, 2, 3], [10, 20, 30], [4, 5, 6]]))
    assert shard.weight[4].tolist() == [-5, -7, -9]
    assert shard.weight[1].tolist() == [-10, -20, -30]
    assert shard.weight[[0, 2, 3, 5]].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_batch_advances_the_global_clock_and_touches_no_row(dtype: torch.dtype) -> None:
    shard, rule = zeros(dtype), Adam(0.1, clock="global")
    shard.allocate_state(rule.state_specs())
    apply_update(rule, shard, NOBODY, torch.empty(0, 3))
    assert shard.state["step"].tolist() == [1]
    assert shard.weight.abs().sum() == 0


@pytest.mark.parametrize(
    "grads", [torch.ones(2, 2), torch.ones(1, 3), torch.ones(2, 3, dtype=torch.int64), torch.ones(6)]
)
def test_a_gradient_of_the_wrong_shape_changes_no_row(grads: torch.Tensor) -> None:
    shard = zeros()
    with pytest.raises(ShapeError, match=r"table 't': gradient has shape .* expected \(2, 3\)"):
        apply_update(SGD(1.0), shard, torch.tensor([0, 1]), grads)
    assert shard.weight.abs().sum() == 0


def test_half_precision_gradients_are_summed_in_float32() -> None:
    shard = zeros()
    grads = torch.full((4096, 3), 1.0, dtype=torch.bfloat16)  # a bfloat16 sum would stop at 256
    apply_update(SGD(1.0), shard, torch.zeros(4096, dtype=torch.int64), grads)
    assert shard.weight[0].tolist() == [-4096.0] * 3


def test_non_contiguous_gradients_and_ids_are_honoured() -> None:
    shard = zeros()
    ids = torch.tensor([[0, 9], [2, 9]])[:, 0]
    grads = torch.arange(6.0).view(3, 2).t()
    apply_update(SGD(1.0), shard, ids, grads)
    assert shard.weight[0].tolist() == [0, -2, -4]
    assert shard.weight[2].tolist() == [-1, -3, -5]


@pytest.mark.parametrize(
    "rule", [SGD(0.1), SGD(0.1, momentum=0.9), Adagrad(0.1), RowAdagrad(0.1), Adam(0.1), RowAdam(0.1)]
)
def test_rows_that_are_known_to_be_distinct_get_the_same_bits(rule: Rule) -> None:
    grouped, told = zeros(), zeros()
    ids, grads = torch.tensor([5, 0, 3]), torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    for shard in (grouped, told):
        shard.allocate_state(rule.state_specs())
        for _ in range(3):
            apply_update(rule, shard, ids, grads, distinct=shard is told)
    assert torch.equal(grouped.weight, told.weight)
    assert all(torch.equal(grouped.state[name], told.state[name]) for name in grouped.state)
    assert grouped.weight[ids].abs().min() > 0
