"""Every rule with every option, in every mode: 20 steps with rows that enter late give the bits of one process.

The numbers of one process are those of written oracles (tests/optim/test_rules.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from tests.ranks import Ranks
from tests.test_optimizer import OPTIMIZERS
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.dist

NUM, DIM, STEPS = 23, 3, 20
GROUPS: list[dict[str, Any]] = [
    {"weight_decay": 0.1, "weight_decay_mode": "l2"},
    {"weight_decay": 0.1, "weight_decay_mode": "decoupled"},
    {"weight_decay": 0.1, "weight_decay_mode": "lazy"},
    {"clip_value": 0.2},
    {"clip_row_norm": 0.3},
    {"clip_row_ratio": 0.1, "clip_row_least": 0.05},
    {"max_norm": 0.5},
    {"maximize": True},
]
"""Options that groups of one optimizer differ in: their tables share the exchanges."""
BOUNDED = {"clip_value": 0.5, "clip_row_norm": 0.75, "max_norm": 1.5}
JOBS: dict[str, tuple[torch.dtype, list[dict[str, Any]], dict[str, Any]]] = {
    "options": (torch.float64, GROUPS, {}),
    "counts": (torch.float64, [{"count_power": 0.5}], {"count_rows": True}),
    "16-bit state": (torch.float64, [{}], {"state_dtype": torch.bfloat16}),
    "by chance": (torch.bfloat16, [BOUNDED], {"stochastic_rounding": True}),
}


def batch(step: int, ranks: list[int], num_ranks: int) -> Tensor:
    """Ids with repeats; those of different ranks never meet, and a third of the rows enter late."""
    gen = torch.Generator().manual_seed(step)
    ids = torch.randint(0, NUM if step > 9 else 2 * NUM // 3, (30,), generator=gen)
    return ids[torch.isin(ids % num_ranks, torch.tensor(ranks))]


def train(transport: Any, ranks: list[int], num_ranks: int) -> dict[str, Tensor]:
    """The rows of each table by its name: rule, job, number of the options."""
    tables, optimizers = {}, []
    for kind, make in OPTIMIZERS.items():
        for job, (dtype, groups, fixed) in JOBS.items():
            params: list[dict[str, Any]] = []
            for number, given in enumerate(groups):
                first, book = ge.initializers.Uniform(-1, 1, seed=1), ge.RangeBook([0, 9, NUM])
                emb = ge.DistEmbedding(NUM, DIM, f"{kind} {job} {number}", first, book, dtype=dtype)
                tables[emb.name] = emb
                params.append({"params": [emb], **given})
            optimizers.append(make(params, **fixed))
    for step in range(STEPS):
        ids = batch(step, ranks, num_ranks)
        grad = (torch.arange(DIM) + ids.unsqueeze(1) % 5 - step % 7) / 8
        for rows in ge.lookup([(emb, ids) for emb in tables.values()]):
            rows.backward(grad.to(rows.dtype))
        for opt in optimizers:
            opt.step()
    transport.flush()
    transport.barrier()
    return {name: emb.weight[:] for name, emb in tables.items()}


def on_a_rank() -> dict[str, Tensor]:
    transport = ge.init(mode="collective", timeout=120)
    try:
        return train(transport, [transport.rank], transport.world_size)
    finally:
        ge.shutdown()


def as_trainer(transport: Any) -> dict[str, Tensor]:
    return train(transport, [transport.rank], transport.world_size)


@pytest.mark.usefixtures("fresh_mode")
def test_every_mode_has_the_bits_of_one_process(ranks: Ranks) -> None:
    once = train(ge.init("local"), [0, 1], 2)
    ge.shutdown()
    assert len(once) == len(OPTIMIZERS) * (len(GROUPS) + 3)
    assert len({rows.double().sum().item() for rows in once.values()}) > 0.9 * len(once)
    for mode, everyone in {"collective": ranks.run(on_a_rank, 2), "kvstore": Cluster(2, 2).run(as_trainer)}.items():
        for rank, found in enumerate(everyone):
            for name, rows in once.items():
                assert torch.equal(found[name], rows), (mode, rank, name)
