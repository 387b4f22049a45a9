"""Rates, clocks and rows that are set by hand count at once, in every mode; state has torch's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError
from tests.ranks import Ranks
from tests.test_optimizer import OPTIMIZERS
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 12, 3
BOOK = ge.RangeBook([0, 5, NUM])
ORIGINAL = np.random.default_rng(0).permutation(NUM)
STATE = {
    "SparseSGD": {"momentum_buffer"},
    "SparseAdagrad": {"sum"},
    "SparseRowAdagrad": {"sum"},
    "SparseAdam": {"exp_avg", "exp_avg_sq", "step"},
    "SparseAdamW": {"exp_avg", "exp_avg_sq", "step"},
    "SparseRowAdam": {"exp_avg", "exp_avg_sq", "step"},
    "SparseLAMB": {"exp_avg", "exp_avg_sq", "step"},
    "SparseRowLAMB": {"exp_avg", "exp_avg_sq", "step"},
    "SparseLARS": {"momentum_buffer"},
}


def table(name: str, **options: Any) -> ge.DistEmbedding:
    """Of float64, with first values that belong to original ids."""
    first = options.pop("init_func", ge.initializers.Uniform(-1, 1, seed=5))
    options = {"dtype": torch.float64, "original_ids": ORIGINAL, **options}
    return ge.DistEmbedding(NUM, DIM, name, first, BOOK, **options)


def step(emb: ge.DistEmbedding, opt: ge.SparseOptimizer, grad: float = 1.0) -> None:
    """One step of all rows, each rank with its share of the ids."""
    ids = torch.arange(NUM)[opt.rank :: opt.world_size]
    emb(ids).backward(torch.full((len(ids), DIM), grad, dtype=torch.float64))
    opt.step()
    opt.transport.flush()
    opt.transport.barrier()


def adam_step(t: int, m: float, v: float, lr: float) -> float:
    return lr * m / (1 - 0.9**t) / math.sqrt(v / (1 - 0.999**t))


def rates_and_clocks(rank: int) -> list[float]:
    """How far a row went in each step: by rates, and by clocks, that change between backward() and step() too."""
    emb = table("sgd")
    opt = ge.SparseSGD([emb], lr=1.0)
    far = []

    def moved(emb: ge.DistEmbedding, opt: ge.SparseOptimizer) -> None:
        before = emb.weight[:]
        opt.transport.barrier()
        step(emb, opt)
        far.append(float((before - emb.weight[:])[3, 1]))
        opt.transport.barrier()

    moved(emb, opt)
    opt.set_lr(0.25)
    moved(emb, opt)
    emb(torch.tensor([3] if opt.rank == 0 else [], dtype=torch.int64)).sum().backward()
    opt.set_lr(torch.tensor(0.5))
    before = emb.weight[:]
    opt.transport.barrier()
    opt.step()
    opt.transport.flush()
    opt.transport.barrier()
    far.append(float((before - emb.weight[:])[3, 1]))
    adam = table("adam")
    clocked = ge.SparseAdam([adam], lr=0.125, eps=0.0, compat="fbgemm")
    moved(adam, clocked)
    clocked.set_step(1000)
    moved(adam, clocked)
    clocked.set_step(0)
    moved(adam, clocked)
    return far


@pytest.fixture(scope="module")
def expected() -> list[float]:
    m, v = 0.9 * 0.1 + 0.1, 0.999 * 0.001 + 0.001
    later = 0.9 * m + 0.1, 0.999 * v + 0.001
    return [
        *(1.0, 0.25, 0.5),
        *(adam_step(1, 0.1, 0.001, 0.125), adam_step(1001, m, v, 0.125), adam_step(1, *later, 0.125)),
    ]


def test_locally_they_count_at_once(expected: list[float]) -> None:
    """FBGEMM's set_optimizer_step writes a number that its CPU kernel reads in a fresh module only."""
    assert rates_and_clocks(0) == pytest.approx(expected, rel=1e-10)


def rates_on_a_rank() -> list[float]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return rates_and_clocks(transport.rank)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_on_ranks_too(ranks: Ranks, expected: list[float]) -> None:
    for found in ranks.run(rates_on_a_rank, 2):
        assert found == pytest.approx(expected, rel=1e-10)


def rates_of_a_trainer(transport: Any) -> list[float]:
    return rates_and_clocks(transport.rank)


@pytest.mark.dist
def test_in_servers_too(expected: list[float]) -> None:
    assert Cluster(1, 1, 2).run(rates_of_a_trainer)[0] == pytest.approx(expected, rel=1e-10)


