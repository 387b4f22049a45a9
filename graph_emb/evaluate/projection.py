"""Two coordinates for each row of a table, for maps: PCA, t-SNE, or UMAP where it is installed."""

# N rows, D width.

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, unknown_name

METHODS = ("pca", "tsne", "umap")


def project(weights: NDArray[np.floating], method: str = "tsne", seed: int = 0) -> NDArray[np.float64]:
    """Two coordinates for each row, of which only the direction counts.

    Args:
        weights: Shape (N, D), finite, N at least 2.
        method: "pca": the two directions of largest variance, at once at any N. "tsne": van der Maaten and Hinton
            2008, from a PCA start, about a second for a thousand rows. "umap": McInnes et al. 2018.
        seed: Fixes the layout.
    Returns:
        Shape (N, 2).
    Raises:
        ConfigError: an unknown method, or umap where umap-learn is not installed.
    """
    check_method(method)
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    unit = weights / np.maximum(lengths, np.finfo(np.float32).tiny)
    return {"pca": _pca, "tsne": _tsne, "umap": _umap}[method](unit, seed)


def check_method(method: str) -> None:
    """Raise a ConfigError for an unknown method, or one whose package is not installed."""
    if method not in METHODS:
        raise unknown_name("map", method, METHODS)
    if method == "umap" and find_spec("umap") is None:
        raise ConfigError("map 'umap' needs umap-learn, which is not installed: pip install umap-learn; or take tsne")


def _pca(unit: NDArray[np.floating], seed: int) -> NDArray[np.float64]:
    """By the eigenvectors of the covariance, (D, D); each points to where its largest number is positive."""
    centred = unit.astype(np.float64) - unit.mean(axis=0, dtype=np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    axes = np.zeros((unit.shape[1], 2))
    found = vectors[:, ::-1][:, :2]
    axes[:, : found.shape[1]] = found  # rows of one number have one axis
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return centred @ (axes * np.where(signs == 0, 1, signs))


def _tsne(unit: NDArray[np.floating], seed: int) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(unit) - 1) / 3)
    start: Any = "pca" if min(unit.shape) > 1 else "random"
    tsne = TSNE(perplexity=perplexity, init=start, random_state=seed, max_iter=600)
    # One thread: 3 s of work for 2,000 rows, and OpenMP threads that spin on busy cores made it twenty times that
    with threadpool_limits(1):
        if min(unit.shape) > 50:  # the paper's own first step
            unit = PCA(50, random_state=seed).fit_transform(unit)
        return np.asarray(tsne.fit_transform(unit), np.float64)


def _umap(unit: NDArray[np.floating], seed: int) -> NDArray[np.float64]:
    from umap import UMAP

    neighbors = min(15, len(unit) - 1)
    return np.asarray(UMAP(n_neighbors=neighbors, random_state=seed).fit_transform(unit), np.float64)
