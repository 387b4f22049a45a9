"""FBGEMM's module on our tables: plain loops in float64 pool, differentiate and update."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.compat.fbgemm import (
    BoundsCheckMode,
    ComputeDevice,
    EmbeddingLocation,
    OptimType,
    PoolingMode,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    UserEnabledConfigDefinition,
    WeightDecayMode,
)
from graph_emb.compat.fbgemm.options import RULES
from graph_emb.core.errors import ConfigError, ModeError, PartitionError
from tests.compat.fbgemm_loops import ROWS, TABLE_OF, Loops, batch, close, module
from tests.optim.oracles import EPS, Oracle, adagrad, adam, lamb, lars, row_adagrad, sgd
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

_ADAM = {"learning_rate": 0.05, "eps": 1e-3}
CASES: dict[str, tuple[OptimType, dict[str, Any], Oracle]] = {
    "sgd": (OptimType.EXACT_SGD, {"learning_rate": 0.1}, sgd),
    "adagrad": (OptimType.EXACT_ADAGRAD, {"learning_rate": 0.1, "eps": EPS}, adagrad),
    "row_adagrad": (OptimType.EXACT_ROWWISE_ADAGRAD, {"learning_rate": 0.1, "eps": EPS}, row_adagrad),
    "adam": (OptimType.ADAM, {**_ADAM, "weight_decay": 0.3}, partial(adam, raw=False, decay=0.3)),
    "adam, row clock": (
        OptimType.ADAM,
        {**_ADAM, "extra_optimizer_config": UserEnabledConfigDefinition(use_rowwise_bias_correction=True)},
        partial(adam, clock="row", raw=False),
    ),
    "row_adam": (OptimType.PARTIAL_ROWWISE_ADAM, _ADAM, partial(adam, raw=False, by_row=True)),
    "lamb": (OptimType.LAMB, {**_ADAM, "weight_decay": 0.3}, partial(lamb, decay=0.3)),
    "row_lamb": (OptimType.PARTIAL_ROWWISE_LAMB, _ADAM, partial(lamb, by_row=True)),
    "lars": (
        OptimType.LARS_SGD,
        {"learning_rate": 0.5, "eta": 0.1, "momentum": 0.9, "weight_decay": 0.3},
        partial(lars, decay=0.3),
    ),
}


def test_every_optimizer_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES.values()} == set(RULES)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", list(PoolingMode))
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_backward_and_update_are_those_of_plain_loops(case: str, mode: PoolingMode, weighted: bool) -> None:
    kind, options, oracle = CASES[case]
    tbe = module(optimizer=kind, pooling_mode=mode, **options)
    loops = Loops(tbe, mode, oracle)
    for step in range(6):
        ids, offsets, given = batch(step)
        factors = given.clone().requires_grad_() if weighted else None
        out = tbe(ids, offsets, factors)
        used = given if weighted else None
        expected = loops.forward(ids, offsets, used)
        close(out, expected)
        grad = np.random.default_rng(step).normal(size=expected.shape)
        out.backward(torch.from_numpy(grad).float())
        of_factors = loops.backward(ids, offsets, used, grad)
        if factors is not None:
            close(factors.grad, of_factors, 1e-3)
        for weight, rows in zip(tbe.split_embedding_weights(), loops.weights, strict=True):
            close(weight, rows)


@pytest.mark.parametrize("case", ["sgd", "adagrad", "row_adagrad", "adam", "adam, row clock", "row_adam", "lars"])
def test_state_has_fbgemms_order_and_shapes(case: str) -> None:
    kind, options, oracle = CASES[case]
    tbe = module(optimizer=kind, **options)
    loops = Loops(tbe, PoolingMode.SUM, oracle)
    ids, offsets, _ = batch(5)
    out = tbe(ids, offsets)
    out.backward(torch.ones_like(out))
    loops.backward(ids, offsets, None, np.ones(out.shape))
    keys = {"sgd": "", "adagrad": "s", "row_adagrad": "s", "lars": "b"}.get(case, "mv")
    states = tbe.split_optimizer_states()
    if case == "adam, row clock":
        named = tbe.get_optimizer_state()
        assert [set(of_table) for of_table in named] == [{"exp_avg", "exp_avg_sq", "row_counter"}] * 3
        for of_table, (*_, counter), memory in zip(named, states, loops.memory, strict=True):
            assert counter is of_table["row_counter"]
            close(counter, memory["n"][:, 0])
        return
    assert [len(of_table) for of_table in states] == [len(keys)] * 3
    for of_table, memory in zip(states, loops.memory, strict=True):
        for key, found in zip(keys, of_table, strict=True):
            close(found, memory[key][:, 0] if case == "row_adam" and key == "v" else memory[key])
    names = {"": set(), "s": {"sum"}, "mv": {"exp_avg", "exp_avg_sq"}, "b": {"momentum_buffer"}}[keys]
    assert [set(named) for named in tbe.get_optimizer_state()] == [names] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"weights_precision": SparseType.FP16},
        {"optimizer_state_dtypes": {"momentum1": SparseType.BF16}},
        {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL},
    ],
    ids=["rounded rows", "rounded state", "decay of all rows"],
)
def test_state_has_no_clocks_that_fbgemm_has_not(options: dict[str, Any]) -> None:
    """Stochastic rounding handed its own clock out, ``table_step``, as a piece of the state."""
    tbe = module(optimizer=OptimType.EXACT_ADAGRAD, **options)
    ids, offsets, _ = batch(5)
    tbe(ids, offsets).sum().backward()
    assert [list(state) for state in tbe.get_optimizer_state()] == [["sum"]] * 3
    assert [len(state) for state in tbe.split_optimizer_states()] == [1] * 3


def test_each_backward_is_an_update_of_its_own() -> None:
    """Two forward passes before the first backward are two updates, and so is a second backward of one."""
    tbe = module(optimizer=OptimType.EXACT_ADAGRAD, eps=EPS, learning_rate=0.1)
    loops = Loops(tbe, PoolingMode.SUM, adagrad)
    batches = [batch(k)[:2] for k in (3, 4)]
    outs = [tbe(*one) for one in batches]
    for out, one in [(outs[1], batches[1]), (outs[0], batches[0]), (outs[0], batches[0])]:
        out.backward(torch.ones_like(out), retain_graph=True)
        loops.backward(*one, None, np.ones(out.shape))
    for weight, rows in zip(tbe.split_embedding_weights(), loops.weights, strict=True):
        close(weight, rows)


def test_gradients_are_clamped_as_they_come_in() -> None:
    tbe = module(gradient_clipping=True, max_gradient=0.25, learning_rate=0.1)
    loops = Loops(tbe, PoolingMode.SUM, sgd)
    ids, offsets, _ = batch(5)
    out = tbe(ids, offsets)
    grad = np.random.default_rng(0).normal(size=out.shape)
    out.backward(torch.from_numpy(grad).float())
    loops.backward(ids, offsets, None, grad.clip(-0.25, 0.25))
    for weight, rows in zip(tbe.split_embedding_weights(), loops.weights, strict=True):
        close(weight, rows)


@pytest.mark.parametrize("optimizer", [OptimType.EXACT_SGD, OptimType.EXACT_ADAGRAD, OptimType.ADAM])
def test_max_norm_bounds_touched_rows_of_every_optimizer(optimizer: OptimType) -> None:
    tbe = module(optimizer=optimizer, max_norm=0.5)
    ids, offsets, _ = batch(5)
    tbe(ids, offsets).sum().backward()
    norms = tbe.split_embedding_weights()[0].norm(dim=1)
    touched = ids[: int(offsets[3])].unique()
    assert (norms[touched] <= 0.5 + 1e-6).all()
    assert (norms > 0.5).sum() > 0


@pytest.mark.parametrize("mode", [PoolingMode.SUM, PoolingMode.MEAN])
def test_batches_may_have_unequal_numbers_of_bags(mode: PoolingMode) -> None:
    """Two ranks with 1 and 2 bags of features 0 and 3, 2 and 0 of feature 1, 0 and 1 of feature 2."""
    bags = [[1, 2], [2, 0], [0, 1], [1, 2]]
    tbe = module(pooling_mode=mode, learning_rate=1.0)
    weights = [weight.clone() for weight in tbe.split_embedding_weights()]
    gen = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 4, (9,), generator=gen)
    offsets = torch.cat([torch.tensor([0]), sizes.cumsum(0)])
    ids = torch.randint(0, 5, (int(offsets[-1]),), generator=gen)
    out = tbe(ids, offsets, batch_size_per_feature_per_rank=bags)
    expected, first = [], [0, 3, 5, 6]
    for rank in range(2):
        for feature, of in enumerate(bags):
            for bag in range(first[feature] + sum(of[:rank]), first[feature] + sum(of[: rank + 1])):
                rows = weights[TABLE_OF[feature]][ids[offsets[bag] : offsets[bag + 1]]]
                found = rows.sum(0) if mode == PoolingMode.SUM or not len(rows) else rows.mean(0)
                expected.append(found)
    close(out, torch.cat(expected).double().numpy(), 1e-6)
    out.sum().backward()
    assert (tbe.split_embedding_weights()[2] != weights[2]).any(dim=1).nonzero().flatten().tolist() == sorted(
        set(ids[offsets[5] : offsets[6]].tolist())
    )


def test_feature_requires_grad_stops_gradients_of_factors_alone() -> None:
    ids, offsets, given = batch(5)
    grads, after = [], []
    for flags in (None, torch.tensor([1, 0, 1, 0])):
        tbe = module()
        factors = given.clone().requires_grad_()
        tbe(ids, offsets, factors, feature_requires_grad=flags).sum().backward()
        grads.append(factors.grad)
        after.append(tbe.split_embedding_weights())
    ends = offsets[[0, 3, 6, 9, 12]].tolist()
    kept = torch.zeros(len(ids), dtype=torch.bool)
    kept[ends[0] : ends[1]] = kept[ends[2] : ends[3]] = True
    assert torch.equal(grads[1], grads[0] * kept)
    assert grads[0][~kept].any()
    assert all(torch.equal(one, two) for one, two in zip(*after, strict=True))


@pytest.mark.parametrize("precision", ["FP16", "BF16"])
@pytest.mark.parametrize("mode", list(PoolingMode))
def test_outputs_and_rows_of_16_bits(precision: str, mode: PoolingMode) -> None:
    dtype = {"FP16": torch.float16, "BF16": torch.bfloat16}[precision]
    ids, offsets, _ = batch(5)
    for options in ({"output_dtype": SparseType[precision]}, {"weights_precision": SparseType[precision]}):
        tbe = module(pooling_mode=mode, learning_rate=0.1, stochastic_rounding=False, **options)
        loops = Loops(tbe, mode, sgd)
        out = tbe(ids, offsets)
        assert out.dtype == (dtype if "output_dtype" in options else torch.float32)
        tolerance = 3 * torch.finfo(dtype).eps
        close(out, loops.forward(ids, offsets, None), tolerance if "output_dtype" in options else 1e-6)
        out.backward(torch.ones_like(out))
        loops.backward(ids, offsets, None, np.ones(out.shape))
        for weight, rows in zip(tbe.split_embedding_weights(), loops.weights, strict=True):
            assert weight.dtype == (torch.float32 if "output_dtype" in options else dtype)
            close(weight, rows, 4 * torch.finfo(dtype).eps)


def test_rates_steps_and_numbers_change_while_it_trains() -> None:
    tbe = module(optimizer=OptimType.ADAM, learning_rate=0.05, eps=1e-3)
    loops = Loops(tbe, PoolingMode.SUM, partial(adam, raw=False))
    ids, offsets, _ = batch(5)
    out = tbe(ids, offsets)
    tbe.set_optimizer_step(9)
    out.backward(torch.ones_like(out))
    assert tbe.iter.tolist() == [10]
    for memory in loops.memory:
        memory["t"] = 9
    loops.backward(ids, offsets, None, np.ones(out.shape))
    for weight, rows in zip(tbe.split_embedding_weights(), loops.weights, strict=True):
        close(weight, rows)
    before = [weight.clone() for weight in tbe.split_embedding_weights()]
    out = tbe(ids, offsets)
    tbe.set_learning_rate(0.0)
    out.backward(torch.ones_like(out))
    assert all(torch.equal(one, two) for one, two in zip(before, tbe.split_embedding_weights(), strict=True))
    tbe.update_hyper_parameters({"lr": 0.5, "beta1": 0.5, "eps": 0.25, "weight_decay": 0.125})
    (group,) = tbe.sparse_optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.5, 0.999), 0.25, 0.125)
    for bad in ({"lr": 0.1, "beta1": 2.0}, {"momentum": 0.1}, {"lower_bound": 0.1}):
        with pytest.raises(ConfigError, match=r"beta1|momentum|lower_bound"):
            tbe.update_hyper_parameters(bad)
    assert group["lr"] == 0.5


def test_iter_counts_backward_passes_and_is_saved() -> None:
    tbe = module(optimizer=OptimType.EXACT_ADAGRAD)
    ids, offsets, _ = batch(5)
    for _ in range(2):
        tbe(ids, offsets).sum().backward()
        with torch.no_grad():
            tbe(ids, offsets)
    assert tbe.iter.tolist() == [2]
    tbe.set_optimizer_step(7)
    other = module(optimizer=OptimType.EXACT_ADAGRAD)
    other.load_state_dict(tbe.state_dict())
    assert other.iter.tolist() == [7]


@pytest.mark.parametrize("optimizer", [OptimType.EXACT_ADAGRAD, OptimType.PARTIAL_ROWWISE_ADAM])
def test_state_may_be_bfloat16(optimizer: OptimType) -> None:
    names = ["momentum1"] if optimizer is OptimType.EXACT_ADAGRAD else ["momentum1", "momentum2"]
    ids, offsets, _ = batch(5)
    found = {}
    for precision in (SparseType.FP32, SparseType.BF16):
        tbe = module(optimizer=optimizer, optimizer_state_dtypes=dict.fromkeys(names, precision))
        for _ in range(3):
            tbe(ids, offsets).sum().backward()
        states = tbe.split_optimizer_states()
        dtype = torch.float32 if precision is SparseType.FP32 else torch.bfloat16
        assert {state.dtype for of_table in states for state in of_table} == {dtype}
        found[precision] = [state.float() for of_table in states for state in of_table]
    for one, two in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, two, rtol=3e-2, atol=1e-6)


def test_uniform_rows_come_from_torchs_seed() -> None:
    tbe = module()
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        tbe.init_embedding_weights_uniform(-0.5, 0.25)
        drawn.append([weight.clone() for weight in tbe.split_embedding_weights()])
    assert all(torch.equal(one, two) for one, two in zip(*drawn, strict=True))
    every = torch.cat([weight.flatten() for weight in drawn[0]])
    assert every.min() >= -0.5
    assert every.max() < 0.25
    assert len(every.unique()) == len(every)
    tbe.init_embedding_weights_uniform(-0.5, 0.25)
    assert not torch.equal(tbe.split_embedding_weights()[0], drawn[0][0])


@pytest.mark.parametrize("mode", [WeightDecayMode.NONE, WeightDecayMode.DECOUPLE_GLOBAL])
def test_a_state_dict_goes_on_where_the_other_stopped(mode: WeightDecayMode) -> None:
    options: dict[str, Any] = {"optimizer": OptimType.ADAM, "weight_decay": 0.1, "weight_decay_mode": mode}
    whole, half = (module(**options) for _ in range(2))
    for step in range(4):
        whole(*batch(step)[:2]).sum().backward()
        if step < 2:
            half(*batch(step)[:2]).sum().backward()
    later = torch.nn.Sequential(module(**options))
    later.load_state_dict(torch.nn.Sequential(half).state_dict())
    for step in (2, 3):
        later[0](*batch(step)[:2]).sum().backward()
    for one, two in zip(whole.split_embedding_weights(), later[0].split_embedding_weights(), strict=True):
        assert torch.equal(one, two) or mode == WeightDecayMode.DECOUPLE_GLOBAL  # a save rounds what rows lack
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_ids_outside_are_dropped_with_a_warning_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    ids, offsets = torch.tensor([0, 7, -1, 1], dtype=torch.int32), torch.tensor([0, 4], dtype=torch.int32)
    specs = [(7, 2, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    for mode, warns in ((BoundsCheckMode.WARNING, True), (BoundsCheckMode.IGNORE, False)):
        caplog.clear()
        tbe = SplitTableBatchedEmbeddingBagsCodegen(specs, learning_rate=1.0, bounds_check_mode=mode)
        with caplog.at_level(logging.WARNING, "graph_emb.compat.fbgemm"):
            tbe(ids, offsets).sum().backward()
        assert ids.tolist() == [0, 7, -1, 1]
        assert tbe.split_embedding_weights()[0][:, 0].tolist() == [-1, -1, 0, 0, 0, 0, 0]
        assert ("2 of 4 ids are outside their tables" in caplog.text) == warns
    for mode in (BoundsCheckMode.FATAL, BoundsCheckMode.NONE):
        tbe = SplitTableBatchedEmbeddingBagsCodegen(specs, bounds_check_mode=mode)
        with pytest.raises(PartitionError, match=r"is outside \[0, 7\)"):
            tbe(ids, offsets)


def test_members_of_fbgemm_itself_are_taken() -> None:
    """By name: FBGEMM's enumerations are other classes with the same members."""
    import enum

    theirs = enum.Enum("EmbOptimType", {"ADAM": "adam"})
    assert module(optimizer=theirs.ADAM).optimizer is OptimType.ADAM


