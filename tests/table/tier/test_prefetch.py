"""What an announced batch waits for: nothing that it starts itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from graph_emb.optim.apply import apply_update
from graph_emb.optim.rules import Adagrad
from graph_emb.table.placement import POLICIES
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
