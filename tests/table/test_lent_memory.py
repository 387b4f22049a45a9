"""Memory of results: taken again once nobody holds a tensor in it, never before, and never much of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.table import shard
from graph_emb.table.shard import IDLE_BYTES, LENT_BYTES, lend

CPU = torch.device("cpu")
ROWS = LENT_BYTES // 64  # of 16 float32 values: the smallest block that is kept


@pytest.fixture(autouse=True)
def nothing_idle() -> None:
    shard._idle.clear()


def rows(num: int = ROWS) -> torch.Tensor:
    return lend((num, 16), torch.float32, CPU)


def test_memory_is_lent_again_when_the_result_is_gone() -> None:
    first = rows()
    address = first.data_ptr()
    del first
    assert rows().data_ptr() == address


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "slice": lambda result: result[5:7],
    "view": lambda result: result.view(-1),
    "array": lambda result: result.numpy(),
    "detached": lambda result: result.detach(),
    "storage": lambda result: result.untyped_storage(),
    "graph": lambda result: (torch.ones(16, requires_grad=True) * result).sum(),  # autograd saved it
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_not_lent_while_anything_reads_it(holder: str) -> None:
    result = rows().fill_(1.0)
    address, held = result.data_ptr(), HOLDERS[holder](result)
    del result
    other = rows()
    assert other.data_ptr() != address
    del held
    assert rows().data_ptr() == address


def test_a_longer_result_takes_new_memory_and_a_much_shorter_one_too() -> None:
    first = rows(4 * ROWS)
    address = first.data_ptr()
    del first
    assert rows(8 * ROWS).data_ptr() != address
    assert rows(ROWS).data_ptr() != address
    assert rows(3 * ROWS).data_ptr() == address


def test_idle_memory_is_bounded_and_huge_results_are_given_back() -> None:
    results = [rows() for _ in range(20)]
    assert len({result.data_ptr() for result in results}) == 20
    del results
    assert len(shard._idle) == 8
    results = [rows(IDLE_BYTES // 64 // 3) for _ in range(5)]
    del results
    assert sum(len(block) for block in shard._idle) <= IDLE_BYTES
    shard._idle.clear()
    huge = rows(IDLE_BYTES // 64 + 1)
    del huge
    assert not shard._idle


def test_threads_never_share_a_block() -> None:
    failed: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            result = rows().fill_(number)
            if not bool((result == number).all()):
                failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_step_looks_up_into_the_memory_of_the_last_one() -> None:
    """And rows that the user kept stay what they were."""
    emb = ge.DistEmbedding(4 * ROWS, 16, init_func=ge.initializers.Uniform(seed=0))
    opt = ge.SparseAdagrad([emb], lr=0.1)
    ids = torch.arange(2 * ROWS)
    kept = emb(ids).detach()
    before = kept.clone()
    seen = set()
    for _ in range(3):
        found = emb(ids)
        seen.add(found.data_ptr())
        found.sum().backward()
        opt.step()
        opt.zero_grad()
        del found
    assert len(seen) == 1
    assert torch.equal(kept, before)
