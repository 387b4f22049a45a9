"""dropped_relu_: relu, then dropout without its scale."""

from __future__ import annotations

import numba
import pytest
import torch

from graph_emb import ShapeError
from graph_emb.models.links.dropped_relu import dropped_relu_


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_what_is_kept_is_the_relu_and_the_rest_is_zero() -> None:
    x = torch.randn(64, 32, generator=seeded())
    out = dropped_relu_(x.clone(), 0.5, seeded())
    kept = out != 0
    assert torch.equal(out[kept], x[kept])
    assert (x[kept] > 0).all()
    assert 0 < kept.sum() < (x > 0).sum()


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


@pytest.mark.parametrize("bad", [torch.ones(2, 3, dtype=torch.float64), torch.ones(6), torch.ones(3, 2).t()])
def test_other_dtypes_and_layouts_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="contiguous float32 or bfloat16 matrix"):
        dropped_relu_(bad, 0.5, seeded())
