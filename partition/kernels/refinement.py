"""Bisection by growing and search, and local search on parts under several limits: Fiduccia-Mattheyses, rebalancing.

Fiduccia, Mattheyses, "A linear-time heuristic for improving network partitions" (DAC 1982); searches that start from a
few boundary nodes: Sanders, Schulz, "Engineering multilevel graph partitioning algorithms" (ESA 2011). Rebalancing by
relative gain: Gottesbueren et al., "Deep multilevel graph partitioning" (ESA 2021). Greedy graph growing: Karypis and
Kumar (SIAM Journal on Scientific Computing 20, 1998). Limits for several constraints are our addition.

Legend: N nodes, P parts, C constraints. ``table`` is (N, P): the edge weight from each node into each part. The gain
of a move is the cut that it takes away, ``table[v, target] - table[v, own]``. A binary heap has the greatest key first:
``heap`` holds nodes, ``places`` the position of each node in it, ``keys`` the key of each node.
"""

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import njit

FREE, QUEUED, LOCKED = 0, 1, 2


@njit(cache=True, nogil=True)
def sift_up(heap, places, keys, at):
    """Restore the order of a binary heap whose greatest key comes first, after the key at a place rose."""
    node = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if keys[heap[above]] >= keys[node]:
            break
        heap[at] = heap[above]
        places[heap[at]] = at
        at = above
    heap[at] = node
    places[node] = at


@njit(cache=True, nogil=True)
def sift_down(heap, places, keys, at, size):
    """The same after the key at a place fell."""
    node = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and keys[heap[below + 1]] > keys[heap[below]]:
            below += 1
        if keys[heap[below]] <= keys[node]:
            break
        heap[at] = heap[below]
        places[heap[at]] = at
        at = below
    heap[at] = node
    places[node] = at


@njit(cache=True, nogil=True)
def pop(heap, places, keys, size):
    """Remove the first node of a heap of at least one: the new size."""
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        places[heap[0]] = 0
        sift_down(heap, places, keys, 0, size)
    return size


@njit(cache=True, nogil=True)
def connect(indptr, indices, weights, parts, low, high, table):
    """Fill the rows low .. high - 1 of the table."""
    weighted = len(weights) > 0
    for v in range(low, high):
        table[v, :] = 0
        for e in range(indptr[v], indptr[v + 1]):
            table[v, parts[indices[e]]] += weights[e] if weighted else 1


@njit(cache=True, nogil=True)
def outside(table, parts):
    """Weight of the edges between parts, counted from both ends."""
    total = np.int64(0)
    for v in range(len(parts)):
        for p in range(table.shape[1]):
            if p != parts[v]:
                total += table[v, p]
    return total


@njit(cache=True, nogil=True)
def mark_boundary(table, parts, low, high, marks):
    """marks[v] = 1 for each node of low .. high - 1 that has a neighbour in another part, else 0."""
    for v in range(low, high):
        marks[v] = 0
        for p in range(table.shape[1]):
            if p != parts[v] and table[v, p] > 0:
                marks[v] = 1
                break


@njit(cache=True, nogil=True)
def marked(marks, nodes):
    """The marked nodes, in the order given."""
    out = np.empty(len(nodes) + 1, np.int32)
    count = 0
    for v in nodes:
        out[count] = v
        count += marks[v]
    return out[:count]


@njit(cache=True, nogil=True)
def has_room(loads, part, node_weights, node, limits):
    """Whether a part can take a node under its limits, (P, C)."""
    for c in range(limits.shape[1]):  # noqa: SIM110 - numba has no generators
        if loads[part, c] + node_weights[node, c] > limits[part, c]:
            return False
    return True


@njit(cache=True, nogil=True)
def overload(loads, part, limits, scales):
    """How far a part is above its limits: a sum over the constraints in units of their scale."""
    total = 0.0
    for c in range(limits.shape[1]):
        if loads[part, c] > limits[part, c]:
            total += (loads[part, c] - limits[part, c]) * scales[c]
    return total


@njit(cache=True, nogil=True)
def move(loads, node_weights, node, source, target):
    """Take a node's weights from one part to another."""
    for c in range(loads.shape[1]):
        loads[source, c] -= node_weights[node, c]
        loads[target, c] += node_weights[node, c]


@njit(cache=True, nogil=True)
def best_target(table, parts, node, loads, node_weights, limits):
    """(gain, part) of the best move with room; part -1 where there is none. Ties go to the emptier part."""
    own = parts[node]
    best, best_weight = -1, -1
    for p in range(table.shape[1]):
        weight = table[node, p]
        if p == own or weight < best_weight:
            continue
        if weight == best_weight and loads[p, 0] >= loads[best, 0]:
            continue
        if has_room(loads, p, node_weights, node, limits):
            best, best_weight = p, weight
    return best_weight - table[node, own], best


