"""What torch's own suite asks of an optimizer: hooks, later groups, ascent, schedulers, first rates, state by place."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import graph_emb as ge
from tests.optim.oracles import batches
from tests.test_optimizer import DIM, OPTIMIZERS, ROWS, feed, table

pytestmark = pytest.mark.usefixtures("fresh_mode")

BATCHES = batches(ROWS, DIM)


def peer_of(emb: ge.DistEmbedding) -> torch.nn.Embedding:
    peer = torch.nn.Embedding(ROWS, DIM, sparse=True, dtype=emb.weight.dtype)
    peer.weight.data.copy_(emb.weight[:])
    return peer


def train(pairs: list[tuple[Any, Any]], steps: list[tuple[np.ndarray, np.ndarray]] = BATCHES) -> None:
    """The same gradients for the tables of several optimizers."""
    with torch.sparse.check_sparse_tensor_invariants(False):
        for ids, grads in steps:
            for tables, optimizer in pairs:
                optimizer.zero_grad()
                for emb in tables:
                    feed(emb, ids, grads)
                optimizer.step()


def close(emb: ge.DistEmbedding, peer: torch.nn.Embedding) -> None:
    tight = emb.weight.dtype == torch.float64
    torch.testing.assert_close(
        emb.weight[:], peer.weight.data, rtol=1e-11 if tight else 1e-4, atol=1e-12 if tight else 1e-5
    )


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("SparseSGD", torch.optim.SGD),
        ("SparseAdagrad", torch.optim.Adagrad),
        ("SparseAdam", torch.optim.SparseAdam),
        ("SparseAdamW", torch.optim.AdamW),
    ],
)
def test_default_rates_are_torchs(name: str, theirs: Any) -> None:
    expected = inspect.signature(theirs).parameters["lr"].default
    assert inspect.signature(getattr(ge, name)).parameters["lr"].default == expected
    assert getattr(ge, name)([table()]).param_groups[0]["lr"] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused", "reference"])
@pytest.mark.parametrize("name", ["SparseSGD", "SparseAdagrad", "SparseAdam"])
def test_maximize_goes_up_as_torch_does(name: str, dtype: torch.dtype) -> None:
    emb = table(dtype)
    peer = peer_of(emb)
    ours = getattr(ge, name)([emb], 0.1, maximize=True)
    theirs = getattr(torch.optim, {"SparseSGD": "SGD"}.get(name, name.replace("SparseAdag", "Adag")))
    train([([emb], ours), ([peer], theirs(list(peer.parameters()), 0.1, maximize=True))])
    close(emb, peer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_maximize_is_training_on_the_opposite_gradients(name: str) -> None:
    up, down = table(name="up"), table(name="down")
    for (ids, grads), sign in [(batch, sign) for batch in BATCHES for sign in (1, -1)]:
        emb = up if sign == 1 else down
        if not hasattr(emb, "optimizer_of_test"):
            emb.optimizer_of_test = OPTIMIZERS[name]([{"params": emb, "maximize": sign == 1}])  # type: ignore[attr-defined]
        feed(emb, ids, sign * grads)
        emb.optimizer_of_test.step()  # type: ignore[attr-defined]
    assert torch.equal(up.weight[:], down.weight[:])
    with pytest.raises(ge.ConfigError, match="maximize='yes' must be True or False"):
        OPTIMIZERS[name]([table(name="other")], maximize="yes")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused", "reference"])
def test_adagrads_rate_decays_as_torchs(dtype: torch.dtype) -> None:
    emb = table(dtype)
    peer = peer_of(emb)
    ours = ge.SparseAdagrad([emb], 0.1, lr_decay=0.5)
    train([([emb], ours), ([peer], torch.optim.Adagrad(peer.parameters(), 0.1, lr_decay=0.5))])
    close(emb, peer)
    assert emb.shard.state["step"].tolist() == [len(BATCHES)]


@pytest.mark.parametrize("compat", ["torch", "dgl-0.5"])
def test_row_wise_adagrads_rate_decays_too(compat: str) -> None:
    """Against rates that a schedule sets by hand, on the same batches."""
    decays, by_hand = table(torch.float64, "decays"), table(torch.float64, "by hand")
    first = ge.SparseRowAdagrad([decays], 0.1, lr_decay=0.5, compat=compat)
    second = ge.SparseRowAdagrad([by_hand], 0.1, compat=compat)
    for step, batch in enumerate(BATCHES):
        second.param_groups[0]["lr"] = 0.1 / (1 + 0.5 * step)
        train([([decays], first), ([by_hand], second)], [batch])
    torch.testing.assert_close(decays.weight[:], by_hand.weight[:], rtol=1e-12, atol=0)
    with pytest.raises(ge.ConfigError, match="lr_decay=-1"):
        ge.SparseRowAdagrad([table(name="other")], lr_decay=-1)


def test_a_decayed_rate_goes_on_after_a_round_trip_and_is_no_state_without_decay() -> None:
    emb = table()
    opt = ge.SparseAdagrad([emb], 0.1, lr_decay=0.5)
    train([([emb], opt)], BATCHES[:5])
    saved, weight = opt.state_dict(), emb.weight[:]
    train([([emb], opt)], BATCHES[5:9])
    expected = emb.weight[:]
    opt.close()
    with pytest.raises(ge.ConfigError, match="options"):
        ge.SparseAdagrad([table(name="plain")]).load_state_dict(saved)
    emb.weight[:] = weight
    opt = ge.SparseAdagrad([emb], 0.1, lr_decay=0.5)
    opt.load_state_dict(saved)
    train([([emb], opt)], BATCHES[5:9])
    assert torch.equal(emb.weight[:], expected)
    opt.close()
    opt = ge.SparseAdagrad([emb], 0.1)
    assert sorted(emb.optm_state) == ["sum"]


@pytest.mark.parametrize("scheduler", ["cyclic", "one cycle"])
def test_schedulers_of_the_momentum_drive_sgd(scheduler: str) -> None:
    emb = table(torch.float64)
    peer = peer_of(emb)
    ours = ge.SparseSGD([emb], lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(peer.parameters(), lr=0.1, momentum=0.9)
    make: Any = {
        "cyclic": lambda opt: CyclicLR(opt, 0.01, 0.1, step_size_up=3, base_momentum=0.5, max_momentum=0.8),
        "one cycle": lambda opt: OneCycleLR(opt, 0.2, total_steps=20),
    }[scheduler]
    schedules, momenta = [make(ours), make(theirs)], set()
    everywhere = np.arange(ROWS)  # torch's momentum is dense: rows that no step leaves out
    for _ in range(12):
        with torch.sparse.check_sparse_tensor_invariants(False):
            train([([emb], ours), ([peer], theirs)], [(everywhere, BATCHES[0][1][:1].repeat(ROWS, 0))])
        for schedule in schedules:
            schedule.step()
        momenta.add(ours.param_groups[0]["momentum"])
    close(emb, peer)
    assert len(momenta) > 5


def test_momentum_without_buffers_is_refused() -> None:
    opt = ge.SparseSGD([table()], lr=0.1)
    opt.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ge.ConfigError, match="made without momentum"):
        opt.step()
    with pytest.raises(ge.ConfigError, match="made without momentum"):
        ge.SparseSGD([{"params": [table(name="other")], "momentum": 0.5}])


def test_momentum_that_falls_to_zero_is_plain_sgd_with_a_buffer() -> None:
    emb = table(torch.float64)
    peer = peer_of(emb)
    ours, theirs = ge.SparseSGD([emb], 0.1, 0.9), torch.optim.SGD(peer.parameters(), 0.1)
    ours.param_groups[0]["momentum"] = 0.0
    train([([emb], ours), ([peer], theirs)])
    close(emb, peer)


def test_state_hooks_run_and_may_replace_what_is_saved_and_loaded() -> None:
    emb = table()
    opt = OPTIMIZERS["SparseAdam"]([emb])
    said: list[str] = []
    opt.register_state_dict_pre_hook(lambda o: said.append("save"))
    opt.register_state_dict_post_hook(lambda o, saved: {**saved, "note": 7})
    opt.register_load_state_dict_pre_hook(lambda o, saved: said.append(f"load {saved.pop('note')}"))
    opt.register_load_state_dict_post_hook(lambda o: said.append(f"loaded {o.param_groups[0]['lr']}"))
    saved = opt.state_dict()
    opt.param_groups[0]["lr"] = 0.5
    opt.load_state_dict(saved)
    assert saved["note"] == 7  # what the caller holds is not changed
    assert said == ["save", "load 7", "loaded 0.1"]


def test_step_hooks_run() -> None:
    opt, said = OPTIMIZERS["SparseSGD"]([table()]), []
    opt.register_step_pre_hook(lambda *_: said.append("before"))
    opt.register_step_post_hook(lambda *_: said.append("after"))
    opt.step()
    assert said == ["before", "after"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_later_group_trains_as_one_of_its_own_optimizer(name: str) -> None:
    first, late, alone = table(name="first"), table(name="late"), table(name="alone")
    opt, reference = OPTIMIZERS[name]([first]), OPTIMIZERS[name]([alone], lr=0.3)
    train([([first], opt)], BATCHES[:4])
    opt.add_param_group({"params": [late], "lr": 0.3})
    train([([first, late], opt), ([alone], reference)], BATCHES[4:9])
    assert torch.equal(late.weight[:], alone.weight[:])
    assert [group["lr"] for group in opt.param_groups] == [0.1, 0.3]
    assert list(opt.tables) == ["first", "late"]
    opt.close()
    OPTIMIZERS[name]([late])  # its state was freed with the others'


def test_a_later_group_that_does_not_fit_changes_nothing() -> None:
    emb, free = table(), table(name="free")
    opt = OPTIMIZERS["SparseAdam"]([emb])
    for group, message in (
        ({"params": [emb]}, "given twice"),
        ({"params": [free, free]}, "given twice"),
        ({"params": [free], "momentum": 1}, "unknown option"),
        ({"params": [free], "lr": float("nan")}, "lr=nan"),
        ({"params": [torch.nn.Parameter(torch.ones(2))]}, "DistEmbedding tables only"),
        ({"params": []}, "DistEmbedding tables only"),
    ):
        with pytest.raises(ge.ConfigError, match=message):
            opt.add_param_group(group)
    assert len(opt.param_groups) == len(opt.tables) == 1
    other = OPTIMIZERS["SparseAdam"]([free])  # it was left free
    with pytest.raises(ge.ModeError, match="'free'"):
        opt.add_param_group({"params": [free]})
    opt.close()
    other.close()
    with pytest.raises(ge.ModeError, match="was closed"):
        opt.add_param_group({"params": [free]})


def test_state_goes_into_tables_of_other_names_by_their_place() -> None:
    made = [table(name=name) for name in ("a", "b")]
    opt = ge.SparseAdam([{"params": [made[0]], "lr": 0.1}, {"params": [made[1]], "lr": 0.2}])
    train([([made[0]], opt)], BATCHES[:3])
    train([(made, opt)], BATCHES[3:6])
    others = [table(name=name) for name in ("c", "d")]
    same = ge.SparseAdam([{"params": [emb]} for emb in others])
    same.load_state_dict(opt.state_dict())
    assert [group["lr"] for group in same.param_groups] == [0.1, 0.2]
    for emb, other in zip(made, others, strict=True):
        for key, value in emb.shard.state.items():
            assert torch.equal(other.shard.state[key], value), (emb, key)
    assert not torch.equal(others[0].shard.state["exp_avg"], others[1].shard.state["exp_avg"])
    mixed = ge.SparseAdam([{"params": [table(name=name)]} for name in ("e", "f")])
    saved = opt.state_dict()
    saved["param_groups"][1]["tables"] = ["e"]  # a name of here at another place: by name or by place?
    with pytest.raises(ge.ConfigError, match="is for tables"):
        mixed.load_state_dict(saved)
