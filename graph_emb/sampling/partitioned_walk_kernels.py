"""Compiled loops that pack what travels between ranks while walkers move, for partitioned_walks.py."""

# B walkers, L nodes of a walk, W ranks.

from __future__ import annotations

import numpy as np
from numba import njit

from graph_emb.graph.partition_book import range_of

HEADER = 3
"""Words before the nodes of a stretch: slot, first step, number of nodes."""


@njit(cache=True, nogil=True)
def travellers(walkers, length, bounds, ranks, world_size):
    """The walkers (B,) whose walks go on with another rank, destination after destination.

    Range i of nodes, [bounds[i], bounds[i + 1]), lies with rank ranks[i]. Returns positions, and their numbers (W,).
    """
    owner = np.empty(len(walkers), np.int32)
    counts = np.zeros(world_size, np.int64)
    for w in range(len(walkers)):
        owner[w] = -1
        node = walkers[w].node
        if node < 0 or walkers[w].step >= length:
            continue
        owner[w] = ranks[range_of(bounds, node)]
        counts[owner[w]] += 1
    cursor = np.zeros(world_size, np.int64)
    for rank in range(1, world_size):
        cursor[rank] = cursor[rank - 1] + counts[rank - 1]
    order = np.empty(counts.sum(), np.int64)
    for w in range(len(walkers)):
        if owner[w] >= 0:
            order[cursor[owner[w]]] = w
            cursor[owner[w]] += 1
    return order, counts


@njit(cache=True, nogil=True)
def stretch_words(walkers, begin, rank, world_size):
    """Words (int32) of the stretches that walkers (B,), at step begin (B,) before, bring home to each rank, (W,)."""
    words = np.zeros(world_size, np.int64)
    for w in range(len(walkers)):
        home, count = walkers[w].home, walkers[w].step - begin[w]
        if home != rank and count > 0:
            words[home] += HEADER + count
    return words


@njit(cache=True, nogil=True)
def pack_stretches(walkers, begin, trail, rank, words, out, packed):
    """Stretches of walks: those of this rank go to out (B, L), the others to ``packed``, home after home."""
    cursor = np.zeros(len(words), np.int64)
    for home in range(1, len(words)):
        cursor[home] = cursor[home - 1] + words[home - 1]
    for w in range(len(walkers)):
        first, end, home, slot = begin[w], walkers[w].step, walkers[w].home, walkers[w].slot
        if home == rank:
            for step in range(first, end):
                out[slot, step] = trail[w, step]
        elif end > first:
            at = cursor[home]
            packed[at], packed[at + 1], packed[at + 2] = slot, first, end - first
            for step in range(first, end):
                packed[at + HEADER + step - first] = trail[w, step]
            cursor[home] = at + HEADER + end - first


@njit(cache=True, nogil=True)
def unpack_stretches(packed, out):
    """Writes stretches that came home into the walks out (B, L)."""
    at = 0
    while at < len(packed):
        slot, first, count = packed[at], packed[at + 1], packed[at + 2]
        for i in range(count):
            out[slot, first + i] = packed[at + HEADER + i]
        at += HEADER + count


@njit(cache=True, nogil=True)
def pack_rows(indptr, indices, rows, out):
    """The neighbours of rows, one row after the other."""
    at = 0
    for r in rows:
        for k in range(indptr[r], indptr[r + 1]):
            out[at] = indices[k]
            at += 1