@njit(cache=True, nogil=True)
def search(
    indptr, indices, weights, node_weights, parts, loads, hard, soft, scales, table, seeds, per_search, patience
):
    """One round of localised k-way Fiduccia-Mattheyses: searches from a few seeds each, a node moves at most once.

    A search moves the node of greatest gain, losses included, and queues its neighbours; it ends after ``patience``
    moves without a better state, and goes back to its best one. Inside a search parts may fill up to ``soft``; a state
    counts as better only if it exceeds ``hard`` by no more than the best so far.

    Args:
        parts, loads, table: Kept up to date.
        hard, soft: (P, C) limits.
        seeds: Boundary nodes in the order in which searches start from them.
        per_search: Seeds of one search.
    Returns:
        The cut that was taken away.
    """
    weighted = len(weights) > 0
    num_nodes = len(parts)
    # FREE nodes may enter the queue, QUEUED ones are in it, LOCKED ones have moved. keys bound the gains from above.
    status = np.zeros(num_nodes, np.int8)
    heap, places = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    keys = np.empty(num_nodes, np.int64)
    moved, sources = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    excess = 0.0
    for p in range(hard.shape[0]):
        excess += overload(loads, p, hard, scales)
    total = 0
    first = 0
    while first < len(seeds):
        # 1. Queue the next seeds that have somewhere to go.
        size = 0
        while first < len(seeds) and size < per_search:
            v = seeds[first]
            first += 1
            if status[v] != FREE:
                continue
            gain, target = best_target(table, parts, v, loads, node_weights, soft)
            if target < 0:
                continue
            keys[v], status[v], heap[size] = gain, QUEUED, v
            size += 1
            sift_up(heap, places, keys, size - 1)
        # 2. Move the best node of the queue, also at a loss, until patience moves in a row brought no better state.
        num_moved, num_kept, gained, best_gain, best_excess = 0, 0, 0, 0, excess
        while size > 0 and num_moved - num_kept < patience:
            v = heap[0]
            gain, target = best_target(table, parts, v, loads, node_weights, soft)
            if target < 0:
                size = pop(heap, places, keys, size)
                status[v] = FREE
                continue
            if gain < keys[v]:  # the bound was too high: sort the node in again
                keys[v] = gain
                sift_down(heap, places, keys, 0, size)
                if heap[0] != v:
                    continue
            size = pop(heap, places, keys, size)
            status[v] = LOCKED
            own = parts[v]
            excess -= overload(loads, own, hard, scales) + overload(loads, target, hard, scales)
            move(loads, node_weights, v, own, target)
            excess += overload(loads, own, hard, scales) + overload(loads, target, hard, scales)
            parts[v] = target
            moved[num_moved], sources[num_moved] = v, own
            num_moved += 1
            gained += gain
            # 3. Tell the neighbours: their table rows change, their bounds follow, free ones join the queue.
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                weight = weights[e] if weighted else 1
                table[u, own] -= weight
                table[u, target] += weight
                if status[u] == LOCKED:
                    continue
                at = parts[u]
                if status[u] == QUEUED:
                    key = keys[u] + (weight if at == own else 0)
                    if at == target:  # v came closer, so every gain of u falls
                        keys[u] -= weight
                        sift_down(heap, places, keys, places[u], size)
                        continue
                    key = max(key, table[u, target] - table[u, at])
                    if key > keys[u]:
                        keys[u] = key
                        sift_up(heap, places, keys, places[u])
                elif at != target:
                    key, other = best_target(table, parts, u, loads, node_weights, soft)
                    if other >= 0:
                        keys[u], status[u], heap[size] = key, QUEUED, u
                        size += 1
                        sift_up(heap, places, keys, size - 1)
            if excess < best_excess or (excess == best_excess and gained > best_gain):
                best_gain, best_excess, num_kept = gained, excess, num_moved
        # 4. Undo what came after the best state; nodes that still wait are free for later searches.
        for i in range(num_moved - 1, num_kept - 1, -1):
            v, own = moved[i], sources[i]
            target = parts[v]
            move(loads, node_weights, v, target, own)
            parts[v] = own
            for e in range(indptr[v], indptr[v + 1]):
                weight = weights[e] if weighted else 1
                table[indices[e], target] -= weight
                table[indices[e], own] += weight
        for i in range(size):
            status[heap[i]] = FREE
        excess = best_excess
        total += best_gain
    return total


