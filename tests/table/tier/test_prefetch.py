"""What an announced batch waits for: nothing that it starts itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from graph_emb.optim.apply import apply_update
from graph_emb.optim.rules import SGD, Adagrad
from graph_emb.table.placement import POLICIES
from graph_emb.table.tier.cache import LEAST_HELD
from tests.table.tier.test_shard import DIM, both, check_equal


@pytest.mark.parametrize("policy", POLICIES)
def test_an_announced_batch_waits_neither_for_the_pages_it_pushes_out_nor_for_others_that_are_written(
    tmp_path: Path, policy: str
) -> None:
    host, tiered = both(tmp_path, Adagrad(0.1), 4, policy=policy, rows=2400)
    pages, rows = tiered._pages, torch.arange(2400)
    for shard in (host, tiered):
        shard.write(rows, torch.randn(2400, DIM, generator=torch.Generator().manual_seed(0)))
    tiered.flush()
    held = np.flatnonzero(pages.frames.frame_of >= 0) << pages.frames.shift
    for shard in (host, tiered):
        apply_update(
            Adagrad(0.1), shard, torch.from_numpy(held), torch.ones(len(held), DIM)
        )  # all are newer than the file
    tiered.read(torch.from_numpy(held[:1]))  # the pages of a call stay until the next one
    reader, disk, late = cast(Any, pages.reader), threading.Event(), threading.Timer(30.0, lambda: disk.set())
    standing = [reader._pool.submit(disk.wait) for _ in range(reader._num_threads)]
    late.start()
    tiered.prefetch(torch.arange(0, 4 << pages.frames.shift))
    tiered.prefetch(torch.arange(1200, 1200 + (4 << pages.frames.shift)))
    assert not disk.is_set(), "it waited for the disk"
    disk.set()
    late.cancel()
    assert all(one.result() for one in standing)
    stats = tiered.cache_stats()
    assert stats.prefetched >= 8
    assert stats.dirty_writes >= 8
    check_equal(host, tiered)


def test_a_call_waits_for_the_held_rows_that_it_needs_and_not_for_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transfer brought all of them, so that a bucket's part was there when that of the next one was."""
    host, tiered = both(tmp_path, SGD(0.1), 2, rows=20_000)
    pages, rows = tiered._pages, torch.arange(20_000)
    for shard in (host, tiered):
        shard.write(rows, torch.randn(20_000, DIM, generator=torch.Generator().manual_seed(0)))
    tiered.flush()
    waited: list[set[int]] = []
    reader, exchange = pages.reader, pages.reader.exchange

    def noted(old: Any, dirty: Any, new: np.ndarray, *rest: Any) -> Any:
        transfer = exchange(old, dirty, new, *rest)
        wait = transfer.wait
        monkeypatch.setattr(transfer, "wait", lambda: (waited.append(set(new.tolist())), wait()))
        return transfer

    monkeypatch.setattr(reader, "exchange", noted)
    shift, (first, second) = pages.frames.shift, ((0, 3_000), (5_000, 8_000))
    parts = [set(range(low >> shift, ((high - 1) >> shift) + 1)) for low, high in (first, second)]
    assert min(map(len, parts)) >= LEAST_HELD
    tiered.hold([first, second])
    assert not waited
    for k, (low, high) in enumerate((first, second)):
        asked = rows[low:high:7]
        assert torch.equal(tiered.read(asked), host.read(asked))
        assert len(waited) == k + 1
        assert waited[k] <= parts[k]
        assert waited[k]
    misses = tiered.cache_stats().misses
    tiered.hold([(low, low + 1) for low in range(9_000, 9_000 + (20 << shift), 1 << shift)])  # short ones come together
    tiered.read(rows[9_000 : 9_000 + (20 << shift) : 1 << shift])
    assert len(waited) == 3
    assert tiered.cache_stats().misses == misses
    check_equal(host, tiered)
