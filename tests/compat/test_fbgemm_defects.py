"""The thirteen defects of FBGEMM 1.8's table-batched embedding on the CPU: a test each, which its behaviour fails.

Each opens with what FBGEMM does, and after it comes a test of FBGEMM itself, where that is installed: it fails when
the defect is mended there.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graph_emb.compat.fbgemm import (
    BoundsCheckMode,
    ComputeDevice,
    EmbeddingLocation,
    GlobalWeightDecayDefinition,
    OptimType,
    PoolingMode,
    SparseType,
    SplitTableBatchedEmbeddingBagsCodegen,
    UserEnabledConfigDefinition,
    WeightDecayMode,
)
from graph_emb.compat.fbgemm.options import RULES
from graph_emb.core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_mode")

DECAYS = (WeightDecayMode.L2, WeightDecayMode.DECOUPLE)
ON_THE_CPU = (OptimType.EXACT_SGD, OptimType.EXACT_ADAGRAD, OptimType.EXACT_ROWWISE_ADAGRAD)
"""The optimizers that FBGEMM has on the CPU."""


def module(first: Tensor, **options: Any) -> SplitTableBatchedEmbeddingBagsCodegen:
    """One table with these rows."""
    spec = (*first.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)
    tbe = SplitTableBatchedEmbeddingBagsCodegen([spec], **options)
    tbe.split_embedding_weights()[0].copy_(first)
    return tbe


def fbgemm(first: Tensor, **options: Any) -> Any:
    """FBGEMM's own module of tables with these rows, as many as ``feature_table_map`` names; skips without it."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    spec = (*first.shape, training.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    given = {
        name: getattr(training, type(value).__name__)[value.name] if isinstance(value, enum.Enum) else value
        for name, value in options.items()
    }
    tbe = training.SplitTableBatchedEmbeddingBagsCodegen(
        [spec] * (1 + max(options.get("feature_table_map", [0]))), **given
    )
    for weight in tbe.split_embedding_weights():
        if weight.shape == first.shape:  # a row of 8-bit numbers holds its scale as well
            weight.copy_(first)
    return tbe


def rows(num: int = 4, width: int = 8) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(num, width))).float()


def step(tbe: Any, ids: list[int], grad: float = 1.0) -> Tensor:
    """A bag of one id each, with a gradient of equal numbers; the rows after it."""
    out = tbe(torch.tensor(ids), torch.arange(len(ids) + 1))
    out.backward(torch.full_like(out, grad))
    return tbe.split_embedding_weights()[0].clone()


