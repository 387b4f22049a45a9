"""Losses of an edge against its negatives, number by number."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from graph_emb.models.links.config import LinkLossName
from graph_emb.models.links.losses import LINK_LOSSES

EDGES = torch.tensor([0.5, -2.0, 30.0])
NEGATIVES = torch.tensor([[0.0, 1.0], [-3.5, 2.0], [-1.0, 29.5]])


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > -30 else x


def by_hand(name: str, s: float, others: list[float]) -> float:
    if name == "logistic":
        return -log_sigmoid(s) - sum(log_sigmoid(-x) for x in others) / len(others)
    if name == "auc":
        return sum((1 - s + x) ** 2 for x in others) / len(others)
    if name == "hinge":
        return sum(max(0.0, 1 - s + x) for x in others) / len(others)
    if name == "squared_hinge":
        return sum(max(0.0, 1 - s + x) ** 2 for x in others) / len(others)
    return math.log(sum(math.exp(x) for x in [s, *others])) - s


def test_every_name_of_the_settings_is_a_loss() -> None:
    assert set(LINK_LOSSES) == set(get_args(LinkLossName))


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_a_loss_is_its_formula(name: str) -> None:
    expected = [by_hand(name, *both) for both in zip(EDGES.tolist(), NEGATIVES.tolist(), strict=True)]
    assert LINK_LOSSES[name](EDGES, NEGATIVES).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_a_step_down_raises_the_edge_above_its_negatives(name: str) -> None:
    edge, negatives = torch.zeros(2, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    LINK_LOSSES[name](edge, negatives).sum().backward()
    assert isinstance(edge.grad, Tensor)
    assert isinstance(negatives.grad, Tensor)
    assert (edge.grad < 0).all()
    assert (negatives.grad > 0).all()
