"""Clusters against classes."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.node_classification import cluster_agreement
from graph_emb.graph.labels import Labels

CLASSES = np.array([0, 0, 0, 1, 1, 1, -1, 2, 2, 2])


def rows_of(classes: np.ndarray, noise: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(0)
    lengths = rng.uniform(0.1, 10, (len(classes), 1))  # popularity must not matter
    return lengths * (np.eye(4)[classes] + rng.normal(0, noise, (len(classes), 4)))


def test_separate_directions_agree_fully_whatever_their_length() -> None:
    found = cluster_agreement(rows_of(CLASSES), Labels.from_single(CLASSES), runs=5)
    assert (found.num_nodes, found.num_classes, len(found.nmi)) == (9, 3, 5)
    assert found.nmi.max() == pytest.approx(1)
    assert found.mean > 0.7
    assert set(found.as_dict()) == {"num_nodes", "num_classes", "runs", "nmi_mean", "nmi_std"}
    assert "NMI" in str(found)


def test_noise_agrees_with_nothing() -> None:
    classes = np.arange(300) % 3
    found = cluster_agreement(np.random.default_rng(0).normal(size=(300, 8)), Labels.from_single(classes), runs=3)
    assert found.mean < 0.05


def test_bad_labels_and_runs_are_refused() -> None:
    rows = rows_of(CLASSES)
    with pytest.raises(DataError, match="labels are of 3 nodes, embeddings of 10"):
        cluster_agreement(rows, Labels.from_single(np.array([0, 1, 2])))
    with pytest.raises(DataError, match="labels use 1 of 1 classes"):
        cluster_agreement(rows, Labels.from_single(np.zeros(10, np.int64)))
    with pytest.raises(DataError, match="has 2 labels"):
        cluster_agreement(rows, Labels.from_lists([[0, 1], *[[0]] * 9]))
    with pytest.raises(ConfigError, match="0 runs of k-means"):
        cluster_agreement(rows, Labels.from_single(CLASSES), runs=0)
