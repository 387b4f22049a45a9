"""Rows of new nodes, as the old ones tell: planted rows have maps that are known."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from graph_emb.graph.csr import Graph
from graph_emb.run import fitted_means as module
from graph_emb.run.fitted_means import fitted_means

NUM_OLD, NUM_NEW = 60, 3


def blocks(seed: int, directed: bool = False) -> Graph:
    """Two groups of old nodes with few edges between them; the last nodes are new ones, which old ones know too."""
    rng = np.random.default_rng(seed)
    group = np.arange(NUM_OLD) % 2
    share = rng.choice([0.2, 1.0], NUM_OLD)  # so that degrees differ
    joined = rng.random((NUM_OLD, NUM_OLD)) < np.where(group[:, None] == group, 0.6, 0.06) * np.outer(share, share)
    src, dst = np.nonzero(np.triu(joined, 1))
    new = np.arange(NUM_OLD, NUM_OLD + NUM_NEW).repeat(8)
    ends = np.concatenate([src, new]), np.concatenate([dst, rng.integers(0, NUM_OLD, len(new))])
    return Graph.from_edges(*ends, NUM_OLD + NUM_NEW, directed=directed)


IS_NEW = np.arange(NUM_OLD + NUM_NEW) >= NUM_OLD


def walked(seed: int) -> NDArray[np.float64]:
    """The old nodes' matrix of neighbours' means, (N, N)."""
    graph = blocks(seed)
    arcs = csr_matrix((np.ones(len(graph.indices)), graph.indices, graph.indptr)).toarray()
    arcs[IS_NEW], arcs[:, IS_NEW] = 0.0, 0.0
    return np.asarray(arcs / arcs.sum(1, keepdims=True).clip(1.0))


def eigen_rows(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Rows whose neighbours' mean is ``values`` times the row, number by number."""
    values, vectors = np.linalg.eig(walked(seed))
    best = np.argsort(-np.abs(values.real))[:3]
    rows = vectors.real[:, best] / np.abs(vectors.real[:, best]).max(0)
    rows[IS_NEW] = 100.0  # which nothing may read
    return rows.astype(np.float32), values.real[best]


@pytest.mark.parametrize("directed", [False, True])
def test_the_map_of_old_nodes_is_that_of_new_ones(directed: bool) -> None:
    rows, values = eigen_rows(0)
    means = np.random.default_rng(1).normal(size=(NUM_NEW, 3))
    found = fitted_means(blocks(0, directed), IS_NEW, rows, means, seed=0)
    assert np.abs(1.0 / values - 1.0).max() > 0.5
    np.testing.assert_allclose(found, means / values, rtol=0.01, atol=0.01)


def test_a_node_of_many_neighbours_counts_as_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one number a row the map is a slope, that of least squares with a weight for each neighbour."""
    monkeypatch.setattr(module, "PENALTIES", np.array([1e-6]))
    graph, near = blocks(5), walked(5)
    degrees = (near > 0).sum(1)
    rows = np.where(np.arange(NUM_OLD + NUM_NEW) % 2, 1.0, -1.0) * (5.0 - 4.0 * degrees / degrees.max())
    means = near @ rows
    slopes = [float((w * means * rows).sum() / (w * means**2).sum()) for w in (degrees, degrees > 0)]
    found = fitted_means(graph, IS_NEW, rows[:, None].astype(np.float32), np.ones((1, 1)), seed=0)
    assert abs(slopes[0] - slopes[1]) > 0.1
    np.testing.assert_allclose(found[0], slopes[:1], rtol=1e-4)


def test_what_says_nothing_of_rows_leaves_the_mean_nearly_as_it_is() -> None:
    """Rows without regard to edges: the error of those left out is least where the map hardly moves anything."""
    rng = np.random.default_rng(2)
    rows = (rng.normal(size=(NUM_OLD + NUM_NEW, 8)) * 1e-2 + 1.0).astype(np.float32)
    means = np.ones((1, 8))
    np.testing.assert_allclose(fitted_means(blocks(2), IS_NEW, rows, means, seed=0), means, rtol=0.02)


def test_few_old_nodes_tell_nothing() -> None:
    means = np.random.default_rng(3).normal(size=(2, 16))
    rows = np.random.default_rng(4).normal(size=(NUM_OLD + NUM_NEW, 16)).astype(np.float32)
    assert np.array_equal(fitted_means(blocks(3), IS_NEW, rows, means, seed=0), means)  # 60 of 64
    assert not np.array_equal(fitted_means(blocks(3), IS_NEW, rows[:, :8], means[:, :8], seed=0), means[:, :8])
    assert np.array_equal(fitted_means(blocks(3), IS_NEW, rows[:, :8] * 0, means[:, :8], seed=0), means[:, :8])


def test_some_of_many_old_nodes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NODES", 40)
    rows, values = eigen_rows(0)
    rows[:NUM_OLD] += np.random.default_rng(0).normal(size=(NUM_OLD, 3)).astype(np.float32) * 1e-2
    means = np.random.default_rng(1).normal(size=(NUM_NEW, 3))
    first, same, other = (fitted_means(blocks(0), IS_NEW, rows, means, seed=seed) for seed in (0, 0, -1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    np.testing.assert_allclose(first, means / values, rtol=0.3, atol=0.1)
