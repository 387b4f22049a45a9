"""Products of small matrices are those of numpy, of any number of rows and any width."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import llvmlite.binding
import numpy as np
import pytest

from graph_emb.core import small_products
from graph_emb.core.compiled import njit
from graph_emb.core.small_products import LANES

ROWS = [*range(1, 10)]
GUARD = np.float32(7.0)


@pytest.fixture(scope="module", params=[False, True], ids=["narrow", "wide"])
def products(request: pytest.FixtureRequest) -> Any:
    """The products as they are compiled on processors without and with AVX-512; LLVM cuts vectors that are too wide."""
    with pytest.MonkeyPatch.context() as patch:
        features = SimpleNamespace(flatten=lambda: "+avx2,+avx512f" if request.param else "+avx2,-avx512f")
        patch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: features)
        spec = importlib.util.spec_from_file_location("small_products_again", str(small_products.__file__))
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    lanes = made._WIDE
    assert lanes == LANES * (1 + request.param)
    dot_products, weighted_sums = made.dot_products, made.weighted_sums
    row_squares, buffer_width = made.row_squares, made.buffer_width

    @njit()
    def products_of(first: Any, second: Any, num: Any, count: Any, width: Any, dots: Any, one: Any, other: Any) -> None:
        dot_products(first, second, num, count, width, dots)
        weighted_sums(dots, count, 1, second, num, count, width, one)
        weighted_sums(dots, 1, count, first, count, num, width, other)

    @njit()
    def squares_of(rows: Any, num: Any, width: Any, squares: Any) -> None:
        row_squares(rows, num, width, squares)

    return SimpleNamespace(all=products_of, squares=squares_of, width=njit()(lambda width: buffer_width(width)))


def buffer(products: Any, rows: np.ndarray, more: int = 2) -> np.ndarray:
    """The rows in a buffer with more rows than are taken, which hold what must not count."""
    made = np.full((len(rows) + more, products.width(rows.shape[1])), GUARD, np.float32)
    made[: len(rows)] = 0.0
    made[: len(rows), : rows.shape[1]] = rows
    return made


@pytest.mark.parametrize("width", [1, 15, 16, 17, 32, 50, 100, 128])
def test_products_are_those_of_whole_matrices(products: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    for num in ROWS:
        for count in ROWS:
            left, right = rng.normal(size=(num, width)), rng.normal(size=(count, width))
            first, second = buffer(products, left), buffer(products, right)
            dots = np.full(num * count + 3, GUARD, np.float32)
            one, other = np.full_like(first, GUARD), np.full_like(second, GUARD)
            products.all(first, second, num, count, width, dots, one, other)
            wanted = first[:num].astype(np.float64) @ second[:count].T
            found = dots[: num * count].reshape(num, count)
            assert np.allclose(found, wanted, rtol=0, atol=1e-5 * width**0.5)
            assert np.all(dots[num * count :] == GUARD), "numbers past the last one are left alone"
            for made, sums in (one, found @ right), (other, found.T @ left):
                assert np.allclose(made[: len(sums), :width], sums, rtol=1e-5, atol=1e-4)
                assert np.all(made[len(sums) :] == GUARD), "rows past the last one are left alone"


def test_equal_rows_have_equal_bits_wherever_they_stand(products: Any) -> None:
    left, right = (np.tile(row, (9, 1)) for row in np.random.default_rng(0).normal(size=(2, 100)))
    first, second = buffer(products, left), buffer(products, right)
    dots, one, other = np.zeros(81, np.float32), np.zeros_like(first), np.zeros_like(second)
    products.all(first, second, 9, 9, 100, dots, one, other)
    assert len(np.unique(dots)) == len(np.unique(one[:9], axis=0)) == len(np.unique(other[:9], axis=0)) == 1
    squares = np.zeros(9, np.float32)
    products.squares(first, 9, 100, squares)
    assert len(np.unique(squares)) == 1


@pytest.mark.parametrize("width", [1, 16, 17, 128])
def test_squares_are_those_of_each_row(products: Any, width: int) -> None:
    rng = np.random.default_rng(width)
    for num in ROWS:
        rows = rng.normal(size=(num, width))
        squares = np.full(num + 1, GUARD, np.float32)
        products.squares(buffer(products, rows), num, width, squares)
        assert np.allclose(squares[:num], (rows**2).sum(axis=1), rtol=1e-5)
        assert squares[num] == GUARD


def test_rows_lie_an_odd_number_of_lines_apart(products: Any) -> None:
    for width in range(1, 300):
        lines, rest = divmod(int(products.width(width)), LANES)
        assert (rest, lines % 2) == (0, 1)
        assert width <= lines * LANES < width + 2 * LANES


def test_what_is_no_number_is_seen(products: Any) -> None:
    """A training that diverged must show."""
    first, second = buffer(products, np.ones((3, 20))), buffer(products, np.ones((5, 20)))
    first[1, 19] = np.nan
    dots, one, other = np.zeros(15, np.float32), np.zeros_like(first), np.zeros_like(second)
    products.all(first, second, 3, 5, 20, dots, one, other)
    assert np.isnan(dots.reshape(3, 5)).any(axis=1).tolist() == [False, True, False]
    assert np.isnan(one[:3, :20]).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(other[:5, :20]).all()
