"""Merge the clusters of each group to a wanted number of parts, along the heaviest edges first.

Legend: N clusters, M stored entries, G groups, P parts.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import njit


@njit(cache=True, nogil=True)
def root_of(parents, v):
    """The representative of v's set; paths are halved on the way."""
    while parents[v] != v:
        parents[v] = parents[parents[v]]
        v = parents[v]
    return v


@njit(cache=True, nogil=True)
def inner_edges(indptr, indices, weights, groups, sizes, ends, scores):
    """Fill both ends and the score of each edge inside a group, once: weight over the product of sizes; how many."""
    count = 0
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if u <= v or groups[u] != groups[v]:
                continue
            ends[count, 0], ends[count, 1] = v, u
            scores[count] = (weights[e] if len(weights) else 1) / (sizes[v] * sizes[u])
            count += 1
    return count


@njit(cache=True, nogil=True)
def join(order, ends, groups, sizes, wanted, limit, parents):
    """Kruskal's loop with a limit: join the ends of edges, best first, while a group has more sets than it wants.

    Args:
        order: Positions of the edges, best first.
        sizes: (N,), the sizes of the sets at their representatives, changed in place.
        wanted: (G,): sets that each group shall keep.
        limit: The most that a set may hold.
        parents: (N,): 0 .. N-1 before, the sets after.
    Returns:
        (G,): sets of each group.
    """
    left = np.zeros(len(wanted), np.int64)
    for v in range(len(parents)):
        left[groups[v]] += 1
    for i in order:
        v, u = root_of(parents, ends[i, 0]), root_of(parents, ends[i, 1])
        group = groups[v]
        if v == u or left[group] <= wanted[group] or sizes[v] + sizes[u] > limit:
            continue
        if sizes[v] < sizes[u]:
            v, u = u, v
        parents[u] = v
        sizes[v] += sizes[u]
        left[group] -= 1
    return left


@njit(cache=True, nogil=True)
def pack(order, indptr, indices, weights, groups, sizes, first, wanted, limit, parents, parts):
    """Number the sets as parts: the largest of each group begin one, each other joins where most of its edges go.

    Where no part that it has edges with has room, it joins the lightest of its group, limit or not.

    Args:
        order: All clusters, the largest sets' representatives first.
        sizes: (N,), of the sets at their representatives.
        first, wanted: (G,): the first part of each group, and how many it has.
        parts: (N,), gets the part of each cluster.
    """
    num_parts = first[-1] + wanted[-1]
    loads, used = np.zeros(num_parts, np.int64), np.zeros(len(wanted), np.int64)
    ratings = np.zeros(num_parts, np.float64)
    # 1. the members of each set, as lists through the representatives
    head, following = np.full(len(parents), -1, np.int64), np.full(len(parents), -1, np.int64)
    for v in range(len(parents)):
        root = root_of(parents, v)
        following[v] = head[root]
        head[root] = v
    parts[:] = -1
    for v in order:
        if parents[v] != v:
            continue
        group, target = groups[v], -1
        if used[group] < wanted[group]:
            target = first[group] + used[group]
            used[group] += 1
        else:
            # 2. the part with room that takes most of the set's edges; ratings become 0 again
            best = 0.0
            for again in range(2):
                member = head[v]
                while member >= 0:
                    for e in range(indptr[member], indptr[member + 1]):
                        part = parts[indices[e]]
                        if part < 0 or groups[indices[e]] != group:
                            continue
                        if again:
                            ratings[part] = 0.0
                            continue
                        ratings[part] += weights[e] if len(weights) else 1
                        if ratings[part] > best and loads[part] + sizes[v] <= limit:
                            best, target = ratings[part], part
                    member = following[member]
            if target < 0:
                target = first[group]
                for part in range(first[group], first[group] + wanted[group]):
                    if loads[part] < loads[target]:
                        target = part
        loads[target] += sizes[v]
        member = head[v]
        while member >= 0:
            parts[member] = target
            member = following[member]
