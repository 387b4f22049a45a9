"""Laws 2, 3 and 7: kvstore mode gives the numbers of the local mode, for any number of parts, servers and trainers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

NUM, DIM, STEPS = 23, 3, 5
BOUNDED = {"clip_value": 0.5, "clip_row_norm": 0.75, "weight_decay": 0.1, "max_norm": 1.5}
RULES: dict[str, tuple[type, dict[str, Any]]] = {
    "sgd": (ge.SparseSGD, {"lr": 0.1}),
    "momentum": (ge.SparseSGD, {"lr": 0.1, "momentum": 0.9}),
    "adagrad": (ge.SparseAdagrad, {"lr": 0.1}),
    "mean": (ge.SparseAdagrad, {"lr": 0.1, "merge": "mean"}),
    "occurrences": (ge.SparseAdagrad, {"lr": 0.1, "compat": "dgl-0.5"}),
    "row_adagrad": (ge.SparseRowAdagrad, {"lr": 0.1}),
    "adam": (ge.SparseAdam, {"lr": 0.1}),
    "adam_row_clock": (ge.SparseAdam, {"lr": 0.1, "bias_correction": "row"}),
    "row_adam": (ge.SparseRowAdam, {"lr": 0.1}),
    "adamw": (ge.SparseAdamW, {"lr": 0.1}),
    "adagrad_bounded": (ge.SparseAdagrad, {"lr": 0.1, **BOUNDED}),
    "lamb": (ge.SparseLAMB, {"lr": 0.1, **BOUNDED}),
    "lars": (ge.SparseLARS, {"lr": 1.0, "eta": 0.1, **BOUNDED}),
    "counted": (ge.SparseAdam, {"lr": 0.1, "count_rows": True, "count_power": 0.5, "clip_row_ratio": 0.5}),
}
ROUNDED = {"rounded": (ge.SparseAdam, {"lr": 0.1, "stochastic_rounding": True, **BOUNDED})}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
LAYOUTS = [(p, s, w) for p in (1, 2) for s in (1, 2) for w in (1, 2)]


def asked(step: int, rank: int, world_size: int) -> Tensor:
    """Ids with repeats; those of different ranks never meet, and the last row is touched late."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, NUM if step > 2 else NUM - 1, (40,), generator=generator)
    return ids[ids % world_size == rank]


def train(transport: Any, parts: int, ranks: list[int], world_size: int, overlap: bool = False) -> dict[str, Tensor]:
    """Weights after a few steps of every rule; the local reference trains all ranks' ids in one step."""
    found: dict[str, Tensor] = {}
    for dtype_name, dtype in DTYPES.items():
        for rule, (optimizer, numbers) in (ROUNDED if dtype is torch.bfloat16 else RULES).items():
            name = f"{rule}_{dtype_name}"
            emb = ge.DistEmbedding(
                NUM,
                DIM,
                name=name,
                init_func=ge.initializers.Uniform(seed=7),
                part_policy=RangeBook([0, 9, NUM]) if parts == 2 else None,
                dtype=dtype,
            )
            found[f"{name} at first"] = emb.weight[:]
            transport.barrier()
            opt = optimizer([emb], **numbers)
            for step in range(STEPS):
                ids = torch.cat([asked(step, 0, 1) if overlap else asked(step, rank, world_size) for rank in ranks])
                if step == 3:
                    opt.param_groups[0]["lr"] = 0.02
                factor = (ids + step).to(dtype).unsqueeze(1) / NUM
                (emb(ids).pow(2) * factor).sum().backward()
                opt.step()
            transport.flush()
            transport.barrier()
            found[name] = emb.weight[:]
            for state, values in emb.shard.state.items():
                found[f"{name} {state} of {emb.shard.first_id}"] = values.clone()
    return found


def reference(parts: int, world_size: int) -> dict[str, Tensor]:
    ge.shutdown()
    try:
        return train(ge.init("local"), parts, list(range(world_size)), world_size)
    finally:
        ge.shutdown()


def as_rank(transport: Any, parts: int, overlap: bool = False) -> dict[str, Tensor]:
    return train(transport, parts, [transport.rank], transport.world_size, overlap)


@pytest.mark.dist
@pytest.mark.parametrize(("parts", "servers", "trainers"), LAYOUTS)
def test_kvstore_equals_local_bit_for_bit(parts: int, servers: int, trainers: int) -> None:
    expected = reference(parts, trainers)
    with shared_memory_is_clean():
        everyone = Cluster(trainers, parts, servers).run(as_rank, parts)
    for rank, found in enumerate(everyone):
        for name, values in found.items():
            if " of " in name:  # a share of the state: compare with the same rows of the whole
                table, state, first = name.split(" ")[0], name.split(" ")[1], int(name.rsplit(" ", 1)[1])
                whole = expected[f"{table} {state} of 0"]
                values_expected = whole if len(values) == 1 == len(whole) else whole[first : first + len(values)]
            else:
                values_expected = expected[name]
            assert torch.equal(values, values_expected), f"trainer {rank}: {name}"
    if trainers >= parts:
        name = "adagrad_float64 sum of "
        assert sum(len(values) for found in everyone for key, values in found.items() if key.startswith(name)) == NUM


@pytest.mark.dist
def test_rows_pushed_by_two_trainers_take_two_steps_instead_of_one() -> None:
    """What differs when trainers overlap: SGD adds up all the same, Adagrad scales each trainer's push by itself."""
    found = Cluster(2, 1, 1).run(linear, True)
    assert torch.equal(found[0]["sgd"], found[1]["sgd"])
    expected = one_process()
    assert torch.allclose(found[0]["sgd"], expected["sgd"])
    assert not torch.allclose(found[0]["adagrad"], expected["adagrad"])
    # two steps of 1 each: 0.1 / sqrt(1) + 0.1 / sqrt(2); one step of 2: 0.1 * 2 / sqrt(4)
    assert found[0]["adagrad"][0, 0].item() == pytest.approx(-0.1 - 0.1 / 2**0.5)
    assert expected["adagrad"][0, 0].item() == pytest.approx(-0.1)


def linear(transport: Any, overlap: bool) -> dict[str, Tensor]:
    """One step in which every trainer pushes a gradient of 1 to row 0."""
    found = {}
    for name, optimizer in (("sgd", ge.SparseSGD), ("adagrad", ge.SparseAdagrad)):
        emb = ge.DistEmbedding(2, 1, name=name)
        opt = optimizer([emb], lr=0.1)
        for _ in range(1 if overlap else 2):
            emb(torch.tensor([0])).sum().backward()
        opt.step()
        transport.flush()
        transport.barrier()
        found[name] = emb.weight[:]
    return found


def one_process() -> dict[str, Tensor]:
    ge.shutdown()
    try:
        return linear(ge.init("local"), False)
    finally:
        ge.shutdown()
