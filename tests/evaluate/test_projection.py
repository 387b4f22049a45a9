"""Maps of rows: groups stay apart, and the same rows give the same map."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.evaluate import projection
from graph_emb.evaluate.projection import project


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_groups_stay_apart_and_the_map_repeats(method: str) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(side, 0.1, (20, 4)) for side in (-1, 1)]).astype(np.float32)
    points = project(rows, method, seed=0)
    assert points.shape == (40, 2)
    np.testing.assert_array_equal(points, project(rows, method, seed=0))
    inside = np.linalg.norm(points[:20] - points[:20].mean(axis=0), axis=1).max()
    assert np.linalg.norm(points[:20].mean(axis=0) - points[20:].mean(axis=0)) > 2 * inside


def test_pca_takes_the_two_directions_of_largest_variance() -> None:
    # unit rows: 0.8 apart in the second number, 0.6 in the third, nothing in the first
    rows = np.array([[0, 0.8, 0.6], [0, -0.8, 0.6], [0, 0.8, -0.6], [0, -0.8, -0.6]])
    np.testing.assert_allclose(project(5 * rows, "pca"), rows[:, 1:], atol=1e-12)
    assert project(np.ones((3, 1)), "pca").tolist() == [[0, 0]] * 3  # rows of one number have no second axis


def test_a_map_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown map 'tsen'.*did you mean 'tsne'"):
        project(np.eye(3), "tsen")
    monkeypatch.setattr(projection, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install umap-learn"):
        project(np.eye(3), "umap")
