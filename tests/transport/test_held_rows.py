"""Rows that ranks hold alone: trained as if the owners had been asked, with state, and back when they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.transport.held_rows import HeldRows
from tests.ranks import Ranks, with_shared_memory

ROUNDS = [[[(8, 10)], [(4, 8)]], [[(4, 8)], [(8, 10), (0, 4)]], [[], [(0, 4), (4, 8)]], [[(8, 10)], []]]
"""Rows of each rank in each round: (0, 4) rests in the first one, (8, 10) after it was trained in the third."""
IDS = [[[8, 9, 8], [5]], [[7, 5, 5], [1, 8]], [[], [0, 6]], [[9], []]]
OPTIMIZERS: dict[str, Any] = {
    "adagrad": ge.SparseAdagrad, "adam": ge.SparseAdam, "row adagrad": ge.SparseRowAdagrad, "sgd": ge.SparseSGD,
}  # fmt: skip


def tables(rule: str, placement: Any = "host") -> tuple[Any, Any, Any]:
    uniform = ge.initializers.Uniform(seed=0)
    own = ge.DistEmbedding(10, 3, "own", uniform, placement=placement)
    shared = ge.DistEmbedding(4, 3, "shared", uniform)
    return own, shared, OPTIMIZERS[rule]([own, shared], lr=0.1)


def step(own: Any, shared: Any, optimizer: Any, ids: list[int], scale: int) -> None:
    rows = own(torch.tensor(ids, dtype=torch.int64))
    (rows * (scale + torch.arange(3.0))).sum().backward()
    (shared(torch.tensor([1, scale % 4])) ** 2).sum().backward()
    optimizer.step()


def rows_of(own: Any, shared: Any, optimizer: Any) -> list[torch.Tensor]:
    state = own.transport.shard("own").state_specs
    ids = torch.arange(10)
    found = [own.transport.read_state("own", name, ids) for name, of in state.items() if of.kind != "table"]
    return [own.weight[:], shared.weight[:], *found]


def held(rule: str, how: str, folder: str) -> tuple[list[torch.Tensor], int]:
    in_place, in_files = how == "in place", how.startswith("files")
    transport: Any = ge.init(mode="collective", timeout=60, shared_memory=in_place)
    own, shared, optimizer = tables(rule, ge.File(folder, "16KiB") if in_files else "host")
    rank = transport.rank
    alone = HeldRows(transport, "own", 8, early=4096 if how == "files" else 0)
    assert alone.in_place is in_place
    for number, (ranges, ids) in enumerate(zip(ROUNDS, IDS, strict=True)):
        met = transport.group.num_calls
        alone.hold(ranges)
        assert transport.group.num_calls > met  # others may still change rows that this rank holds from here on
        if how not in ("in place", "moved") and number + 1 < len(ROUNDS):
            alone.announce(ROUNDS[number + 1])
            assert (alone._early is not None) == (number in (0, 2) and how != "files, no room")
        for turn in range(2):
            with alone:
                step(own, shared, optimizer, ids[rank], 2 * number + turn)
        if number == 1:
            met = transport.group.num_calls
            alone.give_back()
            assert transport.group.num_calls > met
            middle = own.weight[:]
        if not rank and not number:
            with pytest.raises(ModeError, match="'own': id 6 is in no part that this rank holds"):
                alone._find(torch.tensor([8, 6]))
    alone.give_back()
    steps = transport.num_steps
    found = rows_of(own, shared, optimizer)
    with pytest.raises(ConfigError, match="9 rows to hold, there is room for 8"):
        alone.hold([[], [(0, 9)]])
    ge.shutdown()
    return [*found, middle], steps


HOW = ["moved", "announced", "files", "files, no room"]


@pytest.mark.parametrize("how", [pytest.param("in place", marks=with_shared_memory), *HOW])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_rows_that_ranks_hold_are_those_of_owners_that_are_asked(
    ranks: Ranks, fresh_mode: None, tmp_path: Path, rule: str, how: str
) -> None:
    ge.init(mode="local")
    own, shared, optimizer = tables(rule)
    for number, ids in enumerate(IDS):
        for turn in range(2):
            scale = 2 * number + turn
            for of_rank in ids:
                rows = own(torch.tensor(of_rank, dtype=torch.int64))
                (rows * (scale + torch.arange(3.0))).sum().backward()
                (shared(torch.tensor([1, scale % 4])) ** 2).sum().backward()
            optimizer.step()
        if number == 1:
            middle = own.weight[:]
    expected = [*rows_of(own, shared, optimizer), middle]
    for found, steps in ranks.run(held, 2, rule, how, str(tmp_path)):
        assert steps == 8  # each counted once
        for wanted, got in zip(expected, found, strict=True):
            assert torch.allclose(wanted, got, rtol=0, atol=0 if wanted is not expected[1] else 1e-6)


def narrow() -> str:
    transport: Any = ge.init(mode="collective", wire_dtype="bfloat16")
    own, _, _optimizer = tables("adagrad")
    with pytest.raises(ConfigError) as refused:
        HeldRows(transport, own.name, 8)
    ge.shutdown()
    return str(refused.value)


def test_rows_that_would_be_rounded_whenever_they_move_are_refused(ranks: Ranks) -> None:
    assert "'own': wire_dtype=torch.bfloat16 would round all its rows" in ranks.run(narrow, 2)[0]
