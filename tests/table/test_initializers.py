"""First values are functions of (seed, id, column) alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.table import initializers as ini

SEEDED = [ini.Uniform(-2.0, 3.0, seed=4), ini.Normal(1.0, 2.0, seed=4), ini.XavierUniform(1000, seed=4)]


def filled(
    initializer: Any, first_id: int, rows: int, dim: int = 8, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    weight = torch.full((rows, dim), math.nan, dtype=dtype)
    initializer.fill_(weight, first_id)
    return weight


@pytest.mark.parametrize("initializer", SEEDED, ids=lambda i: type(i).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rows_do_not_depend_on_the_split_into_parts(initializer: Any, dtype: torch.dtype) -> None:
    whole = filled(initializer, 0, 100, dtype=dtype)
    pieces = [filled(initializer, start, 25, dtype=dtype) for start in (0, 25, 50, 75)]
    assert torch.equal(whole, torch.cat(pieces))


def test_16_bit_rows_are_the_rounded_float64_rows_even_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ini, "CHUNK_ELEMENTS", 24)
    exact = filled(SEEDED[0], 5, 40, dtype=torch.float64)
    assert torch.equal(filled(SEEDED[0], 5, 40, dtype=torch.bfloat16), exact.bfloat16())


@pytest.mark.parametrize("kind", [ini.Uniform, ini.Normal])
def test_seed_id_and_column_all_change_the_value(kind: Any) -> None:
    base = filled(kind(seed=0), 0, 1000)
    assert len(base.unique()) > 7990
    assert not torch.isclose(base, filled(kind(seed=1), 0, 1000)).any(dim=1).any()


def test_uniform_fills_its_range_evenly() -> None:
    values = filled(ini.Uniform(-2.0, 3.0, seed=1), 0, 20_000).flatten().double()
    assert -2.0 <= values.min() < -1.999
    assert 2.999 < values.max() <= 3.0
    counts = torch.histc(values, bins=10, min=-2.0, max=3.0)
    assert ((counts - 16_000).abs() < 5 * 120).all()  # 5 standard deviations of a bin


def test_uniform_defaults_to_the_inverse_root_of_the_width() -> None:
    values = filled(ini.Uniform(seed=3), 0, 5000, dim=16)
    assert 0.2499 < values.abs().max() <= 0.25


def test_normal_has_its_moments_and_uncorrelated_columns() -> None:
    values = filled(ini.Normal(1.0, 2.0, seed=2), 0, 50_000, dim=4).double()
    assert abs(values.mean() - 1.0) < 0.03
    assert abs(values.std() - 2.0) < 0.03
    assert abs(((values - 1.0) / 2.0).pow(4).mean() - 3.0) < 0.15
    off_diagonal = np.corrcoef(values.T.numpy()) - np.eye(4)
    assert np.abs(off_diagonal).max() < 0.02


def test_xavier_uses_the_whole_table_for_its_bound() -> None:
    bound = 2.0 * math.sqrt(6.0 / (1000 + 8))
    values = filled(ini.XavierUniform(1000, gain=2.0), 0, 1000)
    assert 0.99 * bound < values.abs().max() <= bound


def test_from_array_copies_the_rows_of_the_part() -> None:
    array = np.arange(20, dtype=np.float32).reshape(10, 2)
    assert filled(ini.FromArray(array), 4, 2, dim=2).tolist() == [[8, 9], [10, 11]]
    with pytest.raises(ShapeError, match=r"\(10, 2\).*rows \[9, 12\) of width 2"):
        filled(ini.FromArray(array), 9, 3, dim=2)
    with pytest.raises(ShapeError, match="int64"):
        ini.FromArray(np.arange(4).reshape(2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_rows_of_an_array_are_written_by_id_into_memory_of_any_form(dtype: torch.dtype, strided: bool) -> None:
    rows, parts = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([3, 0, 0, 2, 1])
    weight = torch.zeros(3, 6, dtype=dtype)[:, :3] if strided else torch.zeros(3, 3, dtype=dtype)
    ini.FromArray(rows).fill_at_(weight, np.array([2, 0, 2]))
    assert weight.tolist() == rows[[2, 0, 2]].tolist()
    shared = ini.FromParts(torch.from_numpy(rows), parts)
    shared.fill_(weight, 2)
    assert weight.tolist() == rows[[0, 2, 1]].tolist()
    shared.fill_at_(weight, np.array([4, 0, 1]))
    assert weight.tolist() == rows[[1, 3, 0]].tolist()
    with pytest.raises(ShapeError, match=r"needs row 4 of width 3"):
        ini.FromArray(rows).fill_at_(weight, np.array([4, 0, 1]))


def test_dgl_functions_are_called_with_shape_and_dtype() -> None:
    initializer = ini.as_initializer(lambda shape, dtype: torch.full(shape, 0.5, dtype=dtype))
    assert filled(initializer, 0, 3).unique().tolist() == [0.5]
    with pytest.raises(ShapeError, match=r"returned \(1,\)"):
        filled(ini.as_initializer(lambda shape, dtype: torch.zeros(1)), 0, 3)


def test_none_means_zeros_and_other_things_are_refused() -> None:
    assert filled(ini.as_initializer(None), 0, 2).abs().sum() == 0
    for bad in (3, "uniform", ini.Uniform):
        with pytest.raises(ConfigError, match="init_func"):
            ini.as_initializer(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ini.Uniform(seed=-1),
        lambda: ini.Uniform(1.0, 0.0),
        lambda: ini.Uniform(math.nan, 0.0),
        lambda: ini.Normal(0.0, -1.0),
        lambda: ini.Normal(seed=1.5),  # type: ignore[arg-type]
        lambda: ini.XavierUniform(0),
        lambda: ini.XavierUniform(5, gain=0.0),
    ],
)
def test_numbers_out_of_their_limits_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_uniform_with_one_bound_checks_the_other_default() -> None:
    with pytest.raises(ConfigError, match="above high"):
        filled(ini.Uniform(low=5.0), 0, 2)
