"""Rows in a file are kept as they were at one moment, whatever the training writes after it."""

from __future__ import annotations

import errno
import gc
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint import row_files, saving
from graph_emb.core.errors import StorageError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rules import SGD, Adagrad, Adam
from graph_emb.table.initializers import Uniform
from graph_emb.table.placement import Buckets, DeviceCache
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier import kept as module
from graph_emb.table.tier.kept import KeptPages, KeptRows
from graph_emb.table.tier.pages import read_header
from graph_emb.table.tier.shard import TieredShard
from tests.optim import oracles
from tests.table.tier.test_shard import DIM, both, budget, check_equal, rule_grads, spec_of, steps

ROWS, RUN = 600, 37


def columns_of(shard: EmbeddingShard) -> dict[str, torch.Tensor]:
    """Copies of everything that a checkpoint has of a shard's rows."""
    names = ["weight", *(name for name, one in shard.state_specs.items() if one.kind != "table")]
    return {name: shard.column(name, 0, shard.num_rows).clone() for name in names}


def check_kept(kept: KeptRows, wanted: dict[str, torch.Tensor], between: Any = lambda: None) -> None:
    """Read all runs, each column in two pieces, and compare."""
    for start in range(0, kept.num_rows, RUN):
        stop = min(kept.num_rows, start + RUN)
        for name, column in wanted.items():
            middle = (start + stop) // 2
            found = [kept.read(name, *piece) for piece in ((start, middle), (middle, stop))]
            assert torch.equal(torch.cat(found), column[start:stop]), (name, start)
        between()


def keep(shard: TieredShard) -> KeptRows:
    kept = shard.kept(RUN)
    assert kept is not None
    kept.hurry()  # who reads here trains as well: its rests would be for nobody
    return kept


@pytest.mark.parametrize("name", list(oracles.CASES))
def test_rows_and_state_of_every_rule_are_those_of_the_moment(tmp_path: Path, name: str) -> None:
    rule = oracles.CASES[name][0]
    host, tiered = both(tmp_path, rule, 4)
    for shard in (host, tiered):
        shard.freeze(torch.tensor([3, 400]), True)
    coming = iter(steps(1, 40))

    def train() -> None:
        for ids, grads in [next(coming), next(coming)]:
            for shard in (host, tiered):
                apply_update(rule, shard, ids, rule_grads(rule, grads), prepared=rule.per_occurrence)

    train()
    wanted, stats = columns_of(host), tiered.cache_stats()
    kept = keep(tiered)
    assert tiered.cache_stats() == stats
    train()
    check_kept(kept, wanted, train)
    kept.close()
    check_equal(host, tiered)
    assert not torch.equal(wanted["weight"], host.column("weight", 0, ROWS))


@pytest.mark.parametrize("touched", ["nothing", "all in memory", "all in the file"])
def test_pages_that_were_never_written_or_lie_in_memory_or_in_the_file(tmp_path: Path, touched: str) -> None:
    host, tiered = both(tmp_path, Adagrad(0.1), 2)
    rows = torch.arange(ROWS)
    for low in range(0, ROWS if touched != "nothing" else 0, 50):
        for shard in (host, tiered):
            apply_update(Adagrad(0.1), shard, rows[low : low + 50], torch.full((50, DIM), 2.0))
    if touched == "all in the file":
        tiered.drop_cache()
    wanted, kept = columns_of(host), keep(tiered)
    tiered.write(rows[:300], torch.zeros(300, DIM))
    tiered.drop_cache()
    check_kept(kept, wanted)
    kept.close()


