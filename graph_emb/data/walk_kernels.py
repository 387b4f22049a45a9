"""Compiled loops of random walks and of negative draws, for graph_emb/data/walks.py and negatives.py.

Every kernel releases the GIL and writes only its own rows of ``out``, so that plain threads can share a batch.
Randomness is a hash of (key, index of the walk, number of the draw): a walk never depends on its neighbours.
"""

# N nodes, E arcs, B walks of a batch, L nodes of a walk.

from __future__ import annotations

import numpy as np
from numba import njit

PAD = np.int32(-1)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
INTERLEAVED = 16  # walkers advanced together, so that their cache misses overlap
REJECTIONS = 48  # proposals refused before the exact scan of the row takes over
UNIT = 2.0**-53


@njit(cache=True, nogil=True, inline="always")
def mix64(x):
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def unit_draw(key, number):
    """Draw ``number`` of the stream ``key``: a float64 in [0, 1) on a grid of 2^-53."""
    return np.float64(mix64(key + np.uint64(number) * GOLDEN) >> np.uint64(11)) * UNIT


@njit(cache=True, nogil=True)
def fill_alias_rows(indptr, weights, accept, other, total):
    """Vose's alias tables of all rows: arc k is kept with accept[k], else other[k] (offset in the row) is taken."""
    num_nodes = len(indptr) - 1
    widest = 0
    for v in range(num_nodes):
        widest = max(widest, indptr[v + 1] - indptr[v])
    scaled = np.empty(widest, np.float64)
    small = np.empty(widest, np.int32)
    large = np.empty(widest, np.int32)
    for v in range(num_nodes):
        low, degree = indptr[v], indptr[v + 1] - indptr[v]
        mass = 0.0
        for k in range(degree):
            mass += weights[low + k]
        total[v] = mass
        num_small, num_large = 0, 0
        for k in range(degree):
            scaled[k] = weights[low + k] * degree / mass
            if scaled[k] < 1.0:
                small[num_small] = k
                num_small += 1
            else:
                large[num_large] = k
                num_large += 1
        while num_small > 0 and num_large > 0:
            num_small -= 1
            poor, rich = small[num_small], large[num_large - 1]
            accept[low + poor] = scaled[poor]
            other[low + poor] = rich
            scaled[rich] -= 1.0 - scaled[poor]
            if scaled[rich] < 1.0:
                num_large -= 1
                small[num_small] = rich
                num_small += 1
        for i in range(num_large):
            accept[low + large[i]] = 1.0
            other[low + large[i]] = large[i]
        for i in range(num_small):  # left over by rounding only
            accept[low + small[i]] = 1.0
            other[low + small[i]] = small[i]


@njit(cache=True, nogil=True, inline="always")
def pick(x, low, degree, accept, other):
    """Offset of a neighbour for x in [0, 1): the integer part of x * degree chooses, the rest decides the alias."""
    position = x * degree
    k = np.int64(position)
    if len(accept) > 0 and position - k >= accept[low + k]:
        k = np.int64(other[low + k])
    return k


@njit(cache=True, nogil=True)
def fill_negatives(accept, other, key, first, out):
    """out (B, S*K) gets the negatives of walks first, first + 1, ...: the draws of one stream per walk."""
    for row in range(out.shape[0]):
        stream = mix64(key + np.uint64(first + row) * GOLDEN)
        for number in range(out.shape[1]):
            out[row, number] = pick(unit_draw(stream, number), 0, len(accept), accept, other)


@njit(cache=True, nogil=True)
def first_order_walks(indptr, indices, accept, other, starts, key, first, out):
    """DeepWalk: every step follows an arc with a probability proportional to its weight; out (B, L) is filled."""
    num_walks, length = out.shape
    here = np.empty(INTERLEAVED, np.int64)
    keys = np.empty(INTERLEAVED, np.uint64)
    for group in range(0, num_walks, INTERLEAVED):
        size = min(INTERLEAVED, num_walks - group)
        for i in range(size):
            here[i] = starts[group + i]
            out[group + i, 0] = starts[group + i]
            keys[i] = mix64(key + np.uint64(first + group + i) * GOLDEN)
        for step in range(1, length):
            for i in range(size):
                v = here[i]
                if v < 0:
                    out[group + i, step] = PAD
                    continue
                low = indptr[v]
                degree = indptr[v + 1] - low
                if degree == 0:
                    here[i] = -1
                    out[group + i, step] = PAD
                    continue
                node = indices[low + pick(unit_draw(keys[i], step), low, degree, accept, other)]
                here[i] = node
                out[group + i, step] = node


