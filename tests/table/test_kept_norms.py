"""Norms that a growing table keeps from one pass of its eviction to the next are those of its rows, whatever changed
them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.threads import SERIAL_ROWS
from graph_emb.table.initializers import Uniform
from graph_emb.table.selection import marked_places, row_norms

pytestmark = pytest.mark.usefixtures("local_mode")

LAZY = {"weight_decay": 0.1, "weight_decay_mode": "lazy"}


def made(dtype: torch.dtype = torch.float32) -> ge.DistEmbedding:
    rule = ge.SmallNorm(max_rows=63, every=1 << 30)
    emb = ge.DistEmbedding(ge.growing(64), 5, "kept", Uniform(seed=1, low=-1, high=1), dtype=dtype, eviction=rule)
    emb.grow(range(20))
    return emb


def check(emb: ge.DistEmbedding) -> None:
    places = emb.shard.in_order().numpy()
    rows = emb.weight[emb.ids()].double().numpy()
    np.testing.assert_allclose(emb.shard.norms()[places], np.sqrt((rows**2).sum(axis=1)), rtol=1e-12)


def update(emb: ge.DistEmbedding, ids: list[int], **options: float | str) -> None:
    opt = ge.SparseAdagrad([emb], lr=0.5, **options)
    opt.update(torch.tensor(ids), torch.ones(len(ids), 5, dtype=emb.dtype), emb)
    opt.close()


WAYS: dict[str, Callable[[ge.DistEmbedding], object]] = {
    "an update": lambda emb: update(emb, [3, 25]),
    "a step by address": lambda emb: by_address(emb),
    "new rows": lambda emb: emb.grow([40, 41], values=torch.full((2, 5), 9.0)),
    "rows that are written": lambda emb: emb.weight.__setitem__([1, 2], torch.full((2, 5), 7.0)),
    "rows that begin anew": lambda emb: (update(emb, [4]), emb.shard.norms(), emb.reset_rows([4])),
    "rows that leave and come back": lambda emb: (emb.grow(range(20, 64)), emb.evict(), emb.grow(range(60))),
    "decay that is lazy": lambda emb: (update(emb, [5], **LAZY), update(emb, [6], **LAZY)),
    "decay of rows that no step uses": lambda emb: [update(emb, [7], **LAZY) for _ in range(4)],
}


def by_address(emb: ge.DistEmbedding) -> None:
    opt = ge.SparseSGD([emb], lr=0.5)
    _, slots = emb.lookup([2, 9, 50])
    opt.apply_gradients([(torch.ones(3, 5, dtype=emb.dtype), slots)])
    opt.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_norms_are_those_of_the_rows(way: str, dtype: torch.dtype) -> None:
    emb = made(dtype)
    check(emb)
    for _ in range(2):
        WAYS[way](emb)
        check(emb)


def test_a_checkpoint_of_an_earlier_step_brings_its_norms(tmp_path: Path) -> None:
    emb = made()
    saved = ge.save_checkpoint(tmp_path / "saved", tables=[emb])
    for _ in range(5):
        update(emb, [3, 4])
    check(emb)
    ge.load_checkpoint(saved, tables=[emb])
    update(emb, [4, 5])  # a step of before the last pass
    check(emb)


def test_rows_that_nobody_changed_are_not_read_again() -> None:
    emb = made()
    opt = ge.SparseAdagrad([emb], lr=0.5)
    check(emb)
    emb.shard.places.weight[:10] = 100.0  # behind the table's back
    opt.update(torch.tensor([0]), torch.ones(1, 5), emb)
    assert (emb.shard.norms()[1:20] < 3).all()
    assert emb.shard.norms()[0] > 100


@pytest.mark.parametrize("num", [1, SERIAL_ROWS - 1, SERIAL_ROWS, 3001])
def test_threads_take_the_rows_that_changed_and_no_others(num: int) -> None:
    rng = np.random.default_rng(num)
    rows, last = rng.normal(size=(num, 7)).astype(np.float32), rng.integers(0, 9, num).astype(np.uint32)
    before = rng.choice([0.0, -1.0], num)
    known = before.copy()
    row_norms(rows, known, last, 4)
    fresh = (before == 0) | (last > 4)
    np.testing.assert_allclose(known[fresh], np.linalg.norm(rows[fresh].astype(np.float64), axis=1), rtol=1e-12)
    assert (known[~fresh] == -1).all()


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.9, 1])
@pytest.mark.parametrize("num", [0, 1, SERIAL_ROWS - 1, SERIAL_ROWS, 3001, 100_000])
def test_marked_places_are_those_of_numpy(num: int, share: float) -> None:
    mask = np.random.default_rng(num).random(num) < share
    np.testing.assert_array_equal(marked_places(mask), np.flatnonzero(mask))


def test_bytes_of_a_table_have_the_norms_that_it_keeps() -> None:
    emb = made()
    before = emb.shard.num_bytes()
    check(emb)
    assert emb.shard.num_bytes() == before + 8 * 20
