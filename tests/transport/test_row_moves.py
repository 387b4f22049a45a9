"""Rows that go from rank to rank with their state: who sends what, and the bytes that arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RankRanges
from graph_emb.transport.lockstep import WRITE
from graph_emb.transport.row_moves import Move, RowMoves, from_owners, to_owners
from tests.ranks import Ranks, raised

LAYOUT = RankRanges([0, 4, 10], [0, 1], 2)


def test_ranges_come_from_those_that_store_them_and_go_back() -> None:
    by_rank = [[(8, 10)], [(2, 6), (0, 2)]]
    assert from_owners(LAYOUT, by_rank) == [
        Move(1, 0, 8, 10),
        Move(0, 1, 2, 4),
        Move(1, 1, 4, 6),
        Move(0, 1, 0, 2),
    ]
    assert to_owners(LAYOUT, [[], [(2, 6)]]) == [Move(1, 0, 2, 4), Move(1, 1, 4, 6)]
    assert from_owners(LAYOUT, [[], []]) == []


ASKED = [Move(0, 1, 1, 4), Move(1, 0, 9, 10), Move(0, 1, 0, 1), Move(1, 1, 5, 7)]


def table_of(dim: int, dtype: str) -> ge.DistEmbedding:
    """A table that has trained a step, in the mode that it begins."""
    ge.init(mode="collective", timeout=60)
    table = ge.DistEmbedding(10, dim, "own", ge.initializers.Uniform(seed=0), dtype=getattr(torch, dtype))
    optimizer = ge.SparseAdam([table], lr=0.1)
    (table(torch.arange(10)) * torch.arange(1.0, 11.0).unsqueeze(1)).sum().backward()
    optimizer.step()
    return table


def start_of(table: ge.DistEmbedding, asked: list[Move], background: bool = False) -> Any:
    """``RowMoves.start`` of rows as they lie with their owners."""
    transport: Any = table.transport
    moves, shard = RowMoves(transport, "own"), transport.shard("own")

    def read(low: int, high: int) -> list[torch.Tensor]:
        return moves.columns.read(shard, low - shard.first_id, high - shard.first_id)

    return moves.start(WRITE, asked, read, "a test", background=background)


def moved(dim: int, dtype: str, background: bool) -> tuple[list[tuple[int, int]], int]:
    table = table_of(dim, dtype)
    transport, ids = table.transport, torch.arange(10)
    state = RowMoves(transport, "own").columns.names
    whole = [table.weight[ids], *(transport.read_state("own", name, ids) for name in state)]
    before = transport.counts["own"].bytes_sent
    arrived = start_of(table, ASKED, background)
    for found in (arrived(), arrived()):  # a second call gives them again
        for move, values in found:
            for got, column in zip(values, whole, strict=True):
                assert torch.equal(got, column[move.low : move.high])
                assert got.double().abs().sum() > 0
    ranges = [(move.low, move.high) for move, _ in arrived()]
    sent = transport.counts["own"].bytes_sent - before
    ge.shutdown()
    return ranges, sent


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("dim", "dtype"), [(3, "bfloat16"), (4, "float32"), (5, "float64")])
def test_columns_of_any_width_arrive_at_their_targets_alone(
    ranks: Ranks, fresh_mode: None, dim: int, dtype: str, background: bool
) -> None:
    (first, sent), (second, back) = ranks.run(moved, 2, dim, dtype, background)
    assert first == [(9, 10)]
    assert sorted(second) == [(0, 1), (1, 4), (5, 7)]
    assert sent > back > 0


def differing() -> str:
    table = table_of(4, "float32")
    return raised(start_of, table, ASKED[table.transport.rank :])


def test_ranks_that_give_other_moves_are_told_who(ranks: Ranks, fresh_mode: None) -> None:
    assert "rank 1 is in a test, rank 0 sends it other rows" in ranks.run(differing, 2)[1]
