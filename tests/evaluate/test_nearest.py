"""Neighbours for the eye."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.node_classification import nearest_nodes

ROWS = np.array([[1.0, 0], [2, 0.2], [0, 5], [1, 1], [-3, 0]])
NAMES = np.array(["a", "b", "c", "d", "e"])


def test_neighbours_come_by_cosine_without_the_node_itself() -> None:
    found = nearest_nodes(ROWS, NAMES, np.array([0, 2]), k=3)
    assert found.asked == ["a", "c"]
    assert found.nearest == [["b", "d", "c"], ["d", "b", "a"]]
    np.testing.assert_allclose(found.cosines[0], [2 / np.hypot(2, 0.2), np.sqrt(0.5), 0], atol=1e-12)
    assert found.as_dict()["a"][0] == ["b", pytest.approx(0.995, abs=1e-3)]
    assert str(found).splitlines()[0].split() == ["a", "c"]


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="4 names for 5 nodes"):
        nearest_nodes(ROWS, NAMES[:4], np.array([0]))
    with pytest.raises(ConfigError, match=r"k=5 nearest of 5 nodes: give one in \[1, 4\]"):
        nearest_nodes(ROWS, NAMES, np.array([0]), k=5)
    with pytest.raises(DataError, match="asked for nodes 5 to 5 of 5"):
        nearest_nodes(ROWS, NAMES, np.array([5]), k=1)
