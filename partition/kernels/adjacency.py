"""Loops that build a symmetric adjacency by counting sort.

Each thread has a range of the edges, counts its own entries of every node, and writes behind those of the ranges
before: the order is that of the edges for any number of threads. Legend: N nodes, E directed edges, T threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count(src, dst, src_start, dst_start, low, high, degrees):
    """Add the ends of edges low .. high - 1 that are no self loops to the degrees of their nodes."""
    for i in range(low, high):
        u, v = src[i] + src_start, dst[i] + dst_start
        if u != v:
            degrees[u] += 1
            degrees[v] += 1


@njit(cache=True, nogil=True)
def begin(indptr, counts):
    """From how many entries each thread has for each node, (T, N), to where it writes the first, in place."""
    for u in range(counts.shape[1]):
        at = indptr[u]
        for t in range(counts.shape[0]):
            num = counts[t, u]
            counts[t, u] = at
            at += num


@njit(cache=True, nogil=True)
def scatter(src, dst, src_start, dst_start, low, high, weight, filled, indices, weights):
    """Write both directions of edges low .. high - 1 where ``filled`` points, and advance it; weights may be empty."""
    weighted = len(weights) > 0
    for i in range(low, high):
        u, v = src[i] + src_start, dst[i] + dst_start
        if u == v:
            continue
        indices[filled[u]] = v
        indices[filled[v]] = u
        if weighted:
            weights[filled[u]] = weight
            weights[filled[v]] = weight
        filled[u] += 1
        filled[v] += 1


@njit(cache=True, nogil=True)
def merge(indptr, indices, given, low, high, places, degrees, weights):
    """Merge repeated neighbours of nodes low .. high - 1, in place, towards the first of their rows.

    Args:
        given: Weight of each entry, or empty: 1 each. May be ``weights`` itself.
        places: (N,), int64, all -1: where a neighbour was last written.
        degrees: (N,), gets the distinct neighbours of each node.
        weights: Gets the merged weights, at the places of the indices.
    """
    weighted = len(given) > 0
    write = indptr[low]
    for u in range(low, high):
        first = write
        for i in range(indptr[u], indptr[u + 1]):
            v = indices[i]
            weight = given[i] if weighted else 1
            if places[v] >= first:
                weights[places[v]] += weight
            else:
                places[v] = write
                indices[write] = v
                weights[write] = weight
                write += 1
        degrees[u] = write - first
    return write


@njit(cache=True, nogil=True)
def all_same(values):
    """Whether no value differs from the first; of uneven ones only the first few are looked at."""
    for start in range(0, len(values), 4096):
        differ = 0
        for i in range(start, min(start + 4096, len(values))):
            differ += values[i] != values[0]
        if differ:
            return False
    return True


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