def test_groups_keep_their_other_numbers_and_bad_ones_change_nothing() -> None:
    one, two = table("one"), table("two")
    opt = ge.SparseAdam([{"params": [one], "lr": 0.5}, {"params": [two], "eps": 0.25}])
    opt.set_lr(0.125)
    assert [(group["lr"], group["eps"]) for group in opt.param_groups] == [(0.125, 1e-8), (0.125, 0.25)]
    for bad in (math.nan, -1.0, math.inf, "1"):
        with pytest.raises(ConfigError, match="lr="):
            opt.set_lr(bad)
    assert [group["lr"] for group in opt.param_groups] == [0.125, 0.125]
    for bad in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=r"step=.* must be an integer"):
            opt.set_step(bad)


def test_clocks_that_are_not_there_are_not_set() -> None:
    with pytest.raises(ConfigError, match="keeps no count of steps"):
        ge.SparseAdagrad([table("one")]).set_step(3)
    with pytest.raises(ConfigError, match="counts the steps of each row"):
        ge.SparseAdam([table("two")], bias_correction="row").set_step(3)
    emb = table("three")
    decaying = ge.SparseAdagrad([emb], lr_decay=0.1)
    decaying.set_step(3)
    assert emb.shard.state["step"].tolist() == [3]
    half = table("four", dtype=torch.bfloat16)
    rounding = ge.SparseSGD([half], stochastic_rounding=True)
    rounding.set_step(7)
    assert half.shard.state["table_step"].tolist() == [7]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_piece_of_state_has_torchs_name(name: str) -> None:
    emb = table("t")
    opt = OPTIMIZERS[name]([emb])
    assert set(emb.optm_state) == STATE[name]
    assert set(opt.state_dict()["state"]["t"]) == STATE[name]
    plain = table("plain")
    without = ge.SparseSGD([plain])
    assert without.state_dict()["state"] == {"plain": {}}


def reset(rank: int, world_size: int) -> dict[str, Tensor]:
    """What rows and state are after some steps, a reset of rows 0, 4, 5 and 11, and one more step."""
    found = {}
    for kind, init in {
        "SparseAdagrad": ge.initializers.Uniform(-1, 1, seed=5),
        "SparseAdam": ge.initializers.FromArray(torch.arange(3.0 * NUM).view(NUM, DIM)),
        "SparseRowLAMB": Runs(),
        "SparseSGD": Runs(),
    }.items():
        emb = table(kind, init_func=init)
        options: dict[str, Any] = {"bias_correction": "row"}
        if kind == "SparseAdagrad":
            options = {"initial_accumulator_value": 0.5}
        if kind == "SparseSGD":
            options = {"weight_decay": 0.5, "weight_decay_mode": "lazy", "count_rows": True}
        opt = getattr(ge, kind)([emb], lr=0.5, **options)
        emb.freeze(torch.tensor([4]))
        for k in range(3):
            step(emb, opt, float(k + 1))
        named = {"collective": [[0, 5, 5], [4, 11, 0]][rank] if world_size == 2 else [11, 5, 0, 4, 5]}
        if opt.transport.mode == "collective":
            emb.reset_rows(torch.tensor(named["collective"]))
        elif rank == 0:
            emb.reset_rows(torch.tensor([[11, 5], [0, 4]]))
        opt.transport.barrier()
        found[f"{kind} rows"] = emb.weight[:]
        opt.transport.barrier()
        step(emb, opt)
        found[f"{kind} later"] = emb.weight[:]
        shard = emb.shard
        for name, values in emb.shard.state.items():
            found[f"{kind} {name}"] = torch.cat([torch.tensor([float(shard.first_id)]), values.flatten().double()])
    return found


class Runs:
    """An initializer of one's own, called for each run of consecutive ids."""

    def fill_(self, weight: Tensor, first_id: int) -> None:
        weight.copy_(torch.arange(first_id, first_id + len(weight)).unsqueeze(1) + 1)


@pytest.fixture(scope="module")
def once() -> dict[str, Tensor]:
    ge.shutdown()
    found = reset(0, 1)
    ge.shutdown()
    return found


