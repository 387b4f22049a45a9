"""Ranks of positive scores among negatives, with ties counted in all three ways."""

# B positives, M negatives.

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.evaluate.arrays import as_scores

# Comparisons held at once when every positive has negatives of its own: one byte each.
COMPARED_AT_ONCE = 1 << 24
# One point (0.01) between the optimistic and the pessimistic value.
TIES_GAP = 0.01


class TiesWarning(UserWarning):
    """Equal scores decide a metric: the model has collapsed, or its scores are saturated."""


class TiedValue(NamedTuple):
    """A metric under the three readings of a tie.

    Attributes:
        realistic: The positive is ranked in the middle of its equals; the value to report.
        optimistic: It is ranked before them: a model with constant scores looks perfect.
        pessimistic: It is ranked behind them.
    """

    realistic: float
    optimistic: float
    pessimistic: float

    @property
    def gap(self) -> float:
        """The share of the value that ties decide."""
        return abs(self.optimistic - self.pessimistic)


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks, 1 for the best, of B positives among M negatives.

    Attributes:
        optimistic: 1 + negatives above, shape (B,), int64.
        pessimistic: 1 + negatives above or equal, shape (B,), int64.
        num_negatives: M.
    """

    optimistic: Tensor
    pessimistic: Tensor
    num_negatives: int

    @property
    def realistic(self) -> Tensor:
        """The mean of the two, shape (B,), float64; OGB's rank for MRR since 1.3.4."""
        return (self.optimistic + self.pessimistic).double() / 2

    def hits(self, k: int) -> TiedValue:
        """Share of positives of rank at most ``k``. OGB's Hits@K is the pessimistic value.

        Raises:
            ConfigError: k is below 1.
        """
        if k < 1:
            raise ConfigError(f"hits@{k}: K must be at least 1")
        return TiedValue(*(float((rank <= k).double().mean()) for rank in self._kinds()))

    def mrr(self) -> TiedValue:
        """Mean of 1 / rank. OGB's MRR is the realistic value."""
        return TiedValue(*(float((1.0 / rank.double()).mean()) for rank in self._kinds()))

    def auc(self) -> TiedValue:
        """Area under the ROC curve: the share of (positive, negative) pairs in the right order.

        The realistic value counts a tie as half, as scikit-learn's ``roc_auc_score`` does.
        """
        return TiedValue(*(1.0 - float((rank.double() - 1).mean()) / self.num_negatives for rank in self._kinds()))

    def _kinds(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.realistic, self.optimistic, self.pessimistic


def rank(positive: Any, negative: Any) -> Ranks:
    """Ranks of positives by their logits, higher being better.

    Working memory: a sorted copy of shared negatives, or ``COMPARED_AT_ONCE`` bytes.

    Args:
        positive: Shape (B,), float32 or float64, torch or numpy; logits, not sigmoids (1.0 from 17 on).
        negative: Shape (M,), shared by all positives, or (B, M), those of each positive; the same dtype.
    Raises:
        ShapeError: shapes or dtypes do not fit, or are of 16 bits.
        DataError: no score, or NaN.

    Example:
        >>> from graph_emb.evaluate.ranks import rank
        >>> ranks = rank(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> ranks.optimistic, ranks.pessimistic  # the second positive ties with a negative
        (tensor([1, 2]), tensor([1, 3]))
    """
    positive, negative = as_scores("positive", positive, (1,)), as_scores("negative", negative, (1, 2))
    if positive.dtype != negative.dtype:
        raise ShapeError(
            f"positive scores are {positive.dtype}, negative {negative.dtype}; equal logits would differ, use one dtype"
        )
    positive = positive.to(negative.device)
    num_negatives = negative.shape[-1]
    if negative.dim() == 1:
        ordered = negative.sort().values
        above = num_negatives - torch.searchsorted(ordered, positive, right=True)
        reached = num_negatives - torch.searchsorted(ordered, positive)
    else:
        if len(negative) != len(positive):
            raise ShapeError(f"{len(negative)} rows of negative scores for {len(positive)} positives; give (B, M)")
        step = max(1, COMPARED_AT_ONCE // num_negatives)
        chunks = list(zip(positive[:, None].split(step), negative.split(step), strict=True))
        above = torch.cat([(theirs > ours).sum(dim=1) for ours, theirs in chunks])
        reached = torch.cat([(theirs >= ours).sum(dim=1) for ours, theirs in chunks])
    return Ranks(above + 1, reached + 1, num_negatives)


def warn_of_ties(name: str, value: TiedValue) -> None:
    """Issues a ``TiesWarning`` when the optimistic and the pessimistic value are more than a point apart."""
    if value.gap > TIES_GAP:
        warnings.warn(
            f"{name}: ties decide {100 * value.gap:.1f} points (optimistic {value.optimistic:.4f}, pessimistic "
            f"{value.pessimistic:.4f}); the scores have collapsed or are saturated",
            TiesWarning,
            stacklevel=3,
        )