@njit(cache=True, nogil=True, inline="always")
def find_arc(indptr, indices, source, target):
    """Position of the arc source -> target in ``indices``, or -1; rows are sorted."""
    low = indptr[source]
    size = indptr[source + 1] - low
    while size > 1:  # the comparison moves data, not control: no branch is mispredicted
        half = size >> 1
        low = low + half if indices[low + half] <= target else low
        size -= half
    if size == 1 and indices[low] == target:
        return low
    return np.int64(-1)


@njit(cache=True, nogil=True, inline="always")
def is_arc(indptr, indices, symmetric, source, target):
    """Whether source -> target is stored; a symmetric graph is asked at its shorter row."""
    if symmetric and indptr[target + 1] - indptr[target] < indptr[source + 1] - indptr[source]:
        return find_arc(indptr, indices, target, source) >= 0
    return find_arc(indptr, indices, source, target) >= 0


@njit(cache=True, nogil=True)
def scan_row(indptr, indices, weights, symmetric, previous, v, back, away, x):
    """The neighbour of ``v`` at fraction x of the exact cumulative second-order weights of its row."""
    low, high = indptr[v], indptr[v + 1]
    cumulative = np.empty(high - low, np.float64)
    mass = 0.0
    for k in range(low, high):
        node = indices[k]
        bias = 1.0
        if node == previous:
            bias = back
        elif not is_arc(indptr, indices, symmetric, previous, node):
            bias = away
        mass += bias * weights[k] if len(weights) > 0 else bias
        cumulative[k - low] = mass
    return indices[low + min(np.searchsorted(cumulative, x * mass, side="right"), high - low - 1)]


@njit(cache=True, nogil=True)
def second_order_walks(indptr, indices, weights, accept, other, total, symmetric, back, away, starts, key, first, out):
    """node2vec by rejection (KnightKing, SOSP 2019), exact: a step t -> v -> x has weight w(v, x) * bias with
    bias ``back`` = 1/p for x = t, 1 for an arc t -> x, ``away`` = 1/q otherwise; out (B, L) is filled.

    Proposals follow w alone under a ceiling that ignores the return arc; what the return arc has above the
    ceiling is drawn as a piece of its own, so that a small p costs no rejections.
    """
    num_walks, length = out.shape
    ceiling = max(1.0, away)
    sure = min(1.0, away)
    for row in range(num_walks):
        stream = mix64(key + np.uint64(first + row) * GOLDEN)
        draw = 0
        previous = np.int64(-1)
        v = np.int64(starts[row])
        out[row, 0] = starts[row]
        for step in range(1, length):
            low = indptr[v]
            degree = indptr[v + 1] - low
            if degree == 0:
                for rest in range(step, length):
                    out[row, rest] = PAD
                break
            excess = 0.0
            if back > ceiling and previous >= 0:
                share = 1.0 / degree
                if not symmetric or len(weights) > 0:
                    arc = find_arc(indptr, indices, v, previous)
                    share = 0.0
                    if arc >= 0:
                        share = weights[arc] / total[v] if len(weights) > 0 else 1.0 / degree
                excess = share * (back - ceiling) / ceiling
            node = np.int64(-1)
            for _ in range(REJECTIONS):
                x = unit_draw(stream, draw) * (1.0 + excess)
                height = unit_draw(stream, draw + 1) * ceiling
                draw += 2
                if x >= 1.0:
                    node = previous
                    break
                proposal = np.int64(indices[low + pick(x, low, degree, accept, other)])
                if previous < 0:
                    kept = True
                elif proposal == previous:
                    kept = height < back
                else:
                    kept = height < sure
                    if not kept:
                        kept = is_arc(indptr, indices, symmetric, previous, proposal) == (away < 1.0)
                if kept:
                    node = proposal
                    break
            if node < 0:
                x = unit_draw(stream, draw)
                draw += 1
                node = np.int64(scan_row(indptr, indices, weights, symmetric, previous, v, back, away, x))
            out[row, step] = node
            previous = v
            v = node
