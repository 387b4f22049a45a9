"""Compiled passes over copied rows give what torch's operations, one after the other, give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graph_emb.core.addresses import Kind, kind_of
from graph_emb.optim.rounding import memory_of
from graph_emb.transport.copy_kernels import SCALE, lay_rows, round_changes, take_changes, widen_rows

WIDTHS = [1, 6, 34, 128]
NARROW = [torch.bfloat16, torch.float16]


def hard(num_rows: int, dim: int) -> Tensor:
    """Any bits at all, and numbers at which rounding is hard: ties, the largest ones, denormal ones, infinity, NaN."""
    rng = np.random.default_rng(dim)
    bits = rng.integers(0, 1 << 32, (num_rows, dim), dtype=np.uint32)
    bits[::4] &= 0xFFFF8000  # halfway between two numbers of bfloat16, or one of them
    bits[1::4] &= 0x807FFFFF  # denormal
    bits[2::8] = (bits[2::8] & 0x8FFFFFFF) | 0x30000000  # near the least numbers of float16
    bits[3::8] = (bits[3::8] & 0x807FF000) | 0x3F800000  # halfway between two numbers of float16, or one of them
    found = torch.from_numpy(bits.view(np.float32))
    limits = [torch.finfo(dtype).max for dtype in (torch.float32, *NARROW)]
    first = [np.inf, -np.inf, np.nan, 0.0, -0.0, 65519.99, 65520.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, *limits]
    found.view(-1)[: len(first)] = torch.tensor(first)
    found.view(torch.int32).view(-1)[len(first)] = 0x7F800001  # a NaN whose upper half is infinity
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are equal bit for bit, NaN of any kind being one number."""
    both = one.isnan() & other.isnan()
    words = torch.int32 if one.dtype is torch.float32 else torch.int16
    return one.dtype is other.dtype and bool(((one.view(words) == other.view(words)) | both).all())


def jobs_of(
    tables: list[Tensor], at: Tensor, start: int, before: Tensor | None, message: Tensor, *, adaptive: bool = False
) -> tuple[Kind, list[Any]]:
    """The kind and the jobs of nodes whose rows begin at a place; row 3 of the second table is frozen."""
    span, kept = np.array([start, len(tables)]), None if before is None else before.numpy()
    frozen = [np.arange(len(table)) == (3 if t == 1 else -1) for t, table in enumerate(tables)]
    jobs = [
        (
            table.numpy(),
            at.numpy() if t == 0 else at.numpy()[:0],
            span,
            frozen[t].view(np.uint8),
            kept,
            memory_of(message),
            np.ones(1, np.float32),
            None,
            None,
        )
        for t, table in enumerate(tables)
    ]
    return kind_of(jobs[0], (adaptive, message.dtype is torch.float32)), jobs


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_rows_leave_as_torch_rounds_them(dtype: torch.dtype, dim: int) -> None:
    """Rows of a node's two tables side by side, from place 5 on."""
    rows, at = hard(800, dim).split(400), torch.randperm(400, generator=torch.Generator().manual_seed(0))[:300]
    expected = torch.stack([table[at] for table in rows], dim=1).reshape(600, dim)
    for kept in (True, False):
        before = torch.full((610, dim), 7.0) if kept else None
        message = torch.full((610, dim), 7.0, dtype=dtype)
        lay_rows.run(*jobs_of(list(rows), at, 5, before, message), 2)
        for out in (message,) if before is None else (message, before):
            assert same(out[5:605], expected.to(out.dtype))
            assert (out[:5] == 7.0).all()
            assert (out[605:] == 7.0).all()


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("dtype", NARROW)
def test_changes_leave_as_torch_rounds_them(dtype: torch.dtype, dim: int) -> None:
    came, copies = hard(400, dim).to(dtype), hard(400, dim).flipud().contiguous()
    leaving = torch.empty_like(came)
    arrays = memory_of(came), copies.numpy(), None, None, memory_of(leaving)
    round_changes.run(kind_of(arrays), [arrays], 2)
    assert same(leaving, (came.float() - copies).to(dtype))
    assert all(kind(leaving).any() for kind in (torch.isnan, torch.isinf, torch.isfinite))


