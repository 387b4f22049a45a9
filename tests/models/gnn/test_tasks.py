"""What a task refuses, and its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, ShapeError
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks

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


def several_classes(kind: str, num: int = 90) -> tuple[Any, torch.Tensor, dict[str, np.ndarray]]:
    """Labels, logits with ties, and a split; of five tasks one has no answer but 1, and some are unknown."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(num, 5)).round(1).astype(np.float32))
    labels: Any = rng.integers(0, 5, num)
    if kind != "accuracy":
        labels = rng.integers(0, 2, (num, 5)).astype(np.float32)
        labels[:, 2] = 1
        labels[rng.random((num, 5)) < 0.1] = np.nan
        labels[:, 0] = rng.integers(0, 2, num)  # of every node one is known
    order = rng.permutation(num)
    return labels, logits, {"train": order[:40], "valid": order[40:60], "test": order[60:]}


def measured(kind: str) -> list[dict[str, float]]:
    """The metric by nodes that lie with several ranks, the last of which has none that is judged."""
    group = ProcessGroup(timeout=60)
    labels, logits, split = several_classes(kind)
    owner = np.arange(len(logits)) % max(1, group.world_size - 1)
    owner[split["train"][:5]] = group.world_size - 1
    own = np.flatnonzero(owner == group.rank)
    places = np.full(len(logits), -1)
    places[own] = np.arange(len(own))
    parts = {part: places[nodes][places[nodes] >= 0] for part, nodes in split.items()}
    try:
        task = OwnNodeTask(
            "user",
            labels[own],
            parts,
            kind,
            sizes={part: len(nodes) for part, nodes in split.items()},
            places=torch.from_numpy(np.flatnonzero(places[split["train"]] >= 0)),
            outputs=5,
            group=group,
        )
        return [task.measure(logits[own], part) for part in ("valid", "test")]
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.filterwarnings("ignore::graph_emb.evaluate.ranks.TiesWarning")
@pytest.mark.parametrize("kind", ["accuracy", "rocauc", "micro_f1"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_ranks_find_the_metric_of_all_nodes(ranks: Ranks, kind: str, num_ranks: int) -> None:
    labels, logits, split = several_classes(kind)
    task = NodeTask("user", labels, split, kind)
    expected = [task.measure(logits, part) for part in ("valid", "test")]
    assert ranks.run(measured, num_ranks, kind) == [expected] * num_ranks
