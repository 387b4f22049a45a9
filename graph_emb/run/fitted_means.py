"""Means of neighbours' rows, led to where trained rows lie.

Directions that neighbours do not share cancel in a mean, so it is shorter than a row that was trained, and more so in
some directions than in others; whoever reads rows of new nodes as those of old ones (a classifier that was fitted on
the old ones) then errs. The old nodes tell the way: from their neighbours' means to their own rows, a linear map is
found by ridge regression, as Khodak et al. 2018, "A la carte embedding", give unseen words rows. It reads the
neighbours' context rows where there are some, since a token row is trained to fit those, and it changes with the
logarithm of the number of neighbours, with which rows grow. All old nodes count alike: means of many neighbours are
known better, but counted by their number hubs alone would tell, whose rows follow their means by another map.

Legend: N nodes, S old nodes of the fit, M nodes with means, D width, F numbers that the map reads, P penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from graph_emb.graph.csr import Graph

Real = TypeVar("Real", np.float32, np.float64)
MOST_NODES = 8192
"""Old nodes of the fit: 32 for each of the 256 numbers that 128 a row give to read, in a fraction of a second."""
LEAST_NODES = 4
"""Old nodes for each number of a row that is read, below which the mean stays as it is."""
JUDGED = 2048
"""Of these at most the errors tell the penalty: a quarter, of half a million numbers."""
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2)
"""Of the map that is added, tried in units of the squares of what it reads, by errors that leave one out."""


def fitted_means(
    graph: Graph,
    is_new: NDArray[np.bool_],
    tables: Sequence[NDArray[np.float32]],
    nodes: NDArray[np.int64],
    means: NDArray[np.float64],
    seed: int,
    read: slice = slice(None),
) -> NDArray[np.float64]:
    """Means of neighbours' rows by the map that fits old nodes best, or as they are where too few old nodes tell.

    Args:
        graph: With old and new nodes.
        is_new: Bool, (N,).
        tables: Rows of old nodes, (N, ...) each and side by side (N, D); others are not read.
        nodes: New nodes, (M,).
        means: What is mapped, of these nodes, (M, D).
        seed: Of the choice among more old nodes than are used.
        read: The columns that the map reads.
    """
    chosen = np.flatnonzero(~is_new)
    if len(chosen) > MOST_NODES:
        chosen = np.sort(np.random.default_rng(seed % (1 << 64)).choice(chosen, MOST_NODES, replace=False))
    near = _old_neighbours(graph, is_new, chosen)
    degrees = np.diff(near.indptr)
    has_any = degrees > 0
    if has_any.sum() < LEAST_NODES * means[:, read].shape[1]:
        return means
    chosen, near, degrees = chosen[has_any], near[has_any], degrees[has_any].astype(np.float64)
    own = np.concatenate([near @ rows for rows in tables], axis=1) / degrees[:, None]
    trained = np.concatenate([rows[chosen] for rows in tables], axis=1)
    logs = np.log(degrees)
    middle, low, high = logs.mean(), logs.min(), logs.max()
    inputs = _inputs(own[:, read], logs - middle)
    if not inputs.any():
        return means
    with threadpool_limits(1, "blas"):
        added = _ridge(inputs, trained - own)
        found = np.log(np.maximum(np.diff(_old_neighbours(graph, is_new, nodes).indptr), 1)).clip(low, high)
        led = _inputs(means[:, read].astype(np.float32), (found - middle).astype(np.float32)) @ added.astype(np.float32)
    return means + led


def _inputs(means: NDArray[Real], logs: NDArray[Real]) -> NDArray[Real]:
    """What the map reads of nodes with these means, (B, F / 2), and logarithms of numbers of neighbours, (B,)."""
    return np.concatenate([means, means * logs[:, None]], axis=1)


def _ridge(inputs: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The map (F, D) from inputs (S, F) to targets (S, D) with the penalty before errors that leave one out rise.

    A node's error without it is its residual over 1 - h, h being its own share in its fit (Golub et al. 1979).
    """
    with ThreadPoolExecutor(1) as pool:  # each product takes one thread, so that it has the same bits for any number
        products = pool.submit(np.matmul, inputs.T, targets)
        squares, directions = np.linalg.eigh(inputs.T @ inputs)
        answers = directions.T @ products.result()
    judged = slice(None, None, -(-len(inputs) // JUDGED))
    turned, targets = inputs[judged] @ directions, targets[judged]
    parts = turned**2
    best, least = np.zeros(answers.shape), np.inf
    scale = float(squares.clip(0.0).sum() / len(squares))
    for penalty in PENALTIES:
        shrunk = 1.0 / (squares.clip(0.0) + penalty * scale)
        found = answers * shrunk[:, None]
        errors = (targets - turned @ found) / (1.0 - parts @ shrunk)[:, None]
        error = float(np.vdot(errors, errors))
        if error < least:
            best, least = found, error
        elif np.isfinite(least):
            break  # a larger penalty errs more still
    return np.asarray(directions @ best)


def _old_neighbours(graph: Graph, is_new: NDArray[np.bool_], chosen: NDArray[np.int64]) -> csr_matrix:
    """Distinct old neighbours of the chosen nodes in both directions, as ones of a matrix (S, N)."""
    shape = (graph.num_nodes, graph.num_nodes)
    arcs = csr_matrix((np.ones(len(graph.indices), np.float32), graph.indices, graph.indptr), shape)
    found = arcs[chosen] + arcs[:, chosen].T.tocsr() if graph.directed else arcs[chosen]
    found = found.tocoo()
    kept = ~is_new[found.col] & (found.col != chosen[found.row])
    return csr_matrix((np.ones(int(kept.sum()), np.float32), (found.row[kept], found.col[kept])), found.shape)
