"""Optimizer state of 16 bits: half the memory, unbiased, the same bits in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 13, 6
KINDS: dict[str, dict[str, Any]] = {
    "SparseSGD": {"momentum": 0.5},
    "SparseAdagrad": {"initial_accumulator_value": 0.5},
    "SparseRowAdagrad": {},
    "SparseAdam": {},
    "SparseRowAdam": {"bias_correction": "row"},
    "SparseRowLAMB": {"weight_decay": 0.1},
    "SparseLARS": {"eta": 0.1, "weight_decay": 0.1, "weight_decay_mode": "lazy"},
}


def trained(kind: str, ranks: list[int], num_ranks: int, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    emb = ge.DistEmbedding(NUM, DIM, f"{kind} {dtype} {options}", ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype)
    opt = getattr(ge, kind)([emb], lr=0.05, **KINDS[kind], **options)
    for step in range(20):
        ids = torch.arange(8) * (step + 2) % (NUM if step > 9 else 7)  # some rows enter late
        ids = ids[torch.isin(ids % num_ranks, torch.tensor(ranks))]
        grads = torch.sin(torch.arange(DIM) + ids.unsqueeze(1) + step).to(dtype)
        emb(ids).backward(grads)
        opt.step()
        emb.transport.flush()
        emb.transport.barrier()
    return emb, opt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_follow_those_of_wide_state(kind: str, dtype: torch.dtype) -> None:
    narrow, wide = (trained(kind, [0], 1, dtype, state_dtype=state)[0] for state in (torch.bfloat16, None))
    own = [name for name, value in wide.shard.state.items() if value.is_floating_point() and "decay" not in name]
    for name in own:
        assert narrow.shard.state[name].dtype is torch.bfloat16
        torch.testing.assert_close(
            narrow.shard.state[name].double(), wide.shard.state[name].double(), rtol=0.1, atol=0.05
        )
    assert not torch.equal(narrow.weight[:].double(), wide.weight[:].double())
    torch.testing.assert_close(narrow.weight[:].double(), wide.weight[:].double(), rtol=0.05, atol=0.05)


def test_moments_follow_changes_below_their_last_digit() -> None:
    """Rounded to the nearest, a second moment of beta 0.999 stops where a step adds less than 2^-9 of it."""
    emb = ge.DistEmbedding(1, 4096, init_func=ge.initializers.Zeros())
    opt = ge.SparseAdam([emb], betas=(0.9, 0.999), state_dtype="bfloat16")
    for _ in range(1500):
        emb(torch.tensor([0])).backward(torch.ones(1, 4096))
        opt.step()
    exact = 1 - 0.999**1500
    found = emb.shard.state["exp_avg_sq"].float()
    assert abs(found.mean().item() - exact) < 0.01 * exact
    assert emb.shard.state["exp_avg_sq"].nbytes == 2 * 4096


def test_pieces_of_state_are_rounded_by_chances_of_their_own() -> None:
    emb = ge.DistEmbedding(1, 512)
    opt = ge.SparseAdam([emb], betas=(0.7, 0.7), state_dtype=torch.bfloat16)
    emb(torch.tensor([0])).backward(torch.ones(1, 512))  # both moments are 0.3
    opt.step()
    first, second = emb.shard.state["exp_avg"], emb.shard.state["exp_avg_sq"]
    assert len(first.unique()) == len(second.unique()) == 2
    assert not torch.equal(first, second)


def test_the_seed_and_a_checkpoint_hold(tmp_path: Path) -> None:
    first, _ = trained("SparseAdam", [0], 1, torch.float32, state_dtype=torch.bfloat16)
    rows = first.weight[:]
    ge.shutdown()
    again, opt = trained("SparseAdam", [0], 1, torch.float32, state_dtype=torch.bfloat16)
    assert torch.equal(again.weight[:], rows)
    ge.save_checkpoint(tmp_path / "c", tables=[again], optimizers=[opt], step=20)
    ge.load_checkpoint(tmp_path / "c", tables=[again], optimizers=[opt])
    ge.shutdown()
    other, _ = trained("SparseAdam", [0], 1, torch.float32, state_dtype=torch.bfloat16, rounding_seed=1)
    assert not torch.equal(other.weight[:], rows)


def everything(ranks: list[int], num_ranks: int) -> list[Tensor]:
    found = []
    for kind in ("SparseAdagrad", "SparseRowAdam", "SparseLARS"):
        for dtype in (torch.float64, torch.bfloat16):
            emb, opt = trained(kind, ranks, num_ranks, dtype, state_dtype="bfloat16")
            found.append(emb.weight[:])
            opt.close()
    return found


def on_a_rank(num_ranks: int) -> list[Tensor]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return everything([transport.rank], num_ranks)
    finally:
        ge.shutdown()


def as_trainer(transport: Any) -> list[Tensor]:
    return everything([transport.rank], transport.world_size)


@pytest.mark.dist
def test_every_mode_has_the_same_bits(ranks: Ranks) -> None:
    expected = everything([0, 1], 2)
    for found in [*ranks.run(on_a_rank, 2, 2), *Cluster(trainers=2, machines=2, servers=1).run(as_trainer)]:
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine, theirs)


def test_what_means_nothing_is_refused() -> None:
    emb = ge.DistEmbedding(2, 1)
    with pytest.raises(ConfigError, match=r"state_dtype='float16' must be torch.bfloat16"):
        ge.SparseAdam([emb], state_dtype=torch.float16)
    with pytest.raises(ConfigError, match="has no effect: SGD keeps no state"):
        ge.SparseSGD([emb], state_dtype=torch.bfloat16)