def test_runs_are_read_while_held_parts_change_where_they_lie(tmp_path: Path) -> None:
    """A thread reads, as that of a checkpoint does; the training exchanges parts meanwhile."""
    rule = Adagrad(0.1)
    spec = spec_of(tmp_path, 1)
    placement = Buckets(tmp_path, budget(spec, rule, 2), parts=6)
    tiered = TieredShard(TableSpec("t", ROWS, DIM, RangeBook.even(ROWS), Uniform(seed=3), placement=placement), 0, ROWS)
    host = EmbeddingShard(spec_of(None), 0, ROWS)
    for shard in (host, tiered):
        shard.allocate_state(rule.state_specs())
    rng = np.random.default_rng(0)

    def train(steps: int) -> None:
        for _ in range(steps):
            low = int(rng.integers(0, 5)) * 100
            tiered.hold([(low, low + 100), (500, 600)])
            for shard in (host, tiered):
                weight, (places,) = shard.held_rows((low, low + 100))
                weight[torch.from_numpy(places)] += 1.0
                apply_update(rule, shard, torch.arange(low, low + 60), torch.ones(60, DIM))

    for _ in range(5):
        train(7)
        wanted, kept, failed = columns_of(host), keep(tiered), []

        def read(kept: KeptRows = kept, wanted: Any = wanted, failed: list[Exception] = failed) -> None:
            try:
                check_kept(kept, wanted)
            except Exception as error:
                failed.append(error)
            finally:
                kept.close()

        reader = threading.Thread(target=read)
        reader.start()
        train(20)
        reader.join()
        assert not failed
    check_equal(host, tiered)


def dirtied(folder: Path) -> tuple[EmbeddingShard, TieredShard]:
    """Shards whose rows all differ from the first values, half of them in memory alone."""
    made = both(folder, SGD(0.1), 4)
    for shard in made:
        shard.write(torch.arange(ROWS), torch.ones(ROWS, DIM))
    made[1].drop_cache()
    for shard in made:
        shard.write(torch.arange(100), torch.zeros(100, DIM))
    return made


def test_a_disk_that_is_full_ends_the_keeping_and_not_the_training(tmp_path: Path) -> None:
    host, tiered = dirtied(tmp_path)
    kept = keep(tiered)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, tiered._pages.reader._side.descriptor)
    os.close(full)
    for shard in (host, tiered):
        for low in range(0, ROWS, 60):
            shard.write(torch.arange(low, low + 60), torch.full((60, DIM), 5.0))
    tiered.drop_cache()
    said = r"table 't': keeping a page for a checkpoint failed at offset \d+ \(No space left.*training goes on"
    with pytest.raises(StorageError, match=said) as caught:
        check_kept(kept, columns_of(host))
    assert caught.value.errno == errno.ENOSPC
    kept.close()
    check_equal(host, tiered)
    wanted, kept = columns_of(host), keep(tiered)
    check_kept(kept, wanted)
    kept.close()


def test_a_file_is_closed_when_its_kept_rows_were_read(tmp_path: Path) -> None:
    host, tiered = dirtied(tmp_path)
    wanted, kept = columns_of(host), keep(tiered)
    closing = threading.Thread(target=tiered._pages.reader.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    check_kept(kept, wanted)
    kept.close()
    closing.join()
    assert list(tmp_path.iterdir()) == []


def test_rows_cached_on_a_device_are_copied(tmp_path: Path) -> None:
    spec = TableSpec("t", 60, DIM, RangeBook.even(60), Uniform(seed=3), placement=DeviceCache(40_000))
    assert TieredShard(spec, 0, 60).kept(RUN) is None


@pytest.mark.usefixtures("local_mode")
@pytest.mark.parametrize("placement", [ge.File, ge.Buckets])
def test_a_background_checkpoint_of_rows_in_files_has_its_moment_and_no_copy_in_memory(
    tmp_path: Path, placement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"parts": 4} if placement is ge.Buckets else {}
    emb = ge.DistEmbedding(5_000, 16, "node", Uniform(seed=1), placement=placement(tmp_path / "rows", "600KiB", **more))
    opt = ge.SparseAdam([emb], lr=0.1)

    def train() -> None:
        for low in range(0, 5_000, 500):
            emb(torch.arange(low, low + 500)).pow(2).sum().backward()
            opt.step()

    train()
    wanted = emb.weight[:].clone()
    first = ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], step=1)
    may_write, whole = threading.Event(), saving.write_part

    def write_later(snapshot: saving.Snapshot) -> None:
        may_write.wait()
        assert all(isinstance(rows, KeptRows) for share in snapshot.shares for rows in share.rows)
        whole(snapshot)

    monkeypatch.setattr(saving, "write_part", write_later)
    pending = ge.save_checkpoint(tmp_path / "2", tables=[emb], optimizers=[opt], step=2, background=True)
    train()
    may_write.set()
    train()
    assert isinstance(pending, saving.PendingCheckpoint)
    pending.wait()
    (file,) = (tmp_path / "rows").iterdir()
    assert (read_header(file) or {})["checkpoint"] == str(tmp_path / "2")
    files = sorted(path.relative_to(first) for path in Path(first).rglob("*.safetensors"))
    assert files
    assert all((tmp_path / "1" / path).read_bytes() == (tmp_path / "2" / path).read_bytes() for path in files)
    assert not torch.equal(emb.weight[:], wanted)


