"""Trainers that take whole steps in turn: Adam's clock counts the steps of all, as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

STEPS = 8
IDS = torch.tensor([0, 2, 2, 5])
ADAMS = {"adam": ge.SparseAdam, "row_adam": ge.SparseRowAdam}


def gradients(step: int) -> Tensor:
    return torch.randn(len(IDS), 3, generator=torch.Generator().manual_seed(step))


def in_turn(transport: Any, rule: str, together: bool) -> tuple[Tensor, list[int]]:
    """The rows after all steps, of which each trainer takes its own; and the clock after each of those."""
    emb = ge.DistEmbedding(6, 3, name="t", init_func=ge.initializers.Uniform(seed=1))
    opt = ADAMS[rule]([emb], lr=0.1, bias_correction="global")
    if together:
        opt.take_turns(transport.rank, transport.world_size)
    clocks = []
    for step in range(STEPS):
        if step % transport.world_size == transport.rank:
            emb(IDS).backward(gradients(step))
            opt.step()
            clocks.append(int(opt.state_dict()["state"]["t"]["step"]))
            transport.flush()
        transport.barrier()
    rows = emb.weight[:]
    transport.barrier()
    return rows, clocks


def alone(rule: str) -> Tensor:
    try:
        return in_turn(ge.init(mode="local"), rule, together=True)[0]
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize("rule", ADAMS)
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_trainers_in_turn_take_the_steps_of_one_process(rule: str, trainers: int) -> None:
    expected = alone(rule)
    for rank, (rows, clocks) in enumerate(Cluster(trainers).run(in_turn, rule, True)):
        assert torch.equal(rows, expected)
        assert [clock % trainers for clock in clocks] == [rank] * len(clocks)


@pytest.mark.dist
def test_without_turns_each_trainer_counts_its_own_steps() -> None:
    expected = alone("adam")
    for rows, clocks in Cluster(2).run(in_turn, "adam", False):
        assert clocks == [1, 2, 3, 4]
        assert not torch.allclose(rows, expected, atol=1e-3)


def restored(transport: Any) -> list[int]:
    """Clocks after turns are taken: of a fresh state, of one's own, and of another layout's."""
    emb = ge.DistEmbedding(2, 1, name="t")
    opt = ge.SparseAdam([emb], lr=0.1, bias_correction="global")
    found = []
    for clock in (0, 2 * 5 + transport.rank, 7):
        state = opt.state_dict()
        state["state"]["t"]["step"].fill_(clock)
        opt.load_state_dict(state)
        opt.take_turns(transport.rank, 2)
        found.append(int(opt.state_dict()["state"]["t"]["step"]))
        transport.barrier()
    return found


@pytest.mark.dist
def test_a_restored_clock_is_at_its_own_turn() -> None:
    assert Cluster(2).run(restored) == [[0, 10, 8], [1, 11, 7]]


@pytest.mark.parametrize(("position", "trainers"), [(1, 1), (-1, 2), (0, 0)])
def test_a_turn_is_one_of_the_trainers(position: int, trainers: int) -> None:
    opt = ge.SparseAdam([ge.DistEmbedding(2, 1)], lr=0.1)
    try:
        with pytest.raises(ConfigError, match=rf"take_turns\({position}, {trainers}\)"):
            opt.take_turns(position, trainers)
    finally:
        ge.shutdown()


def in_lockstep() -> str:
    transport = ge.init(mode="collective", timeout=60)
    try:
        opt = ge.SparseAdam([ge.DistEmbedding(2, 1)], lr=0.1)
        with pytest.raises(ModeError) as caught:
            opt.take_turns(transport.rank, 2)
        return str(caught.value)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_in_lockstep_take_no_turns(ranks: Ranks) -> None:
    assert "ranks of collective mode share each step" in ranks.run(in_lockstep, 2)[0]
