"""Pages that a budget holds, told before a table is made: as many as the table then has."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.skipgram.model import SkipGram, SkipGramConfig
from graph_emb.table.initializers import Uniform
from graph_emb.table.placement import Buckets
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.shard import TieredShard
from graph_emb.table.tier.sizes import fewest_parts, held_pages, sides_of

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


@pytest.mark.parametrize("held", [1, 2])
@pytest.mark.parametrize("memory", [25_000, 30_000, 60_000, 200_000])
def test_the_fewest_parts_are_those_of_which_memory_holds_as_many(tmp_path: Path, memory: int, held: int) -> None:
    parts = fewest_parts(5_000, 32, memory, held)
    assert parts is not None
    place = Buckets(tmp_path, memory, parts=parts)
    spec = TableSpec("t", 5_000, 32, RangeBook.even(5_000), Uniform(seed=3), placement=place)
    shard, bounds = TieredShard(spec, 0, 5_000), np.arange(parts + 1) * 5_000 // parts
    ranges = list(pairwise(bounds.tolist()))
    assert all(shard.num_held([*some]) == held for some in permutations(ranges, held))
    assert parts == 2 or fewest_parts(5_000, 32, 4 * memory, held) < parts  # type: ignore[operator]
    assert fewest_parts(5_000, 32, 10_000, 2) is None


@pytest.mark.parametrize(
    ("share", "parts", "held"),
    [
        (0.30, 4, (1, 1)),  # what the first one's part leaves
        (0.40, 4, (1, 2)),  # the second one has two, and the first one what is left
        (0.90, 4, (2, 2)),
        (0.10, 20, (1, 2)),
        (0.20, 7, (1, 1)),  # whose parts begin within pages
    ],
)
def test_the_second_table_of_a_grid_has_the_memory_that_a_part_of_the_first_leaves(
    tmp_path: Path, share: float, parts: int, held: tuple[int, int]
) -> None:
    num, dim = 40_000, 32
    place = Buckets(tmp_path, int(share * num * dim * 4), parts=parts)
    sides = sides_of(place, num, dim)
    assert sum(one.memory_bytes for one in sides) == 2 * place.memory_bytes
    assert all((one.folder, one.parts) == (place.folder, parts) for one in sides)
    spec = TableSpec("t", num, dim, RangeBook.even(num), Uniform(seed=3), placement=place)
    ranges = list(pairwise((np.arange(parts + 1) * num // parts).tolist()))
    found = []
    for name, one in zip("ab", sides, strict=True):
        shard = TieredShard(replace(spec, name=name, placement=one), 0, num)
        found.append(min(shard.num_held([*some]) for some in permutations(ranges, 2)))
    assert tuple(found) == held
    assert sides[1].memory_bytes > place.memory_bytes or sides[0].memory_bytes >= place.memory_bytes


def test_a_memory_of_less_than_a_part_stays_even_and_is_refused(local_mode: None, tmp_path: Path) -> None:
    place = Buckets(tmp_path, 300_000, parts=4)
    assert sides_of(place, 40_000, 32) == (place, place)
    with pytest.raises(ConfigError, match="does not hold one of 4 parts"):
        SkipGram(40_000, SkipGramConfig(dim=32, buckets=4), placement=place)
