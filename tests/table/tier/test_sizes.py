"""Pages that a budget holds, told before a table is made: as many as the table then has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.table.tier.shard import TieredShard
from graph_emb.table.tier.sizes import held_pages

NUM, DIM = 2_000, 16


@pytest.mark.parametrize("make", [ge.SparseSGD, ge.SparseAdagrad, ge.SparseRowAdam])
@pytest.mark.parametrize("kind", ["cache", "file"])
def test_pages_that_memory_holds_are_those_of_the_table(
    local_mode: None, tmp_path: Path, kind: str, make: type[Any]
) -> None:
    memory = 100_000
    placement = ge.DeviceCache(memory) if kind == "cache" else ge.File(tmp_path, memory)
    emb = ge.DistEmbedding(NUM, DIM, placement=placement)
    opt = make([emb], lr=0.1)
    held, pages = held_pages(NUM, DIM, memory, torch.float32, make.state_of({}), on_device=kind == "cache")
    shard = emb.shard
    assert isinstance(shard, TieredShard)
    frames = shard._pages.frames
    assert (held, pages) == (len(frames.page_of), len(frames.frame_of))
    assert 0 < held < pages
    opt.close()
