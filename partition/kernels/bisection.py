"""Initial bisection of the subgraph of some nodes: greedy growing, then two-way search.

Greedy graph growing: Karypis, Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs"
(SIAM Journal on Scientific Computing 20, 1998).

Legend: N nodes, C constraints.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from partition.kernels.refinement import (
    FREE,
    LOCKED,
    QUEUED,
    connect,
    has_room,
    mark_boundary,
    marked,
    move,
    outside,
    overload,
    pop,
    rebalance,
    search,
    sift_up,
)


@njit(cache=True, nogil=True)
def grow(indptr, indices, weights, degrees, node_weights, wanted, limits, order, parts, loads):
    """Greedy graph growing: part 1 grows from the first node of ``order``, by least cut, until it holds ``wanted``.

    Args:
        degrees: (N,), int64: the weight of each node's entries.
        wanted: (C,): what part 1 should hold; it stops at the mean of its shares.
        limits: (2, C).
        order: (N,), every node; where the next seed comes from when a component is used up.
        parts, loads: (N,) zeros and (2, C) zeros; filled.
    """
    num_nodes = len(parts)
    weighted = len(weights) > 0
    num_limits = limits.shape[1]
    heap, places = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    keys = np.empty(num_nodes, np.int64)
    status = np.zeros(num_nodes, np.int8)
    for v in range(num_nodes):
        for c in range(num_limits):
            loads[0, c] += node_weights[v, c]
    size, first = 0, 0
    while True:
        # 1. Enough? The mean over the constraints of the share of what part 1 should hold.
        share = 0.0
        for c in range(num_limits):
            share += loads[1, c] / wanted[c] if wanted[c] > 0 else 1.0
        if share >= num_limits:
            return
        # 2. Nothing borders on the part (at the start, or a component is used up): begin at a new seed.
        while size == 0 and first < num_nodes:
            v = order[first]
            first += 1
            if status[v] == FREE:
                status[v], keys[v], heap[0], places[v], size = QUEUED, 0, v, 0, 1
        if size == 0:
            return
        # 3. Take the bordering node whose move cuts least, if it fits.
        v = heap[0]
        size = pop(heap, places, keys, size)
        status[v] = LOCKED
        if not has_room(loads, 1, node_weights, v, limits):
            continue
        move(loads, node_weights, v, 0, 1)
        parts[v] = 1
        # 4. Its neighbours border on the part now; key = weight inside - weight outside.
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if status[u] == LOCKED:
                continue
            weight = weights[e] if weighted else 1
            if status[u] == FREE:
                status[u], keys[u], heap[size] = QUEUED, 2 * weight - degrees[u], u
                size += 1
                sift_up(heap, places, keys, size - 1)
            else:
                keys[u] += 2 * weight
                sift_up(heap, places, keys, places[u])


@njit(cache=True, nogil=True)
def bisect(indptr, indices, weights, node_weights, wanted, limits, soft, scales, orders, rounds, patience, best):
    """Split in two by growing and search, once from each order; ``best`` gets the parts of the best try.

    Args:
        wanted, limits, soft: As in ``grow`` and ``search``.
        orders: (T, N): every node, for each of T tries.
        rounds: Of search in each try at most.
        best: (N,), int32: least overload, then least cut, then the first.
    """
    num_nodes, num_limits = len(best), limits.shape[1]
    parts, loads = np.empty(num_nodes, np.int32), np.empty((2, num_limits), np.int64)
    marks = np.empty(num_nodes, np.int8)
    table, degrees = np.empty((num_nodes, 2), np.int64), np.zeros(num_nodes, np.int64)
    for v in range(num_nodes):
        for e in range(indptr[v], indptr[v + 1]):
            degrees[v] += weights[e] if len(weights) > 0 else 1
    least_excess, least_cut = np.inf, np.int64(0)
    for t in range(len(orders)):
        order = orders[t]
        parts[:] = 0
        loads[:] = 0
        # Grow, mend what growing left above a limit, then search from the whole boundary until a round gains nothing.
        grow(indptr, indices, weights, degrees, node_weights, wanted, limits, order, parts, loads)
        rebalance(indptr, indices, weights, node_weights, parts, loads, limits, scales, order)
        connect(indptr, indices, weights, parts, 0, num_nodes, table)
        for _ in range(rounds):
            mark_boundary(table, parts, 0, num_nodes, marks)
            seeds = marked(marks, order)
            gain = search(
                indptr, indices, weights, node_weights, parts, loads, limits, soft, scales, table, seeds, len(seeds),
                patience,
            )  # fmt: skip
            if gain == 0:
                break
        excess = overload(loads, 0, limits, scales) + overload(loads, 1, limits, scales)
        cut = outside(table, parts)
        if excess < least_excess or (excess == least_excess and cut < least_cut):
            least_excess, least_cut = excess, cut
            best[:] = parts


@njit(cache=True, nogil=True)
def induced(indptr, indices, weights, nodes, local):
    """Induced subgraph of some nodes: (indptr, indices, weights). local: (N,), all -1 before and after."""
    for i in range(len(nodes)):
        local[nodes[i]] = i
    out_indptr = np.zeros(len(nodes) + 1, np.int64)
    for i in range(len(nodes)):
        kept = 0
        for e in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            if local[indices[e]] >= 0:
                kept += 1
        out_indptr[i + 1] = out_indptr[i] + kept
    out_indices = np.empty(out_indptr[-1], np.int32)
    out_weights = np.empty(out_indptr[-1], weights.dtype)
    at = 0
    for v in nodes:
        for e in range(indptr[v], indptr[v + 1]):
            if local[indices[e]] >= 0:
                out_indices[at] = local[indices[e]]
                out_weights[at] = weights[e] if len(weights) > 0 else 1
                at += 1
    for v in nodes:
        local[v] = -1
    return out_indptr, out_indices, out_weights
