from __future__ import annotations

import math

import pytest
import torch

from graph_emb.models.kge.losses import EXCLUDED, LOSSES
from tests.models.kge.references import normal

POSITIVE, NEGATIVE = torch.tensor([1.0]), torch.tensor([[0.5, -2.0]])
MARGIN, ALPHA = 0.25, 0.5


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(name: str) -> float:
    bad = [-math.log(1 - sigmoid(MARGIN + s)) for s in (0.5, -2.0)]
    good = -math.log(sigmoid(MARGIN + 1.0))
    if name == "logistic":
        return good + sum(bad) / 2
    if name == "margin":
        return (max(0, 0.25 - 1.0 + 0.5) + max(0, 0.25 - 1.0 - 2.0)) / 2
    if name == "softmax":
        return -math.log(math.exp(1.0) / (math.exp(1.0) + math.exp(0.5) + math.exp(-2.0)))
    share = [math.exp(ALPHA * s) for s in (0.5, -2.0)]
    return (good + sum(w / sum(share) * b for w, b in zip(share, bad, strict=True))) / 2


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_hand(name: str) -> None:
    assert float(LOSSES[name](POSITIVE, NEGATIVE, MARGIN, ALPHA)) == pytest.approx(by_hand(name), abs=1e-6)


def test_the_margin_loss_is_not_flat() -> None:
    assert float(LOSSES["margin"](POSITIVE, torch.tensor([[3.0, 0.8]]), 0.25, 1.0)) == pytest.approx((2.25 + 0.05) / 2)


@pytest.mark.parametrize("name", LOSSES)
def test_an_excluded_negative_neither_costs_nor_learns(name: str) -> None:
    negative = torch.tensor([[0.5, EXCLUDED]], requires_grad=True)
    loss = LOSSES[name](POSITIVE, negative, MARGIN, ALPHA)
    loss.sum().backward()
    alone = LOSSES[name](POSITIVE, torch.tensor([[0.5]]), MARGIN, ALPHA)
    counted_by_mean = 0.5 if name in ("logistic", "margin") else 1.0
    good = float(torch.nn.functional.softplus(-(MARGIN + POSITIVE))) if name == "logistic" else 0.0
    assert float(loss.detach()) == pytest.approx(good + counted_by_mean * (float(alone) - good), abs=1e-6)
    assert negative.grad is not None
    assert torch.isfinite(negative.grad).all()
    assert float(negative.grad[0, 1]) == 0.0


def test_self_adversarial_weights_get_no_gradient() -> None:
    positive, negative = normal(3), normal(3, 4, seed=1).requires_grad_()
    LOSSES["self_adversarial"](positive, negative, 1.0, 2.0).sum().backward()
    weights = (2.0 * negative.detach()).softmax(dim=1)
    assert negative.grad is not None
    torch.testing.assert_close(negative.grad, weights * (1.0 + negative.detach()).sigmoid() / 2)
