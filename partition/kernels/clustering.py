"""Passes over nodes that give each its best label with room: size-constrained label propagation, LDG, Fennel; and HDRF.

Label propagation: Raghavan, Albert, Kumara (Physical Review E 76, 2007); with a limit on the size of a label:
Meyerhenke, Sanders, Schulz (SEA 2014). The same two steps cluster (a label is a node, few may be full) and refine (a
label is a part). Proposals of one batch read the labels as they were before it, so that threads may share a batch; the
batch is then applied in order. LDG: Stanton, Kliot (KDD 2012); Fennel: Tsourakakis et al. (WSDM 2014).
Legend: N nodes, E edges, L labels, P parts, C constraints.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import mix64, njit
from partition.kernels.refinement import move

WORD = 64


@njit(cache=True, nogil=True)
def fits(loads, label, node_weights, node, limits):
    """Whether a label can take a node under every constraint."""
    for c in range(len(limits)):  # noqa: SIM110 - numba has no generators
        if loads[label, c] + node_weights[node, c] > limits[c]:
            return False
    return True


@njit(cache=True, nogil=True)
def propose(
    nodes, indptr, indices, weights, node_weights, labels, loads, limits, groups, seed, ratings, seen, targets, favoured
):
    """Propose the label that each node would move to: the strongest one with room, ties by a hash.

    Args:
        nodes: Ids of this thread's share of the batch.
        groups: (N,), or empty: only neighbours of the same group count.
        ratings, seen: Scratch, (L,) zeros and at least the largest degree.
        targets: (len(nodes),), gets the label; its own where nothing better has room.
        favoured: (N,) or empty, gets the best label whether or not it has room; -1 without neighbours.
    """
    weighted, grouped = len(weights) > 0, len(groups) > 0
    for i in range(len(nodes)):
        v = nodes[i]
        # 1. Rate: sum the edge weight into each label among the neighbours.
        own, num_seen, salt = labels[v], 0, mix64(np.uint64(v) ^ seed)
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if grouped and groups[u] != groups[v]:
                continue
            label = labels[u]
            rating = ratings[label]
            seen[num_seen] = label
            num_seen += rating == 0  # no branch: half of them would be mispredicted
            ratings[label] = rating + (weights[e] if weighted else 1)
        # 2. Choose: the best label with room, and the best one (top) with or without; the ratings become 0 again.
        best, best_rating, best_tie = own, ratings[own], np.uint64(0xFFFFFFFFFFFFFFFF)
        top, top_rating = -1, 0
        for j in range(num_seen):
            label = seen[j]
            rating = ratings[label]
            ratings[label] = 0
            if label == own:
                continue
            if rating > top_rating:
                top, top_rating = label, rating
            if rating < best_rating:
                continue
            tie = mix64(np.uint64(label) ^ salt)
            if (rating > best_rating or tie > best_tie) and fits(loads, label, node_weights, v, limits):
                best, best_rating, best_tie = label, rating, tie
        ratings[own] = 0
        targets[i] = best
        if len(favoured) > 0:
            favoured[v] = top


@njit(cache=True, nogil=True)
def apply(nodes, targets, labels, node_weights, loads, limits, sizes):
    """Move the nodes of a batch, in order, where their label still has room: (moved, labels left without a node).

    sizes counts the nodes of each label; empty: not asked for. With it no node moves to a label that the batch has left
    without a node: two neighbours that proposed each other's label would change places in every round.
    """
    counted = len(sizes) > 0
    moved, emptied = 0, 0
    for i in range(len(nodes)):
        v, target = nodes[i], targets[i]
        own = labels[v]
        if target == own or (counted and sizes[target] == 0) or not fits(loads, target, node_weights, v, limits):
            continue
        move(loads, node_weights, v, own, target)
        labels[v] = target
        moved += 1
        if counted:
            sizes[own] -= 1
            sizes[target] += 1
            emptied += sizes[own] == 0
    return moved, emptied


@njit(cache=True, nogil=True)
def sweep(
    order, batch, indptr, indices, weights, node_weights, labels, loads, limits, groups, seed, ratings, seen, favoured,
    sizes,
):  # fmt: skip
    """Propose and apply for all nodes in order, ``batch`` at a time, in this thread; returns what ``apply`` does."""
    moved, emptied = 0, 0
    targets = np.empty(batch, np.int32)
    for start in range(0, len(order), batch):
        nodes = order[start : start + batch]
        propose(
            nodes, indptr, indices, weights, node_weights, labels, loads, limits, groups, seed, ratings, seen, targets,
            favoured,
        )  # fmt: skip
        done = apply(nodes, targets, labels, node_weights, loads, limits, sizes)
        moved += done[0]
        emptied += done[1]
    return moved, emptied


@njit(cache=True, nogil=True)
def pair_up(labels, sizes, favoured, groups, node_weights, loads, limits):
    """Join nodes alone in their label that favour the same full label, and nodes without neighbours, up to the limit.

    Two-hop clustering as in KaMinPar (Gottesbueren et al., ESA 2021). Returns how many labels went away. Without it
    the leaves of a hub and isolated nodes never coarsen.
    """
    # host[label]: the last node, alone in its own label, that favours this one; host[num_nodes]: of isolated nodes.
    num_nodes = len(labels)
    host = np.full(num_nodes + 1, -1, np.int32)
    gone = 0
    for v in range(num_nodes):
        if sizes[labels[v]] != 1:
            continue
        key = num_nodes if favoured[v] < 0 else labels[favoured[v]]
        first = host[key]
        alike = first >= 0 and (len(groups) == 0 or groups[first] == groups[v])
        if alike and fits(loads, labels[first], node_weights, v, limits):
            own, target = labels[v], labels[first]
            move(loads, node_weights, v, own, target)
            sizes[own] -= 1
            sizes[target] += 1
            labels[v] = target
            gone += 1
        else:
            host[key] = v
    return gone


@njit(cache=True, nogil=True)
def number(labels):
    """Labels 0 .. in the order of their first node: (label of each node, how many)."""
    new = np.full(len(labels), -1, np.int32)
    out = np.empty(len(labels), np.int32)
    count = 0
    for v in range(len(labels)):
        label = labels[v]
        if new[label] < 0:
            new[label] = count
            count += 1
        out[v] = new[label]
    return out, count


@njit(cache=True, nogil=True)
def contract(
    order, starts, low, high, begin, indptr, indices, weights, labels, ratings, seen, out_indices, out_weights, degrees
):
    """Contract clusters: rows low .. high - 1 of the graph of labels, from ``begin`` on; returns where they end.

    Args:
        order, starts: The nodes of each label.
        ratings, seen: Scratch of the thread, (L,) zeros and at least the most neighbours of a label.
        out_indices, out_weights, degrees: Receive the rows, parallel edges merged and inner ones dropped.
    """
    weighted = len(weights) > 0
    write = begin
    for label in range(low, high):
        num_seen = 0
        for i in range(starts[label], starts[label + 1]):
            v = order[i]
            for e in range(indptr[v], indptr[v + 1]):
                other = labels[indices[e]]
                if other == label:
                    continue
                if ratings[other] == 0:
                    seen[num_seen] = other
                    num_seen += 1
                ratings[other] += weights[e] if weighted else 1
        for j in range(num_seen):
            other = seen[j]
            out_indices[write] = other
            out_weights[write] = ratings[other]
            ratings[other] = 0
            write += 1
        degrees[label] = num_seen
    return write


@njit(cache=True, nogil=True)
def add_weights(labels, node_weights, out):
    """out[label] += the weights of its nodes."""
    for v in range(len(labels)):
        for c in range(node_weights.shape[1]):
            out[labels[v], c] += node_weights[v, c]


@njit(cache=True, nogil=True)
def stream(order, indptr, indices, weights, node_weights, limits, parts, loads, row, fennel, alpha, gamma, shares):
    """One pass of LDG or Fennel: each node, in order, gets the part of the best score among those with room.

    Args:
        limits: (C,): what a part may hold.
        parts, loads: (N,) and (P, C), changed; -1 is not placed yet, and a node that has a part is taken out first.
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
