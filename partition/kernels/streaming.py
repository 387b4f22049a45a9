"""One pass of a streaming partitioner: LDG (Stanton, Kliot, KDD 2012) or Fennel (Tsourakakis et al., WSDM 2014).

Legend: N nodes, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np
from numba import njit


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
