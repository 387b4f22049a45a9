"""Bags of rows: the numbers of torch.nn.EmbeddingBag, forward, back and after a step, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from tests.ranks import Ranks

ROWS, DIM = 30, 4


@pytest.fixture(autouse=True)
def fresh_mode() -> Iterator[None]:
    ge.shutdown()
    yield
    ge.shutdown()


def table(name: str = "t", dtype: torch.dtype = torch.float64) -> ge.DistEmbedding:
    return ge.DistEmbedding(ROWS, DIM, name, ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype)


def bags(rank: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Bags of 0 to 7 ids with repeats inside and across; the first, a middle one and the last are empty."""
    gen = torch.Generator().manual_seed(rank)
    sizes = torch.randint(0, 8, (9,), generator=gen)
    sizes[[0, 4, 8]] = 0
    ids = torch.randint(0, ROWS, (int(sizes.sum()),), generator=gen)
    return ids, sizes.cumsum(0) - sizes, torch.randn(len(ids), generator=gen, dtype=torch.float64)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
def test_values_and_gradients_are_torchs(mode: str, weighted: bool) -> None:
    """FBGEMM's CPU path ignores the weights without pooling, and its means make gradients too large by the length."""
    emb = table()
    peer = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, dtype=torch.float64)
    peer.weight.data.copy_(emb.weight[:])
    ids, offsets, factors = bags()
    weights = [factors.clone().requires_grad_() if weighted else None for _ in range(2)]
    ours, theirs = emb.bag(ids, offsets, mode, weights[0]), peer(ids, offsets, weights[1])
    assert torch.equal(ours, theirs)
    assert not ours[[0, 4, 8]].any()
    grad = torch.randn(9, DIM, dtype=torch.float64)
    ours.backward(grad)
    theirs.backward(grad)
    if weighted:
        torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-12, atol=1e-14)
    ge.SparseSGD([emb], lr=1.0).step()
    torch.testing.assert_close(emb.weight[:], peer.weight - peer.weight.grad, rtol=1e-12, atol=1e-13)


def test_bags_of_one_size_need_no_offsets() -> None:
    emb = table()
    ids = torch.tensor([[1, 2, 2], [0, 0, 7]], dtype=torch.int32)
    torch.testing.assert_close(emb.bag(ids, mode="mean"), emb(ids).mean(dim=1))
    factors = torch.tensor([[1.0, 0.5, 0.0], [2.0, -1.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(emb.bag(ids, None, "sum", factors), (emb(ids) * factors.unsqueeze(2)).sum(dim=1))


def test_bags_of_nothing() -> None:
    emb = table()
    none = torch.empty(0, dtype=torch.int64)
    assert emb.bag(none, torch.zeros(3, dtype=torch.int64)).tolist() == [[0.0] * DIM] * 3
    assert emb.bag(none, none).shape == (0, DIM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    emb = table(dtype=dtype)
    ids, offsets, factors = bags()
    found = emb.bag(ids, offsets, "sum", factors)
    exact = (emb(ids).double() * factors.unsqueeze(1)).split(
        torch.cat([offsets, torch.tensor([len(ids)])]).diff().tolist()
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), torch.stack([part.sum(dim=0) for part in exact]), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_many_occurrences_are_float32(dtype: torch.dtype) -> None:
    """Summed in bfloat16, a thousand ones are 256."""
    emb = ge.DistEmbedding(2, 1, "ones", ge.initializers.FromArray(torch.ones(2, 1)), dtype=dtype)
    ids = torch.ones(1000, dtype=torch.int64)
    rows = emb.bag(ids, torch.tensor([0]))
    assert (rows.dtype, rows.item()) == (dtype, 1000.0)
    rows.backward(torch.ones_like(rows))
    assert emb.sparse_grad().to_dense().flatten().tolist() == [0.0, 1000.0]
    emb.clear_gradients()
    emb(ids).sum().backward()
    assert emb.sparse_grad().to_dense().flatten().tolist() == [0.0, 1000.0]


def train(ranks_played: list[int]) -> Tensor:
    emb = table()
    opt = ge.SparseAdagrad([emb], lr=0.1)
    for step in range(3):
        for rank in ranks_played:
            ids, offsets, factors = bags(10 * step + rank)
            emb.bag(ids, offsets, "sum", factors).square().sum().backward()
        opt.step()
    return emb.weight[:]


def train_on_a_rank() -> Tensor:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return train([transport.rank])
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_train_bags_as_one_process(ranks: Ranks) -> None:
    answers = ranks.run(train_on_a_rank, 2)
    expected = train([0, 1])
    for found in answers:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2],), ShapeError, r"\(B,\) needs offsets"),
        (([[1, 2]], [0]), ShapeError, r"\(bags, n\) none"),
        (([1, 2], [1]), ShapeError, "ascend from 0 to at most 2"),
        (([1, 2], [0, 2, 1]), ShapeError, "ascend from 0"),
        (([1, 2], [0, 3]), ShapeError, "at most 2"),
        (([1, 2], [0.0]), ShapeError, "must be integers"),
        (([1, 2], []), ShapeError, "integers|no bag"),
        (([1, ROWS], [0]), PartitionError, f"id {ROWS} is outside"),
        (([1, 2], [0], "max"), ConfigError, "unknown mode 'max'"),
        (([1, 2], [0], "mean", [1.0, 1.0]), ConfigError, "for mode='sum'"),
        (([1, 2], [0], "sum", [1.0]), ShapeError, "a floating factor for each of 2 ids"),
        (([1, 2], [0], "sum", [1, 2]), ShapeError, "a floating factor"),
    ],
)
def test_what_is_no_bag_is_refused(arguments: tuple[Any, ...], error: type, message: str) -> None:
    emb = table()
    given = [torch.tensor(value) if isinstance(value, list) else value for value in arguments]
    with pytest.raises(error, match=message):
        emb.bag(*given)
