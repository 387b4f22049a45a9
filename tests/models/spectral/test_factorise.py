from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
from scipy.linalg import expm

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.models.spectral.config import SPECTRAL_MODELS, NetMFConfig, ProNEConfig
from graph_emb.models.spectral.factorise import netmf_matrix, prone_matrix, propagated, spectral_rows

NUM = 12


def graph(weighted: bool = False) -> Graph:
    """Two circles of six nodes, joined by one edge, and a node without edges."""
    src = np.concatenate([np.arange(6), 6 + np.arange(6), [0]])
    dst = np.concatenate([(np.arange(6) + 1) % 6, 6 + (np.arange(6) + 1) % 6, [6]])
    weights = np.arange(1, 14, dtype=np.float32) if weighted else None
    return Graph.from_edges(src, dst, NUM + 1, weights).to_undirected()


def dense(weighted: bool = False) -> np.ndarray:
    return graph(weighted).to_scipy().toarray().astype(np.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_matrix_of_netmf_is_the_papers(weighted: bool) -> None:
    a = dense(weighted)[:NUM, :NUM]
    inverse, step, total = np.diag(1 / a.sum(1)), np.eye(NUM), np.zeros((NUM, NUM))
    for _ in range(3):
        step = step @ inverse @ a
        total += step
    wanted = np.log(np.maximum(1, a.sum() / (2 * 3) * total @ inverse))
    found = netmf_matrix(graph(weighted), NetMFConfig(dim=2, window=3, num_negatives=2.0, rank=None))
    np.testing.assert_allclose(found[:NUM, :NUM], wanted, rtol=1e-4, atol=1e-5)
    assert not found[NUM].any(), "a node without edges has no context"


@pytest.mark.parametrize("unit", [1e37, 1e-37])
def test_the_matrix_of_netmf_is_the_same_in_any_unit_of_the_weights(unit: float) -> None:
    """Sums of weights past float32 were inf, and the factorisation ended with a traceback."""
    one = graph(weighted=True)
    other = Graph(one.indptr, one.indices, (one.weights * unit).astype(np.float32), one.directed)
    settings = NetMFConfig(dim=2, window=3, rank=None)
    np.testing.assert_allclose(netmf_matrix(other, settings), netmf_matrix(one, settings), rtol=1e-5, atol=1e-6)


def test_eigenpairs_stand_for_the_powers_of_the_matrix() -> None:
    """All but negative eigenvalues: those of even powers are missing, as in the paper's algorithm."""
    a = dense()
    roots = np.divide(1, np.sqrt(a.sum(1)), where=a.sum(1) > 0, out=np.zeros(NUM + 1))
    values, vectors = np.linalg.eigh(roots[:, None] * a * roots)
    kept = values[-7:].clip(0)
    total = (vectors[:, -7:] * (kept + kept**2)) @ vectors[:, -7:].T
    wanted = np.log(np.maximum(1, a.sum() / 2 * roots[:, None] * total * roots))
    found = netmf_matrix(graph(), NetMFConfig(dim=2, window=2, rank=7), seed=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("power", [0.0, 0.75])
def test_the_matrix_of_prone_is_the_papers(power: float) -> None:
    a = dense(weighted=True)[:NUM, :NUM]
    steps = a / a.sum(1, keepdims=True)
    drawn = steps.sum(0) ** power / (steps.sum(0) ** power).sum()
    wanted = np.where(a > 0, np.log(np.where(a > 0, steps, 1)) - np.log(drawn), 0.0)
    np.testing.assert_allclose(prone_matrix(graph(weighted=True), power).toarray()[:NUM, :NUM], wanted, atol=1e-6)


def test_the_propagation_is_the_exponential_of_the_band() -> None:
    config, rows = ProNEConfig(dim=3, order=30, mu=0.4, theta=0.7), np.random.default_rng(0).normal(size=(NUM + 1, 3))
    looped = dense() + np.eye(NUM + 1)
    laplacian = np.eye(NUM + 1) - looped / looped.sum(1, keepdims=True)
    shifted = laplacian - 0.4 * np.eye(NUM + 1)
    wanted = looped @ (rows - expm(-0.7 * (shifted @ shifted / 2 - np.eye(NUM + 1))) @ rows)
    np.testing.assert_allclose(propagated(graph(), rows, config), wanted, atol=1e-9)


CHANGES: dict[str, list[dict[str, Any]]] = {
    "netmf": [{"window": 2}, {"num_negatives": 3.0}, {"rank": 3}, {"dim": 3}],
    "prone": [{"power": 0.5}, {"order": 1}, {"order": 3}, {"mu": 0.5}, {"theta": 1.0}, {"dim": 3}],
}


@pytest.mark.parametrize("model", SPECTRAL_MODELS)
def test_a_seed_repeats_the_rows_and_every_value_changes_them(model: str) -> None:
    settings = SPECTRAL_MODELS[model]
    first = spectral_rows(graph(), settings(name=model, dim=4), 1)
    np.testing.assert_allclose(spectral_rows(graph(), settings(name=model, dim=4), 1), first, atol=1e-6)
    assert first.dtype == np.float32
    for change in CHANGES[model]:
        other = spectral_rows(graph(), settings(**{"name": model, "dim": 4, **change}), 1)
        assert np.isfinite(other).all()
        assert other.shape != first.shape or not np.allclose(np.abs(other), np.abs(first), atol=1e-4)


@pytest.mark.parametrize("model", SPECTRAL_MODELS)
def test_nodes_of_one_circle_are_nearer_to_each_other(model: str) -> None:
    rows = spectral_rows(graph(), SPECTRAL_MODELS[model](name=model, dim=4), 1)[:NUM]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = unit @ unit.T
    same = np.equal.outer(np.arange(NUM) < 6, np.arange(NUM) < 6)
    assert near[same].mean() > near[~same].mean() + 0.2


def test_a_width_that_the_graph_does_not_have_is_refused() -> None:
    with pytest.raises(ge.ConfigError, match=r"model\.dim = 13: prone needs more nodes than that; it has n_samples=13"):
        spectral_rows(graph(), ProNEConfig(dim=13))


def test_a_matrix_that_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Free", (), {"available": 12 * 13**2 - 1}))
    with pytest.raises(ge.ConfigError, match="take prone, which keeps to the edges"):
        spectral_rows(graph(), NetMFConfig(dim=2))
    spectral_rows(graph(), ProNEConfig(dim=2))


def test_eigenvectors_of_directed_edges_are_refused() -> None:
    directed = Graph.from_edges(np.array([0, 1, 2]), np.array([1, 2, 0]), NUM, directed=True)
    assert netmf_matrix(directed, NetMFConfig(dim=2, rank=None)).shape == (NUM, NUM)
    with pytest.raises(ConfigError, match=r"model.rank = 7 takes eigenvectors, which directed edges do not have"):
        netmf_matrix(directed, NetMFConfig(dim=2, rank=7))
