"""Counting sorts that order nodes and edges by part, loops that find the halo of a part and lighter owners of edges.

Legend: E edges of one type, N nodes of all types, P parts. Node ids here are homogeneous partition-order ids.
"""

from __future__ import annotations

import numpy as np
from numba import njit

UNSEEN, SEEN = -1, -2


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
