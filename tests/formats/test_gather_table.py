"""All rows of a table on the rank that wants them."""

from __future__ import annotations

import pytest
import torch

import graph_emb as ge
from graph_emb.formats import embedding_files as module
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