@njit(cache=True, nogil=True)
def best_relief(indptr, indices, weights, node, node_weights, parts, loads, limits, scales, row):
    """The move of a node that loses least cut for the overload that it takes away: (priority, part or -1).

    The priority is the relative gain of KaMinPar's balancer: gain * relief for gains, gain / relief for losses.
    row: Scratch, (P,).
    """
    own, counted, weighted = parts[node], False, len(weights) > 0
    before = overload(loads, own, limits, scales)
    best, best_priority = -1, -np.inf
    if before == 0.0:
        return best_priority, best
    for p in range(limits.shape[0]):
        if p == own:
            continue
        there = overload(loads, p, limits, scales)
        move(loads, node_weights, node, own, p)
        relief = before + there - overload(loads, own, limits, scales) - overload(loads, p, limits, scales)
        move(loads, node_weights, node, p, own)
        if relief <= 0.0:
            continue
        if not counted:  # its edges are looked at where a move relieves its part at all
            row[:], counted = 0, True
            for e in range(indptr[node], indptr[node + 1]):
                row[parts[indices[e]]] += weights[e] if weighted else 1
        gain = row[p] - row[own]
        priority = gain * relief if gain > 0 else gain / relief
        if priority > best_priority or (priority == best_priority and loads[p, 0] < loads[best, 0]):
            best, best_priority = p, priority
    return best_priority, best


@njit(cache=True, nogil=True)
def rebalance(indptr, indices, weights, node_weights, parts, loads, limits, scales, order):
    """Greedy rebalancing: move nodes out of overloaded parts, the cheapest first, until no move helps.

    order: (N,), every node, which decides between equals. Returns the remaining overload.
    """
    num_nodes, num_parts = len(parts), limits.shape[0]
    row = np.zeros(num_parts, np.int64)
    heap, places = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    keys = np.empty(num_nodes, np.float64)
    while True:
        excess, num_moved, size = 0.0, 0, 0
        for p in range(num_parts):
            excess += overload(loads, p, limits, scales)
        if excess == 0.0:
            return excess
        # 1. Queue every node of an overloaded part with a move that relieves it.
        for v in order:
            priority, target = best_relief(indptr, indices, weights, v, node_weights, parts, loads, limits, scales, row)
            if target >= 0:
                keys[v], heap[size] = priority, v
                size += 1
                sift_up(heap, places, keys, size - 1)
        # 2. Make the best moves; a priority that fell since is sorted in again.
        while size > 0:
            v = heap[0]
            priority, target = best_relief(indptr, indices, weights, v, node_weights, parts, loads, limits, scales, row)
            if target < 0:
                size = pop(heap, places, keys, size)
                continue
            if priority < keys[v]:
                keys[v] = priority
                sift_down(heap, places, keys, 0, size)
                if heap[0] != v:
                    continue
            size = pop(heap, places, keys, size)
            move(loads, node_weights, v, parts[v], target)
            parts[v] = target
            num_moved += 1
        # 3. Loads have changed: nodes without a move may have one now, so look again until a pass moves none.
        if num_moved == 0:
            return excess


@njit(cache=True, nogil=True)
def swap(node_weights, parts, loads, limits, scales, order, tries):
    """Swap nodes of overloaded parts with nodes elsewhere where that lowers the overload: the remaining overload.

    For limits so tight that no single node fits anywhere: each node is tried with up to ``tries`` others.
    """
    num_nodes = len(order)
    excess = 0.0
    for p in range(limits.shape[0]):
        excess += overload(loads, p, limits, scales)
    for i in range(num_nodes):
        if excess == 0.0:
            break
        v = order[i]
        own = parts[v]
        if overload(loads, own, limits, scales) == 0.0:
            continue
        for step in range(1, min(tries, num_nodes)):
            u = order[(i + step) % num_nodes]
            other = parts[u]
            if other == own:
                continue
            before = overload(loads, own, limits, scales) + overload(loads, other, limits, scales)
            move(loads, node_weights, v, own, other)
            move(loads, node_weights, u, other, own)
            after = overload(loads, own, limits, scales) + overload(loads, other, limits, scales)
            if after < before:
                parts[v], parts[u] = other, own
                excess += after - before
                break
            move(loads, node_weights, v, other, own)
            move(loads, node_weights, u, own, other)
    return excess


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
def bisect(indptr, indices, weights, node_weights, wanted, limits, soft, scales, orders, rounds, patience, table, best):
    """Split in two by growing and search, once from each order; ``best`` gets the parts of the best try.

    Args:
        wanted, limits, soft: As in ``grow`` and ``search``.
        orders: (T, N): every node, for each of T tries.
        rounds: Of search in each try at most.
        table: (N, 2), memory for the sums of ``connect``.
        best: (N,), int32: least overload, then least cut, then the first.
    """
    num_nodes, num_limits = len(best), limits.shape[1]
    parts, loads = np.empty(num_nodes, np.int32), np.empty((2, num_limits), np.int64)
    marks, degrees = np.empty(num_nodes, np.int8), np.zeros(num_nodes, np.int64)
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
