from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.softmax import fit_softmax


def clouds(num_classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    classes = generator.integers(num_classes, size=600)
    centres = generator.normal(size=(num_classes, 8))
    return (centres[classes] + generator.normal(size=(600, 8)) + 4.0).astype(np.float32), classes


def test_it_is_scikit_learns_multinomial_regression() -> None:
    rows, classes = clouds()
    found = fit_softmax(rows, classes, 5).decide(rows.astype(np.float64))
    peer = LogisticRegression(C=1.0, tol=1e-8, max_iter=2_000).fit(rows.astype(np.float64), classes)
    expected = peer.decision_function(rows.astype(np.float64))
    # logits of a softmax are fixed up to a constant of each node
    centred = [logits - logits.mean(axis=1, keepdims=True) for logits in (found, expected)]
    np.testing.assert_allclose(*centred, atol=0.02)


def test_a_class_without_a_node_is_never_predicted() -> None:
    rows, classes = clouds()
    found = fit_softmax(rows, classes + 1, 7)  # neither 0 nor 6 occurs
    assert found.weights.shape == (8, 7)
    assert np.isneginf(found.biases[[0, 6]]).all()
    assert set(found.decide(rows).argmax(axis=1)) <= {1, 2, 3, 4, 5}


def test_threads_below_one_are_refused() -> None:
    rows, classes = clouds()
    with pytest.raises(ConfigError, match="threads is 0"):
        fit_softmax(rows, classes, 5, threads=0)