@pytest.mark.parametrize("mode", DECAYS)
def test_1_weight_decay_of_row_wise_adagrad_is_applied(mode: WeightDecayMode) -> None:
    """The compiled kernel of pooled float32 tables with one feature is called with weight_decay=0."""
    lr, decay, eps = 0.1, 0.5, 1e-8
    tbe = module(
        rows(), optimizer=OptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=lr, weight_decay=decay, weight_decay_mode=mode
    )
    w, total = rows().double().numpy(), np.zeros(4)
    for k in range(10):
        found = step(tbe, [0, 2], 1.0 + k)
        for r in (0, 2):
            g = np.full(8, 1.0 + k)
            if mode == WeightDecayMode.L2:
                g = g + decay * w[r]
            else:
                w[r] *= 1 - lr * decay
            total[r] += np.mean(g * g)
            w[r] -= lr * g / (np.sqrt(total[r]) + eps)
        np.testing.assert_allclose(found.double().numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", DECAYS)
def test_1_of_fbgemm(mode: WeightDecayMode) -> None:
    options = {"optimizer": OptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
    decayed = fbgemm(rows(), weight_decay=0.5, weight_decay_mode=mode, **options)
    assert torch.equal(step(decayed, [0, 2]), step(fbgemm(rows(), **options), [0, 2]))


@pytest.mark.parametrize("optimizer", RULES)
def test_2_max_norm_bounds_rows(optimizer: OptimType) -> None:
    """A row's norm is 1.91 with max_norm=0.1."""
    tbe = module(rows(), optimizer=optimizer, max_norm=0.1)
    norms = step(tbe, [1, 3]).norm(dim=1)
    assert (norms[[1, 3]] <= 0.1 + 1e-6).all()
    assert torch.equal(norms[[0, 2]], rows().norm(dim=1)[[0, 2]])


@pytest.mark.parametrize("optimizer", ON_THE_CPU)
def test_2_of_fbgemm(optimizer: OptimType) -> None:
    assert (step(fbgemm(rows(), optimizer=optimizer, max_norm=0.1), [1, 3]).norm(dim=1) > 1.0).all()


@pytest.mark.parametrize("precision", ["FP16", "BF16"])
def test_3_stochastic_rounding_moves_a_weight_by_small_steps(precision: str) -> None:
    """50 updates of 1e-4 leave a float16 weight of 1.0 at 1.000000, with stochastic_rounding=True as without."""
    moved = {}
    for by_chance in (True, False):
        tbe = module(
            torch.ones(1, 4096),
            weights_precision=SparseType[precision],
            learning_rate=1e-4,
            stochastic_rounding=by_chance,
        )
        for _ in range(50):
            found = step(tbe, [0])
        moved[by_chance] = 1.0 - found.double().mean().item()
    assert moved[False] == 0.0
    sigma = (torch.finfo(tbe.tables[0].dtype).eps / 4 * 50**0.5) / 4096**0.5
    assert moved[True] == pytest.approx(50e-4, abs=4 * sigma)


@pytest.mark.parametrize("by_chance", [True, False])
def test_3_of_fbgemm(by_chance: bool) -> None:
    tbe = fbgemm(
        torch.ones(1, 64), weights_precision=SparseType.FP16, learning_rate=1e-4, stochastic_rounding=by_chance
    )
    for _ in range(50):
        assert (step(tbe, [0]) == 1.0).all()


def test_4_weights_of_ids_count_without_pooling() -> None:
    """per_sample_weights are ignored with PoolingMode.NONE."""
    tbe = module(rows(), pooling_mode=PoolingMode.NONE, learning_rate=1.0)
    factors = torch.tensor([2.0, -0.5, 3.0], requires_grad=True)
    out = tbe(torch.tensor([1, 3, 1]), torch.tensor([0, 2, 3]), factors)
    torch.testing.assert_close(out, rows()[[1, 3, 1]] * factors.detach().unsqueeze(1))
    out.sum().backward()
    torch.testing.assert_close(factors.grad, rows()[[1, 3, 1]].sum(dim=1))
    expected = rows()
    expected[1] -= 5.0
    expected[3] += 0.5
    torch.testing.assert_close(tbe.split_embedding_weights()[0], expected)


def test_4_of_fbgemm() -> None:
    tbe = fbgemm(rows(), pooling_mode=PoolingMode.NONE, learning_rate=1.0)
    factors = torch.tensor([2.0, -0.5, 3.0], requires_grad=True)
    out = tbe(torch.tensor([1, 3, 1]), torch.tensor([0, 2, 3]), factors)
    assert torch.equal(out, rows()[[1, 3, 1]])
    out.sum().backward()
    assert factors.grad is None


def test_5_gradients_of_weighted_means_are_divided_by_the_length_once() -> None:
    """dW and the gradient of the weights are too large by the length of the bag."""
    first = torch.tensor([[0.0] * 4, [1.0] * 4, [3.0] * 4])
    factors = torch.tensor([2.0, 5.0], requires_grad=True)
    tbe = module(first, pooling_mode=PoolingMode.MEAN, learning_rate=1.0)
    peer = first.double().requires_grad_()
    theirs = factors.detach().double().requires_grad_()
    out = tbe(torch.tensor([1, 2]), torch.tensor([0, 2]), factors)
    wanted = (theirs.unsqueeze(1) * peer[[1, 2]]).sum(dim=0, keepdim=True) / 2
    torch.testing.assert_close(out.double(), wanted)
    out.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(factors.grad.double(), theirs.grad)
    torch.testing.assert_close(tbe.split_embedding_weights()[0].double(), first.double() - peer.grad)
    assert (first - tbe.split_embedding_weights()[0])[:, 0].tolist() == [0.0, 1.0, 2.5]


def test_5_of_fbgemm() -> None:
    first = torch.tensor([[0.0] * 4, [1.0] * 4, [3.0] * 4])
    factors = torch.tensor([2.0, 5.0], requires_grad=True)
    tbe = fbgemm(first, pooling_mode=PoolingMode.MEAN, learning_rate=1.0)
    tbe(torch.tensor([1, 2]), torch.tensor([0, 2]), factors).sum().backward()
    assert factors.grad.tolist() == [4.0, 12.0]  # 2 and 6 are right
    assert (first - tbe.split_embedding_weights()[0])[:, 0].tolist() == [0.0, 2.0, 5.0]


def test_6_the_step_can_be_set_while_it_trains() -> None:
    """set_optimizer_step writes ``iter``; the kernel counts ``iter_cpu``, which follows in a fresh module only."""
    tbe = module(torch.ones(1, 4), optimizer=OptimType.ADAM, learning_rate=0.1, eps=1e-8)
    w, m, v = 1.0, 0.0, 0.0
    for t in (1, 2, 3, 4, 1001, 1002, 1):
        if t in (1001, 1):
            tbe.set_optimizer_step(t - 1)
        found = step(tbe, [0], 0.5)
        m, v = 0.9 * m + 0.1 * 0.5, 0.999 * v + 0.001 * 0.25
        w -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert found[0].tolist() == pytest.approx([w] * 4, rel=1e-5)


def test_6_of_fbgemm() -> None:
    tbe = fbgemm(rows(), optimizer=OptimType.EXACT_ROWWISE_ADAGRAD)
    for _ in range(3):
        step(tbe, [0])
    tbe.set_optimizer_step(1000)
    step(tbe, [0])
    assert (tbe.iter.item(), tbe.iter_cpu.item()) == (1001, 4)


def test_7_evaluation_is_no_step() -> None:
    """Every forward pass counts, also under no_grad: Adam's corrections depend on how often one validates."""
    found = []
    for evaluations in (0, 7):
        tbe = module(rows(), optimizer=OptimType.ADAM, learning_rate=0.1)
        for _ in range(3):
            step(tbe, [0, 1])
            tbe.eval()
            with torch.no_grad():
                for _ in range(evaluations):
                    tbe(torch.tensor([0, 3]), torch.tensor([0, 1, 2]))
            tbe.train()
        found.append(step(tbe, [0, 1]))
        assert tbe.iter.tolist() == tbe.tables[0].shard.state["step"].tolist() == [4]
    assert torch.equal(*found)


def test_7_of_fbgemm() -> None:
    tbe = fbgemm(rows(), optimizer=OptimType.EXACT_ROWWISE_ADAGRAD).eval()
    with torch.no_grad():
        for _ in range(3):
            tbe(torch.tensor([0, 3]), torch.tensor([0, 1, 2]))
    assert tbe.iter.item() == 3


@pytest.mark.parametrize("mode", [*DECAYS, WeightDecayMode.COUNTER])
@pytest.mark.parametrize("optimizer", RULES)
def test_8_decay_never_makes_rows_grow(mode: WeightDecayMode, optimizer: OptimType) -> None:
    """COUNTER with its default halflife has a negative frequency: without a gradient 1 becomes 1.1, 1.155, 1.19."""
    if mode == WeightDecayMode.COUNTER:
        with pytest.raises(ConfigError, match="weight_decay_mode=COUNTER is not offered"):
            module(torch.ones(1, 4), optimizer=optimizer, weight_decay=0.1, weight_decay_mode=mode)
        return
    tbe = module(torch.ones(1, 4), optimizer=optimizer, learning_rate=0.1, weight_decay=0.1, weight_decay_mode=mode)
    before = torch.ones(1, 4)
    for _ in range(4):
        after = step(tbe, [0], 0.0)
        assert (after < before).all()
        before = after


def counted(first: Tensor, **options: Any) -> Any:
    """FBGEMM's module with counters of rows, and its default halflife."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    return fbgemm(
        first,
        optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.1,
        weight_decay=1.0,
        weight_decay_mode=WeightDecayMode.COUNTER,
        counter_based_regularization=training.CounterBasedRegularizationDefinition(
            counter_weight_decay_mode=training.CounterWeightDecayMode.DECOUPLE, **options
        ),
    )


def test_8_of_fbgemm() -> None:
    tbe = counted(torch.ones(1, 4))
    found = [step(tbe, [0], 0.0)[0, 0].item() for _ in range(3)]
    assert found == pytest.approx([1.1, 1.155, 1.1935])


def test_9_counters_of_rows_count() -> None:
    """``max_counter`` is read from a buffer that is empty on the CPU, and stays 1 for ever."""
    clock = UserEnabledConfigDefinition(use_rowwise_bias_correction=True)
    tbe = module(rows(), optimizer=OptimType.ADAM, extra_optimizer_config=clock)
    for ids in ([0, 1], [1, 1, 1], [1, 2], [2, 0]):
        step(tbe, ids)
    assert tbe.get_optimizer_state()[0]["row_counter"].tolist() == [2, 3, 2, 0]
    with pytest.raises(ConfigError, match="counter_based_regularization="):
        module(rows(), counter_based_regularization=object())


def test_9_of_fbgemm() -> None:
    tbe = counted(rows(), max_counter_update_freq=1)
    for _ in range(5):
        step(tbe, [1, 1, 2])
    assert tbe.row_counter_host.tolist() == [0, 5, 5, 0]
    assert tbe.max_counter.item() == 1


@pytest.mark.parametrize("mode", [BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE])
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_10_ids_outside_train_nothing_and_stay_as_they_are(mode: BoundsCheckMode, pooling: PoolingMode) -> None:
    """[5, 99, 1, 2] becomes [5, 0, 1, 2] in the caller's tensor, and row 0 takes the gradient of 99."""
    tbe = module(rows(6), bounds_check_mode=mode, pooling_mode=pooling, learning_rate=1.0)
    ids = torch.tensor([5, 99, 1, 2])
    out = tbe(ids, torch.tensor([0, 2, 4]))
    if pooling == PoolingMode.NONE:
        assert not out[1].any()
    out.sum().backward()
    assert ids.tolist() == [5, 99, 1, 2]
    changed = (tbe.split_embedding_weights()[0] != rows(6)).any(dim=1)
    assert changed.tolist() == [False, True, True, False, False, True]


@pytest.mark.parametrize("mode", [BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE])
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_10_of_fbgemm(mode: BoundsCheckMode, pooling: PoolingMode) -> None:
    tbe = fbgemm(rows(6), bounds_check_mode=mode, pooling_mode=pooling, learning_rate=1.0)
    ids = torch.tensor([5, 99, 1, 2])
    tbe(ids, torch.tensor([0, 2, 4])).sum().backward()
    assert ids.tolist() == [5, 0, 1, 2]
    changed = (tbe.split_embedding_weights()[0] != rows(6)).any(dim=1)
    assert changed.tolist() == [True, True, True, False, False, True]


def test_11_what_a_constructor_takes_can_be_trained() -> None:
    """DECOUPLE_GLOBAL is taken by the constructor, and the first forward pass finds no kernel."""
    for mode in WeightDecayMode:
        for optimizer in OptimType:
            try:
                tbe = module(rows(), optimizer=optimizer, weight_decay=0.1, weight_decay_mode=mode)
            except ConfigError as error:
                assert any(word in str(error) for word in (optimizer.name, mode.name))  # noqa: PT017
                continue
            assert (step(tbe, [0, 1])[:2] != rows()[:2]).all()


@pytest.mark.parametrize("definition", [None, GlobalWeightDecayDefinition()])
def test_11_global_decay_shrinks_all_rows_in_every_step(definition: Any) -> None:
    """As above: there is no CPU kernel of it."""
    lr, decay, eps = 0.1, 0.5, 1e-8
    tbe = module(
        rows(),
        optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=lr,
        weight_decay=decay,
        weight_decay_mode=WeightDecayMode.DECOUPLE_GLOBAL,
        global_weight_decay=definition,
    )
    w, total = rows().double().numpy(), np.zeros(4)
    for ids in ([0, 1], [1], [1, 2], [1, 0], [1]):
        out = tbe(torch.tensor([3, *ids]), torch.arange(len(ids) + 2))
        np.testing.assert_allclose(out[0].detach().double().numpy(), w[3], rtol=1e-5)  # as it is read before the step
        out.backward(torch.cat([torch.zeros(1, 8), torch.ones(len(ids), 8)]))
        w *= 1 - lr * decay
        for r in ids:
            total[r] += 1.0
            w[r] -= lr / (np.sqrt(total[r]) + eps)
    np.testing.assert_allclose(tbe.split_embedding_weights()[0].double().numpy(), w, rtol=1e-5, atol=1e-6)


def test_11_of_fbgemm() -> None:
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    tbe = fbgemm(
        rows(),
        optimizer=OptimType.EXACT_ROWWISE_ADAGRAD,
        weight_decay=0.1,
        weight_decay_mode=WeightDecayMode.DECOUPLE_GLOBAL,
        global_weight_decay=training.GlobalWeightDecayDefinition(),
    )
    with pytest.raises(RuntimeError, match="Could not find schema"):
        step(tbe, [0])


@pytest.mark.parametrize("argument", ["weights_precision", "output_dtype"])
@pytest.mark.parametrize("precision", list(SparseType))
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_12_what_a_constructor_takes_can_be_stored_and_handed_out(
    argument: str, precision: SparseType, pooling: PoolingMode
) -> None:
    """BF16 and INT8 rows, and BF16 outputs, are taken and fail at their first use."""
    options = {argument: precision, "pooling_mode": pooling, "learning_rate": 0.5}
    if precision not in (SparseType.FP32, SparseType.FP16, SparseType.BF16):
        with pytest.raises(ConfigError, match=f"{argument}={precision.name} is not offered"):
            module(rows(), **options)
        return
    dtype = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}[precision.name]
    tbe = module(rows(), stochastic_rounding=False, **options)
    out = tbe(torch.tensor([1, 3, 3]), torch.tensor([0, 1, 3]))
    assert out.dtype == (dtype if argument == "output_dtype" else torch.float32)
    out.backward(torch.ones_like(out))
    expected = rows().double()
    expected[1] -= 0.5
    expected[3] -= 0.5 if pooling == PoolingMode.MEAN else 1.0
    found = tbe.split_embedding_weights()[0]
    torch.testing.assert_close(
        found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("pooling", list(PoolingMode))
@pytest.mark.parametrize(
    ("argument", "precision"), [("weights_precision", "BF16"), ("weights_precision", "INT8"), ("output_dtype", "BF16")]
)
def test_12_of_fbgemm(argument: str, precision: str, pooling: PoolingMode) -> None:
    tbe = fbgemm(torch.zeros(4, 8), pooling_mode=pooling, **{argument: SparseType[precision]})
    with pytest.raises(NotImplementedError, match="not implemented for"):
        step(tbe, [1, 3])


FAR = [0, 1, 0]
"""Two features of table 0, and one of table 1 between them."""


@pytest.mark.parametrize("optimizer", ON_THE_CPU)
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_13_features_of_a_table_need_not_be_neighbours(optimizer: OptimType, pooling: PoolingMode) -> None:
    """Without pooling FBGEMM refuses ids that are there, with SUM and MEAN row-wise Adagrad fails in the middle of an
    update, and Adagrad updates a row once for each feature: 1 + 1 / sqrt(2) instead of 2 / sqrt(2 * 2)."""
    specs = [(4, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)] * 2
    tbe = SplitTableBatchedEmbeddingBagsCodegen(
        specs, FAR, optimizer=optimizer, pooling_mode=pooling, learning_rate=1.0
    )
    w, total = np.zeros((2, 4)), np.zeros((2, 4))  # all numbers of a row are equal
    for ids in ([2, 1, 2], [2, 2, 3], [0, 0, 2]):
        out = tbe(torch.tensor(ids), torch.arange(4))
        out.backward(torch.ones_like(out))
        merged = np.zeros((2, 4))
        for table, row in zip(FAR, ids, strict=True):
            merged[table, row] += 1
        if optimizer is OptimType.EXACT_SGD:
            w -= merged
        else:
            total += merged**2
            w -= merged / (np.sqrt(total) + 1e-8)
        for weight, expected in zip(tbe.split_embedding_weights(), w, strict=True):
            np.testing.assert_allclose(weight.double().numpy(), expected[:, None].repeat(8, axis=1), rtol=1e-5)


@pytest.mark.parametrize("optimizer", ON_THE_CPU)
@pytest.mark.parametrize("pooling", list(PoolingMode))
def test_13_of_fbgemm(optimizer: OptimType, pooling: PoolingMode) -> None:
    tbe = fbgemm(torch.zeros(4, 8), feature_table_map=FAR, optimizer=optimizer, pooling_mode=pooling, learning_rate=1.0)
    if pooling == PoolingMode.NONE or optimizer is OptimType.EXACT_ROWWISE_ADAGRAD:
        with pytest.raises(RuntimeError, match=r"is out of bounds|num of rows processed"):
            step(tbe, [2, 1, 2])
        return
    found = step(tbe, [2, 1, 2])[2, 0].item()
    assert found == pytest.approx(-2.0 if optimizer is OptimType.EXACT_SGD else -1 - 0.5**0.5)  # of SGD it is right
