"""Losses of a true triple against its negatives: every function returns one loss for each triple.

Legend: B triples, N negatives of each. A negative that must not count has the score ``EXCLUDED``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

EXCLUDED = -1e30  # not -inf, whose differences and products are NaN


def logistic(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``softplus(-(margin + s)) + mean_n softplus(margin + s_n)`` (Trouillon et al. 2016, the margin from RotatE)."""
    return softplus(-(margin + positive)) + softplus(margin + negative).mean(dim=1)


def ranking(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``mean_n max(0, margin - s + s_n)`` (Bordes et al. 2013)."""
    return (margin - positive[:, None] + negative).clamp_min(0).mean(dim=1)


def softmax(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``log(exp(s) + sum_n exp(s_n)) - s``: cross entropy over the triple and its negatives (Kadlec et al. 2017)."""
    return torch.logaddexp(positive, negative.logsumexp(dim=1)) - positive


def self_adversarial(positive: Tensor, negative: Tensor, margin: float, temperature: float) -> Tensor:
    """``(softplus(-(margin + s)) + sum_n p_n softplus(margin + s_n)) / 2`` with ``p = softmax(temperature * s_n)``.

    Equation 5 of Sun et al. 2019 with its authors' factor 1/2; no gradient passes through p.
    """
    weights = (temperature * negative.detach()).softmax(dim=1)
    return (softplus(-(margin + positive)) + (weights * softplus(margin + negative)).sum(dim=1)) / 2


Loss = Callable[[Tensor, Tensor, float, float], Tensor]
LOSSES: dict[str, Loss] = {
    "logistic": logistic,
    "margin": ranking,
    "softmax": softmax,
    "self_adversarial": self_adversarial,
}
"""``loss(positive (B,), negative (B, N), margin, temperature)`` gives (B,); each ignores what its formula lacks."""