@pytest.mark.parametrize("end", ["a wait", "another file"])
def test_a_reader_rests_until_somebody_waits_for_it(
    tmp_path: Path, local_mode: None, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    emb = ge.DistEmbedding(4096, 8, "t", Uniform(seed=1), placement=ge.File(tmp_path / "rows", 1 << 18))
    opt = ge.SparseAdagrad([emb], lr=0.1)
    emb(torch.arange(500)).sum().backward()
    opt.step()
    expected, rests = emb.weight[:].clone(), threading.Event()
    rest = KeptPages.rest

    def told(pages: KeptPages, seconds: float) -> None:
        rests.set()
        rest(pages, seconds)

    monkeypatch.setattr(row_files, "PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(KeptPages, "rest", told)
    monkeypatch.setattr(module, "RESTS", 1e9)
    pending: Any = ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], background=True)
    assert rests.wait(60)
    emb(torch.arange(500)).sum().backward()
    opt.step()
    assert not pending.done
    if end == "another file":  # of pages with other state
        opt.close()
        opt = ge.SparseAdam([emb])
        pending._thread.join()
    pending.wait()
    emb = ge.DistEmbedding(4096, 8, "t")
    ge.load_checkpoint(tmp_path / "1", tables=[emb], weights_only=True)
    assert torch.equal(emb.weight[:], expected)


def test_rows_that_are_kept_and_forgotten_are_waited_for_by_nobody(tmp_path: Path) -> None:
    _, tiered = dirtied(tmp_path)
    pages = keep(tiered)._pages
    assert pages._closed
    tiered.write(torch.arange(60), torch.zeros(60, DIM))
    assert tiered.read(torch.tensor([1])).sum() == 0
    reader = tiered._pages.reader
    nothing = np.zeros(reader.file.num_pages, np.bool_)
    left = KeptPages((reader.file, reader._side), nothing, nothing)
    left.reader = lambda: None  # gone, and its end was not told yet
    left.wait_until_closed()
    del left, reader
    del tiered, _
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_pages_of_both_files_are_kept_again_and_again(tmp_path: Path) -> None:
    """A page changes its file once for each time that it is kept, if it is written before it was read."""
    rule = Adam(0.1)
    host, tiered = both(tmp_path, rule, 4)
    coming = iter(steps(2, 300))

    def train() -> None:
        for ids, grads in [next(coming), next(coming)]:
            for shard in (host, tiered):
                apply_update(rule, shard, ids, grads)

    places = []
    for _ in range(5):
        train()
        wanted, kept = columns_of(host), keep(tiered)
        for _ in range(3):  # some pages more than once
            train()
        check_kept(kept, wanted, train)
        kept.close()
        check_equal(host, tiered)
        places.append(tiered._pages.reader._beside.copy())
    assert all(0 < now.sum() < now.size for now in places)
    assert any((one & ~other).any() for one, other in pairwise(places))
    assert any((~one & other).any() for one, other in pairwise(places))


def test_a_kept_run_is_read_once(tmp_path: Path) -> None:
    _, tiered = dirtied(tmp_path)
    kept = keep(tiered)
    kept.read("weight", 300, 310)
    with pytest.raises(AssertionError, match="were handed out"):
        kept.read("weight", 0, 10)
    kept.close()