def share(rank: int, world_size: int) -> list[Tensor]:
    """Steps whose bags the ranks share out; the whole tables after them."""
    tbe = module(optimizer=OptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1, table_names=["a", "b", "c"])
    transport = tbe.sparse_optimizer.transport
    transport.barrier()
    for step in range(4):
        ids, offsets, factors = batch(step, bags=4)
        mine = [k for k in range(16) if k % 4 % world_size == rank]
        pieces = [torch.arange(int(offsets[k]), int(offsets[k + 1])) for k in mine]
        sizes = torch.tensor([0, *map(len, pieces)])
        places = torch.cat(pieces)
        out = tbe(ids[places], sizes.cumsum(0), factors[places])
        out.sum().backward()
        tbe.flush()
        transport.barrier()
    after = [table.weight[:] for table in tbe.tables]
    transport.barrier()
    return after


def share_on_a_rank() -> list[Tensor]:
    transport = ge.init(mode="collective")
    try:
        return share(transport.rank, transport.world_size)
    finally:
        ge.shutdown()


def share_of_a_trainer(transport: Any) -> list[Tensor]:
    with pytest.raises(ModeError, match="MANAGED_CACHING: in kvstore mode servers have the rows"):
        module(places=("HOST", "MANAGED_CACHING", "HOST"))
    return share(transport.rank, transport.world_size)


