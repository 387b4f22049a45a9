"""Stochastic rounding: unbiased, between the neighbours, a function of (seed, step, original id, column)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.optim.rounding import close, memory_of, opened, round_stochastically, row_chance, subtract

pytestmark = pytest.mark.usefixtures("fresh_mode")

HALF = [torch.bfloat16, torch.float16]


def rounded(values: Any, dtype: torch.dtype, seed: int = 0, step: int = 0, ids: Any = None) -> torch.Tensor:
    values = torch.as_tensor(values, dtype=torch.float32)
    return round_stochastically(values, dtype, seed, step, np.arange(len(values)) if ids is None else np.asarray(ids))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("value", [1.001, -0.3, 3e-7, 1e-3, 1000.7, 6e-5])
def test_the_mean_of_a_million_roundings_is_the_number(dtype: torch.dtype, value: float) -> None:
    found = rounded(torch.full((1000, 1000), value), dtype).double()
    low, high = found.min().item(), found.max().item()
    exact = float(np.float32(value))
    assert low <= exact <= high
    assert len(found.unique()) == 2
    sigma = math.sqrt((exact - low) * (high - exact) / found.numel())
    assert abs(found.mean().item() - exact) < 4 * sigma
    near = torch.tensor([low], dtype=dtype)
    assert torch.nextafter(near.float(), torch.tensor([math.inf])).to(dtype).item() <= high


@pytest.mark.parametrize("dtype", HALF)
def test_numbers_of_the_type_stay_and_what_is_beyond_it_is_rounded_as_always(dtype: torch.dtype) -> None:
    kept = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(rounded(kept.float(), dtype), kept)
    odd = torch.tensor([[0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, torch.finfo(dtype).max]])
    assert torch.equal(rounded(odd, dtype).isnan(), odd.isnan())
    assert torch.equal(rounded(odd, dtype).nan_to_num(1.0), odd.to(dtype).nan_to_num(1.0))


def test_the_bits_belong_to_seed_step_id_and_column() -> None:
    values = torch.full((64, 16), 1.0039)  # in the middle between two numbers
    whole = rounded(values, torch.bfloat16, ids=range(100, 164))
    assert torch.equal(rounded(values[:9, :5], torch.bfloat16, ids=range(120, 129)), whole[20:29, :5])
    for other in ({"seed": 1}, {"step": 1}, {"ids": range(200, 264)}):
        assert not torch.equal(rounded(values, torch.bfloat16, **{"ids": range(100, 164), **other}), whole)
    assert len({tuple(row.tolist()) for row in whole}) == 64
    assert len({tuple(column.tolist()) for column in whole.T}) == 16


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("by_chance", [False, True])
def test_compiled_loops_widen_and_round_as_torch_does(dtype: torch.dtype, by_chance: bool) -> None:
    """Every number of 16 bits, and float32 of every exponent with both signs, infinities and NaN."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(64, 1024)
    assert torch.equal(rounded_by_kernel(every.float(), dtype, by_chance).nan_to_num(0.5), every.nan_to_num(0.5))
    gen = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (64, 1024), generator=gen).to(torch.int32)
    near = torch.randn(64, 1024, generator=gen) * 2.0 ** torch.randint(-30, 17, (64, 1), generator=gen)
    for values in (bits.view(torch.float32), near):
        expected = rounded(values, dtype) if by_chance else values.to(dtype)
        found = rounded_by_kernel(values, dtype, by_chance)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("width", [1, 7, 64, 1024])
@pytest.mark.parametrize("looked", [False, True])
def test_rows_are_lessened_as_torch_does(dtype: torch.dtype, width: int, looked: bool) -> None:
    """Two bfloat16 lie in one word; NaN whose digits are all ones would be rounded to zero by the fast loop."""
    gen = torch.Generator().manual_seed(0)
    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    before = every.view(dtype if dtype.itemsize == 2 else torch.float16).to(dtype).view(-1)
    bits = torch.randint(-(2**31), 2**31, before.shape, generator=gen).to(torch.int32)
    near = before.float() * torch.randn(before.shape, generator=gen) * 2.0**-8
    finite = torch.where(near.isfinite(), near, 0.0)
    for values in (
        bits.view(torch.float32),
        finite,
        torch.full(before.shape, -1, dtype=torch.int32).view(torch.float32),
    ):
        fit = len(before) // width * width
        weight, g = before[:fit].view(-1, width).clone(), values[:fit].view(-1, width).clone()
        known = (g * 0.0).sum(1)  # NaN where one is not finite
        expected = (weight.float() - 2.0 * g).to(dtype)  # a product by two is exact
        _subtract(memory_of(weight), g.numpy(), known.numpy(), looked)
        assert torch.equal(weight.isnan(), expected.isnan())
        assert torch.equal(weight.nan_to_num(0.5), expected.nan_to_num(0.5))


@njit
def _subtract(weight: Any, g: Any, known: Any, looked: bool) -> None:
    for r in range(len(g)):
        if looked:
            subtract(weight[r], g[r], np.float32(2.0), None)
        else:
            subtract(weight[r], g[r], np.float32(2.0), known[r])


