"""Tables that take a step together: one kernel call, the bits of a call for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.addresses import RowLoop
from graph_emb.core.compiled import group, group_each
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import Merge, Update, apply_update, apply_updates
from graph_emb.optim.fused import FUSED
from graph_emb.optim.rule import SparseRule
from graph_emb.optim.rules import SGD, Adagrad
from graph_emb.table.initializers import Uniform
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from tests.optim.oracles import CASES

SHAPES = ((40, 17), (3, 4), (900, 8), (1, 1))
OPTIONS = {"weight_decay": 0.1, "weight_decay_mode": "lazy", "count_rows": True, "count_power": 0.5}


def made(rule: SparseRule, shape: tuple[int, int], dtype: torch.dtype = torch.float32, seed: int = 1) -> EmbeddingShard:
    spec = TableSpec("t", *shape, RangeBook.even(shape[0]), Uniform(-1, 1, seed=seed), dtype)
    shard = EmbeddingShard(spec, 0, shape[0])
    shard.allocate_state(rule.state_specs())
    return shard


def gradients(shape: tuple[int, int], step: int) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(step * shape[0])
    ids = torch.randint(0, shape[0], (0 if step == shape[0] else 2 * shape[0],), generator=gen)
    return ids, torch.randn(len(ids), shape[1], generator=gen)


def assert_equal(found: EmbeddingShard, expected: EmbeddingShard) -> None:
    assert torch.equal(found.weight, expected.weight)
    assert found.state.keys() == expected.state.keys()
    assert all(torch.equal(found.state[name], expected.state[name]) for name in found.state)


@pytest.mark.parametrize("name", [name for name, (rule, _) in CASES.items() if type(rule) in FUSED])
def test_tables_of_a_step_take_the_bits_of_a_step_each(name: str) -> None:
    rule: Any = CASES[name][0]
    joint, alone = ([made(rule, shape) for shape in SHAPES] for _ in range(2))
    for step in range(1, 4):
        pushed = [gradients(shape, step) for shape in SHAPES]
        apply_updates([Update(rule, shard, *of) for shard, of in zip(joint, pushed, strict=True)])
        for shard, of in zip(alone, pushed, strict=True):
            apply_update(rule, shard, *of)
    for pair in zip(joint, alone, strict=True):
        assert_equal(*pair)


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "options"])
def test_tables_of_several_dtypes_and_clocks_keep_their_own(options: dict[str, Any]) -> None:
    rule: Any = dataclasses.replace(Adagrad(0.1, lr_decay=0.1), **options)
    dtypes = (torch.float32, torch.bfloat16, torch.float32, torch.float64)
    joint, alone = ([made(rule, s, d) for s, d in zip(SHAPES, dtypes, strict=True)] for _ in range(2))
    for shards in (joint, alone):
        apply_update(rule, shards[2], *gradients(SHAPES[2], 9))  # this table is a step ahead
    pushed = [gradients(shape, 5) for shape in SHAPES]
    apply_updates([Update(rule, shard, *of) for shard, of in zip(joint, pushed, strict=True)])
    for shard, of in zip(alone, pushed, strict=True):
        apply_update(rule, shard, *of)
    for pair in zip(joint, alone, strict=True):
        assert_equal(*pair)


def test_tables_of_one_kind_take_one_kernel_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    known = RowLoop.run
    monkeypatch.setattr(RowLoop, "run", lambda *given: calls.append(len(given[2])) or known(*given))
    rates = (0.5, 0.25, 0.125, 1.0)
    shards = [made(SGD(rate), shape) for rate, shape in zip(rates, SHAPES, strict=True)]
    before = [shard.weight.clone() for shard in shards]
    rows = torch.tensor([0, 0])
    updates = [Update(SGD(r), s, rows, torch.ones(2, s.weight.shape[1])) for r, s in zip(rates, shards, strict=True)]
    apply_updates(updates)
    assert calls == [len(SHAPES)]
    for rate, shard, old in zip(rates, shards, before, strict=True):
        assert torch.equal(shard.weight[0], old[0] - rate * 2)
        assert torch.equal(shard.weight[1:], old[1:])


def test_tables_that_average_repeats_stand_beside_those_that_sum_them() -> None:
    shards = [made(SGD(1.0), (4, 3)) for _ in range(3)]
    before = shards[0].weight.clone()
    rows, grads = torch.tensor([1, 1]), torch.tensor([[2.0, 2, 2], [4, 4, 4]])
    ways: list[Merge] = ["sum", "mean", "sum"]
    apply_updates([Update(SGD(1.0), shard, rows, grads, how) for shard, how in zip(shards, ways, strict=True)])
    for shard, step in zip(shards, (6.0, 3.0, 6.0), strict=True):
        torch.testing.assert_close(before - shard.weight, torch.tensor([0.0, step, 0.0, 0.0])[:, None].expand(4, 3))


def test_a_gradient_that_does_not_fit_changes_no_table() -> None:
    first, second = (made(SGD(1.0), shape) for shape in SHAPES[:2])
    before = first.weight.clone()
    fitting = Update(SGD(1.0), first, torch.tensor([0]), torch.ones(1, 17))
    with pytest.raises(ValueError, match=r"table 't': gradient has shape \(1, 3\)"):
        apply_updates([fitting, Update(SGD(1.0), second, torch.tensor([0]), torch.ones(1, 3))])
    assert torch.equal(first.weight, before)


def test_groups_of_several_batches_are_those_of_each() -> None:
    gen = np.random.default_rng(0)
    batches = [gen.integers(0, top, size) for top, size in ((5, 40), (1, 0), (2**40, 900), (3000, 700))]
    for found, ids in zip(group_each(batches), batches, strict=True):
        for one, other in zip(found, group(ids), strict=True):
            np.testing.assert_array_equal(one, other)
    assert group_each([]) == []
