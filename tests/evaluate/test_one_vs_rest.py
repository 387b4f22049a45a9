from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.one_vs_rest import fit_one_vs_rest, num_threads


def noisy(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(80, 5))
    return rows, rows @ generator.normal(size=(5, num_classes)) + generator.normal(size=(80, num_classes)) > 0.5


def test_each_class_is_liblinears_own_fit() -> None:
    rows, targets = noisy(3)
    model = fit_one_vs_rest(rows, targets, threads=2)
    for column in range(3):
        alone = LogisticRegression(solver="liblinear", C=1.0).fit(rows, targets[:, column])
        assert np.array_equal(model.weights[:, column], alone.coef_[0])
        assert model.biases[column] == alone.intercept_[0]
        assert np.allclose(model.decide(rows)[:, column], alone.decision_function(rows))
    assert model.num_parameters == 3 * 6


def test_a_class_of_no_node_or_of_all_needs_no_fit() -> None:
    rows, targets = noisy(1)
    both = np.column_stack([targets, np.zeros(80, dtype=bool), np.ones(80, dtype=bool)])
    decisions = fit_one_vs_rest(rows, both).decide(rows)
    assert np.isfinite(decisions[:, 0]).all()
    assert (decisions[:, 1] == -np.inf).all()
    assert (decisions[:, 2] == np.inf).all()


def test_threads_are_bounded_by_the_memory_that_their_copies_need() -> None:
    assert num_threads(None, 1) >= 1
    assert num_threads(None, 1 << 60) == 1
    assert num_threads(7, 1 << 60) == 7
    with pytest.raises(ConfigError, match="threads is 0; give at least 1"):
        num_threads(0, 1)
