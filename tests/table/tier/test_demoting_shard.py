"""Rows that an eviction demotes: the table is the one without an eviction, whatever lies in its file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, StorageError
from graph_emb.table.tier.demoting_shard import DemotingShard
from tests.growing_oracle import IDS, INIT
from tests.transport.test_collective import OPTIMIZERS, ROUNDED

pytestmark = pytest.mark.usefixtures("local_mode")

EVICTIONS: dict[str, Any] = {
    "unused": ge.Unused(2),
    "unused, few at once": ge.Unused(1, every=2, per_pass=3, floor=2),
    "least recent": ge.LeastRecent(max_rows=5, low_water=0.6),
    "least used": ge.LeastUsed(max_rows=4, half_life=3),
    "smallest norms": ge.SmallNorm(max_rows=4, low_water=0.5),
}
KINDS = {
    **OPTIMIZERS,
    **ROUNDED,
    "lazy decay": ("SparseAdam", {"lr": 0.1, "weight_decay": 0.2, "weight_decay_mode": "lazy"}),
    "lazy decay of sgd": ("SparseSGD", {"lr": 0.1, "weight_decay": 0.5, "weight_decay_mode": "lazy"}),
}
NARROW = ("sgd", "row adagrad", "rounded", "lazy decay of sgd")
"""Kinds with at most one piece of state as wide as a row, or half as wide."""
DIM = 300
"""Of which a page of 4 KiB holds one to three rows."""


def demoting(folder: Path, eviction: Any = None, **options: Any) -> ge.DistEmbedding:
    place = ge.File(folder, memory=options.pop("memory", "16KiB"))
    return ge.DistEmbedding(
        ge.growing(max_rows=options.pop("max_rows", len(IDS))),
        DIM,
        options.pop("name", "demoting"),
        INIT,
        eviction=eviction or ge.LeastRecent(max_rows=4),
        on_evict="demote",
        placement=place,
        **options,
    )


def shard_of(emb: ge.DistEmbedding) -> DemotingShard:
    assert isinstance(emb.shard, DemotingShard)
    return emb.shard


def same_rows(emb: ge.DistEmbedding, other: ge.DistEmbedding) -> None:
    """Everything that a user can see of two tables is the same, to the bit."""
    assert emb.ids().tolist() == other.ids().tolist()
    assert emb.num_rows == other.num_rows
    assert emb.contains(IDS).tolist() == other.contains(IDS).tolist()
    assert torch.equal(emb.weight[IDS], other.weight[IDS])
    for name, rows in emb.optm_state.items():
        expected = other.optm_state[name]
        assert torch.equal(*((rows, expected) if isinstance(rows, Tensor) else (rows[IDS], expected[IDS])))
    saved = other.shard.saved_state()
    for name, values in emb.shard.saved_state().items():
        assert torch.equal(values, saved[name]), name


PAIRS = [(kind, list(EVICTIONS)[(k + more) % len(EVICTIONS)]) for k, kind in enumerate(KINDS) for more in (0, 2)]


@pytest.mark.parametrize(("kind", "eviction"), PAIRS)
def test_random_programs_equal_a_table_from_which_no_row_leaves(kind: str, eviction: str, tmp_path: Path) -> None:
    seed = list(KINDS).index(kind) * 10 + list(EVICTIONS).index(eviction)
    rng = np.random.default_rng(seed)
    dtype = torch.bfloat16 if kind in ROUNDED else [torch.float64, torch.float32][seed % 2]
    admission = ge.SeenAtLeast(2) if seed % 5 == 4 else None
    memory = "5KiB" if kind in NARROW else "9KiB"  # of one page
    emb = demoting(tmp_path, EVICTIONS[eviction], dtype=dtype, admission=admission, memory=memory)
    twin = ge.DistEmbedding(ge.growing(len(IDS)), DIM, "twin", INIT, dtype=dtype, admission=admission)
    name, numbers = KINDS[kind]
    tables, most = (emb, twin), 0
    optimizers = [getattr(ge, name)([table], **numbers) for table in tables]
    for step in range(22):
        ids = [IDS[k] for k in rng.zipf(1.3, rng.integers(2, 12)) % len(IDS)]
        grads = torch.from_numpy(rng.normal(size=(len(ids), DIM))).to(dtype)
        told = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        case = rng.integers(0, 20)
        for table, optimizer in zip(tables, optimizers, strict=True):
            match case:
                case 0:
                    table.grow(ids)
                case 1:
                    emb.evict()
                case 2:
                    table.weight[told] = torch.ones(len(told), DIM, dtype=dtype) * step
                case 3:
                    table.reset_rows(told)
                case 4:
                    table.freeze(told[:1])
                case 5:
                    table.unfreeze(told)
                case 6:
                    _, slots = table.lookup(ids)
                    optimizer.apply_gradients([(grads, slots)])
                case 7:
                    table.prefetch(ids)
                    assert torch.equal(table(torch.tensor(ids, dtype=torch.int64)), twin.weight[ids])
                case _:
                    table(torch.tensor(ids, dtype=torch.int64)).backward(grads)
                    optimizer.step()
        same_rows(emb, twin)
        most = max(most, shard_of(emb).num_filed)
    assert most > 1
    assert emb.cache_stats().evictions > 0
    for column in ("growth.last", *(["growth.uses"] if eviction != "least used" else [])):  # whose counts are halved
        told, expected = (table.shard.column_at(column, table.shard.in_order()) for table in tables)
        assert torch.equal(told, expected)


def test_memory_has_the_rows_that_the_eviction_leaves_there(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=4, low_water=0.5))
    opt = ge.SparseAdagrad([emb], lr=0.1)
    opt.update([1, 2, 3, 5], torch.ones(4, DIM), emb)
    assert shard_of(emb).num_filed == 0
    opt.update([64], torch.ones(1, DIM), emb)
    shard = shard_of(emb)
    assert (shard.num_filed, len(shard.live), emb.num_rows) == (3, 2, 5)
    assert shard.evicted.tolist() == [1, 2, 3]
    before = emb.weight[[2]]
    assert shard.num_filed == 3  # reading brings nothing
    opt.update([2], torch.ones(1, DIM), emb)
    assert (shard.num_filed, len(shard.live)) == (2, 3)
    assert torch.equal(emb.optm_state["sum"][[2]], torch.full((1, DIM), 2.0))
    assert not torch.equal(emb.weight[[2]], before)
    assert emb.evict().tolist() == []


def test_room_in_the_file_is_used_again(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=1, low_water=1))
    opt = ge.SparseSGD([emb], lr=1.0)
    for step in range(40):
        opt.update([step % 3], torch.ones(1, DIM), emb)
    assert shard_of(emb).all_places().max() < len(IDS) + 3
    assert emb.weight[[0]][0, 0] - INIT_OF_0 == -14


INIT_OF_0 = ge.DistEmbedding(1, DIM, "first value", INIT).weight[[0]][0, 0].item()


def test_slots_of_rows_in_the_file_reach_them(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=1, low_water=1))
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2], torch.zeros(2, DIM), emb)
    before, slots = emb.lookup([1, 2, 1])
    emb.weight[[1]] = torch.full((1, DIM), 5.0)  # a write brings the row back
    opt.apply_gradients([(torch.ones(3, DIM), slots)])
    assert torch.equal(emb.weight[[1, 2]], torch.stack([torch.full((DIM,), 3.0), before[1] - 1]))
    with pytest.raises(ConfigError, match="slots of 3 ids are stale"):
        opt.apply_gradients([(torch.ones(3, DIM), slots)])


def test_a_row_that_comes_back_unchanged_is_none_that_changed(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=1, low_water=1))
    ge.SparseSGD([emb], lr=1.0).update([1, 2, 3], torch.ones(3, DIM), emb)
    shard = shard_of(emb)
    shard.track("digest")
    emb.unfreeze([1, 2])
    assert (len(shard.live), len(shard.touched())) == (3, 0)
    emb.weight[[2]] = torch.ones(1, DIM)
    emb.evict()
    assert shard.num_filed == 2
    assert len(shard.touched()) == 1


def test_weights_that_are_loaded_into_a_table_of_lazy_decay_lack_none(tmp_path: Path) -> None:
    emb = demoting(tmp_path / "rows")
    opt = ge.SparseSGD([emb], lr=0.1, weight_decay=0.5, weight_decay_mode="lazy")
    opt.update([1, 2, 3], torch.ones(3, DIM), emb)
    rows = emb.weight[[1, 2, 3]]
    ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt])
    ge.load_checkpoint(tmp_path / "1", tables=[emb], weights_only=True)
    assert torch.equal(emb.weight[[1, 2, 3]], rows)


def test_a_file_that_cannot_be_written_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=2, every=100))
    opt = ge.SparseAdagrad([emb], lr=0.1)
    opt.update([1, 2, 3, 5], torch.ones(4, DIM), emb)
    rows = emb.weight[IDS]

    def full(*_: Any) -> None:
        raise StorageError(errno.ENOSPC, "table 'demoting': No space left on device", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr("graph_emb.table.tier.shard.TieredShard.write_columns", full)
        with pytest.raises(StorageError, match="No space left"):
            emb.evict()
        assert emb.ids().tolist() == [1, 2, 3, 5]
        assert torch.equal(emb.weight[IDS], rows)
    assert emb.evict().tolist() == [1, 2, 3]
    assert torch.equal(emb.weight[IDS], rows)
    with monkeypatch.context() as patch:
        patch.setattr("graph_emb.table.tier.cache.PageCache.peek", full)
        with pytest.raises(StorageError, match="No space left"):
            opt.update([2], torch.ones(1, DIM), emb)
    assert emb.ids().tolist() == [1, 2, 3, 5]
    assert torch.equal(emb.weight[IDS], rows)


def test_a_table_without_room_keeps_no_other_from_its_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, emb = (demoting(tmp_path, ge.LeastRecent(max_rows=2), name=name) for name in ("full", "rows"))
    opt, ids = ge.SparseAdagrad([full, emb], lr=0.1), torch.tensor([1, 2, 3, 5])

    def lacks(*_: Any) -> tuple[int, str]:
        return errno.ENOSPC, "table 'demoting': No space left on device"

    monkeypatch.setattr(shard_of(full)._tier._pages.reader.file, "_lacks", lacks)
    (full(ids).sum() + emb(ids).sum()).backward()
    with pytest.raises(StorageError, match="No space left"):
        opt.step()
    assert [shard_of(table).num_filed for table in (full, emb)] == [0, 3]
    assert full.ids().tolist() == emb.ids().tolist() == [1, 2, 3, 5]
    assert torch.equal(full.optm_state["sum"][ids], emb.optm_state["sum"][ids])


def test_rows_of_all_tiers_count_against_max_rows(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=2), max_rows=5)
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2, 3, 5, 64], torch.zeros(5, DIM), emb)
    opt.update([1, 2, 3, 5, 64], torch.zeros(5, DIM), emb)
    with pytest.raises(ConfigError, match=r"1 new ids beside 5 rows exceed max_rows=5"):
        opt.update([128], torch.zeros(1, DIM), emb)
    assert emb.ids().tolist() == [1, 2, 3, 5, 64]


def test_the_disk_has_what_was_demoted_alone_and_nothing_after_the_table(tmp_path: Path) -> None:
    emb = demoting(tmp_path, max_rows=10_000_000, memory="99MiB")
    opt = ge.SparseAdagrad([emb], lr=0.1)
    opt.update(torch.arange(1000), torch.ones(1000, DIM), emb)
    shard_of(emb).drop_cache()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size > 20_000_000_000
    assert file.stat().st_blocks * 512 < 5_000_000
    assert shard_of(emb).num_filed == 997
    assert emb.cache_stats().bytes_written >= 997 * 2 * DIM * 4
    opt.close()
    del emb, opt
    ge.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_an_optimizer_that_comes_later_finds_the_rows_of_the_file(tmp_path: Path) -> None:
    emb = demoting(tmp_path, ge.LeastRecent(max_rows=1, low_water=1))
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2, 3], torch.ones(3, DIM), emb)
    rows = emb.weight[[1, 2, 3]]
    opt.close()
    opt = ge.SparseAdagrad([emb], lr=0.5)
    assert torch.equal(emb.weight[[1, 2, 3]], rows)
    opt.update([1, 2, 3], torch.ones(3, DIM), emb)
    assert torch.allclose(emb.weight[[1, 2, 3]], rows - 0.5)
    assert torch.equal(emb.optm_state["sum"][[1, 2, 3]], torch.ones(3, DIM))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_evict": "demote"}, "on_evict='demote' is for rows that leave, and none does"),
        ({"on_evict": "demote", "eviction": ge.Unused(3)}, "placement=None is none; pass ge.File"),
        (
            {"on_evict": "demote", "eviction": ge.Unused(3), "placement": ge.DeviceCache("1MiB")},
            "is none; pass ge.File",
        ),
        (
            {"on_evict": "demote", "eviction": ge.Unused(3), "placement": ge.Buckets("x", "1MiB")},
            "is none; pass ge.File",
        ),
        ({"eviction": ge.Unused(3), "placement": ge.File("x", "1MiB")}, "grows in memory: leave out placement"),
        ({"placement": ge.File("x", "1MiB")}, "on_evict='demote', which moves the rows that leave to the file"),
        ({"on_evict": "keep", "eviction": ge.Unused(3)}, "on_evict 'keep'"),
    ],
)
def test_what_cannot_be_demoted_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ge.DistEmbedding(ge.growing(5), 2, "demoting", **options)


def test_memory_below_a_page_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is below the least"):
        demoting(tmp_path, memory="1KiB")
    assert list(tmp_path.iterdir()) == []
