"""Losses of an edge against its negatives, on logits.

Wang et al., "Pairwise Learning for Neural Link Prediction", 2021 (PLNLP), section 3.4: what ranks edges above others
is trained on differences; Hits@K and AUC count nothing else.

Legend: B edges, K negatives of each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def logistic(edge: Tensor, negative: Tensor) -> Tensor:
    """``-log sigmoid(s) - mean_k log sigmoid(-s_k)``: OGB's scripts."""
    return -F.logsigmoid(edge) - F.logsigmoid(-negative).mean(dim=1)


def auc(edge: Tensor, negative: Tensor) -> Tensor:
    """``mean_k (1 - s + s_k)^2``: a surrogate of the area under the ROC curve (Gao and Zhou 2012), PLNLP's default."""
    return (1 - edge[:, None] + negative).square().mean(dim=1)


def hinge(edge: Tensor, negative: Tensor) -> Tensor:
    """``mean_k max(0, 1 - s + s_k)``."""
    return (1 - edge[:, None] + negative).clamp_min(0).mean(dim=1)


def squared_hinge(edge: Tensor, negative: Tensor) -> Tensor:
    """``mean_k max(0, 1 - s + s_k)^2``: ``auc`` without a price for what is told apart by more than 1."""
    return (1 - edge[:, None] + negative).clamp_min(0).square().mean(dim=1)


def softmax(edge: Tensor, negative: Tensor) -> Tensor:
    """``log(exp(s) + sum_k exp(s_k)) - s``: cross entropy over the edge and its own negatives."""
    return torch.logsumexp(torch.cat([edge[:, None], negative], dim=1), dim=1) - edge


LINK_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": logistic, "auc": auc, "hinge": hinge, "squared_hinge": squared_hinge, "softmax": softmax
}  # fmt: skip
"""Logits of edges (B,) and of their negatives (B, K) to losses (B,)."""
