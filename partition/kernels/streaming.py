"""One pass of a streaming partitioner: LDG (Stanton, Kliot, KDD 2012), Fennel (Tsourakakis et al., WSDM 2014) or HDRF.

Legend: N nodes, E edges, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np
from numba import njit

WORD = 64


@njit(cache=True, nogil=True)
def stream(order, indptr, indices, weights, node_weights, limits, parts, loads, row, fennel, alpha, gamma, shares):
    """Give each node, in order, the part of the best score among those with room; parts of -1 are not placed yet.

    Args:
        limits: (C,): what a part may hold.
        parts, loads: (N,) and (P, C), changed; a node that has a part is taken out first.
        row: Scratch, (P,) zeros.
        fennel: Score ``weight - alpha * gamma * size ** (gamma - 1)``; else LDG's ``weight * free share``.
        shares: (C,): what one unit of each constraint is worth in nodes.
    """
    weighted = len(weights) > 0
    num_parts, num_limits = loads.shape
    for v in order:
        # 1. Sum the edge weight into each part; a node that was placed before is taken out.
        for e in range(indptr[v], indptr[v + 1]):
            p = parts[indices[e]]
            if p >= 0:
                row[p] += weights[e] if weighted else 1
        if parts[v] >= 0:
            for c in range(num_limits):
                loads[parts[v], c] -= node_weights[v, c]
        # 2. The part with the least overload, then the best score, then the most room.
        best, best_score, best_fill, best_over = -1, -np.inf, np.inf, np.inf
        for p in range(num_parts):
            over, fill, size = 0.0, 0.0, 0.0
            for c in range(num_limits):
                bound = max(limits[c], 1)
                over += max(0.0, (loads[p, c] + node_weights[v, c] - limits[c]) / bound)
                fill = max(fill, loads[p, c] / bound)
                size = max(size, loads[p, c] * shares[c])
            score = row[p] - alpha * gamma * size ** (gamma - 1) if fennel else row[p] * (1.0 - fill)
            row[p] = 0
            better = over < best_over
            if over == best_over:
                better = score > best_score or (score == best_score and fill < best_fill)
            if better:
                best, best_score, best_fill, best_over = p, score, fill, over
        parts[v] = best
        for c in range(num_limits):
            loads[best, c] += node_weights[v, c]


@njit(cache=True, nogil=True)
def hdrf(src, dst, order, num_nodes, num_parts, balance_weight, limit):
    """HDRF, see ``partition.vertex_cut``: the part of each edge, (E,), and the replicas of each node, (N,)."""
    held = np.zeros((num_nodes, (num_parts + WORD - 1) // WORD), np.uint64)
    degree = np.zeros(num_nodes, np.int64)
    size = np.zeros(num_parts, np.int64)
    owner = np.empty(len(src), np.int32)
    num_replicas = np.zeros(num_nodes, np.int32)
    one = np.uint64(1)
    for edge in order:
        u, v = src[edge], dst[edge]
        degree[u] += 1
        degree[v] += 1
        share = degree[u] / (degree[u] + degree[v])
        largest, smallest = size.max(), size.min()
        best, best_score = -1, -1.0
        for part in range(num_parts):
            if size[part] >= limit:
                continue
            word, bit = part // WORD, np.uint64(part % WORD)
            score = balance_weight * (largest - size[part]) / (1.0 + largest - smallest)
            if (held[u, word] >> bit) & one:
                score += 2.0 - share
            if (held[v, word] >> bit) & one:
                score += 1.0 + share
            if score > best_score:
                best, best_score = part, score
        owner[edge] = best
        size[best] += 1
        word, bit = best // WORD, np.uint64(best % WORD)
        for node in (u, v):
            if not (held[node, word] >> bit) & one:
                held[node, word] |= one << bit
                num_replicas[node] += 1
    return owner, num_replicas
