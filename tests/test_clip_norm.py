"""One norm over tables and dense parameters: torch's, of merged gradients, the same bits on any number of ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.transport.base import squares
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 11, 3


def table(name: str, dtype: torch.dtype = torch.float64, num: int = NUM) -> ge.DistEmbedding:
    return ge.DistEmbedding(num, DIM, name, ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [0.5, 1e3, 0.0])
def test_it_is_torchs_norm_over_all(dtype: torch.dtype, bound: float) -> None:
    first, second = table("first", dtype), table("second", dtype)
    dense = [torch.nn.Parameter(one.weight[:].clone()) for one in (first, second)]
    layers = [torch.nn.Linear(DIM, 2).to(dtype) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ids = torch.tensor([1, 4, 1, 1, 9])
    offsets = torch.tensor([0, 2])
    layers[0](first(ids)).square().sum().backward()
    (3 * layers[0](second.bag(ids, offsets))).sum().backward()
    layers[1](dense[0][ids]).square().sum().backward()
    (3 * layers[1](torch.stack([dense[1][ids[:2]].sum(dim=0), dense[1][ids[2:]].sum(dim=0)]))).sum().backward()
    unused = torch.zeros(3, requires_grad=True)
    ours = ge.clip_grad_norm_([first, *layers[0].parameters(), second, unused], bound)
    theirs = torch.nn.utils.clip_grad_norm_([*dense, *layers[1].parameters()], bound)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs)
    for table_, peer in zip((first, second), dense, strict=True):
        torch.testing.assert_close(table_.sparse_grad().to_dense(), peer.grad)
    for mine, peer in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, peer.grad)


def test_the_sum_of_squares_keeps_what_it_rounds() -> None:
    """Else the last digit of the norm would depend on which rank has which row."""
    assert squares(torch.tensor([[1e8], [1.0]], dtype=torch.float64)) == [1e16, 1.0]


def test_means_are_merged_as_the_optimizer_does() -> None:
    emb = table("t")
    emb(torch.tensor([2, 2, 2])).backward(torch.tensor([[3.0], [1.0], [5.0]]).expand(3, DIM).double())
    assert ge.clip_grad_norm_(emb, 1.0, merge="mean").item() == pytest.approx(3.0 * math.sqrt(DIM))
    opt = ge.SparseSGD([emb], lr=1.0, merge="mean")
    before = emb.weight[2]
    opt.step()
    assert (before - emb.weight[2]).norm().item() == pytest.approx(1.0, rel=1e-5)


def test_infinite_norms_scale_as_torch_does_or_raise() -> None:
    emb = table("t")
    emb(torch.tensor([1, 2])).backward(torch.tensor([[math.inf], [1.0]]).expand(2, DIM).double())
    with pytest.raises(RuntimeError, match="the norm of the gradients is inf"):
        ge.clip_grad_norm_([emb], 1.0, error_if_nonfinite=True)
    assert ge.clip_grad_norm_([emb], 1.0).item() == math.inf
    found = emb.sparse_grad().to_dense()
    assert found[1].isnan().all()
    assert not found[2].any()


def test_what_has_no_gradients_is_refused() -> None:
    with pytest.raises(ConfigError, match="'weight' is neither a table nor a tensor"):
        ge.clip_grad_norm_([table("t"), "weight"], 1.0)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="max_norm=nan"):
        ge.clip_grad_norm_([table("u")], math.nan)
    assert ge.clip_grad_norm_([], 1.0).item() == 0.0


def clipped(ranks: list[int], num_ranks: int, merge: Any = "sum") -> tuple[list[float], list[Tensor]]:
    """Norms and rows of four steps; ids of the ranks meet in collective mode."""
    tables = [table("big"), table("small", num=5)]
    opt = ge.SparseAdagrad(tables, lr=0.1, merge=merge)
    norms = []
    for step in range(4):
        for rank in ranks:
            gen = torch.Generator().manual_seed(10 * step + rank)
            for emb in tables[: 1 + step % 2]:  # the small one has no gradient in every other step
                ids = torch.randint(0, emb.num_embeddings, (30 if step + rank != 2 else 0,), generator=gen)
                emb(ids).backward(torch.randn(len(ids), DIM, generator=gen, dtype=torch.float64))
        norms.append(ge.clip_grad_norm_(tables, 2.0, merge=merge).item())
        opt.step()
    return norms, [emb.weight[:] for emb in tables]


def on_a_rank(num_ranks: int, merge: str) -> tuple[list[float], list[Tensor]]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return clipped([transport.rank], num_ranks, merge)
    finally:
        ge.shutdown()


def as_trainer(transport: Any) -> tuple[list[float], list[Tensor]]:
    return clipped([0], 1)


@pytest.mark.dist
@pytest.mark.parametrize("merge", ["sum", "mean"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_ranks_clip_as_one_process(ranks: Ranks, num_ranks: int, merge: str) -> None:
    norms, rows = clipped(list(range(num_ranks)), num_ranks, merge)
    assert max(norms) > 2.0
    for found, tables in ranks.run(on_a_rank, num_ranks, num_ranks, merge):
        assert found == norms
        for mine, theirs in zip(tables, rows, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.dist
def test_a_trainer_clips_its_own_steps() -> None:
    norms, rows = clipped([0], 1)
    ((found, tables),) = Cluster(trainers=1, machines=1, servers=2).run(as_trainer)
    assert found == norms
    for mine, theirs in zip(tables, rows, strict=True):
        assert torch.equal(mine, theirs)
