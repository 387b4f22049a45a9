"""All rows of a table on the rank that wants them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graph_emb as ge
from graph_emb.core import page_cache
from graph_emb.formats import gathered_rows as module
from tests.ranks import Ranks


@pytest.mark.parametrize("chunk", [3, 7, 100])
def test_rows_come_in_the_order_of_ids(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk)
    emb = ge.DistEmbedding(10, 2, init_func=ge.initializers.Uniform(seed=1))
    rows = module.all_rows(emb, wanted=True)
    assert rows is not None
    assert torch.equal(rows, emb.weight[:])
    assert not rows.requires_grad
    assert module.all_rows(emb, wanted=False) is None


@pytest.mark.parametrize("num", [1, 50, 403])
def test_rows_of_a_file_come_in_a_file(num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 7 * 16)
    monkeypatch.setattr(page_cache, "SYNC_BYTES", 100 * 16)
    first = ge.initializers.Uniform(seed=1)
    emb = ge.DistEmbedding(num, 4, init_func=first, placement=ge.File(tmp_path, 1 << 18))
    rows = module.all_rows(emb, wanted=True)
    assert rows is not None
    assert torch.equal(rows, ge.DistEmbedding(num, 4, init_func=first).weight[:])
    rows[0] = 5.0
    assert not torch.equal(rows[0], emb.weight[0]), "they are a copy"
    assert module.all_rows(emb, wanted=False) is None


@pytest.mark.parametrize("in_file", [False, True])
def test_rows_of_two_tables_are_joined_row_by_row(
    in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 3 * 20)
    first, second = torch.arange(20.0).view(10, 2), torch.arange(30.0).view(10, 3)
    seen: list[int] = []

    def join(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen.append(len(one))
        return torch.cat([one, other], dim=1)

    joined = module.joined_rows(join, [first, second], tmp_path if in_file else None)
    assert torch.equal(joined, torch.cat([first, second], dim=1))
    assert seen == ([0, 3, 3, 3, 1] if in_file else [10])
    assert list(tmp_path.iterdir()) == []


def on_a_rank() -> list[list[float]] | None:
    transport = ge.init(mode="collective")
    try:
        emb = ge.DistEmbedding(9, 2, "t", init_func=ge.initializers.Uniform(seed=1))
        rows = module.all_rows(emb, wanted=transport.rank == 1)
        return None if rows is None else rows.tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_one_of_several_ranks_gets_them(ranks: Ranks) -> None:
    emb = ge.DistEmbedding(9, 2, init_func=ge.initializers.Uniform(seed=1))
    assert ranks.run(on_a_rank, 3) == [None, emb.weight[:].tolist(), None]