@pytest.mark.dist
def test_ranks_and_servers_train_what_one_process_does(ranks: Ranks) -> None:
    expected = share(0, 1)
    ge.shutdown()
    found = [*ranks.run(share_on_a_rank, 2), *Cluster(1, 1, 2).run(share_of_a_trainer)]
    for tables in found:
        for one, two in zip(tables, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["EXACT_SGD", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD"])
@pytest.mark.parametrize("mode", list(PoolingMode))
@pytest.mark.parametrize("table_of", [(0, 1, 2), (0, 1, 1, 2)])
@pytest.mark.parametrize("width", [4, 8])
def test_it_is_fbgemms_module_where_that_one_is_right(
    kind: str, mode: PoolingMode, table_of: tuple[int, ...], width: int
) -> None:
    """Features of one table are neighbours, which FBGEMM's CPU kernels need (test_fbgemm_defects.py, 13)."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    common = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
    configs = pytest.importorskip("fbgemm_gpu.split_embedding_configs")
    eps = {} if kind == "EXACT_SGD" else {"eps": EPS}
    theirs = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(n, width, common.EmbeddingLocation.HOST, training.ComputeDevice.CPU) for n in ROWS],
        feature_table_map=list(table_of),
        optimizer=configs.EmbOptimType[kind],
        pooling_mode=common.PoolingMode[mode.name],
        learning_rate=0.1,
        **eps,
    )
    ours = module(
        widths=(width,) * 3,
        feature_table_map=list(table_of),
        optimizer=OptimType[kind],
        pooling_mode=mode,
        learning_rate=0.1,
        **eps,
    )
    for one, two in zip(theirs.split_embedding_weights(), ours.split_embedding_weights(), strict=True):
        one.copy_(two)
    for step in range(6):
        ids, offsets, factors = batch(step, table_of=table_of)
        given = factors if mode == PoolingMode.SUM else None
        outs = [tbe(ids.clone(), offsets.clone(), given) for tbe in (theirs, ours)]
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
        grad = torch.from_numpy(np.random.default_rng(step).normal(size=outs[0].shape)).float()
        for out in outs:
            out.backward(grad)
    for one, two in zip(theirs.split_embedding_weights(), ours.split_embedding_weights(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", list(PoolingMode))
def test_a_batch_without_bags_is_a_step_all_the_same(mode: PoolingMode) -> None:
    """As on a rank that has run out of ids: the others wait for its step."""
    tbe = module(optimizer=OptimType.ADAM, pooling_mode=mode)
    before = [weight.clone() for weight in tbe.split_embedding_weights()]
    out = tbe(torch.tensor([], dtype=torch.int64), torch.tensor([0]))
    assert out.shape == ((0, 4) if mode == PoolingMode.NONE else (0, 4 + 6 + 3 + 6))
    out.sum().backward()
    assert [table.shard.state["step"].tolist() for table in tbe.tables] == [[1]] * 3
    assert all(torch.equal(one, two) for one, two in zip(before, tbe.split_embedding_weights(), strict=True))
