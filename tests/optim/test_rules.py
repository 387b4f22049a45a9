"""Every rule, in every form, against its dense oracle over many steps."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import apply_reference, apply_update
from graph_emb.optim.fused import FUSED, serves
from graph_emb.optim.rule import BOUNDS
from graph_emb.optim.rules import Adagrad
from graph_emb.table.initializers import FromArray
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from tests.optim.oracles import CASES, RULES, batches, occurrences

ROWS, DIM = 13, 5
NO_NUMBERS = ("stochastic_rounding", "rounding_seed", "count_rows", "state_dtype")
START = np.random.default_rng(7).normal(size=(ROWS, DIM))


def make_shard(rule: Any, dtype: torch.dtype, rows: int = ROWS, dim: int = DIM, start: np.ndarray = START) -> Any:
    initializer = FromArray(torch.from_numpy(start))
    shard = EmbeddingShard(TableSpec("t", rows, dim, RangeBook.even(rows), initializer, dtype), 0, rows)
    shard.allocate_state(rule.state_specs())
    return shard


def run(apply: Any, rule: Any, shard: Any, steps: list[tuple[np.ndarray, np.ndarray]], how: str) -> None:
    for ids, grads in steps:
        apply(rule, shard, torch.from_numpy(ids), torch.from_numpy(grads).to(shard.weight.dtype), how)


def check_float32_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within float32 rounding of the largest value, because sums of opposite signs cancel."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6 * scale)


def test_every_registered_rule_has_an_oracle() -> None:
    assert {type(rule) for rule, _ in CASES.values()} == set(RULES)


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_reference_equals_dense_oracle_for_20_steps(name: str, how: str) -> None:
    rule, oracle = CASES[name]
    if how == "mean" and rule.per_occurrence:
        pytest.skip("this rule squares every occurrence; a mean is refused by the preset")
    shard, weight, memory = make_shard(rule, torch.float64), START.copy(), {}
    for ids, grads in batches(ROWS, DIM):
        run(apply_reference, rule, shard, [(ids, grads)], how)
        oracle(weight, memory, occurrences(ids, grads, how == "mean"))
    np.testing.assert_allclose(shard.read(torch.arange(ROWS)).numpy(), weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("name", [name for name, (rule, _) in CASES.items() if type(rule) in FUSED])
@pytest.mark.parametrize("shape", [(ROWS, DIM), (700, 33)], ids=["small", "threaded"])
def test_fused_equals_reference(name: str, how: str, shape: tuple[int, int]) -> None:
    rule, _ = CASES[name]
    rows, dim = shape
    start = np.random.default_rng(1).normal(size=shape)
    steps = batches(rows, dim, seed=2)
    fused, plain = (make_shard(rule, torch.float32, rows, dim, start) for _ in range(2))
    run(apply_update, rule, fused, steps, how)
    run(apply_reference, rule, plain, steps, how)
    check_float32_close(fused.weight, plain.weight)
    for key, value in fused.state.items():
        check_float32_close(value, plain.state[key])


@pytest.mark.parametrize("by_chance", [False, True], ids=["nearest", "by chance"])
@pytest.mark.parametrize("name", [name for name, (rule, _) in CASES.items() if type(rule) in FUSED])
def test_fused_bfloat16_equals_reference(name: str, by_chance: bool) -> None:
    """Step by step from the same rows: a sum of another last bit may round a number to its other neighbour."""
    rule = dataclasses.replace(CASES[name][0], stochastic_rounding=by_chance)
    start = np.random.default_rng(1).normal(size=(40, 17))
    fused, plain = (make_shard(rule, torch.bfloat16, 40, 17, start) for _ in range(2))
    differing = 0
    for step in batches(40, 17, steps=6, seed=2):
        run(apply_update, rule, fused, [step], "sum")
        run(apply_reference, rule, plain, [step], "sum")
        apart = (fused.weight.float() - plain.weight.float()).abs() / plain.weight.float().abs()
        assert apart.max() < 2**-6
        differing += int((apart > 0).sum())
        fused.weight.copy_(plain.weight)
        for key, value in fused.state.items():
            check_float32_close(value, plain.state[key])
            value.copy_(plain.state[key])
    assert differing < 0.005 * 6 * 40 * 17


@pytest.mark.parametrize(
    "name", ["sgd momentum", "adagrad", "row_adagrad", "adam row clock", "row_adam", "lamb", "row_lamb", "lars"]
)
def test_fused_state_of_16_bits_equals_reference(name: str) -> None:
    """Step by step from the same state: a sum of another last bit may round a number to its other neighbour."""
    rule = dataclasses.replace(CASES[name][0], state_dtype="bfloat16", rounding_seed=3)
    start = np.random.default_rng(1).normal(size=(40, 17))
    fused, plain = (make_shard(rule, torch.float32, 40, 17, start) for _ in range(2))
    assert serves(rule, fused)
    narrow = [key for key, value in fused.state.items() if value.dtype is torch.bfloat16]
    differing = total = 0
    for ids, grads in batches(40, 17, steps=6, seed=2):
        run(apply_update, rule, fused, [(ids, grads)], "sum")
        run(apply_reference, rule, plain, [(ids, grads)], "sum")
        check_float32_close(fused.weight, plain.weight)
        for key in narrow:
            differing += int((fused.state[key] != plain.state[key]).sum())
            total += fused.state[key].numel()
        fused.weight.copy_(plain.weight)
        for key, value in fused.state.items():
            check_float32_close(value.float() * 2**-8, plain.state[key].float() * 2**-8)
            value.copy_(plain.state[key])
    assert narrow
    assert differing < 0.005 * total


@pytest.mark.parametrize("name", [name for name, (rule, _) in CASES.items() if type(rule) in FUSED])
def test_fused_form_is_taken_for_float32_and_bfloat16_and_only_there(name: str) -> None:
    rule, _ = CASES[name]
    assert serves(rule, make_shard(rule, torch.float32))
    assert serves(rule, make_shard(rule, torch.bfloat16))
    assert not serves(rule, make_shard(rule, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_16_bit_tables_keep_float32_state_and_follow_the_oracle(name: str, dtype: torch.dtype) -> None:
    rule, oracle = CASES[name]
    shard, weight, memory = make_shard(rule, dtype), START.copy(), {}
    ids, grads = np.array([0, 4, 4]), np.array([[1.0], [0.5], [0.25]]) * np.ones((3, DIM))
    run(apply_update, rule, shard, [(ids, grads)], "sum")
    oracle(weight, memory, occurrences(ids, grads, mean=False))
    np.testing.assert_allclose(shard.read(torch.arange(ROWS)).double().numpy(), weight, rtol=0, atol=0.03)
    exact = (torch.int64, torch.float64)  # counts, and sums of lazy decay
    assert all(t.dtype is torch.float32 or shard.state_specs[name].dtype in exact for name, t in shard.state.items())


@pytest.mark.parametrize("name", CASES)
def test_update_mutates_nothing_and_returns_its_declared_state(name: str) -> None:
    rule, _ = CASES[name]
    shard = make_shard(rule, torch.float64)
    rows = torch.tensor([2, 5])
    grad = rule.prepare(torch.randn(2, DIM, dtype=torch.float64))
    weight, state = shard.read(rows), shard.read_state(rows)
    copies = [weight.clone(), grad.clone(), {key: value.clone() for key, value in state.items()}]
    new_weight, new_state = rule.update(weight, grad, state)
    assert torch.equal(weight, copies[0])
    assert torch.equal(grad, copies[1])
    assert all(torch.equal(state[key], copies[2][key]) for key in state)
    assert set(new_state) == {spec.name for spec in rule.state_specs()}
    assert new_weight.shape == weight.shape
    assert all(new_state[key].shape == state[key].shape for key in state)
    assert not torch.equal(new_weight, weight)


DECAYING = {
    f"adagrad {mode} lr_decay": Adagrad(0.1, lr_decay=0.1, weight_decay=0.1, weight_decay_mode=mode)  # type: ignore[arg-type]
    for mode in ("l2", "decoupled", "lazy")
}


@pytest.mark.parametrize("rule", [*(rule for rule, _ in CASES.values()), *DECAYING.values()])
def test_no_step_of_a_rule_waits_for_a_device(rule: Any) -> None:
    """Adam's clock went to the host. Tensors of the meta device have no numbers: reading one raises."""
    state = {
        spec.name: torch.empty(spec.shape(4, 3), dtype=spec.dtype_beside(torch.float32), device="meta")
        for spec in rule.state_specs()
    }
    rows = torch.empty(4, 3, device="meta")
    weight, after = rule.update(rows, rule.prepare(rows), state)
    assert (weight.device.type, weight.shape, weight.dtype) == ("meta", rows.shape, rows.dtype)
    assert {name: (t.shape, t.dtype) for name, t in after.items()} == {
        name: (t.shape, t.dtype) for name, t in state.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_rules_are_frozen_and_picklable(name: str) -> None:
    rule, _ = CASES[name]
    assert pickle.loads(pickle.dumps(rule)) == rule
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.lr = 2.0


@pytest.mark.parametrize("rule_type", RULES)
def test_every_number_of_a_rule_is_checked(rule_type: Any) -> None:
    for name in {field.name for field in dataclasses.fields(rule_type)} - {*rule_type.choices, *NO_NUMBERS}:
        for bad in (math.nan, -1.0, math.inf, "0.1", True, 0.0 if name in BOUNDS else None):
            with pytest.raises(ConfigError, match=f"{name}="):
                rule_type(**{"lr": 0.1, name: bad})
    for name in rule_type.choices:
        with pytest.raises(ConfigError, match=f"unknown {name} 'rwo'"):
            rule_type(**{"lr": 0.1, name: "rwo"})


def test_nan_gradients_reach_the_row_in_both_forms() -> None:
    rule, _ = CASES["adagrad"]
    for apply in (apply_update, apply_reference):
        shard = make_shard(rule, torch.float32)
        apply(rule, shard, torch.tensor([3]), torch.full((1, DIM), math.nan), "sum")
        assert shard.weight[3].isnan().all()
        assert not shard.weight[2].isnan().any()


def test_fused_updates_do_not_depend_on_the_number_of_threads() -> None:
    import numba

    rule, _ = CASES["adam row clock"]
    start = np.random.default_rng(1).normal(size=(900, 17))
    results = []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            shard = make_shard(rule, torch.float32, 900, 17, start)
            run(apply_update, rule, shard, batches(900, 17, steps=4), "sum")
        finally:
            numba.set_num_threads(before)
        results.append(shard.weight)
    assert torch.equal(*results)
