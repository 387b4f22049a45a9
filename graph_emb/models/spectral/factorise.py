"""NetMF and ProNE: embeddings by factorisation of a matrix of the graph, on kept libraries (scipy, scikit-learn)."""

# N nodes, D width, h eigenpairs, T window.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh
from scipy.special import iv
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd

from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.models.spectral.config import NetMFConfig, ProNEConfig, SpectralConfig

Matrix = NDArray[np.float32]


def spectral_rows(graph: Graph, config: SpectralConfig, seed: int = 0) -> Matrix:
    """The rows of all nodes, shape (N, D), float32. A seed repeats them, up to rounding in matrix products.

    Raises:
        ConfigError: D is not below N, or the matrix of NetMF does not fit into memory.

    Example:
        >>> from graph_emb.graph.csr import Graph
        >>> from graph_emb.models.spectral.config import ProNEConfig
        >>> from graph_emb.models.spectral.factorise import spectral_rows
        >>> ring = np.arange(12)
        >>> graph = Graph.from_edges(ring, (ring + 1) % 12, 12).to_undirected()
        >>> spectral_rows(graph, ProNEConfig(dim=4)).shape
        (12, 4)
    """
    check_size(graph.num_nodes, config)
    found: Matrix = ROWS[config.name](graph, config, seed)
    return np.ascontiguousarray(found, np.float32)


def check_size(num_nodes: int, config: SpectralConfig) -> None:
    """Refuse a width that the graph does not have, and a matrix that memory does not hold.

    Raises:
        ConfigError: as ``spectral_rows``.
    """
    if config.dim >= num_nodes:
        raise ConfigError(
            f"model.dim = {config.dim}: {config.name} needs more nodes than that; it has n_samples={num_nodes}"
        )
    if isinstance(config, NetMFConfig):
        import psutil

        needed, free = 3 * 4 * num_nodes**2, psutil.virtual_memory().available
        if needed > free:
            raise ConfigError(
                f"netmf: {num_nodes} nodes need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of memory is free; "
                "take prone, which keeps to the edges"
            )


def netmf_matrix(graph: Graph, config: NetMFConfig, seed: int = 0) -> Matrix:
    """``log max(1, vol / (b T) sum_r (D^-1 A)^r D^-1)``, shape (N, N): equation 3 of Qiu et al. 2018.

    With ``rank`` h the normalised adjacency matrix is its h largest eigenpairs (their algorithm 4), whose powers are
    those of the eigenvalues.
    """
    adjacency = graph.to_scipy().astype(np.float64)
    adjacency.data /= adjacency.data.max(initial=1.0)  # the matrix is the same in any unit of the weights
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    roots = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    normal = (sparse.diags_array(roots) @ adjacency @ sparse.diags_array(roots)).astype(np.float32)
    scale = float(degrees.sum()) / (config.num_negatives * config.window)
    if config.rank is None or config.rank >= graph.num_nodes - 1:
        term = normal.toarray()
        total = term.copy()
        for _ in range(config.window - 1):
            term = normal @ term
            total += term
    else:
        if (adjacency != adjacency.T).nnz:
            raise ConfigError(
                f"netmf: model.rank = {config.rank} takes eigenvectors, which directed edges do not have; symmetrize "
                "the graph (model.symmetrize=true), or set model.rank=null"
            )
        start = np.random.default_rng(seed).standard_normal(graph.num_nodes).astype(np.float32)
        values, vectors = eigsh(normal, config.rank, which="LA", v0=start)
        powers = np.sum([values.clip(0) ** r for r in range(1, config.window + 1)], axis=0)
        total = (vectors * powers) @ vectors.T
    total *= scale * roots[:, None]
    total *= roots[None, :]
    np.maximum(total, 1.0, out=total)
    return np.log(total, out=total)


def _netmf(graph: Graph, config: NetMFConfig, seed: int) -> Matrix:
    return _svd_rows(netmf_matrix(graph, config, seed), config, seed)


def prone_matrix(graph: Graph, power: float) -> sparse.csr_array:
    """``log p_ij - log q_j`` on the arcs, p a step's probability and q that of a negative: equation 3 of ProNE.

    q is ``(sum_i p_ij) ** power``, normalised.
    """
    steps = sparse.csr_array(normalize(graph.to_scipy().astype(np.float64), "l1"))
    visits = np.asarray(steps.sum(axis=0)).ravel()
    drawn = np.power(visits, power, out=np.zeros_like(visits), where=visits > 0)
    drawn /= drawn.sum()
    steps.data = np.log(steps.data) - np.log(drawn[steps.indices])
    return steps


def propagated(graph: Graph, rows: NDArray[Any], config: ProNEConfig) -> NDArray[Any]:
    """Rows (N, D) through the band of the spectrum: ``(A + I) (x - exp(-theta ((L - mu)^2 / 2 - I)) x)``.

    L is the random walk's Laplacian of the graph with a loop at each node; the exponential is a Chebyshev series, whose
    coefficients are modified Bessel functions (section 3.2 of the paper; A is not normalised, as in its authors' code).
    """
    looped = graph.to_scipy().astype(np.float64) + sparse.eye_array(graph.num_nodes, format="csr")
    walk = sparse.csr_array(normalize(looped, "l1"))

    def modulated(x: NDArray[Any]) -> NDArray[Any]:
        """``((L - mu)^2 / 2 - I) x``, whose spectrum is within [-1, 1]."""
        once = (1 - config.mu) * x - walk @ x
        return ((1 - config.mu) * once - walk @ once) / 2 - x

    before, now = rows, modulated(rows)
    total = iv(0, config.theta) * before - 2 * iv(1, config.theta) * now
    for i in range(2, config.order):
        before, now = now, 2 * modulated(now) - before
        total += 2 * (-1) ** i * iv(i, config.theta) * now
    return looped @ (rows - total)


def _prone(graph: Graph, config: ProNEConfig, seed: int) -> Matrix:
    rows = normalize(_svd_rows(prone_matrix(graph, config.power), config, seed))
    if config.order == 1:
        return rows
    left, values, _ = np.linalg.svd(propagated(graph, rows, config), full_matrices=False)
    return normalize(left * np.sqrt(values))


def _svd_rows(matrix: Any, config: SpectralConfig, seed: int) -> Matrix:
    """``U sqrt(S)`` of the D largest singular values."""
    left, values, _ = randomized_svd(matrix, config.dim, n_iter=config.iterations, random_state=seed % (1 << 32))
    return left * np.sqrt(values)


ROWS: dict[str, Callable[[Graph, Any, int], Matrix]] = {"netmf": _netmf, "prone": _prone}
"""The rows of each model from a graph, its settings and a seed."""
