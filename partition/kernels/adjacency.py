"""Symmetric adjacency by counting sort (Knuth, The Art of Computer Programming 3, 5.2): count, begin, scatter, merge.

Each thread has a range of the edges, counts its own entries of every node, and writes behind those of the ranges
before: the order is that of the edges for any number of threads. Legend: N nodes, E directed edges, T threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from graph_emb.core.compiled import mix64

TAIL, HEAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
"""Odd factors of the two ends of an edge in its hash."""
BLOCK = 4096
"""Edges that stay in the processor's cache for a second pass."""


@njit(cache=True, nogil=True)
def count(src, dst, src_start, dst_start, low, high, weight, outgoing, incoming):
    """Add the ends of edges low .. high - 1 that are no self loops to the degrees of their nodes.

    Returns how much the edges exceed their reverses: a sum of hashes modulo 2^64. Over all edges it is 0 where each
    has a reverse of its weight, and else with a chance of 2^-64.
    """
    excess = np.uint64(0)
    for first in range(low, high, BLOCK):
        last = min(first + BLOCK, high)
        for i in range(first, last):  # alone, so that it is vectorised
            u, v = np.uint64(src[i] + src_start), np.uint64(dst[i] + dst_start)
            excess += mix64(u * TAIL + v * HEAD + np.uint64(weight)) - mix64(v * TAIL + u * HEAD + np.uint64(weight))
        for i in range(first, last):
            u, v = src[i] + src_start, dst[i] + dst_start
            if u != v:
                outgoing[u] += 1
                incoming[v] += 1
    return excess


@njit(cache=True, nogil=True)
def begin(indptr, counts):
    """Turn the entries that each thread has for each node, (T, N), into the place of the first, in place."""
    for u in range(counts.shape[1]):
        at = indptr[u]
        for t in range(counts.shape[0]):
            num = counts[t, u]
            counts[t, u] = at
            at += num


@njit(cache=True, nogil=True)
def scatter(src, dst, src_start, dst_start, low, high, weight, both, filled, indices, weights):
    """Write edges low .. high - 1 where ``filled`` points, and advance it; weights may be empty.

    both: Write each edge to the rows of both ends, not only to that of its source.
    """
    weighted = len(weights) > 0
    for i in range(low, high):
        u, v = src[i] + src_start, dst[i] + dst_start
        if u == v:
            continue
        indices[filled[u]] = v
        if weighted:
            weights[filled[u]] = weight
        filled[u] += 1
        if both:
            indices[filled[v]] = u
            if weighted:
                weights[filled[v]] = weight
            filled[v] += 1


@njit(cache=True, nogil=True)
def merge(indptr, indices, given, unit, low, high, places, row, degrees, weights):
    """Merge repeated neighbours of nodes low .. high - 1, in place, towards the first of their rows.

    Args:
        given: Weight of each entry in units, or empty: one unit each. May be ``weights`` itself.
        places: (N,), int64, all -1: where a neighbour was last written.
        row: Scratch, int64, at least the most entries of a node.
        degrees: (N,), gets the distinct neighbours of each node.
        weights: Gets the merged weights, at the places of the indices; pages of even weights are never touched.

    Returns where the entries end, the weight of all of them (0 without any, -1 where they differ), and the largest.
    """
    weighted = len(given) > 0
    begin = write = indptr[low]
    even = largest = 0
    for u in range(low, high):
        # 1. Collect the distinct neighbours of u and add up their weights, in scratch that stays in the cache.
        first = write
        for i in range(indptr[u], indptr[u + 1]):
            v = indices[i]
            weight = given[i] * unit if weighted else unit
            if places[v] >= first:
                row[places[v] - first] += weight
            else:
                places[v] = write
                indices[write] = v
                row[write - first] = weight
                write += 1
        # 2. As long as all weights are even, none is written; the first that differs writes those before it.
        size = degrees[u] = write - first
        if even == 0 and size > 0:
            even = row[0]
        for k in range(size):
            largest = max(largest, row[k])
        if even > 0:
            differ = 0
            for k in range(size):
                differ += row[k] != even
            if differ:
                weights[begin:first] = even
                even = -1
        if even < 0:
            weights[first:write] = row[:size]
    return write, even, largest


@njit(cache=True, nogil=True)
def move_down(values, source, target, num):
    """values[target : target + num] = values[source : source + num], overlapping, for target <= source."""
    for i in range(num):
        values[target + i] = values[source + i]


@njit(cache=True, nogil=True)
def cut_of(indptr, indices, weights, parts):
    """Weight of the entries between parts; an undirected edge counts from both ends."""
    cut = np.int64(0)
    weighted = len(weights) > 0
    for u in range(len(indptr) - 1):
        own = parts[u]
        for i in range(indptr[u], indptr[u + 1]):
            if parts[indices[i]] != own:
                cut += weights[i] if weighted else 1
    return cut


@njit(cache=True, nogil=True)
def move_costs(indptr, indices, weights, parts, nodes, target):
    """The cut that moving each node to a part would add, (len(nodes),)."""
    out = np.zeros(len(nodes), np.int64)
    weighted = len(weights) > 0
    for i in range(len(nodes)):
        for e in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            weight = weights[e] if weighted else 1
            if parts[indices[e]] == parts[nodes[i]]:
                out[i] += weight
            elif parts[indices[e]] == target:
                out[i] -= weight
    return out
