"""Loops that build a symmetric adjacency by counting sort.

Every loop that takes ``low, high`` writes the rows of those nodes only, so that threads share nothing and the result
does not depend on their number. Legend: N nodes, E directed edges.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count(src, dst, src_start, dst_start, low, high, degrees):
    """Add the ends of each edge that is no self loop to the degrees of nodes low .. high - 1."""
    for i in range(len(src)):
        u, v = src[i] + src_start, dst[i] + dst_start
        if u != v:
            if low <= u < high:
                degrees[u] += 1
            if low <= v < high:
                degrees[v] += 1


@njit(cache=True, nogil=True)
def scatter(src, dst, src_start, dst_start, low, high, weight, filled, indices, weights):
    """Write both directions of each edge into the rows of nodes low .. high - 1; weights may be empty."""
    weighted = len(weights) > 0
    for i in range(len(src)):
        u, v = src[i] + src_start, dst[i] + dst_start
        if u == v:
            continue
        if low <= u < high:
            indices[filled[u]] = v
            if weighted:
                weights[filled[u]] = weight
            filled[u] += 1
        if low <= v < high:
            indices[filled[v]] = u
            if weighted:
                weights[filled[v]] = weight
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
