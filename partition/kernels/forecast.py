"""Loops of the report's counts and forecasts. Those with ``low, high`` write these rows only, so threads share nothing.

Legend: N nodes, E edges, G groups, C columns, P parts.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import GOLDEN, mix64, njit, unit, unit_draw

ENTERS, LEAVES = 1, 2
"""Bits of ``seen[node, part]``: an edge from the node enters the part, or an edge of the part leaves for the node."""


@njit(cache=True, nogil=True)
def count_edges(src, dst, src_start, dst_start, parts, matrix, seen):
    """Add the edges of one type to (P, P) ``matrix`` by the parts of their ends, and mark (N, P) ``seen``."""
    for edge in range(len(src)):
        u, v = src[edge] + src_start, dst[edge] + dst_start
        a, b = parts[u], parts[v]
        matrix[a, b] += 1
        if a != b:
            seen[u, b] |= ENTERS
            seen[v, a] |= LEAVES


@njit(cache=True, nogil=True)
def fill_rows(rows, start, columns, column_start, weights, filled, indices, values):
    """Write each edge's column and weight (where there are weights) into its row."""
    for edge in range(len(rows)):
        row = rows[edge] + start
        indices[filled[row]] = columns[edge] + column_start
        if len(weights) > 0:
            values[filled[row]] = weights[edge]
        filled[row] += 1


@njit(cache=True, nogil=True)
def add_neighbours(indptr, indices, values, table, low, high, out):
    """Add to each row of ``out`` (N, C) the rows of ``table`` (G, C) that its neighbours name, times their values."""
    width = table.shape[1]
    total = np.empty(width, np.float64)
    for row in range(low, high):
        total[:] = 0.0
        for place in range(indptr[row], indptr[row + 1]):
            neighbour = indices[place]
            if len(values) > 0:
                value = values[place]
                for column in range(width):
                    total[column] += value * table[neighbour, column]
            else:
                for column in range(width):
                    total[column] += table[neighbour, column]
        for column in range(width):
            out[row, column] += total[column]


@njit(cache=True, nogil=True)
def tally_and_scale(mass, parts, which, part, scale, low, high, here, inside):
    """Sum (N, C) ``mass`` into ``here`` (C,), and over the rows in the column's part into ``inside``; then scale it.

    Args:
        parts: The part of each node in each assignment, (N, assignments).
        which, part: Each column's assignment and part, (C,).
        scale: Of each row, (N,).
    """
    for row in range(low, high):
        for column in range(mass.shape[1]):
            here[column] += mass[row, column]
            if parts[row, which[column]] == part[column]:
                inside[column] += mass[row, column]
            mass[row, column] *= scale[row]


@njit(cache=True, nogil=True)
def simulate_walks(indptr, indices, cumulative, starts, parts, low, high, visits, remote):
    """Walk from ``starts[low:high]`` and count; a walk's numbers depend on its place in ``starts`` only.

    Args:
        cumulative: Running sum of the weights of all entries, (E,), float64; empty: all are 1.
        parts: The part of each node in each assignment, (N, assignments).
        visits, remote: Added to: by assignment, part of the start and step.
    """
    for walk in range(low, high):
        node = start = starts[walk]
        stream = mix64(np.uint64(walk + 1) * GOLDEN)
        for t in range(visits.shape[2]):
            for k in range(parts.shape[1]):
                home = parts[start, k]
                visits[k, home, t] += 1
                if parts[node, k] != home:
                    remote[k, home, t] += 1
            first, end = indptr[node], indptr[node + 1]
            if first == end:
                break
            share = unit_draw(stream, t + 1)
            if len(cumulative) > 0:
                before = cumulative[first - 1] if first > 0 else 0.0
                target = before + share * (cumulative[end - 1] - before)
                place = first + np.searchsorted(cumulative[first:end], target, side="right")
            else:
                place = first + np.int64(share * (end - first))
            node = indices[min(place, end - 1)]


@njit(cache=True, nogil=True)
def sample_batch(
    seeds, starts, sources, node_starts, node_groups, fanouts, key, mark, number, reached, parts, part, counts
):
    """Write the distinct nodes of a batch after each hop, and those of them outside of ``part``, to ``counts`` (2, H).

    Args:
        seeds: Distinct nodes.
        starts, sources: The sources of each group's edges, (G + 1,) and (E,).
        node_starts, node_groups: The groups of each node, (N + 1,) and (G,).
        mark: Holds ``number`` for nodes of this batch and other numbers for all others, (N,).
        reached: Room for N nodes.
    """
    state = key
    chosen = np.empty(fanouts.max(), np.int64)
    size = 0
    outside = 0
    for node in seeds:
        mark[node] = number
        reached[size] = node
        size += 1
        outside += parts[node] != part
    for hop in range(len(fanouts)):
        before = size
        for place in range(before):
            node = reached[place]
            for slot in range(node_starts[node], node_starts[node + 1]):
                first = starts[node_groups[slot]]
                degree = starts[node_groups[slot] + 1] - first
                taken = min(fanouts[hop], degree)
                for draw in range(taken):
                    pick = draw
                    if taken < degree:  # Floyd's sampling without replacement (CACM 30, 1987)
                        last = degree - taken + draw
                        state += GOLDEN
                        pick = np.int64(unit(mix64(state)) * (last + 1))
                        for earlier in range(draw):
                            if chosen[earlier] == pick:
                                pick = last
                                break
                        chosen[draw] = pick
                    source = sources[first + pick]
                    if mark[source] != number:
                        mark[source] = number
                        reached[size] = source
                        size += 1
                        outside += parts[source] != part
        counts[0, hop] = size
        counts[1, hop] = outside
