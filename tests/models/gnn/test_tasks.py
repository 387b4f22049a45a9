"""What a task refuses, and its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, ShapeError
from graph_emb.models.gnn.tasks import LinkTask, NodeTask

SPLIT = {"train": [0, 1], "test": [2]}


@pytest.mark.parametrize(
    ("labels", "split", "metric", "error", "message"),
    [
        ([0, 1, 1], {"train": [0]}, None, DataError, "no test nodes of type 'n'"),
        ([0, 1, 1], {"train": [0, 3], "test": [1]}, None, DataError, r"train node 3 is outside \[0, 3\)"),
        ([0, 1, 1], {"train": [0, 1], "test": [1]}, None, DataError, "a test node is named twice"),
        ([0, 1, -1], SPLIT, None, DataError, "test node 2 has no label"),
        ([0, 1, 1], SPLIT, "rocauc", ConfigError, "does not fit labels of one class a node; take 'accuracy'"),
        ([0, 1, 1], SPLIT, "acc", ConfigError, "unknown metric 'acc'"),
        ([0.5, 1.0, 1.0], SPLIT, None, ShapeError, "expected integers"),
    ],
)
def test_labels_and_splits_that_do_not_fit_are_refused(
    labels: Any, split: Any, metric: str | None, error: type[GraphEmbError], message: str
) -> None:
    with pytest.raises(error, match=message):
        NodeTask("n", labels, split, metric)


def test_links_name_known_metrics() -> None:
    with pytest.raises(ConfigError, match="metrics is empty"):
        LinkTask({}, ())
    with pytest.raises(ConfigError, match="unknown metric 'hits@0'"):
        LinkTask({}, ("hits@0",))


def test_losses_are_sums_over_nodes() -> None:
    logits = torch.randn(2, 3)
    single = NodeTask("n", [0, 2, 1], SPLIT)
    torch.testing.assert_close(
        single.loss(logits, single.truth[[1, 0]]), F.cross_entropy(logits, torch.tensor([2, 0])) * 2
    )
    targets = np.array([[1, 0, np.nan], [0, 1, 1], [1, 1, 1]])
    several = NodeTask("n", targets, SPLIT)
    first = F.binary_cross_entropy_with_logits(logits[0, :2], torch.tensor([1.0, 0.0]))
    second = F.binary_cross_entropy_with_logits(logits[1], torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(several.loss(logits, several.truth[:2]), first + second)