def narrowed(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows as they travel, and what they are then."""
    if dtype is not torch.int8:
        return rows.to(dtype), rows.to(dtype).float()
    unit = (rows.abs().amax(1, keepdim=True) / 127).contiguous()
    numbers = torch.round(rows * (127 / rows.abs().amax(1, keepdim=True)))
    assert unit.view(torch.int8).shape[1] == SCALE
    return torch.cat([numbers.to(torch.int8), unit.view(torch.int8)], dim=1), unit * numbers


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW, torch.int8])
def test_copies_are_less_what_is_under_way_and_so_are_their_changes(dtype: torch.dtype, dim: int) -> None:
    drawn = torch.Generator().manual_seed(dim)
    came, rows = narrowed(torch.randn(60, dim, generator=drawn), dtype)
    gone, changes = narrowed(torch.randn(40, dim, generator=drawn), dtype)
    places = torch.full((60,), -1)
    places[torch.randperm(60, generator=drawn)[:25]] = torch.randperm(40, generator=drawn)[:25]
    expected = torch.where((places >= 0)[:, None], rows - changes[places], rows)
    copies, leaving = torch.empty(60, dim), torch.empty_like(came)
    arrays = memory_of(came), copies.numpy(), memory_of(gone), places.numpy()
    widen_rows.run(kind_of(arrays), [arrays], 2)
    assert torch.equal(copies, expected)
    step = torch.randn(60, dim, generator=drawn)
    copies -= step
    round_changes.run(kind_of((*arrays, memory_of(leaving))), [(*arrays, memory_of(leaving))], 2)
    sent = torch.empty(60, dim)
    back = memory_of(leaving), sent.numpy(), None, None
    widen_rows.run(kind_of(back), [back], 2)
    torch.testing.assert_close(sent, narrowed(expected - copies, dtype)[1], rtol=1e-6, atol=1e-6)


def test_a_share_of_own_changes_is_joined_and_later_rows_are_less_the_same() -> None:
    drawn = torch.Generator().manual_seed(2)
    before, own, other = torch.randn(3, 6, 34, generator=drawn)
    later, places = torch.randn(4, 34, generator=drawn), np.array([2, -1, -1, 0, -1, 3])
    rows, expected_later = before - own, later.clone()
    here, gone = 0.25 * own.double(), other.double()
    common = (here * gone).sum(1, keepdim=True)
    halves = [common / (2 * square.square().sum(1, keepdim=True)) for square in (here, gone)]
    taken = (1 - halves[1]) * gone - halves[0] * here
    expected = rows.double() - taken
    expected_later[places[places >= 0]] -= taken[places >= 0].float()
    (job,) = jobs_of([rows], torch.arange(6), 0, before, other.bfloat16())[1]
    job = (*job[:5], other.numpy(), np.full(1, 0.25, np.float32), later.numpy(), places)
    take_changes.run(kind_of(job, (True, False, True)), [job], 1)
    torch.testing.assert_close(rows.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(later, expected_later, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_changes_are_taken_from_the_rows(dtype: torch.dtype, dim: int) -> None:
    """A copy that came as float32 is less what it was by its change; 16 bits are the change, and need no more."""
    drawn = torch.Generator().manual_seed(dim)
    rows, before = torch.randn(2, 50, dim, generator=drawn), torch.randn(41, dim, generator=drawn)
    came = torch.randn(41, dim, generator=drawn).to(dtype)
    at, expected = torch.arange(20, 0, -1), rows.clone()
    expected[:, at] -= (before - came if dtype is torch.float32 else came.float())[1:].view(20, 2, dim).transpose(0, 1)
    expected[1, 3] = rows[1, 3]  # frozen
    take_changes.run(*jobs_of(list(rows), at, 1, before if dtype is torch.float32 else None, came), 2)
    assert torch.equal(rows, expected)


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_changes_of_both_sides_are_joined_by_adasum(dtype: torch.dtype) -> None:
    """In float64: each change less half of what the other has in its direction; alone, a change is taken whole."""
    drawn = torch.Generator().manual_seed(1)
    before = torch.randn(6, 34, generator=drawn)
    own, other = (torch.randn(6, 34, generator=drawn) for _ in range(2))
    own[1], other[2] = 0, 0
    other[3] = own[3]
    rows, came = before - own, before - other if dtype is torch.float32 else other.to(dtype)
    gone = (before - came if dtype is torch.float32 else came.float()).double()
    here = (before - rows).double()
    common = (here * gone).sum(1, keepdim=True)
    halves = [(common / (2 * square.square().sum(1, keepdim=True))).nan_to_num() for square in (here, gone)]
    expected = before - (1 - halves[0]) * here - (1 - halves[1]) * gone
    take_changes.run(*jobs_of([rows], torch.arange(6), 0, before, came, adaptive=True), 1)
    torch.testing.assert_close(rows.double(), expected, rtol=1e-5, atol=1e-5)