def test_rows_begin_again(once: dict[str, Tensor]) -> None:
    """A reset row is, and moves, as a row that no step has touched; the others are as they were."""
    again = [0, 4, 5, 11]
    for kind, init in {"SparseAdagrad": ge.initializers.Uniform(-1, 1, seed=5), "SparseRowLAMB": Runs()}.items():
        fresh = table("fresh", init_func=init)
        assert torch.equal(once[f"{kind} rows"][again], fresh.weight[again])
        assert (once[f"{kind} rows"] != fresh.weight[:]).any(dim=1).sum() == NUM - len(again)
        del fresh
    state = once["SparseAdagrad sum"][1:].view(NUM, DIM)
    assert state[again].tolist() == [[1.5] * 3, [0.5] * 3, [1.5] * 3, [1.5] * 3]  # 4 is frozen
    assert (state[[1, 2, 3, 6, 7, 8, 9, 10]] == 0.5 + 1 + 4 + 9 + 1).all()
    rows = torch.arange(1.0, NUM + 1, dtype=torch.float64)[torch.from_numpy(ORIGINAL)]
    assert torch.equal(once["SparseSGD rows"][again, 0], rows[again])  # of lazy decay: they lack none
    torch.testing.assert_close(once["SparseSGD later"][[0, 5, 11], 0], 0.75 * rows[[0, 5, 11]] - 0.5)
    assert once["SparseSGD row_count"][1:].tolist() == [1, 4, 4, 4, 0, 1, 4, 4, 4, 4, 4, 1]
    steps = once["SparseAdam step"][1:]
    assert steps.tolist() == [1, 4, 4, 4, 0, 1, 4, 4, 4, 4, 4, 1]
    moved = once["SparseAdagrad rows"] - once["SparseAdagrad later"]
    torch.testing.assert_close(moved[0], torch.full((3,), 0.5 / math.sqrt(1.5), dtype=torch.float64))
    assert torch.equal(moved[4], torch.zeros(3, dtype=torch.float64))


def check(found: dict[str, Tensor], once: dict[str, Tensor]) -> None:
    for name, values in found.items():
        expected = once[name]
        if values.dim() == 1:  # state of this process alone, with the id of its first row
            whole, columns = expected[1:], (len(expected) - 1) // NUM
            start = int(values[0]) * columns
            values, expected = values[1:], whole[start : start + len(values) - 1]
        assert torch.equal(values, expected), name


def reset_on_a_rank() -> dict[str, Tensor]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return reset(transport.rank, transport.world_size)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_on_ranks_the_ids_of_all_are_reset(ranks: Ranks, once: dict[str, Tensor]) -> None:
    for found in ranks.run(reset_on_a_rank, 2):
        check(found, once)


def reset_by_a_trainer(transport: Any) -> dict[str, Tensor]:
    return reset(transport.rank, transport.world_size)


@pytest.mark.dist
def test_in_servers_the_call_of_one_trainer_resets(once: dict[str, Tensor]) -> None:
    """Two servers of a machine: the second one's map of original ids begins at its own rows."""
    for found in Cluster(trainers=2, machines=1, servers=2).run(reset_by_a_trainer):
        check(found, once)


def prefetched() -> list[Tensor]:
    ge.init(mode="collective", timeout=60)
    try:
        emb = table("t")
        first = emb.weight[:]
        opt = ge.SparseSGD([emb], lr=1.0)
        step(emb, opt)
        emb.prefetch(torch.arange(NUM))
        emb.reset_rows(torch.tensor([1, 8]))
        with torch.no_grad():
            return [emb(torch.arange(NUM)), first]
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_rows_that_were_prefetched_are_sent_again(ranks: Ranks) -> None:
    for found, first in ranks.run(prefetched, 2):
        assert (found == first).all(dim=1).nonzero().flatten().tolist() == [1, 8]


def test_what_cannot_be_reset_is_refused() -> None:
    emb = table("t")
    with pytest.raises(PartitionError, match=r"id 12 is outside \[0, 12\)"):
        emb.reset_rows(torch.tensor([12]))
    made = table("u", init_func=lambda shape, dtype: torch.ones(shape, dtype=dtype))
    with pytest.raises(ConfigError, match="knows no ids"):
        made.reset_rows(torch.tensor([1]))


def test_rows_of_a_file_are_read_again(tmp_path: Any) -> None:
    values = np.random.default_rng(1).normal(size=(NUM, DIM))
    np.save(tmp_path / "rows.npy", values)
    emb = table("t", init_func=ge.initializers.FromFile(tmp_path / "rows.npy"))
    emb.weight[:] = torch.zeros(NUM, DIM)
    emb.reset_rows(torch.tensor([9, 2, 3]))
    expected = torch.zeros(NUM, DIM, dtype=torch.float64)
    expected[[2, 3, 9]] = torch.from_numpy(values[ORIGINAL[[2, 3, 9]]])
    assert torch.equal(emb.weight[:], expected)
