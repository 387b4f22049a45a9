"""Ranks of positives among negatives, metrics of predicted classes, and the input checks of all metrics."""

# N nodes, D width, B positives, M negatives, C classes or tasks.

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError

ROWS_AT_ONCE = 1 << 16
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)
# Comparisons held at once when every positive has negatives of its own: one byte each.
COMPARED_AT_ONCE = 1 << 24
# One point (0.01) between the optimistic and the pessimistic value.
TIES_GAP = 0.01


def as_embeddings(embeddings: Any) -> NDArray[np.floating]:
    """Embeddings as a matrix (N, D) of float32 or float64 without a copy where possible; 16-bit rows are widened.

    Raises:
        ShapeError: not a floating matrix of at least one row and column.
        DataError: a value is not finite.
    """
    table = embeddings.detach() if isinstance(embeddings, Tensor) else torch.from_numpy(np.asarray(embeddings))
    if table.dim() != 2 or table.numel() == 0 or table.dtype not in _WIDE + _NARROW:
        raise ShapeError(
            f"embeddings have shape {tuple(table.shape)} and dtype {table.dtype}; give a floating matrix (N, D)"
        )
    matrix: NDArray[np.floating] = (table.float() if table.dtype in _NARROW else table).cpu().numpy()
    for begin in range(0, len(matrix), ROWS_AT_ONCE):
        finite = np.isfinite(matrix[begin : begin + ROWS_AT_ONCE]).all(axis=1)
        if not finite.all():
            row = begin + int(np.argmin(finite))
            raise DataError(f"embeddings: row {row} is not finite; training diverged, try a lower learning rate")
    return matrix


def as_scores(name: str, scores: Any, dims: tuple[int, ...]) -> Tensor:
    """Scores as a detached float32 or float64 tensor without NaN.

    Args:
        name: The word for them in errors.
        scores: Torch or numpy, one of the numbers of dimensions ``dims``.
    Raises:
        ShapeError: another shape or dtype. 16-bit scores are refused: they hold 3 digits (float16) or 2 (bfloat16),
            so distinct logits become ties and ranks mean nothing.
        DataError: empty, or NaN.
    """
    tensor = scores.detach() if isinstance(scores, Tensor) else torch.from_numpy(np.asarray(scores))
    if tensor.dtype in _NARROW:
        raise ShapeError(f"{name} scores are {tensor.dtype}, which rounds distinct logits to ties; compute in float32")
    if tensor.dtype not in _WIDE or tensor.dim() not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ShapeError(
            f"{name} scores have shape {tuple(tensor.shape)} and dtype {tensor.dtype}; "
            f"give float32 of {wanted} dimensions"
        )
    if tensor.numel() == 0:
        raise DataError(f"there are no {name} scores (shape {tuple(tensor.shape)}); nothing can be ranked")
    if bool(tensor.isnan().any()):
        count = int(tensor.isnan().sum())
        raise DataError(f"{count} of {tensor.numel()} {name} scores are NaN; the model diverged")
    return tensor


def mean_and_std(values: Any) -> tuple[Any, Any]:
    """Means and unbiased standard deviations over the last axis; NaN of one value."""
    found = np.asarray(values, np.float64)
    alone = found.shape[-1] == 1
    return found.mean(axis=-1), np.full(found.shape[:-1], np.nan)[()] if alone else found.std(axis=-1, ddof=1)


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


def accuracy(logits: Tensor, classes: Tensor) -> float:
    """The share of nodes whose highest logit is their class.

    Args:
        logits: Shape (N, C), float32 or float64.
        classes: Shape (N,), int64, in [0, C).
    """
    scores = as_scores("class", logits, (2,))
    if classes.shape != scores.shape[:1]:
        raise ShapeError(f"classes have shape {tuple(classes.shape)}; expected ({len(scores)},)")
    return float((scores.argmax(dim=1) == classes).double().mean())


def task_auc(logits: Tensor, targets: Tensor) -> float:
    """The mean over tasks of ROC-AUC, OGB's metric of ogbn-proteins.

    Args:
        logits: Shape (N, C).
        targets: Shape (N, C), 1 and 0, NaN where unknown; tasks without both are left out.
    Raises:
        DataError: no task has both.
    """
    found = task_aucs(logits, targets)
    for value in found:
        warn_of_ties("auc", value)
    return mean_auc(found, targets.shape[1])


def mean_auc(values: Sequence[TiedValue], num_tasks: int) -> float:
    """The mean over tasks, of what ``task_aucs`` gives.

    Raises:
        DataError: none of ``num_tasks`` has a value.
    """
    if not values:
        raise DataError(f"ROC-AUC: none of {num_tasks} tasks has both answers; evaluate more nodes")
    return sum(value.realistic for value in values) / len(values)


def task_aucs(logits: Tensor, targets: Tensor) -> list[TiedValue]:
    """ROC-AUC of each task that has both answers; arguments as in ``task_auc``."""
    scores = _fitting(logits, targets)
    return [
        rank(scores[targets[:, task] == 1, task], scores[targets[:, task] == 0, task]).auc()
        for task in range(targets.shape[1])
        if bool((targets[:, task] == 1).any()) and bool((targets[:, task] == 0).any())
    ]


def micro_f1(logits: Tensor, targets: Tensor) -> float:
    """F1 over all decisions ``logit > 0``: ``2 TP / (2 TP + FP + FN)``; 0 where nothing is labelled or found.

    Args:
        logits, targets: As in ``task_auc``; unknown labels count nowhere.
    """
    return f1_of(*decisions(logits, targets))


def decisions(logits: Tensor, targets: Tensor) -> tuple[int, int]:
    """Labels that are found, and decisions ``logit > 0`` that are wrong; arguments as in ``micro_f1``."""
    found = _fitting(logits, targets) > 0
    wrong = (found & (targets == 0)).sum() + (~found & (targets == 1)).sum()
    return int((found & (targets == 1)).sum()), int(wrong)


def f1_of(hit: int, wrong: int) -> float:
    """``2 hit / (2 hit + wrong)``; 0 without a hit."""
    return 2 * hit / (2 * hit + wrong) if hit else 0.0


CLASS_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "rocauc": task_auc,
    "micro_f1": micro_f1,
}
"""By name; each takes logits and truth, and higher is better."""


def _fitting(logits: Tensor, targets: Tensor) -> Tensor:
    scores = as_scores("class", logits, (2,))
    if targets.shape != scores.shape or not torch.is_floating_point(targets):
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)} and dtype {targets.dtype}; "
            f"expected floating {tuple(scores.shape)}, one column for each task"
        )
    return scores
