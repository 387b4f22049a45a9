"""Which tables of several trainers are one: those of one name, or of one number where they have none."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.transport import runtime
from graph_emb.transport.local import LocalTransport
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean


def different_tables(transport: Any) -> str:
    size = 3 + transport.rank
    if transport.rank == 0:
        emb = ge.DistEmbedding(size, 2, name="t")
        transport.barrier()
        transport.barrier()
        return emb.name
    transport.barrier()
    with pytest.raises(ge.ConfigError) as caught:
        ge.DistEmbedding(size, 2, name="t")
    transport.barrier()
    return str(caught.value)


@pytest.mark.dist
def test_trainers_that_make_different_tables_are_told() -> None:
    assert "trainer 1 makes it (4, 2) of torch.float32, another one (3, 2)" in Cluster(2).run(different_tables)[1]


def unnamed(transport: Any) -> list[float]:
    """The trainers made different numbers of tables before they came together."""
    runtime._active = LocalTransport()
    before = [ge.DistEmbedding(1, 1) for _ in range(transport.rank)]
    assert len(before) == transport.rank
    runtime.shutdown()
    runtime._active = transport
    tables = [ge.DistEmbedding(3, 2), ge.DistEmbedding(4, 2)]
    opt = ge.SparseSGD(tables, lr=1.0)
    sum(emb(torch.tensor([1])).sum() * (factor + 1) for factor, emb in enumerate(tables)).backward()
    opt.step()
    transport.flush()
    transport.barrier()
    return [float(emb.weight[1].sum()) for emb in tables]


@pytest.mark.dist
def test_tables_without_a_name_are_those_of_all_trainers() -> None:
    assert Cluster(2).run(unnamed) == [[-4.0, -8.0]] * 2


def forgetful(transport: Any) -> list[float]:
    found = []
    for size in (3, 5):  # the name again, with another shape; the garbage collector frees the first, sending nothing
        emb = ge.DistEmbedding(size, 2, name="again")
        opt = ge.SparseSGD([emb], lr=1.0)
        emb(torch.tensor([size - 1])).sum().backward()
        opt.step()
        transport.flush()
        transport.barrier()
        found.append(float(emb.weight[size - 1].sum()))
        transport.barrier()
        del emb, opt
        gc.collect()
    return found


@pytest.mark.dist
def test_a_table_that_was_dropped_can_be_made_again() -> None:
    with shared_memory_is_clean():
        assert Cluster(2).run(forgetful) == [[-4.0, -4.0]] * 2
