"""Metrics of predicted classes: accuracy, ROC-AUC and micro-F1 of several labels a node."""

# N nodes, C classes or tasks.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.evaluate.arrays import as_scores
from graph_emb.evaluate.ranks import TiedValue, rank, warn_of_ties


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
    return sum(value.realistic for value in found) / len(found)


def task_aucs(logits: Tensor, targets: Tensor) -> list[TiedValue]:
    """ROC-AUC of each task that has both answers; arguments and errors as in ``task_auc``."""
    scores = _fitting(logits, targets)
    values = [
        rank(scores[targets[:, task] == 1, task], scores[targets[:, task] == 0, task]).auc()
        for task in range(targets.shape[1])
        if bool((targets[:, task] == 1).any()) and bool((targets[:, task] == 0).any())
    ]
    if not values:
        raise DataError(f"ROC-AUC: none of {targets.shape[1]} tasks has both answers; evaluate more nodes")
    return values


def micro_f1(logits: Tensor, targets: Tensor) -> float:
    """F1 over all decisions ``logit > 0``: ``2 TP / (2 TP + FP + FN)``; 0 where nothing is labelled or found.

    Args:
        logits, targets: As in ``task_auc``; unknown labels count nowhere.
    """
    found = _fitting(logits, targets) > 0
    hit = int((found & (targets == 1)).sum())
    wrong = int((found & (targets == 0)).sum()) + int((~found & (targets == 1)).sum())
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
