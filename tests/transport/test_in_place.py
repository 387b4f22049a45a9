"""Ranks that share rows and state step alone: no rank waits for another, and each builds on what the others did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.runtime import current
from tests.ranks import Ranks, with_shared_memory

pytestmark = [pytest.mark.dist, with_shared_memory]

NAMES = ["first", "second"]
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SparseSGD", {"lr": 0.1, "momentum": 0.9}),
    "adagrad": ("SparseAdagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
    "row adagrad": ("SparseRowAdagrad", {"lr": 0.1}),
    "adam": ("SparseAdam", {"lr": 0.1}),
    "adam, row clock": ("SparseAdam", {"lr": 0.1, "bias_correction": "row", "merge": "mean"}),
    "rounded by chance": ("SparseAdam", {"lr": 0.1, "state_dtype": "bfloat16"}),
}


def made(name: str) -> tuple[list[Any], Any]:
    tables = [ge.DistEmbedding(11, 4, "first"), ge.DistEmbedding(5, 2, "second")]
    kind, options = OPTIMIZERS[name]
    return tables, getattr(ge, kind)(tables, **options)


def step(tables: list[Any], optimizer: Any, number: int) -> None:
    """Rows of both halves, some twice; the second table in every other step."""
    ids = torch.arange(5) * (number + 2) % 11
    loss = (tables[0](torch.cat([ids, ids[:2]])) * (number + 1)).sin().sum()
    if number % 2:
        loss = loss + (tables[1](ids % 5) * number).cos().sum()
    loss.backward()
    optimizer.step()


def read(tables: list[Any]) -> dict[str, Tensor]:
    found = {table.name: table.weight[:].clone() for table in tables}
    for table in tables:
        for name, state in table.optm_state.items():
            found[f"{table.name}.{name}"] = state[:].clone()
    return found


def in_turn(name: str, steps: int, place: str) -> dict[str, Tensor]:
    """Ranks step one after the other, each on its own; then a checkpoint."""
    transport = ge.init(mode="collective", timeout=60, hogwild=True)
    try:
        tables, optimizer = made(name)
        alone = transport.in_place(NAMES)
        assert transport.in_place(NAMES) is not alone, "again is allowed"
        with alone:
            optimizer.take_turns(transport.rank, transport.world_size)
        for number in range(steps):
            if number % transport.world_size == transport.rank:
                with alone:
                    step(tables, optimizer, number)
                assert transport.counts["first"].bytes_sent == 0
            transport.barrier()
        own = {table.name: table.shard.num_rows for table in tables}
        assert 0 < own["first"] < 11, "the other rank owns rows that this one has changed"
        whole = read(tables)
        ge.save_checkpoint(place, tables=tables, optimizers=[optimizer], step=steps)
        return whole
    finally:
        ge.shutdown()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_turn_are_those_of_one_process(ranks: Ranks, tmp_path: Path, name: str, local_mode: None) -> None:
    """The rows and the state of a step are there for the next one of another rank, bit for bit."""
    place = str(tmp_path / "7")
    first, second = ranks.run(in_turn, 2, name, 7, place)
    tables, optimizer = made(name)
    for number in range(7):
        step(tables, optimizer, number)
    expected = read(tables)
    assert expected.keys() == first.keys()
    rows = {key: value for key, value in expected.items() if value.ndim and len(value) > 1}
    for key, value in rows.items():
        assert torch.equal(first[key], value), key
        assert torch.equal(second[key], value), key
    for table in tables:
        table.weight[:] = 0.0
    ge.load_checkpoint(place, tables=tables, optimizers=[optimizer])
    for key, value in rows.items():
        assert torch.equal(read(tables)[key], value), f"{key}, saved"


def unequal(shares: list[int]) -> tuple[list[float], list[float], bool]:
    """Each rank makes as many steps as its share says without a meeting, then reads all rows together."""
    transport = ge.init(mode="collective", timeout=60, hogwild=True)
    try:
        table = ge.DistEmbedding(6, 1, "first", ge.initializers.Zeros())
        optimizer = ge.SparseSGD([table], lr=1.0)
        alone = transport.in_place(["first"])
        for turn in range(len(shares)):  # one after the other: of two at once an update may be lost
            if turn == transport.rank:
                for _ in range(shares[turn]):
                    with alone:
                        table(torch.tensor([0, 3 + turn, 5])).sum().backward()
                        optimizer.step()
            transport.barrier()
        together = table(torch.arange(6)).detach().flatten().tolist()
        return together, table.weight[:].flatten().tolist(), transport.lockstep
    finally:
        ge.shutdown()


def test_ranks_step_as_often_as_they_like_and_none_is_lost(ranks: Ranks) -> None:
    for together, stored, lockstep in ranks.run(unequal, 2, [3, 2]):
        assert together == stored == [-5.0, 0.0, 0.0, -3.0, -2.0, -5.0]
        assert lockstep, "outside of steps ranks go together again"


def refused(case: str) -> str:
    transport = ge.init(mode="collective", timeout=60, hogwild=case != "apart")
    try:
        tables, optimizer = made("adagrad")
        if case == "frozen":
            tables[0].freeze(torch.tensor([2]))
        alone = transport.in_place(NAMES)
        if case == "other optimizer":
            optimizer.close()
            optimizer = ge.SparseAdagrad(tables)
        with alone:
            step(tables, optimizer, 1)
    except ge.ModeError as error:
        return str(error)
    finally:
        ge.shutdown()
    return ""


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("apart", "ranks step alone where they share rows"),
        ("frozen", "table 'first': ranks that step alone would change rows that others froze"),
        ("other optimizer", "table 'first' has another optimizer since in_place()"),
    ],
)
def test_steps_alone_that_would_go_wrong_are_refused(ranks: Ranks, case: str, message: str) -> None:
    assert all(message in text for text in ranks.run(refused, 2, case))


def test_one_process_has_no_steps_to_take_apart(local_mode: None) -> None:
    with current().in_place(["first"]) as nothing:
        assert nothing is None
