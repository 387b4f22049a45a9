"""Generated graphs for the partition benchmarks: seeded, undirected (both directions of each edge), ids shuffled.

Legend: N nodes, E directed edges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import njit

from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph


def planted(
    num_nodes: int, num_edges: int, num_blocks: int = 100, mixing: float = 0.25, exponent: float = 2.5, seed: int = 0
) -> HeteroGraph:
    """A degree-corrected stochastic block model (Karrer and Newman, 2011): power-law degrees and block sizes.

    Args:
        num_edges: Undirected edges drawn; duplicates and self loops go away.
        mixing: Share of the edges drawn without regard to blocks.
        exponent: Of the degrees' power law.
    """
    rng = np.random.default_rng(seed)
    degrees = np.minimum((1 - rng.random(num_nodes)) ** (-1 / (exponent - 1)), num_nodes**0.5)
    sizes = (1 - rng.random(num_blocks)) ** (-1 / 1.5)
    blocks = np.sort(rng.choice(num_blocks, num_nodes, p=sizes / sizes.sum()))
    ends = np.cumsum(degrees)
    src = np.searchsorted(ends, rng.random(num_edges) * ends[-1]).clip(0, num_nodes - 1)
    starts = np.searchsorted(blocks, np.arange(num_blocks + 1))
    below = np.concatenate([[0.0], ends])
    first, last = below[starts[blocks[src]]], below[starts[blocks[src] + 1]]
    anywhere = rng.random(num_edges) < mixing
    first[anywhere], last[anywhere] = 0.0, ends[-1]
    dst = np.searchsorted(ends, first + rng.random(num_edges) * (last - first)).clip(0, num_nodes - 1)
    return _undirected(src, dst, num_nodes, rng, "planted")


def rmat(scale: int, edge_factor: int = 16, seed: int = 0) -> HeteroGraph:
    """R-MAT (Chakrabarti, Zhan, Faloutsos, 2004) with Graph 500's (0.57, 0.19, 0.19, 0.05): 2^scale nodes."""
    rng = np.random.default_rng(seed)
    num_edges = edge_factor << scale
    src, dst = np.zeros(num_edges, np.int64), np.zeros(num_edges, np.int64)
    for _ in range(scale):
        down = rng.random(num_edges) >= 0.76
        right = rng.random(num_edges) >= np.where(down, 0.19 / 0.24, 0.57 / 0.76)
        src, dst = 2 * src + down, 2 * dst + right
    return _undirected(src, dst, 1 << scale, rng, "rmat")


def hyperbolic(num_nodes: int, mean_degree: float = 20.0, exponent: float = 2.8, seed: int = 0) -> HeteroGraph:
    """A random hyperbolic graph (Krioukov et al., 2010): nodes in a disk, neighbours where nearer than its radius."""
    rng = np.random.default_rng(seed)
    alpha = (exponent - 1) / 2
    # Mean degree of the model: 2 / pi * (alpha / (alpha - 1/2))^2 * exp(-(radius - 2 ln N) / 2)
    radius = 2 * np.log(num_nodes * 2 / (np.pi * mean_degree) * (alpha / (alpha - 0.5)) ** 2)
    height = np.arccosh(1 + (np.cosh(alpha * radius) - 1) * rng.random(num_nodes)) / alpha
    angle = rng.random(num_nodes) * 2 * np.pi
    edges = np.concatenate([[0.0], np.linspace(radius / 2, radius, 24)])
    edges[-1] = radius + 1e-9
    band = np.searchsorted(edges, height, side="right") - 1
    order = np.lexsort((angle, band))
    starts = np.searchsorted(band[order], np.arange(len(edges)))
    src, dst = _near(height[order], angle[order], starts, edges, radius)
    return _undirected(src, dst, num_nodes, rng, "hyperbolic")


@njit(cache=True)
def _near(height, angle, starts, edges, radius):
    """Pairs of nodes nearer than the radius; nodes lie by band, then angle."""
    pairs = [(0, 0) for _ in range(0)]
    num_bands = len(starts) - 1
    for v in range(len(height)):
        for band in range(num_bands):
            low, high = starts[band], starts[band + 1]
            if low == high or starts[band + 1] <= v:
                continue
            inner = edges[band]
            width = np.pi
            if inner + height[v] >= radius and inner > 0:
                cosine = (np.cosh(height[v]) * np.cosh(inner) - np.cosh(radius)) / (np.sinh(height[v]) * np.sinh(inner))
                width = np.arccos(min(1.0, max(-1.0, cosine)))
            for turn in (-1, 0, 1):
                left = low + np.searchsorted(angle[low:high], angle[v] - width + turn * 2 * np.pi)
                right = low + np.searchsorted(angle[low:high], angle[v] + width + turn * 2 * np.pi)
                for u in range(max(left, v + 1), right):
                    between = np.cosh(height[v]) * np.cosh(height[u])
                    between -= np.sinh(height[v]) * np.sinh(height[u]) * np.cos(angle[v] - angle[u])
                    if between < np.cosh(radius):
                        pairs.append((v, u))
    src, dst = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int64)
    for i in range(len(pairs)):
        src[i], dst[i] = pairs[i]
    return src, dst


def write(file: Path, graph: HeteroGraph) -> None:
    """A generated graph as ``graph-emb`` reads it, an .npz."""
    src, dst = graph.edges[EDGE_TYPE]
    order = np.argsort(src, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=graph.num_nodes[NODE_TYPE]))])
    np.savez(file, indptr=indptr, indices=dst[order].astype(np.int32), directed=False)


def _undirected(src: np.ndarray, dst: np.ndarray, num_nodes: int, rng: np.random.Generator, name: str) -> HeteroGraph:
    """Both directions of each distinct edge, under shuffled ids."""
    keep = src != dst
    keys = np.unique(np.minimum(src, dst)[keep] * num_nodes + np.maximum(src, dst)[keep])
    ids = rng.permutation(num_nodes)
    src, dst = ids[keys // num_nodes], ids[keys % num_nodes]
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    return HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: both}, name=name)
