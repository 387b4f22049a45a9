"""Rows of int8 with a scale: within half a scale of the table's, read-only, the same in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 301, 7


def table(dtype: torch.dtype = torch.float32) -> ge.DistEmbedding:
    book = ge.RangeBook([0, 100, NUM])
    return ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Normal(std=3.0, seed=1), book, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_are_within_half_a_scale(dtype: torch.dtype) -> None:
    emb = table(dtype)
    emb.weight[5] = torch.zeros(DIM)
    small = emb.quantize("int8")
    ids = torch.tensor([[5, 300], [7, 7]])
    found, exact = small(ids), emb(ids).detach()
    assert (found.shape, found.dtype, found.requires_grad) == (exact.shape, dtype, False)
    scale = exact.double().abs().amax(dim=-1, keepdim=True) / 127
    slack = 2**-7 * exact.double().abs() if dtype is torch.bfloat16 else 1e-6
    assert ((found - exact).double().abs() <= scale / 2 + slack).all()
    assert not torch.equal(found[0, 1], exact[0, 1])
    assert not found[0, 0].any()
    assert small(ids, dtype=torch.float16).dtype is torch.float16
    assert small.num_bytes == NUM * (DIM + 4)
    for other in (ids.tolist(), ids.numpy(), ids.int()):
        assert torch.equal(small(other), found)


def test_it_stays_while_the_table_trains_and_is_no_table_of_an_optimizer() -> None:
    emb = table()
    opt = ge.SparseSGD([emb], lr=0.1, weight_decay=0.5, weight_decay_mode="lazy")
    (0 * emb(torch.tensor([1]))).sum().backward()
    opt.step()
    small = emb.quantize()
    before = small(torch.arange(NUM))
    torch.testing.assert_close(before, emb.weight[:], rtol=0, atol=float(emb.weight[:].abs().max()) / 250)  # decayed
    emb(torch.arange(NUM)).sum().backward()
    opt.step()
    assert torch.equal(small(torch.arange(NUM)), before)
    with pytest.raises(ConfigError, match="sparse optimizers train DistEmbedding tables only"):
        ge.SparseSGD([small])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"a table 't.int8' of shape"):
        emb.quantize()
    del small
    assert emb.quantize(name="other").name == "other"


def test_what_it_cannot_do_is_refused() -> None:
    emb = table()
    with pytest.raises(ConfigError, match="unknown kind of quantized rows 'int4'"):
        emb.quantize("int4")
    small = emb.quantize()
    with pytest.raises(PartitionError, match=f"id {NUM} is outside"):
        small(torch.tensor([NUM]))
    with pytest.raises(ConfigError, match="must be one of"):
        small(torch.tensor([0]), dtype=torch.int8)
    with pytest.raises(ConfigError, match=r"dtype torch.int8 is not one of"):
        ge.DistEmbedding(2, 2, dtype=torch.int8)


def read() -> Tensor:
    return table().quantize()(torch.arange(NUM).flip(0))


def on_a_rank() -> Tensor:
    ge.init(mode="collective", timeout=60)
    try:
        return read()
    finally:
        ge.shutdown()


def as_trainer(transport: Any) -> Tensor:
    found = read()
    transport.barrier()
    return found


@pytest.mark.dist
def test_every_mode_has_the_same_bits(ranks: Ranks) -> None:
    expected = read()
    for found in [*ranks.run(on_a_rank, 2), *Cluster(trainers=2, machines=2, servers=1).run(as_trainer)]:
        assert torch.equal(found, expected)
