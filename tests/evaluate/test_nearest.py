"""Neighbours for the eye."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate.nearest import NearestNeighbors
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
    with pytest.raises(ConfigError, match=r"k=5 nearest of 5 rows: give one in \[1, 4\]"):
        nearest_nodes(ROWS, NAMES, np.array([0]), k=5)
    with pytest.raises(DataError, match="asked for nodes 5 to 5 of 5"):
        nearest_nodes(ROWS, NAMES, np.array([5]), k=1)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_blocks_find_what_a_whole_sort_finds(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_emb.evaluate.nearest.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("graph_emb.evaluate.nearest.ASKED_AT_ONCE", 3)
    rng = np.random.default_rng(0)
    rows = rng.integers(-2, 3, (50, 3)).astype(np.float32)  # many ties, and rows of zeros
    table, asked = NearestNeighbors(rows, metric=metric), np.array([0, 49, 7, 8, 20, 7])
    found = table.nearest(asked, k=12)
    for number, own in enumerate(asked.tolist()):
        others = np.delete(np.arange(50), own)
        if metric == "euclidean":
            values = np.linalg.norm(rows[others] - rows[own], axis=1)
            order = np.argsort(values.round(4), kind="stable")[:12]
        else:
            norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-12) if metric == "cosine" else np.ones(50)
            values = rows[others] @ rows[own] / norms[others] / norms[own]
            order = np.argsort(-values.round(4), kind="stable")[:12]
        np.testing.assert_allclose(found.scores[number], values[order], atol=1e-3)
        if metric == "dot":  # exact in float32, so that equal scores keep the order of the rows
            assert found.ids[number].tolist() == others[order].tolist()


def test_vectors_of_others_may_find_any_row() -> None:
    table = NearestNeighbors(ROWS, NAMES, metric="euclidean")
    found = table.search(np.array([[1.0, 0.0], [0.0, 4.0]]), k=5)
    assert found.ids[0].tolist() == ["a", "d", "b", "e", "c"]
    np.testing.assert_allclose(found.scores[1, :2], [1, np.sqrt(10)], atol=1e-12)
    assert table.nearest(["c"], k=1).ids.tolist() == [["d"]]


def test_a_search_that_has_no_meaning_is_refused() -> None:
    table = NearestNeighbors(ROWS, NAMES)
    with pytest.raises(DataError, match="id 'z' has no row"):
        table.nearest(["a", "z"])
    with pytest.raises(ShapeError, match="vectors have 3 numbers, the rows 2"):
        table.search(np.ones((1, 3)))
    with pytest.raises(ConfigError, match="unknown metric 'cosin'"):
        NearestNeighbors(ROWS, metric="cosin")
    with pytest.raises(ShapeError, match="4 node_ids for 5 rows"):
        NearestNeighbors(ROWS, NAMES[:4])
    with pytest.raises(ConfigError, match=r"k=0 nearest of 5 rows: give one in \[1, 4\]"):
        table.nearest(["a"], k=0)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e10, 1e25])
def test_rows_of_any_size_have_the_neighbours_of_rows_of_size_1(metric: str, size: float) -> None:
    """Squares past float32 made scores infinite or 0, and the neighbours the first or the last rows of the table."""
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    expected = NearestNeighbors(rows, metric=metric).nearest_rows(np.arange(60), 5)
    table = NearestNeighbors(rows * np.float32(size), metric=metric)
    found = table.nearest_rows(np.arange(60), 5)
    np.testing.assert_array_equal(found.ids, expected.ids)
    power = {"cosine": 0, "dot": 2, "euclidean": 1}[metric]
    with np.errstate(over="ignore"):
        scores = (expected.scores * np.float64(size) ** power).astype(np.float32)
    np.testing.assert_allclose(
        found.scores, scores, rtol=1e-4, atol=np.abs(scores[np.isfinite(scores)]).max(initial=0) * 1e-5
    )
    if metric != "dot":
        np.testing.assert_array_equal(table.search(rows * np.float32(size), 1).ids[:, 0], np.arange(60))


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_a_row_of_another_size_leaves_the_neighbours_of_the_others(metric: str, size: float) -> None:
    """Such as one that has diverged: a scale for all rows would make the others 0."""
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    rows[59] *= np.float32(size)
    found = NearestNeighbors(rows, metric=metric).nearest_rows(np.arange(60), 5)
    exact = NearestNeighbors(rows.astype(np.float64), metric=metric).nearest_rows(np.arange(60), 5)
    np.testing.assert_array_equal(found.ids, exact.ids)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found.scores, exact.scores.astype(np.float32), rtol=1e-4, atol=1e-5)


def test_distances_are_those_of_rows_that_lie_far_from_0() -> None:
    """Of float32 rows around 1,000 two thirds of the nearest were others: distances were differences of squares."""
    rows = np.random.default_rng(0).normal(1000, 1, size=(300, 16)).astype(np.float32)
    found = NearestNeighbors(rows, metric="euclidean").nearest_rows(np.arange(300), 3)
    exact = NearestNeighbors(rows.astype(np.float64), metric="euclidean").nearest_rows(np.arange(300), 3)
    np.testing.assert_array_equal(found.ids, exact.ids)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-4)


def test_an_index_of_rows_whose_squares_pass_float32_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"numbers of 1e\+25: index='hnswlib' squares in float32; scale them"):
        NearestNeighbors(np.full((3, 2), 1e25, np.float32), index="hnswlib")


def test_vectors_that_no_score_holds_and_rows_that_are_not_there_are_refused() -> None:
    table = NearestNeighbors(ROWS.astype(np.float32), NAMES, metric="euclidean")
    with pytest.raises(DataError, match=r"vectors with numbers of 1e\+30: scores pass float32"):
        table.search(np.full((1, 2), 1e30, np.float32), 1)
    for places in ([-1], [0, 5], ["a"]):
        with pytest.raises(DataError, match=r"is no number in \[0, 4\]; nearest takes ids"):
            table.nearest_rows(places)
    for options in ({"sample": 0}, {"seed": -1}):
        with pytest.raises(ConfigError, match="give at least 1 row, and a seed of at least 0"):
            table.recall(3, **options)