def rounded_by_kernel(values: torch.Tensor, dtype: torch.dtype, by_chance: bool) -> torch.Tensor:
    """What the fused kernels store of values; what they read of it is compared on the way."""
    weight = torch.zeros(values.shape, dtype=dtype)
    ids = np.arange(len(values) if by_chance else 0)
    held = np.empty(values.shape[1], np.float32)
    _store(memory_of(weight), values.numpy(), held, by_chance, ids)
    back = np.empty(values.shape, np.float32)
    _load(memory_of(weight), back)
    assert torch.equal(torch.from_numpy(back).nan_to_num(0.5), weight.float().nan_to_num(0.5))
    return weight


@njit
def _store(weight: Any, values: Any, held: Any, by_chance: bool, ids: Any) -> None:
    bits = held.view(np.uint32)
    for r in range(len(values)):
        held[:] = values[r]
        close(weight, r, bits, by_chance, row_chance(ids, np.uint64(0), 0, r))


@njit
def _load(weight: Any, out: Any) -> None:
    for r in range(len(out)):
        out[r] = opened(weight, r, out[r], out[r].view(np.uint32))


def moved(dtype: torch.dtype, steps: int = 200, width: int = 4096, **options: Any) -> torch.Tensor:
    """A row of ones after steps of 1e-4 each."""
    emb = ge.DistEmbedding(1, width, init_func=ge.initializers.FromArray(torch.ones(1, width)), dtype=dtype)
    opt = ge.SparseSGD([emb], lr=1e-4, **options)
    for _ in range(steps):
        emb(torch.tensor([0])).backward(torch.ones(1, width, dtype=dtype))
        opt.step()
    return emb.weight[0].float()


@pytest.mark.parametrize("dtype", HALF)
def test_small_steps_count(dtype: torch.dtype) -> None:
    """200 updates of 1e-4 left a bfloat16 weight of 1.0 at 1.0; FBGEMM takes stochastic_rounding and still does."""
    assert moved(torch.bfloat16).eq(1.0).all()
    exact = moved(torch.float32, width=1).item()
    assert abs(moved(dtype, stochastic_rounding=True).mean().item() - exact) < 0.01 * (1.0 - exact)


@pytest.mark.parametrize("kind", ["SparseSGD", "SparseRowAdagrad", "SparseAdam", "SparseLAMB"])
def test_state_and_seed(kind: str) -> None:
    def trained(**options: Any) -> torch.Tensor:
        emb = ge.DistEmbedding(6, 8, init_func=ge.initializers.Uniform(-1, 1, seed=0), dtype=torch.bfloat16)
        opt = getattr(ge, kind)([emb], lr=0.01, **options)
        for step in range(5):
            emb(torch.tensor([0, 3, 3, step])).sum().backward()
            opt.step()
        if options:
            assert emb.shard.state["table_step"].tolist() == [5]
        return emb.weight[:]

    by_chance = trained(stochastic_rounding=True)
    assert torch.equal(by_chance, trained(stochastic_rounding=True, rounding_seed=0))
    assert not torch.equal(by_chance, trained(stochastic_rounding=True, rounding_seed=1))
    assert not torch.equal(by_chance, trained())


def test_a_state_dict_continues_the_same_bits() -> None:
    def steps(emb: Any, opt: Any, count: int) -> None:
        for _ in range(count):
            emb(torch.tensor([0, 1])).sum().backward()
            opt.step()

    def make(name: str) -> tuple[Any, Any]:
        first = ge.initializers.Uniform(-1, 1, seed=0)
        emb = ge.DistEmbedding(2, 50, name, first, dtype=torch.bfloat16)
        return emb, ge.SparseAdagrad([emb], lr=0.01, stochastic_rounding=True)

    whole, half = make("whole"), make("half")
    steps(*whole, 6)
    steps(*half, 3)
    later = make("later")
    later[0].weight[:] = half[0].weight[:]
    later[1].load_state_dict(half[1].state_dict())
    steps(*later, 3)
    assert torch.equal(later[0].weight[:], whole[0].weight[:])


def test_what_means_nothing_is_refused() -> None:
    wide = ge.DistEmbedding(1, 1, "wide")
    narrow = ge.DistEmbedding(1, 1, "narrow", dtype=torch.float16)
    with pytest.raises(ConfigError, match="stochastic_rounding is for tables of float16 and bfloat16; 'wide' is"):
        ge.SparseSGD([narrow, wide], stochastic_rounding=True)
    with pytest.raises(ConfigError, match="rounding_seed has no effect without stochastic_rounding"):
        ge.SparseSGD([narrow], rounding_seed=1)
    for options in ({"stochastic_rounding": 1}, {"stochastic_rounding": True, "rounding_seed": -1}):
        with pytest.raises(ConfigError, match=r"stochastic_rounding=1 must|rounding_seed=-1 must"):
            ge.SparseSGD([narrow], **options)
    ge.SparseSGD([narrow], stochastic_rounding=False)
