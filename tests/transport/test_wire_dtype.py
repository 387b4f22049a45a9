"""Rows and gradients that travel in 16 bits: exact where 16 bits hold them, close elsewhere, in half the bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("idle_servers")

NUM, DIM = 20, 64
WIRES = ["bfloat16", torch.float16, "int8"]


def train(rank: int, ranks: list[int], exact: bool) -> tuple[list[Tensor], int]:
    """What is pulled, prefetched and looked up in some steps; ``exact``: of numbers with few digits."""
    first = (torch.arange(NUM * DIM).view(NUM, DIM) % 8 - 4) / 8 if exact else torch.randn(
        NUM, DIM, generator=torch.Generator().manual_seed(1)
    )  # fmt: skip
    book = ge.RangeBook([0, 10, NUM])
    tables = [ge.DistEmbedding(NUM, DIM, f"{k}", ge.initializers.FromArray(first), book) for k in range(2)]
    opt = ge.SparseSGD(tables, lr=0.5)
    found = []
    for step in range(3):
        for of in ranks:
            ids = torch.arange(of, NUM, 2).roll(step)  # each id at one rank
            grads = ((ids % 4).float() / 4 if exact else torch.sin(ids.float())).unsqueeze(1).expand(-1, DIM)
            if of == rank:
                tables[0].prefetch(ids)
            tables[0](ids).backward(grads)
            found += [rows.detach() for rows in ge.lookup([(table, ids) for table in tables])]
            tables[1](ids).backward(grads)
        tables[0].prefetch(torch.arange(NUM))
        opt.step()
        tables[0].transport.flush()
        tables[0].transport.barrier()
        found.append(tables[0](torch.arange(NUM)).detach())
        tables[0].transport.barrier()
    return found, sum(table.traffic.bytes_sent for table in tables)


def on_a_rank(wire: Any, exact: bool, memory: bool = True) -> tuple[list[Tensor], int]:
    transport = ge.init(mode="collective", timeout=60, wire_dtype=wire, shared_memory=memory)
    try:
        return train(transport.rank, [transport.rank], exact)
    finally:
        ge.shutdown()


def as_trainer(transport: Any, exact: bool) -> tuple[list[Tensor], int]:
    return train(transport.rank, [transport.rank], exact)


def check(wired: Any, plain: Any, exact: bool, wire: Any) -> None:
    for (mine, few), (theirs, many) in zip(wired, plain, strict=True):
        assert few < 0.6 * many
        for rows, expected in zip(mine, theirs, strict=True):
            assert rows.dtype is torch.float32
            if exact:
                assert torch.equal(rows, expected)
            else:
                torch.testing.assert_close(rows, expected, rtol=0.02, atol=0.02)
        if not exact:
            assert not all(torch.equal(rows, expected) for rows, expected in zip(mine, theirs, strict=True))


@pytest.mark.dist
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("memory", [True, False])
def test_ranks(ranks: Ranks, exact: bool, memory: bool) -> None:
    plain = ranks.run(on_a_rank, 2, None, exact)
    for wire in WIRES:
        check(ranks.run(on_a_rank, 2, wire, exact, memory), plain, exact, wire)


@pytest.mark.dist
@pytest.mark.parametrize("exact", [True, False])
def test_machines(exact: bool) -> None:
    plain = Cluster(trainers=2, machines=2, servers=1).run(as_trainer, exact)
    wired = Cluster(trainers=2, machines=2, servers=1, wire_dtype="bfloat16").run(as_trainer, exact)
    check(wired, plain, exact, "bfloat16")


def test_other_dtypes_are_refused() -> None:
    ge.shutdown()
    for wire in (torch.float32, "int8", "bf16"):
        with pytest.raises(ConfigError, match=r"wire_dtype=.* must be torch\.float16, torch\.bfloat16 or None"):
            ge.init("kvstore", wire_dtype=wire)
