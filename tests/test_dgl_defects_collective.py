"""Defects of DGL's embeddings and optimizers where several ranks step together; see tests/test_dgl_defects.py."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from tests.ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


def train_all_rows(parts: list[int | None]) -> tuple[int, int, list[float]]:
    """Each rank pushes 1 to all rows of a table of two uneven parts; the rows this rank stores, afterwards."""
    transport = ge.init(mode="collective", timeout=60, part=parts[int(os.environ["RANK"])])
    try:
        emb = ge.DistEmbedding(20, 1, "t", part_policy=RangeBook([0, 4, 20]))
        opt = ge.SparseSGD([emb], lr=1.0)
        emb(torch.arange(20)).sum().backward()
        opt.step()
        shard = emb.shard
        return transport.rank, shard.num_rows, shard.weight.flatten().tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_rank_trains_its_own_rows_for_any_number_of_ranks(ranks: Ranks, world_size: int) -> None:
    """1.5.1: machines are taken for servers: with 2 servers and 2 ranks rank 0 updates all rows; with 3 it crashes."""
    found = ranks.run(train_all_rows, world_size, [None] * world_size)
    assert sum(rows for _, rows, _ in found) == 20
    assert all(rows > 0 for _, rows, _ in found)
    assert all(value == -world_size for _, _, values in found for value in values)


@pytest.mark.dist
def test_ranks_need_no_special_order(ranks: Ranks) -> None:
    """1.5.2: rank = machine * trainers + i is assumed; another order goes to the remote path or crashes."""
    found = ranks.run(train_all_rows, 3, [1, 0, 1])
    assert [rows for _, rows, _ in found] == [8, 4, 8]
    assert all(value == -3.0 for _, _, values in found for value in values)


def devices_of_a_rank() -> tuple[int, int]:
    os.environ["LOCAL_RANK"] = "0"  # the only process of its machine, whatever its rank
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        return transport.rank, transport.local_rank
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_the_local_rank_names_the_device(ranks: Ranks) -> None:
    """1.5.4: cuda:{global rank} does not exist on the second machine."""
    assert ranks.run(devices_of_a_rank, 2) == [(0, 0), (1, 0)]


def drop_tables_in_another_order() -> list[float]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        tables = {name: ge.DistEmbedding(6, 1, name) for name in ("a", "b", "c")}
        for name in ("a", "b") if transport.rank else ("b", "a"):
            del tables[name]
            gc.collect()
        tables["d"] = ge.DistEmbedding(6, 1, "d")
        return tables["d"](torch.arange(6)).flatten().tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_tables_may_be_collected_in_any_order(ranks: Ranks) -> None:
    """1.5.10: __del__ is collective (three barriers): another order of garbage collection deadlocks the trainers."""
    assert ranks.run(drop_tables_in_another_order, 2) == [[0.0] * 6] * 2


def leave_a_table_alone() -> list[float]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        used, unused = ge.DistEmbedding(4, 1, "used"), ge.DistEmbedding(4, 1, "unused")
        opt = ge.SparseAdagrad([used, unused], lr=1.0)
        unused(torch.arange(2))  # fetched, and left out of the loss
        rows = used(torch.tensor([3]) if transport.rank == 0 else torch.empty(0, dtype=torch.int64))
        if transport.rank == 0:
            rows.sum().backward()
        opt.step()
        return used.weight[:].flatten().tolist() + unused.weight[:].flatten().tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_table_that_a_rank_does_not_use_is_fine(ranks: Ranks) -> None:
    """1.2, 1.5.7: no trace in a batch, or an unused output: a crash in cat, or a bare AssertionError."""
    assert ranks.run(leave_a_table_alone, 2) == [[0.0, 0.0, 0.0, -1.0] + [0.0] * 4] * 2


def push_from_every_rank() -> tuple[int, list[float]]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        emb = ge.DistEmbedding(2, 1, "t")
        opt = ge.SparseSGD([emb], lr=1.0)
        emb(torch.tensor([1, 1])).sum().mul(transport.rank + 1).backward()
        opt.step()
        return transport.world_size, emb.weight[:].flatten().tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_duplicates_of_all_ranks_are_summed_not_averaged(ranks: Ranks) -> None:
    """1.3: gradients of one id are averaged over all occurrences of all trainers; the loss's gradient is their sum."""
    assert ranks.run(push_from_every_rank, 3) == [(3, [0.0, -12.0])] * 3
