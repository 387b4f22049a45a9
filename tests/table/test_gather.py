"""Gathering rows equals ``index_select``, on either side of the threshold and for every kind of table."""

from __future__ import annotations

import contextlib

import numba
import pytest
import torch

from graph_emb.core.threads import SERIAL_ROWS, threads_for
from graph_emb.table.gather import gather, gather_two


@pytest.mark.parametrize("num", [0, 1, SERIAL_ROWS - 1, SERIAL_ROWS, 3 * SERIAL_ROWS + 1])
@pytest.mark.parametrize("dim", [1, 15, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gathered_rows_are_those_asked_for_in_order_with_repeats(num, dim, dtype):
    weight = torch.arange(50 * dim).reshape(50, dim).to(dtype)
    rows = torch.randint(0, 50, (num,), generator=torch.Generator().manual_seed(num))
    assert torch.equal(gather(weight, rows), weight.index_select(0, rows))


def test_a_table_that_is_a_column_slice_is_gathered_right():
    weight = torch.arange(20 * 8, dtype=torch.float32).reshape(20, 8)[:, 2:5]
    rows = torch.arange(19, -1, -1).repeat(SERIAL_ROWS)
    assert torch.equal(gather(weight, rows), weight.index_select(0, rows))


def test_gathered_rows_are_a_copy():
    weight = torch.zeros(4, 3)
    gather(weight, torch.zeros(SERIAL_ROWS, dtype=torch.int64)).fill_(1.0)
    assert not weight.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num", [0, 5, SERIAL_ROWS + 40])
def test_two_sources_are_gathered_as_one(num: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num)
    weight, others = torch.randn(30, 7, dtype=dtype), torch.randn(11, 7, dtype=dtype)
    rows = torch.randint(0, 30, (19,), generator=generator)
    place = torch.randint(0, 30, (num,), generator=generator)  # 11 of others, 19 of rows
    wanted = torch.cat([others, weight[rows]])[place]
    assert torch.equal(gather_two(weight, rows, others, place), wanted)


def test_few_rows_wake_one_thread_and_many_as_many_as_torch_has() -> None:
    threads, before = numba.get_num_threads(), torch.get_num_threads()
    for allowed in (1, threads, threads + 1):
        torch.set_num_threads(allowed)
        try:
            with threads_for(SERIAL_ROWS) as parts:
                assert parts == numba.get_num_threads() == min(allowed, threads)
        finally:
            torch.set_num_threads(before)
    with threads_for(SERIAL_ROWS - 1) as parts:
        assert parts == numba.get_num_threads() == 1
    assert numba.get_num_threads() == threads


def test_threads_come_back_after_an_error() -> None:
    threads = numba.get_num_threads()
    with contextlib.suppress(KeyError), threads_for(1):
        raise KeyError
    assert numba.get_num_threads() == threads
