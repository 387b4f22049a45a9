"""Means of neighbours' rows, led to where trained rows lie.

Directions that neighbours do not share cancel in a mean, so it is shorter than a row that was trained, and more so in
some directions than in others; whoever reads rows of new nodes as those of old ones (a classifier that was fitted on
the old ones) then errs. The old nodes tell the way: the linear map from their neighbours' means to their own rows,
found by ridge regression. Khodak et al. 2018, "A la carte embedding", give unseen words rows so.

Legend: N nodes, S old nodes of the fit, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from graph_emb.graph.csr import Graph

MOST_NODES = 8192
"""Old nodes of the fit: 64 for each of 128 numbers a row, in a fraction of a second."""
LEAST_NODES = 4
"""Old nodes for each number of a row, below which the mean stays as it is."""
PENALTIES = np.array([1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2])
"""Of the map's distance from the identity, tried in units of the means' squares, by errors that leave one out."""


def fitted_means(
    graph: Graph, is_new: NDArray[np.bool_], rows: NDArray[np.float32], means: NDArray[np.float64], seed: int
) -> NDArray[np.float64]:
    """Means of neighbours' rows by the map that fits old nodes best, or as they are where too few old nodes tell.

    Args:
        graph: With old and new nodes.
        is_new: Bool, (N,).
        rows: Those of old nodes, (N, D); others are not read.
        means: What is mapped, (M, D).
        seed: Of the choice among more old nodes than are used.
    """
    from sklearn.linear_model import RidgeCV

    chosen = np.flatnonzero(~is_new)
    if len(chosen) > MOST_NODES:
        chosen = np.sort(np.random.default_rng(seed % (1 << 64)).choice(chosen, MOST_NODES, replace=False))
    near = _old_neighbours(graph, is_new, chosen)
    degrees = np.diff(near.indptr)
    has_any = degrees > 0
    if has_any.sum() < LEAST_NODES * rows.shape[1]:
        return means
    degrees = degrees[has_any].astype(np.float64)
    own = near[has_any] @ rows / degrees[:, None]
    weights = degrees / degrees.mean()  # a mean of many is known better
    scale = float((weights[:, None] * own**2).sum() / own.shape[1])
    if scale == 0.0:
        return means
    with threadpool_limits(1, "blas"):
        fit = RidgeCV(alphas=scale * PENALTIES, fit_intercept=False)
        fit.fit(own, rows[chosen[has_any]] - own, sample_weight=weights)
        found: NDArray[np.float64] = means + fit.predict(means)
    return found


def _old_neighbours(graph: Graph, is_new: NDArray[np.bool_], chosen: NDArray[np.int64]) -> csr_matrix:
    """Distinct old neighbours of the chosen nodes in both directions, as ones of a matrix (S, N)."""
    shape = (graph.num_nodes, graph.num_nodes)
    arcs = csr_matrix((np.ones(len(graph.indices), np.float32), graph.indices, graph.indptr), shape)
    found = arcs[chosen] + arcs[:, chosen].T.tocsr() if graph.directed else arcs[chosen]
    found = found.tocoo()
    kept = ~is_new[found.col] & (found.col != chosen[found.row])
    return csr_matrix((np.ones(int(kept.sum()), np.float32), (found.row[kept], found.col[kept])), found.shape)
