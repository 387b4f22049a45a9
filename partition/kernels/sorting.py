"""Counting sorts (Knuth, The Art of Computer Programming 3, 5.2) of nodes and edges by part and of neighbours by node.

With them the loops over what they order: the halo of a part, lighter owners of edges, and the symmetric adjacency by
count, begin, scatter, merge. There each thread has a range of the edges, counts its own entries of every node, and
writes behind those of the ranges before: the order is that of the edges for any number of threads.

Legend: N nodes of all types, E edges, P parts, T threads. Node ids are homogeneous: by part for ``group`` to
``move_to_lighter``, in the order of the input from ``count`` on.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import mix64, njit

UNSEEN, SEEN = -1, -2
TAIL, HEAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
"""Odd factors of the two ends of an edge in its hash."""
BLOCK = 4096
"""Edges that stay in the processor's cache for a second pass."""


def group(keys, num_groups, dtype=np.int64):
    """A stable counting sort: (positions by group, of a dtype that holds them; (num_groups + 1,) start of each)."""
    order = np.empty(len(keys), dtype)
    return order, _group_into(order, keys, num_groups)


@njit(cache=True, nogil=True)
def _group_into(order, keys, num_groups):
    starts = np.zeros(num_groups + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for i in range(num_groups):
        starts[i + 1] += starts[i]
    filled = starts[:-1].copy()
    for i in range(len(keys)):
        key = keys[i]
        order[filled[key]] = i
        filled[key] += 1
    return starts


@njit(cache=True, nogil=True)
def sort_by_end(order, src, dst, src_ids, dst_ids, start, stop, by_source):
    """Sort the edges of one part, stably and in place, by their end inside the part.

    Args:
        order: Positions of the part's edges; at least one end of each is in [start, stop).
        by_source: Take the source where both ends are inside.
    """
    # 1. Key of each edge: its inner end, the destination (the source by_source) where both are inside.
    counts = np.zeros(stop - start + 1, np.int64)
    keys = np.empty(len(order), np.int64)
    for i in range(len(order)):
        first, second = src_ids[src[order[i]]], dst_ids[dst[order[i]]]
        if by_source:
            first, second = second, first
        inside = second if start <= second < stop else first
        keys[i] = inside - start
        counts[keys[i] + 1] += 1
    # 2. First place of each key, then a stable scatter.
    for i in range(stop - start):
        counts[i + 1] += counts[i]
    before = order.copy()
    for i in range(len(order)):
        order[counts[keys[i]]] = before[i]
        counts[keys[i]] += 1


@njit(cache=True, nogil=True)
def gather_ends(positions, src, dst, src_ids, dst_ids, out_src, out_dst):
    """Homogeneous ids of both ends of the edges at some positions."""
    for i in range(len(positions)):
        out_src[i] = src_ids[src[positions[i]]]
        out_dst[i] = dst_ids[dst[positions[i]]]


@njit(cache=True, nogil=True)
def outer_edges(order, src, dst, src_parts, dst_parts, owner, first_id, both, filled, found):
    """Edges of one owner that another part stores as well.

    Args:
        order: Positions of the owner's edges.
        first_id: Homogeneous id of the first of them.
        both: Store cut edges at both ends; False: only where the destination is.
        filled: Where the owner's next edge of each part goes, (P,); moved on.
        found: Receives homogeneous edge ids, or is empty when they are only counted.
    """
    for i in range(len(order)):
        first, second = src_parts[src[order[i]]], dst_parts[dst[order[i]]]
        if first == second:
            continue
        other = first if second == owner else second
        if both or other == second:
            if len(found):
                found[filled[other]] = first_id + i
            filled[other] += 1


@njit(cache=True, nogil=True)
def mark_outside(ids, start, stop, local, found, num_found):
    """Collect ids outside [start, stop) that were not met before; returns how many found holds now."""
    for i in range(len(ids)):
        node = ids[i]
        if (node < start or node >= stop) and local[node] == UNSEEN:
            local[node] = SEEN
            found[num_found] = node
            num_found += 1
    return num_found


@njit(cache=True, nogil=True)
def to_local(ids, start, stop, local):
    """Local ids in place of homogeneous ones: inner nodes by position, others by ``local``."""
    for i in range(len(ids)):
        node = ids[i]
        ids[i] = node - start if start <= node < stop else local[node]


@njit(cache=True, nogil=True)
def to_buffer(ids, start, stop, parts):
    """Nodes of a buffer, [start, stop), by position in place of ids; others as the node behind it of their part."""
    for i in range(len(ids)):
        node = ids[i]
        ids[i] = node - start if start <= node < stop else stop - start + parts[node]


@njit(cache=True, nogil=True)
def count_ids(ids, start, counts):
    """counts[start + id] += 1 for each id, without a temporary copy of the ids."""
    for i in ids:
        counts[start + i] += 1


@njit(cache=True, nogil=True)
def move_to_lighter(source, destination, owner, load, held, least):
    """Give cut edges, in order, to the end's part with fewer edges: how many moved.

    Every move lowers the sum of squared loads, so passes end. (P,) ``load`` counts the edges of all types, ``held``
    those of this one, of which a part keeps ``least``.
    """
    moved = 0
    for edge in range(len(owner)):
        here = owner[edge]
        there = source[edge] if here == destination[edge] else destination[edge]
        if load[here] > load[there] + 1 and held[here] > least:
            owner[edge] = there
            held[here] -= 1
            held[there] += 1
            load[here] -= 1
            load[there] += 1
            moved += 1
    return moved


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
            for k in range(size):
                weights[first + k] = row[k]
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
