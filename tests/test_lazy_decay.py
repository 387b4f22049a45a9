"""Lazy weight decay: the rows of an optimizer that decays every row in every step, however they are read.

``train`` runs in one process, on ranks and on trainers of servers; ``dense`` is its ten-line oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM, STEPS, WD = 17, 3, 12, 0.3
KINDS: dict[str, dict[str, Any]] = {
    "SparseSGD": {"momentum": 0.5},
    "SparseAdagrad": {},
    "SparseAdam": {"compat": "fbgemm"},
    "SparseRowAdagrad": {"merge": "mean", "clip_row_ratio": 0.5},
    "SparseLAMB": {"max_norm": 1.0},
}


def rate(step: int) -> float:
    return 0.2 / (1 + step)


def ids_of(step: int) -> Tensor:
    """Some rows are touched early, some late, row 0 never."""
    return torch.arange(1, 9) * (step + 1) % (NUM - 1 if step > 6 else 7) + 1


def grads_of(ids: Tensor, step: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(DIM) + ids.unsqueeze(1) - step).to(dtype) / 8


def table(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> ge.DistEmbedding:
    return ge.DistEmbedding(NUM, DIM, name, ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype, **options)


def train(
    ranks: list[int], num_ranks: int, dtype: torch.dtype = torch.float64, first: int = 0, last: int = STEPS
) -> dict[str, Tensor]:
    """What is read after each of the last steps, and at last."""
    found: dict[str, Tensor] = {}
    for kind, options in KINDS.items():
        emb = table(kind, dtype, part_policy=ge.RangeBook([0, 5, NUM]))
        opt = getattr(ge, kind)([emb], lr=1.0, weight_decay=WD, weight_decay_mode="lazy", **options)
        for step in range(first, last):
            opt.set_lr(rate(step))
            ids = ids_of(step)
            mine = ids[torch.isin(ids % num_ranks, torch.tensor(ranks))]
            emb(mine).backward(grads_of(mine, step, dtype))
            opt.step()
            emb.transport.flush()
            emb.transport.barrier()
            if step > STEPS - 3:
                found[f"{kind} {step}"] = emb.weight[:]
                emb.transport.barrier()  # no other trainer goes on before these are read
        found[f"{kind} in bags"] = emb.bag(torch.arange(NUM), torch.tensor([0, 3])).detach()
        found[kind] = emb.weight[:]
    return found


def dense(kind: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same with decoupled decay where every row is in every step: rows without a gradient shrink by hand."""
    emb = table(f"dense {kind}", dtype)
    opt = getattr(ge, kind)([emb], lr=1.0, **KINDS[kind])
    for step in range(STEPS):
        opt.set_lr(rate(step))
        emb.weight[:] = emb.weight[:] * (1 - rate(step) * WD)
        ids = ids_of(step)
        emb(ids).backward(grads_of(ids, step, dtype))
        opt.step()
    return emb.weight[:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused", "reference"])
def test_it_equals_decay_of_every_row_in_every_step(kind: str, dtype: torch.dtype) -> None:
    found = train([0], 1, dtype)
    exact = 1e-5 if dtype is torch.float32 else 1e-13
    torch.testing.assert_close(found[kind], dense(kind, dtype), rtol=exact, atol=exact)
    product = np.prod([1 - rate(step) * WD for step in range(STEPS)])
    torch.testing.assert_close(found[kind][0], table("first", dtype).weight[0] * product)
    sums = torch.stack([found[kind][:3].sum(dim=0), found[kind][3:].sum(dim=0)])
    torch.testing.assert_close(found[f"{kind} in bags"], sums)


def test_it_is_torchs_adamw_where_rows_without_gradient_have_zeros() -> None:
    emb = table("t")
    peer = torch.nn.Parameter(emb.weight[:].clone())
    ours = ge.SparseSGD([emb], lr=0.1, weight_decay=WD, weight_decay_mode="lazy")
    theirs = torch.optim.AdamW([peer], lr=0.1, weight_decay=WD)
    for step in range(STEPS):
        ids = ids_of(step)
        (0.0 * emb(ids)).sum().backward()
        ours.step()
        peer.grad = torch.zeros_like(peer)
        theirs.step()
    torch.testing.assert_close(emb.weight[:], peer.data, rtol=1e-13, atol=1e-15)


def test_sixteen_bits_lose_no_small_decay() -> None:
    """Rounded in every step, 1 - 1e-4 of a bfloat16 number is the number."""
    emb = ge.DistEmbedding(2, 1, init_func=ge.initializers.FromArray(torch.ones(2, 1)), dtype=torch.bfloat16)
    opt = ge.SparseSGD([emb], lr=0.1, weight_decay=1e-2, weight_decay_mode="lazy")
    for _ in range(1000):
        (0 * emb(torch.tensor([1]))).sum().backward()
        opt.step()
    assert emb.weight[0].item() == pytest.approx((1 - 1e-3) ** 1000, rel=2**-8)


def on_a_rank(num_ranks: int) -> dict[str, Tensor]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return train([transport.rank], num_ranks)
    finally:
        ge.shutdown()


def as_trainer(transport: Any) -> dict[str, Tensor]:
    return train([transport.rank], transport.world_size)


@pytest.mark.dist
def test_every_mode_has_the_same_bits(ranks: Ranks) -> None:
    expected = train([0, 1], 2)
    for found in ranks.run(on_a_rank, 2, 2):
        for name, values in expected.items():
            assert torch.equal(found[name], values), name
    for machines in (1, 2):
        for found in Cluster(trainers=2, machines=machines, servers=1).run(as_trainer):
            for name, values in expected.items():
                assert torch.equal(found[name], values), name


def stepped(opt: Any, emb: Any, steps: range) -> None:
    for step in steps:
        ids = ids_of(step)
        emb(ids).backward(grads_of(ids, step, torch.float64))
        opt.step()


def made(name: str, **options: Any) -> tuple[Any, Any]:
    emb = table(name)
    return emb, ge.SparseAdam([emb], lr=0.1, weight_decay=WD, weight_decay_mode="lazy", **options)


def test_a_checkpoint_has_decayed_rows_and_goes_on(tmp_path: Path) -> None:
    whole, opt = made("t")
    stepped(opt, whole, range(6))
    before = whole.weight[:]
    ge.save_checkpoint(tmp_path / "c", tables=[whole], optimizers=[opt], step=6)
    assert torch.equal(whole.weight[:], before)
    stepped(opt, whole, range(6, STEPS))
    expected = whole.weight[:]
    ge.load_checkpoint(tmp_path / "c", tables=[whole], optimizers=[opt])  # back, in the same process
    torch.testing.assert_close(whole.weight[:], before, rtol=1e-13, atol=0)
    ge.shutdown()
    later, opt = made("t")
    ge.load_checkpoint(tmp_path / "c", tables=[later], optimizers=[opt])
    assert torch.equal(later.weight[:], before)
    stepped(opt, later, range(6, STEPS))
    torch.testing.assert_close(later.weight[:], expected, rtol=1e-13, atol=1e-15)
    ge.load_checkpoint(tmp_path / "c", tables=[later], weights_only=True)
    assert torch.equal(later.weight[:], before)


def test_a_state_dict_goes_on(tmp_path: Path) -> None:
    whole, opt = made("whole")
    stepped(opt, whole, range(6))
    saved, rows = opt.state_dict(), whole.weight[:]
    opt.save(tmp_path / "opt")
    opt.load(tmp_path / "opt")
    assert torch.equal(whole.weight[:], rows)
    later, other = made("later")
    later.weight[:] = rows
    other.load_state_dict(saved)
    stepped(other, later, range(6, STEPS))
    stepped(opt, whole, range(6, STEPS))
    torch.testing.assert_close(later.weight[:], whole.weight[:], rtol=1e-13, atol=1e-15)


def test_rows_that_are_written_reset_or_frozen_decay_from_there() -> None:
    emb, opt = made("t")
    first = emb.weight[:]
    stepped(opt, emb, range(3))
    emb.weight[0] = torch.ones(DIM, dtype=torch.float64)
    emb.reset_rows(torch.tensor([16]))
    emb.freeze(torch.tensor([15]))
    frozen = emb.weight[15]
    assert torch.equal(emb.weight[0], torch.ones(DIM, dtype=torch.float64))
    assert torch.equal(emb.weight[16], first[16])
    stepped(opt, emb, range(3, 5))
    factor = (1 - 0.1 * WD) ** 2
    torch.testing.assert_close(emb.weight[0], torch.full((DIM,), factor, dtype=torch.float64))
    torch.testing.assert_close(emb.weight[16], first[16] * factor)
    assert torch.equal(emb.weight[15], frozen)
    emb.unfreeze(torch.tensor([15]))
    assert torch.equal(emb.weight[15], frozen)
    stepped(opt, emb, range(5, 6))
    torch.testing.assert_close(emb.weight[15], frozen * (1 - 0.1 * WD))


def test_a_closed_optimizer_leaves_decayed_rows() -> None:
    emb, opt = made("t")
    stepped(opt, emb, range(5))
    before = emb.weight[:]
    opt.close()
    assert torch.equal(emb.weight[:], before)
    assert torch.equal(emb.shard.weight, before)


def closed_by_all(transport: Any) -> list[Tensor]:
    emb, opt = made("t")
    stepped(opt, emb, range(5))
    transport.flush()
    transport.barrier()
    rows = emb.weight[:]
    transport.barrier()
    opt.close()
    for _ in range(2):  # that the servers hear of it, and that all did
        transport.flush()
        transport.barrier()
    return [rows, emb.weight[:]]


@pytest.mark.dist
def test_servers_leave_decayed_rows() -> None:
    for before, after in Cluster(trainers=1, machines=2, servers=1).run(closed_by_all):
        assert torch.equal(after, before)


def test_it_is_refused_where_it_cannot_be_honoured() -> None:
    emb, opt = made("t")
    with pytest.raises(ConfigError, match="must be below 1"):
        ge.SparseSGD([table("u")], lr=2.0, weight_decay=0.5, weight_decay_mode="lazy")
    opt.param_groups[0]["weight_decay_mode"] = "l2"
    emb(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="'lazy' has state and cannot be switched on or off"):
        opt.step()
    with pytest.raises(ConfigError, match="lazy weight decay needs every trainer in every step"):
        opt.take_turns(0, 2)
