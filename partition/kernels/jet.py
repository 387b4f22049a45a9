"""Moves of nodes between parts of which some lose edges at first: the steps of a round of Jet.

Gilbert, Madduri, Boman, Rajamanickam, "Jet: multilevel graph partitioning on graphics processing units" (SIAM Journal
on Scientific Computing 46, 2024). Its parts may overflow and are balanced again; here a node waits for room.

Legend: N nodes, P parts, C constraints, G groups of parts.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import mix64, njit
from partition.kernels.clustering import fits
from partition.kernels.refinement import move


@njit(cache=True, nogil=True)
def propose(low, high, indptr, indices, weights, parts, group_of, resting, share, seed, ratings, seen, targets, gains):
    """Propose the strongest other part to each of the nodes low .. high - 1; the weight of their edges inside parts.

    Args:
        parts, group_of: (N,) and (P,): only parts of the node's own group count.
        resting: (N,) bool: nodes without a proposal.
        share: Of the weight of its edges inside its part: less than this a move may lose.
        ratings, seen: Scratch, (P,) zeros and at least the most neighbours of a node.
        targets, gains: (N,), get the part, -1 for none, and the cut that the move alone would take away.
    """
    weighted = len(weights) > 0
    inside = np.int64(0)
    for v in range(low, high):
        own, num_seen = parts[v], 0
        targets[v] = -1
        for e in range(indptr[v], indptr[v + 1]):
            part = parts[indices[e]]
            rating = ratings[part]
            seen[num_seen] = part
            num_seen += rating == 0  # no branch: half of them would be mispredicted
            ratings[part] = rating + (weights[e] if weighted else 1)
        inner = ratings[own]
        inside += inner
        best, best_rating, best_tie, salt = -1, 0, np.uint64(0), mix64(np.uint64(v) ^ seed)
        for j in range(num_seen):
            part = seen[j]
            rating = ratings[part]
            ratings[part] = 0
            if part == own or rating < best_rating or group_of[part] != group_of[own]:
                continue
            tie = mix64(np.uint64(part) ^ salt)
            if rating > best_rating or tie > best_tie:
                best, best_rating, best_tie = part, rating, tie
        gain = best_rating - inner
        if best >= 0 and not resting[v] and (gain >= 0 or -gain < share * inner):
            targets[v], gains[v] = best, gain
    return inside


@njit(cache=True, nogil=True)
def confirm(low, high, indptr, indices, weights, parts, targets, gains, moving):
    """Mark the proposals of low .. high - 1 that lose nothing where neighbours of greater gain have moved before."""
    weighted = len(weights) > 0
    for v in range(low, high):
        target, own, total = targets[v], parts[v], np.int64(0)
        if target >= 0:
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                part = parts[u]
                if targets[u] >= 0 and (gains[u] > gains[v] or (gains[u] == gains[v] and u < v)):
                    part = targets[u]
                weight = weights[e] if weighted else 1
                if part == target:
                    total += weight
                elif part == own:
                    total -= weight
        moving[v] = target >= 0 and total >= 0


@njit(cache=True, nogil=True)
def apply(parts, targets, moving, node_weights, loads, limits):
    """Move what is marked and has room, in order; returns how many moved. A part's last node stays."""
    moved = 0
    for v in range(len(parts)):
        if moving[v]:
            own, target = parts[v], targets[v]
            moving[v] = fits(loads, target, node_weights, v, limits) and loads[own, 0] > node_weights[v, 0]
            if moving[v]:
                move(loads, node_weights, v, own, target)
                parts[v] = target
                moved += 1
    return moved
