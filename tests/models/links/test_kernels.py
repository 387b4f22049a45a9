"""pair_products: the compiled pass against torch's own operators."""

from __future__ import annotations

import numba
import pytest
import torch
from torch import Tensor

from graph_emb import ConfigError, PartitionError, ShapeError
from graph_emb.models.links.kernels import dropped_relu_, pair_products

PAIRS = torch.tensor([[0, 1], [4, 4], [2, 0], [0, 1], [3, 0]])  # a pair twice, a row with itself


def rows_of(width: int = 70, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, width, generator=torch.Generator().manual_seed(0), dtype=dtype).requires_grad_()


def oracle(rows: Tensor, pairs: Tensor = PAIRS) -> Tensor:
    return rows[pairs[:, 0]] * rows[pairs[:, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_products_equal_torchs_bit_for_bit(dtype: torch.dtype) -> None:
    assert torch.equal(pair_products(rows_of(), PAIRS, dtype=dtype), oracle(rows_of()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 33, 256])
def test_gradients_equal_torchs(dtype: torch.dtype, width: int) -> None:
    rows, expected = rows_of(width), rows_of(width)
    grads = torch.randn(5, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    pair_products(rows, PAIRS, dtype=dtype).backward(grads)
    oracle(expected).to(dtype).backward(grads)
    torch.testing.assert_close(rows.grad, expected.grad)


def test_other_dtypes_go_through_torch() -> None:
    rows = rows_of(3, torch.float64)
    assert pair_products(rows, PAIRS).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: pair_products(x, PAIRS), (rows,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_chunks_of_a_batch_add_up_where_they_are_told(dtype: torch.dtype) -> None:
    rows, expected = rows_of(40, dtype), rows_of(40, dtype)
    sums = torch.zeros(6, 40, dtype=dtype)
    for chunk in PAIRS.split(2):
        pair_products(rows, chunk, row_grads=sums).sin().sum().backward()
    oracle(expected).sin().sum().backward()
    torch.testing.assert_close(sums, expected.grad)
    assert rows.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(50, (4000, 2), generator=generator)
    grads = torch.randn(4000, 100, generator=generator).to(dtype)
    found, default = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows = torch.randn(50, 100, generator=torch.Generator().manual_seed(2)).requires_grad_()
        out = pair_products(rows, pairs, dtype=dtype)
        out.backward(grads)
        found.append((out, rows.grad))
    torch.set_num_threads(default)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_bfloat16_rounds_ties_to_even_and_keeps_what_is_not_finite() -> None:
    step = 2.0**-7  # of bfloat16 between 1 and 2
    special = [1 + step / 2, 1 + step * 1.5, -1 - step / 2, float("inf"), float("nan"), 3.4e38, 1e-40, 0.0, -0.0]
    rows = torch.tensor([special, [1.0] * len(special)])
    rows.view(torch.int32)[0, 4] = 0x7FFFFFFF  # the NaN whose bits a carry would turn into zero
    out = pair_products(rows, torch.tensor([[0, 1]]), dtype=torch.bfloat16)[0]
    expected = rows[0].to(torch.bfloat16)
    assert torch.equal(out.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(out[kept].view(torch.int16), expected[kept].view(torch.int16))


def test_no_pairs_give_no_products() -> None:
    rows = rows_of()
    out = pair_products(rows, PAIRS[:0])
    assert out.shape == (0, 70)
    out.sum().backward()
    assert torch.equal(rows.grad, torch.zeros(6, 70))


def test_rows_that_do_not_lie_in_order_are_read_right() -> None:
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).t()
    assert torch.equal(pair_products(rows, PAIRS.t().contiguous().t()), oracle(rows))


@pytest.mark.parametrize("pairs", [PAIRS.int(), PAIRS[0], PAIRS[:, :1]])
def test_pairs_of_another_shape_are_refused(pairs: Tensor) -> None:
    with pytest.raises(ShapeError, match=r"give int64 \(B, 2\)"):
        pair_products(rows_of(), pairs)


@pytest.mark.parametrize("bad", [-1, 6])
def test_positions_outside_the_rows_are_refused(bad: int) -> None:
    with pytest.raises(PartitionError, match=f"pairs name row {bad}; there are 6 rows"):
        pair_products(rows_of(), torch.tensor([[0, 5], [bad, 1]]))


@pytest.mark.parametrize("sums", [torch.zeros(6, 69), torch.zeros(6, 70, dtype=torch.float64)])
def test_sums_that_do_not_fit_the_rows_are_refused(sums: Tensor) -> None:
    with pytest.raises(ShapeError, match=r"row_grads have shape .*rows have \(6, 70\)"):
        pair_products(rows_of(), PAIRS, row_grads=sums)


def test_sums_for_rows_that_need_no_gradient_are_refused() -> None:
    rows = rows_of().detach()
    with pytest.raises(ConfigError, match="rows need no gradient"):
        pair_products(rows, PAIRS, row_grads=torch.zeros_like(rows))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_what_is_kept_is_the_relu_and_the_rest_is_zero() -> None:
    x = torch.randn(64, 32, generator=seeded())
    out = dropped_relu_(x.clone(), 0.5, seeded())
    kept = out != 0
    assert torch.equal(out[kept], x[kept])
    assert (x[kept] > 0).all()
    assert 0 < kept.sum() < (x > 0).sum()


def test_rows_of_64_bits_keep_what_those_of_32_keep() -> None:
    x = torch.randn(64, 32, generator=seeded())
    out = dropped_relu_(x.double(), 0.5, seeded())
    assert out.dtype == torch.float64
    assert torch.equal(out, dropped_relu_(x.clone(), 0.5, seeded()).double())


def test_without_dropout_it_is_relu() -> None:
    x = torch.randn(40, 7, generator=seeded())
    assert torch.equal(dropped_relu_(x.clone(), 0.0, seeded()), x.relu())


@pytest.mark.parametrize("dropout", [0.25, 0.5, 0.9])
def test_the_dropped_share_is_the_one_asked_for(dropout: float) -> None:
    out = dropped_relu_(torch.ones(512, 256), dropout, seeded())
    assert 1 - out.mean().item() == pytest.approx(dropout, abs=0.006)  # 5 sigma of 131,072 draws


def test_masks_of_neighbours_and_of_calls_are_independent() -> None:
    generator = seeded()
    first = dropped_relu_(torch.ones(512, 256), 0.5, generator)
    second = dropped_relu_(torch.ones(512, 256), 0.5, generator)
    pairs = [(first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first[:, 2:], first[:, :-2])]
    for a, b in pairs:
        assert (a == b).float().mean().item() == pytest.approx(0.5, abs=0.008)
    assert first.mean(0).std().item() == pytest.approx(0.5 / 512**0.5, rel=0.3)
    assert first.mean(1).std().item() == pytest.approx(0.5 / 256**0.5, rel=0.3)


def test_the_mask_depends_on_the_generator_alone_not_on_threads() -> None:
    default = numba.get_num_threads()
    masks = []
    for threads in (1, default):
        numba.set_num_threads(threads)
        masks.append(dropped_relu_(torch.ones(33, 5), 0.5, seeded(7)))
    numba.set_num_threads(default)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], dropped_relu_(torch.ones(33, 5), 0.5, seeded(8)))


def test_bfloat16_drops_the_same_elements_as_float32() -> None:
    x = torch.randn(30, 20, generator=seeded())
    single = dropped_relu_(x.clone(), 0.5, seeded(3))
    half = dropped_relu_(x.bfloat16(), 0.5, seeded(3))
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, single.bfloat16())


def test_gradients_pass_to_what_was_kept_and_to_nothing_else() -> None:
    x = torch.randn(50, 6, generator=seeded()).requires_grad_()
    out = dropped_relu_(x * 1.0, 0.5, seeded(1))
    grad = torch.randn(50, 6, generator=seeded(2))
    out.backward(grad)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(out > 0, grad, 0.0))


@pytest.mark.parametrize("bad", [torch.ones(2, 3, dtype=torch.float16), torch.ones(6), torch.ones(3, 2).t()])
def test_other_dtypes_and_layouts_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="contiguous float32, float64 or bfloat16 matrix"):
        dropped_relu_(bad, 0.5, seeded())
