"""Pieces of several columns in one exchange, through shared memory and through sockets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.pieces import exchange_columns
from tests.ranks import Ranks, with_shared_memory

pytestmark = pytest.mark.dist

KINDS = ((torch.bfloat16, (3,)), (torch.float64, (2,)), (torch.int64, ()), (torch.int8, (5,)))
"""Rows of 6, 16, 8 and 5 bytes: a piece that began where the one before ends would suit no view of the next dtype."""


def column(kind: int, sender: int, receiver: int, turn: int) -> Tensor:
    """What a rank sends to another: from no rows on."""
    dtype, shape = KINDS[kind]
    num = (3 * sender + 5 * receiver + 2 * kind + turn) % 4
    return torch.full((num, *shape), 40 * sender + 10 * receiver + kind + turn, dtype=dtype)


def exchanged(shared: bool) -> bool:
    transport: Any = ge.init(mode="collective", timeout=60, shared_memory=shared)
    group, right = transport.group, []
    ranks, kinds = range(group.world_size), range(len(KINDS))
    try:
        for turn in range(6):
            sent = [[column(k, group.rank, r, turn) for r in ranks] for k in kinds]
            wanted = [[column(k, r, group.rank, turn) for r in ranks] for k in kinds]
            counts = [[[len(piece) for piece in pieces] for pieces in way] for way in (sent, wanted)]
            before = group.num_calls
            got = exchange_columns(group, list(map(torch.cat, sent)), *counts, "test")
            right += [torch.equal(one, torch.cat(pieces)) for one, pieces in zip(got, wanted, strict=True)]
            right.append(group.num_calls == before and group.same_memory == shared)
    finally:
        ge.shutdown()
    return all(right)


@pytest.mark.parametrize("shared", [pytest.param(True, marks=with_shared_memory), False])
@pytest.mark.parametrize("world_size", [2, 3])
def test_pieces_of_any_dtype_arrive_in_order(ranks: Ranks, world_size: int, shared: bool) -> None:
    assert ranks.run(exchanged, world_size, shared) == [True] * world_size
