"""Metrics of classes, by hand and against scikit-learn and OGB."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.evaluate.ranks import accuracy, micro_f1, task_auc


def test_accuracy_counts_the_highest_logits() -> None:
    assert accuracy(torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0, 0])) == pytest.approx(2 / 3)


def test_tasks_are_judged_as_ogb_judges_proteins() -> None:
    rng = np.random.default_rng(0)
    truth, logits = (rng.random((30, 4)) < 0.4).astype(np.float32), rng.normal(size=(30, 4)).astype(np.float32)
    expected = np.mean([roc_auc_score(truth[:, c], logits[:, c]) for c in range(4)])
    assert task_auc(torch.from_numpy(logits), torch.from_numpy(truth)) == pytest.approx(expected)
    assert micro_f1(torch.from_numpy(logits), torch.from_numpy(truth)) == pytest.approx(
        f1_score(truth, logits > 0, average="micro")
    )


def test_unknown_labels_and_tasks_of_one_answer_count_nowhere() -> None:
    logits = torch.tensor([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
    targets = torch.tensor([[1.0, 1.0], [0.0, 1.0], [float("nan"), 1.0]])
    assert task_auc(logits, targets) == 0.0
    assert micro_f1(logits, targets) == pytest.approx(2 * 4 / (2 * 4 + 1))
    with pytest.raises(DataError, match="none of"):
        task_auc(logits, torch.ones(3, 2))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"expected \(2,\)"):
        accuracy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"expected floating \(2, 3\)"):
        micro_f1(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))
