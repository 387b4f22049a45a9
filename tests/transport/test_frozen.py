"""Frozen rows: no rule, mode or layout changes them or their state, and the others train as if those had no gradient.

``train`` runs in one process, on ranks and on trainers of servers; each returns what it stores.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ModeError, PartitionError
from graph_emb.models.skipgram.local_sgd import ExchangeSteps
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.steps import InPlaceSteps
from graph_emb.models.skipgram.training import SkipGramConfig
from tests.optim.oracles import RULES
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("idle_servers")

NUM, DIM, STEPS = 12, 3, 6
FROZEN = [0, 4, 5, 11]
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SparseSGD", {"lr": 0.1}),
    "momentum": ("SparseSGD", {"lr": 0.1, "momentum": 0.9}),
    "adagrad": ("SparseAdagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
    "occurrence_row_adagrad": ("SparseAdagrad", {"lr": 0.1, "compat": "dgl-0.5"}),
    "row_adagrad": ("SparseRowAdagrad", {"lr": 0.1, "merge": "mean"}),
    "adam": ("SparseAdam", {"lr": 0.1}),
    "adam, row clock": ("SparseAdam", {"lr": 0.1, "bias_correction": "row", "merge": "mean"}),
    "row_adam": ("SparseRowAdam", {"lr": 0.1}),
    "adamw": ("SparseAdamW", {"lr": 0.1, "weight_decay": 0.3}),
    "lamb": ("SparseLAMB", {"lr": 0.1, "weight_decay": 0.3, "max_norm": 2.0}),
    "row_lamb": ("SparseRowLAMB", {"lr": 0.1, "clip_value": 0.5}),
    "lars": ("SparseLARS", {"lr": 0.1, "eta": 0.5, "weight_decay": 0.3, "weight_decay_mode": "decoupled"}),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]  # the fused kernels, exact sums, fused by a copy
Stored = dict[str, dict[str, Tensor]]


def test_every_rule_has_a_case() -> None:
    ge.init(mode="local")
    made = set()
    for kind, options in OPTIMIZERS.values():
        made.add(getattr(ge, kind)([ge.DistEmbedding(2, 1)], **options).rule_type)
    assert made == set(RULES)


def train(rank: int, world_size: int, mode: str, drop: bool = False) -> Stored:
    """Weights and state after some steps; with ``drop``, frozen rows are instead kept out of every batch."""
    made, optimizers = [], []
    for name, (kind, options) in OPTIMIZERS.items():
        for dtype in DTYPES:
            book = ge.RangeBook([0, 5, NUM])
            emb = ge.DistEmbedding(NUM, DIM, f"{name} {dtype}", ge.initializers.Uniform(seed=3), book, dtype=dtype)
            early = dtype is torch.float64  # before there is an optimizer, or after
            if early and not drop:
                freeze(emb, rank, world_size, mode)
            optimizers.append(getattr(ge, kind)([emb], **options))
            if not early and not drop:
                freeze(emb, rank, world_size, mode)
            made.append(emb)
    for step in range(STEPS):
        ids = torch.arange(NUM + 4) * (step + 1) % NUM
        ids = ids[ids % world_size == rank]
        if drop:
            ids = ids[~torch.isin(ids, torch.tensor(FROZEN))]
        grad = (torch.arange(DIM) + 1 + ids[:, None] + step) / 8  # exact in all dtypes
        for rows in ge.lookup([(emb, ids) for emb in made]):  # one exchange for all
            rows.backward(grad.to(rows.dtype))
        for opt in optimizers:
            opt.step()
    made[0].kvstore.flush()
    made[0].kvstore.barrier()
    return {emb.name: {"weight": emb.weight[:], **{k: v.clone() for k, v in emb.shard.state.items()}} for emb in made}


def freeze(emb: ge.DistEmbedding, rank: int, world_size: int, mode: str) -> None:
    """Ranks name a share each, of the trainers the first one names all."""
    if mode == "collective":
        emb.freeze(torch.tensor(FROZEN)[rank::world_size])
    elif rank == 0:
        emb.freeze(torch.tensor(FROZEN))
    emb.kvstore.barrier()


def check(found: Stored, first_id: int, expected: Stored) -> None:
    """Bit for bit the rows and state of ``expected``, of which ``found`` may hold a range of the state."""
    for name, tensors in expected.items():
        for key, values in tensors.items():
            mine = found[name][key]
            rows = values if len(mine) == len(values) else values[first_id : first_id + len(mine)]
            assert torch.equal(mine, rows), (name, key)


@pytest.fixture(scope="module")
def expected() -> Stored:
    """The same training where the frozen rows got no gradient at all."""
    ge.shutdown()
    ge.init(mode="local")
    found = train(0, 1, "local", drop=True)
    ge.shutdown()
    return found


def test_locally_they_and_their_state_stay_and_the_others_train_as_ever(expected: Stored) -> None:
    ge.init(mode="local")
    check(train(0, 1, "local"), 0, expected)
    first = ge.DistEmbedding(NUM, DIM, init_func=ge.initializers.Uniform(seed=3)).weight[:]
    weight, total = expected["adagrad torch.float32"]["weight"], expected["adagrad torch.float32"]["sum"]
    assert torch.equal(weight[FROZEN], first[FROZEN])
    assert (total[FROZEN] == 0.5).all()
    assert (weight != first).any(dim=1).sum() == NUM - len(FROZEN)


def on_a_rank() -> tuple[int, Stored]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        found = train(transport.rank, transport.world_size, "collective")
        return [0, 5][transport.rank], found
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_on_ranks_the_ids_of_all_count(ranks: Ranks, expected: Stored) -> None:
    for first_id, found in ranks.run(on_a_rank, 2):
        check(found, first_id, expected)


def as_trainer(transport: Any) -> Stored:
    return train(transport.rank, transport.world_size, "kvstore")


@pytest.mark.dist
def test_in_servers_the_call_of_one_trainer_is_enough(expected: Stored) -> None:
    for rank, found in enumerate(Cluster(trainers=2, machines=1, servers=2).run(as_trainer)):
        check(found, [0, 6][rank], expected)


def wild(transport: Any) -> str:
    emb = ge.DistEmbedding(4, 2)
    with pytest.raises(ModeError) as caught:
        emb.freeze(torch.tensor([1]))
    return str(caught.value)


def handled(transport: Any) -> Tensor:
    emb = ge.DistEmbedding(4, 2, "handled")
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.freeze(torch.tensor([1, 1]))
    transport.register_push_handler("handled", add_hundred)
    emb(torch.arange(4)).sum().backward()
    opt.step()
    transport.flush()
    return emb.weight[:]


def add_hundred(data: Any, name: str, rows: Tensor, grads: Tensor) -> None:
    data[name][rows] += 100 * grads


@pytest.mark.dist
def test_hogwild_refuses_and_handlers_do_not_see_frozen_rows() -> None:
    assert "hogwild" in Cluster(1, 1, 1, hogwild=True).run(wild)[0]
    assert Cluster(1, 1, 1).run(handled)[0].tolist() == [[100, 100], [0, 0], [100, 100], [100, 100]]
    ge.init(mode="kvstore")  # alone
    assert handled(ge.DistEmbedding(1, 1).kvstore)[:, 0].tolist() == [100, 0, 100, 100]


def test_rows_thaw_can_be_written_and_unknown_ids_are_refused() -> None:
    ge.init(mode="local")
    emb = ge.DistEmbedding(4, 1)
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.freeze(torch.tensor([[1, 2], [2, 3]]))
    emb.unfreeze(torch.tensor([3]))
    emb.weight[2] = torch.tensor(5.0)
    emb(torch.arange(4)).sum().backward()
    opt.step()
    assert emb.weight[:].flatten().tolist() == [-1, 0, 5, -1]
    with pytest.raises(PartitionError, match=r"id 4 is outside \[0, 4\)"):
        emb.freeze(torch.tensor([4]))


def frozen_walks_take_the_optimizer() -> list[bool]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        model = SkipGram(6, SkipGramConfig(dim=2))
        before = ExchangeSteps.fits(model)
        model.context.freeze(torch.tensor([5] if transport.rank == 0 else [], dtype=torch.int64))
        return [before, ExchangeSteps.fits(model), len(model.context.shard.weight) > 0]
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_walks_in_place_give_way_to_the_optimizer_on_every_rank(ranks: Ranks) -> None:
    """The in-place kernels write rows past the rule; ranks that disagreed about the path would wait forever."""
    assert ranks.run(frozen_walks_take_the_optimizer, 2) == [[True, False, True]] * 2
    ge.init(mode="local")
    model = SkipGram(6, SkipGramConfig(dim=2))
    assert InPlaceSteps.fits(model)
    model.embedding.freeze(torch.tensor([0]))
    assert not InPlaceSteps.fits(model)
