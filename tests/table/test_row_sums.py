"""Sums of shared rows and of their gradients, beside plain indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.core.threads import SERIAL_ROWS, torch_threads
from graph_emb.table.row_sums import DIRECT, RowTerms, SharedGradients, columns_at

B, D = 50, 40
ABOVE = np.array([[0, 1], [0, 1], [1, 0], [1, 2], [0, 1], [1, 2]])  # rows of two tables, for each of six


def shared(rng: np.random.Generator, size: int = 9, num: int = B) -> tuple[RowTerms, list[np.ndarray]]:
    """Sums of two rows of a table with a factor each, and of a row of another one with its chain."""
    rows = [rng.integers(0, size, (2, num)), rng.integers(0, len(ABOVE), (1, num))]
    return RowTerms.of(rows, [size, 6, 2, 3], ABOVE), [*rows, *ABOVE[rows[1][0]].T[:, None]]


def dense(tables: list[torch.Tensor], rows: list[np.ndarray], factors: torch.Tensor) -> torch.Tensor:
    total = (tables[0][torch.from_numpy(rows[0])] * factors.T[:, :, None]).sum(dim=0)
    for table, own in zip(tables[1:], rows[1:], strict=True):
        total = total + table[torch.from_numpy(own[0])]
    return total


@pytest.mark.parametrize("size", [9, 8 * DIRECT * B], ids=["few", "many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_gradients_are_those_of_plain_indexing(size: int, dtype: torch.dtype) -> None:
    of, rows = shared(np.random.default_rng(0), size)
    gen = torch.Generator().manual_seed(0)
    tables = [torch.randn(num, D, generator=gen, dtype=dtype, requires_grad=True) for num in (size, 6, 2, 3)]
    factors = torch.randn(B, 2, generator=gen, dtype=dtype, requires_grad=True)
    wanted, grads = dense(tables, rows, factors), torch.randn(B, D, generator=gen, dtype=dtype)
    wanted.backward(grads)
    pulled = [table.detach()[torch.from_numpy(own)] for table, own in zip(tables, of.wanted, strict=True)]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(of.sums(pulled, factors.detach()), wanted.detach(), **close)
    found = SharedGradients(of, grads, factors.detach())
    torch.testing.assert_close(found.of_factors(pulled[0]), factors.grad, **close)
    for k, table in enumerate(tables):
        own = found.of(k)
        ids, spread = own.spread()
        assert table.grad is not None
        torch.testing.assert_close(torch.zeros_like(table).index_add(0, ids, spread.rows()), table.grad, **close)
        torch.testing.assert_close((own * 3.0).spread()[1].rows(), 3.0 * spread.rows())
        if dtype is torch.float64:
            assert own.merged() is None
            continue
        distinct, sums = own.merged()  # type: ignore[misc]
        assert len(distinct.unique()) == len(distinct)
        torch.testing.assert_close(torch.zeros_like(table).index_copy(0, distinct, sums), table.grad, **close)
        torch.testing.assert_close((own * 3.0).merged()[1], 3.0 * sums)  # type: ignore[index]


def test_sums_of_gradients_do_not_depend_on_the_threads() -> None:
    num = SERIAL_ROWS + 10  # fewer are summed by one thread
    of, rows = shared(np.random.default_rng(1), num=num)
    grads, factors = torch.randn(num, D), torch.randn(num, 2)
    found = []
    for threads in (1, 2):
        with torch_threads(threads):
            found.append(of.merged(grads, factors))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    wanted = torch.zeros(6, D).index_add(0, torch.from_numpy(rows[1][0]), grads)
    torch.testing.assert_close(torch.zeros(6, D).index_copy(0, torch.from_numpy(of.wanted[1]), found[1][1]), wanted)


def test_torch_sums_what_the_kernel_sums() -> None:
    of, rows = shared(np.random.default_rng(2))
    tables = [torch.randn(num, D) for num in (9, 6)]
    alone = RowTerms(of.distinct, of.places, of.table)
    pulled = [table[torch.from_numpy(own)] for table, own in zip(tables, alone.wanted, strict=True)]
    factors = torch.randn(B, 2)
    torch.testing.assert_close(alone._sums_by_torch(pulled, factors), alone.sums(pulled, factors))
    torch.testing.assert_close(alone.sums(pulled, factors), dense(tables, rows[:2], factors))


def test_no_sums_have_no_gradients() -> None:
    of = RowTerms.of([np.empty((2, 0), np.int64), np.empty((1, 0), np.int64)], [9, 6, 2, 3], ABOVE)
    assert [len(one) for one in of.wanted] == [0, 0, 0, 0]
    assert of.sums([torch.empty(0, D)] * 4, torch.empty(0, 2)).shape == (0, D)
    found = SharedGradients(of, torch.empty(0, D), torch.empty(0, 2))
    assert all(len(found.of(k).spread()[0]) == 0 for k in range(4))


def test_columns_are_those_of_the_rows_asked_for() -> None:
    table = np.arange(60, dtype=np.int32).reshape(20, 3)
    ids = np.array([4, 19, 0, 4])
    np.testing.assert_array_equal(columns_at(table, ids), table[ids].T)
