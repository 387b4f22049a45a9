"""GOSH's way to embed a graph, written plainly: the peer of multilevel starts (Akyildiz et al. 2020, arXiv 2008.12336).

Coarsening by MultiEdgeCollapse: nodes in falling order of degree take those neighbours that no other node took, but a
hub (more than E / N edges) takes no hub; levels are made until one has few nodes or hardly shrinks. One table. An epoch
of a level draws a neighbour of each node and a few nodes at random, and moves both rows by the logistic loss; the rate
falls linearly in each level. Of the epochs a share ``smoothing`` is spread evenly over the levels, the rest so that a
level has twice as many as the finer one. A node begins with the row of its cluster. Arc weights are not read, as there.
"""

# N nodes, D width.

from __future__ import annotations

import numpy as np
from numba import njit, prange

from graph_emb.graph.csr import Graph, to_rows

FEWEST, LEAST_SHRINK = 100, 0.8


@njit(cache=True)
def _collapse(indptr: np.ndarray, indices: np.ndarray, order: np.ndarray, hub: float) -> np.ndarray:
    cluster = np.full(len(order), -1)
    count = 0
    for v in order:
        if cluster[v] >= 0:
            continue
        cluster[v] = count
        large = indptr[v + 1] - indptr[v] > hub
        for a in range(indptr[v], indptr[v + 1]):
            u = indices[a]
            if cluster[u] < 0 and not (large and indptr[u + 1] - indptr[u] > hub):
                cluster[u] = count
        count += 1
    return cluster


def coarser(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cluster of each node, (N,), and the arcs between clusters, each once."""
    degrees = np.diff(indptr)
    cluster = _collapse(indptr, indices, np.argsort(-degrees, kind="stable"), len(indices) / len(degrees))
    heads, tails = np.repeat(cluster, degrees), cluster[indices]
    apart = heads != tails
    arcs = heads[apart], tails[apart], np.ones(int(apart.sum()), np.float32)
    return cluster, *to_rows(*arcs, int(cluster.max()) + 1, directed=True, duplicates="first")[:2]


@njit(cache=True, parallel=True, fastmath=True)
def _train(
    rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, epochs: int, negatives: int, lr: float, seed: int
) -> None:
    num, width = rows.shape
    for epoch in range(epochs):
        rate = np.float32(lr * max(1.0 - epoch / epochs, 1e-4))
        for v in prange(num):  # threads write the same rows without a lock, as there
            low, high = indptr[v], indptr[v + 1]
            if low == high:
                continue
            bits = np.uint64(seed) + np.uint64(epoch) * np.uint64(num) + np.uint64(v)
            for k in range(1 + negatives):
                bits = bits * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                mixed = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
                draw = mixed >> np.uint64(33)
                if k == 0:
                    other = indices[low + np.int64(draw % np.uint64(high - low))]
                else:
                    other = np.int64(draw % np.uint64(num))
                if other == v:
                    continue
                dot = np.float32(0.0)
                for d in range(width):
                    dot += rows[v, d] * rows[other, d]
                step = (np.float32(k == 0) - np.float32(1.0) / (np.float32(1.0) + np.exp(-dot))) * rate
                for d in range(width):
                    old = rows[v, d]
                    rows[v, d] += step * rows[other, d]
                    rows[other, d] += step * old


def epochs_by_level(total: int, levels: int, smoothing: float) -> list[int]:
    """Epochs of each level, finest first."""
    shares = 2.0 ** np.arange(levels)
    found = smoothing * total / levels + (1 - smoothing) * total * shares / shares.sum()
    return [max(1, round(own)) for own in found]


def embed(
    graph: Graph, dim: int, epochs: int, *, lr: float, smoothing: float, negatives: int = 3, seed: int = 0
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Rows (N, dim), and nodes and epochs of each level, finest first."""
    levels, clusters = [(np.asarray(graph.indptr), np.asarray(graph.indices))], []
    while len(levels[-1][0]) - 1 > FEWEST:
        cluster, indptr, indices = coarser(*levels[-1])
        if len(indptr) - 1 > LEAST_SHRINK * len(cluster) or not len(indices):
            break
        levels.append((indptr, indices))
        clusters.append(cluster)
    spent = epochs_by_level(epochs, len(levels), smoothing)
    rng = np.random.default_rng(seed)
    rows = ((rng.random((len(levels[-1][0]) - 1, dim)) - 0.5) / dim).astype(np.float32)
    for place in range(len(levels) - 1, -1, -1):
        if place < len(clusters):
            rows = rows[clusters[place]]
        _train(rows, *levels[place], spent[place], negatives, lr, seed * 1_000_003 + place)
    return rows, [(len(own[0]) - 1, count) for own, count in zip(levels, spent, strict=True)]
