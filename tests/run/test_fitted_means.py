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
NEW = np.flatnonzero(IS_NEW)


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
def test_the_map_of_old_nodes_is_that_of_new_ones(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENALTIES", (1e-8,))  # or the weakest number of a row is led less far
    rows, values = eigen_rows(0)
    means = np.random.default_rng(1).normal(size=(NUM_NEW, 3))
    found = fitted_means(blocks(0, directed), IS_NEW, [rows], NEW, means, seed=0)
    assert np.abs(1.0 / values - 1.0).max() > 0.5
    np.testing.assert_allclose(found, means / values, rtol=0.01, atol=0.01)


def left_out(inputs: NDArray[np.float64], targets: NDArray[np.float64], penalty: float) -> NDArray[np.float64]:
    """The error of each node by a ridge regression without it."""
    kept = ~np.eye(len(inputs), dtype=bool)
    maps = [_ridge_of(inputs[rest], targets[rest], penalty) for rest in kept]
    return np.stack([targets[i] - inputs[i] @ own for i, own in enumerate(maps)])


def _ridge_of(inputs: NDArray[np.float64], targets: NDArray[np.float64], penalty: float) -> NDArray[np.float64]:
    return np.linalg.solve(inputs.T @ inputs + penalty * np.eye(inputs.shape[1]), inputs.T @ targets)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("noise", [0.01, 2.0])
def test_the_map_is_the_regression_whose_errors_on_nodes_left_out_are_least(
    noise: float, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its definition: all nodes count alike, and rows grow with the logarithm of the number of neighbours; where
    there are many nodes every so many of them tell the penalty.
    """
    graph, near, rng = blocks(5), walked(5), np.random.default_rng(7)
    degrees = (near > 0).sum(1)
    old = degrees > 0
    rows = rng.normal(size=(NUM_OLD + NUM_NEW, 4))
    rows[old, :2] += (near @ rows)[old, 2:] * np.log(degrees[old])[:, None] * 3.0
    rows[:, :2] += rng.normal(size=(len(rows), 2)) * noise
    rows[IS_NEW] = 100.0  # which nothing may read
    rows = rows.astype(np.float32).astype(np.float64)
    own, logs = (near @ rows)[old], np.log(degrees[old])
    inputs = np.concatenate([own[:, 2:], own[:, 2:] * (logs - logs.mean())[:, None]], 1)
    targets = rows[old] - own
    scale = (inputs**2).sum() / inputs.shape[1]
    monkeypatch.setattr(module, "JUDGED", -(-len(inputs) // step))
    errors = [(left_out(inputs, targets, scale * penalty)[::step] ** 2).sum() for penalty in module.PENALTIES]
    added = _ridge_of(inputs, targets, scale * module.PENALTIES[int(np.argmin(errors))])
    means = rng.normal(size=(NUM_NEW, 4))
    arcs = csr_matrix((np.ones(len(graph.indices)), graph.indices, graph.indptr)).toarray()
    told = np.log((arcs[IS_NEW][:, ~IS_NEW] > 0).sum(1)).clip(logs.min(), logs.max()) - logs.mean()
    wanted = means + np.concatenate([means[:, 2:], means[:, 2:] * told[:, None]], 1) @ added
    found = fitted_means(graph, IS_NEW, [rows.astype(np.float32)], NEW, means, 0, slice(2, None))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(found - means).max() > 0.1


def test_what_says_nothing_of_rows_leaves_the_mean_nearly_as_it_is() -> None:
    """Rows without regard to edges: the error of those left out is least where the map hardly moves anything."""
    rng = np.random.default_rng(2)
    rows = (rng.normal(size=(NUM_OLD + NUM_NEW, 8)) * 1e-2 + 1.0).astype(np.float32)
    means = np.ones((1, 8))
    np.testing.assert_allclose(fitted_means(blocks(2), IS_NEW, [rows], NEW[:1], means, seed=0), means, rtol=0.02)


def test_few_old_nodes_tell_nothing() -> None:
    means = np.random.default_rng(3).normal(size=(2, 16))
    rows = np.random.default_rng(4).normal(size=(NUM_OLD + NUM_NEW, 16)).astype(np.float32)
    assert np.array_equal(fitted_means(blocks(3), IS_NEW, [rows], NEW[:2], means, seed=0), means)  # 60 of 64
    assert not np.array_equal(
        fitted_means(blocks(3), IS_NEW, [rows[:, :8]], NEW[:2], means[:, :8], seed=0), means[:, :8]
    )
    assert np.array_equal(
        fitted_means(blocks(3), IS_NEW, [rows[:, :8] * 0], NEW[:2], means[:, :8], seed=0), means[:, :8]
    )


def test_some_of_many_old_nodes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NODES", 40)
    rows, values = eigen_rows(0)
    rows[:NUM_OLD] += np.random.default_rng(0).normal(size=(NUM_OLD, 3)).astype(np.float32) * 1e-2
    means = np.random.default_rng(1).normal(size=(NUM_NEW, 3))
    first, same, other = (fitted_means(blocks(0), IS_NEW, [rows], NEW, means, seed=seed) for seed in (0, 0, -1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    np.testing.assert_allclose(first, means / values, rtol=0.3, atol=0.1)


def test_numbers_of_neighbours_beyond_those_of_old_nodes_count_as_the_nearest() -> None:
    """A line through some tens of logarithms would lead a new hub, or a node of one neighbour, anywhere."""
    rng = np.random.default_rng(0)
    src, dst = np.nonzero(np.triu(rng.random((NUM_OLD, NUM_OLD)) < 0.3, 1))
    degrees = np.bincount(np.concatenate([src, dst]), minlength=NUM_OLD)
    asked = [1, int(degrees.min()), int(degrees.max()), NUM_OLD]
    new = NUM_OLD + np.arange(4).repeat(asked)
    known = np.concatenate([np.arange(num) for num in asked])
    graph = Graph.from_edges(np.concatenate([src, new]), np.concatenate([dst, known]), NUM_OLD + 4)
    rows = rng.normal(size=(NUM_OLD + 4, 3)).astype(np.float32)
    nodes = NUM_OLD + np.arange(4)
    found = fitted_means(graph, np.arange(NUM_OLD + 4) >= NUM_OLD, [rows], nodes, np.ones((4, 3)), seed=0)
    assert asked[0] < asked[1] < asked[2] < asked[3]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], found[3])
    assert not np.allclose(found[1], found[2], rtol=1e-6, atol=1e-9)
