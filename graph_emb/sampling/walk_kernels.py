"""Compiled loops of random walks and of negative draws; the record of a walker, the order of starts, random streams.

Every kernel releases the GIL and writes only its own rows of ``out``, so that plain threads can share a batch.
Randomness is a hash of (key, index of the walk, number of the draw): a walk never depends on other walks, nor on
where it is interrupted. The rows of a graph may be a range of its nodes, from ``low`` on; a walker that steps out of
them stops, and continues in the process that holds its node's row.
"""

# N nodes of the whole graph or with rows here, R rows, E arcs, B walks of a batch, L nodes of a walk.

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from graph_emb.core.compiled import GOLDEN, mix64, njit, unit_draw
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import frozen

PAD = np.int32(-1)
INTERLEAVED = 16  # walkers advanced together, so that their cache misses overlap
REJECTIONS = 48  # proposals refused before the exact scan of the row takes over
MAX_NODES = 2**31 - 1
THREAD_SHARE = 64  # walks below which a further thread costs more than it brings

WALKER = np.dtype(
    [
        ("index", np.int64),  # of the walk in its epoch
        ("far", np.int64),  # where the row of the previous node starts among the rows that travelled,
        ("far_size", np.int32),  # and how many neighbours it has; 0: it did not travel
        ("home", np.int32),  # the rank that asked for the walk,
        ("slot", np.int32),  # and the walk's place in its batch
        ("node", np.int32),  # the walker's node; -1 after a dead end
        ("previous", np.int32),  # the node before; -1 at the start
        ("step", np.int32),  # nodes of the walk so far
        ("draw", np.int32),  # random numbers that node2vec has used
    ],
    align=True,
)
"""An unfinished walk. It depends on this record and the seed only, so that another process can continue it."""


@njit(cache=True, nogil=True)
def fill_alias_rows(indptr, weights, accept, other, total):
    """Vose's alias method (1991), a table for each row: arc k is kept with probability accept[k], else replaced by
    other[k], an offset in the row.
    """
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
        # Split the arcs by their weight in units of the row's mean.
        num_small, num_large = 0, 0
        for k in range(degree):
            scaled[k] = weights[low + k] * degree / mass
            if scaled[k] < 1.0:
                small[num_small] = k
                num_small += 1
            else:
                large[num_large] = k
                num_large += 1
        # Fill each column below the mean from one above it.
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
        # The remaining columns are full.
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
def fill_negatives(accept, other, size, key, index, low, out):
    """Draw nodes low .. low + size - 1 to out (B, S*K), a stream for each walk index (B,); uniform without a table."""
    for row in range(out.shape[0]):
        stream = mix64(key + np.uint64(index[row]) * GOLDEN)
        for number in range(out.shape[1]):
            out[row, number] = low + pick(unit_draw(stream, number), 0, size, accept, other)


@njit(cache=True, nogil=True)
def first_order_walks(indptr, indices, accept, other, low, key, walkers, out):
    """First-order walks (DeepWalk, Perozzi et al. 2014): a step follows an arc in proportion to its weight.

    Walkers (B,) continue until their walk has L nodes, ends (node -1, the rest of the row is PAD) or leaves the rows
    here; the nodes that they reach are written to out (B, L). ``INTERLEAVED`` walkers advance in turn in as many lanes.
    """
    num_walks, length = out.shape
    num_rows = np.uint64(len(indptr) - 1)
    lane_walk = np.empty(INTERLEAVED, np.int64)
    lane_row = np.empty(INTERLEAVED, np.int64)
    lane_step = np.empty(INTERLEAVED, np.int64)
    keys = np.empty(INTERLEAVED, np.uint64)
    coming, lanes = 0, 0
    while True:
        # Fill free lanes with the next unfinished walkers.
        while lanes < INTERLEAVED and coming < num_walks:
            if walkers[coming].step < length:
                lane_walk[lanes] = coming
                lane_row[lanes] = walkers[coming].node - low
                lane_step[lanes] = walkers[coming].step
                keys[lanes] = mix64(key + np.uint64(walkers[coming].index) * GOLDEN)
                lanes += 1
            coming += 1
        if lanes == 0:
            return
        # Advance each lane by one step.
        i = 0
        while i < lanes:
            w, v, step = lane_walk[i], lane_row[i], lane_step[i]
            start = indptr[v]
            degree = indptr[v + 1] - start
            node = np.int32(-1)
            if degree > 0:
                node = indices[start + pick(unit_draw(keys[i], step), start, degree, accept, other)]
                out[w, step] = node
                step += 1
            row = np.int64(node) - low
            if degree > 0 and step < length and np.uint64(row) < num_rows:
                lane_row[i] = row
                lane_step[i] = step
                i += 1
                continue
            # This walk pauses or ends: store the walker, and let the last lane take its place.
            walkers[w].node = node
            walkers[w].step = step
            if degree == 0:
                out[w, step:] = PAD
            lanes -= 1
            lane_walk[i], lane_row[i] = lane_walk[lanes], lane_row[lanes]
            lane_step[i], keys[i] = lane_step[lanes], keys[lanes]


@njit(cache=True, nogil=True, inline="always")
def find(indices, low, size, target):
    """Position of ``target`` in the sorted piece indices[low:low + size], or -1."""
    while size > 1:  # the comparison moves data, not control: no branch is mispredicted
        half = size >> 1
        low = low + half if indices[low + half] <= target else low
        size -= half
    if size == 1 and indices[low] == target:
        return low
    return np.int64(-1)


@njit(cache=True, nogil=True, inline="always")
def is_arc(indptr, indices, low, far, far_start, far_size, symmetric, source, target):
    """Whether source -> target is stored; a symmetric graph is asked at its shorter row.

    The row of a source that has none here is far[far_start:far_start + far_size].
    """
    s, t = source - low, target - low
    num_rows = np.uint64(len(indptr) - 1)
    if np.uint64(s) >= num_rows:
        return find(far, far_start, far_size, target) >= 0
    size = indptr[s + 1] - indptr[s]
    if symmetric and np.uint64(t) < num_rows and indptr[t + 1] - indptr[t] < size:
        return find(indices, indptr[t], indptr[t + 1] - indptr[t], source) >= 0
    return find(indices, indptr[s], size, target) >= 0


@njit(cache=True, nogil=True)
def scan_row(indptr, indices, weights, low, far, far_start, far_size, symmetric, previous, v, back, away, x):
    """The neighbour of row ``v`` at fraction x of the exact cumulative second-order weights of the row."""
    start, end = indptr[v], indptr[v + 1]
    cumulative = np.empty(end - start, np.float64)
    mass = 0.0
    for k in range(start, end):
        node = np.int64(indices[k])
        bias = 1.0
        if node == previous:
            bias = back
        elif away != 1.0 and not is_arc(
            indptr, indices, low, far, far_start, far_size, symmetric, previous, node
        ):  # with away = 1 no arc is looked up, and no rows travel
            bias = away
        mass += bias * weights[k] if len(weights) > 0 else bias
        cumulative[k - start] = mass
    return indices[start + min(np.searchsorted(cumulative, x * mass, side="right"), end - start - 1)]


@njit(cache=True, nogil=True)
def second_order_walks(
    indptr, indices, weights, accept, other, total, low, far, symmetric, back, away, key, walkers, out
):
    """Second-order walks (node2vec, Grover and Leskovec 2016) by rejection sampling (KnightKing, Yang et al. 2019).

    Exact: a step t -> v -> x has weight w(v, x) * bias with bias ``back`` = 1/p for x = t, 1 for an arc t -> x,
    ``away`` = 1/q otherwise. Walkers continue, and ``out`` is filled, as in ``first_order_walks``; ``far`` holds the
    rows of previous nodes that have none here.

    Proposals follow w alone under a ceiling that ignores the return arc; the return arc's mass above the ceiling is
    drawn as a piece of its own, so that a small p costs no rejections.
    """
    num_walks, length = out.shape
    num_rows = np.uint64(len(indptr) - 1)
    ceiling = max(1.0, away)
    sure = min(1.0, away)
    for w in range(num_walks):
        stream = mix64(key + np.uint64(walkers[w].index) * GOLDEN)
        draw = np.int64(walkers[w].draw)
        previous = np.int64(walkers[w].previous)
        node = np.int64(walkers[w].node)
        step = np.int64(walkers[w].step)
        far_start, far_size = walkers[w].far, np.int64(walkers[w].far_size)
        v = node - low
        while step < length and np.uint64(v) < num_rows:
            start = indptr[v]
            degree = indptr[v + 1] - start
            if degree == 0:
                out[w, step:] = PAD
                node = np.int64(-1)
                break
            # Mass of the return arc above the ceiling, relative to the proposals'.
            excess = 0.0
            if back > ceiling and previous >= 0:
                share = 1.0 / degree
                if not symmetric or len(weights) > 0:
                    arc = find(indices, start, degree, previous)
                    share = 0.0
                    if arc >= 0:
                        share = weights[arc] / total[v] if len(weights) > 0 else 1.0 / degree
                excess = share * (back - ceiling) / ceiling
            # Propose by weight and accept by bias; the arc t -> x is looked up only where the height leaves it open.
            following = np.int64(-1)
            for _ in range(REJECTIONS):
                x = unit_draw(stream, draw) * (1.0 + excess)
                height = unit_draw(stream, draw + 1) * ceiling
                draw += 2
                if x >= 1.0:
                    following = previous
                    break
                proposal = np.int64(indices[start + pick(x, start, degree, accept, other)])
                if previous < 0:
                    kept = True
                elif proposal == previous:
                    kept = height < back
                else:
                    kept = height < sure
                    if not kept:
                        kept = is_arc(
                            indptr, indices, low, far, far_start, far_size, symmetric, previous, proposal
                        ) == (away < 1.0)
                if kept:
                    following = proposal
                    break
            # Too many rejections: one draw from the exact distribution of the row.
            if following < 0:
                x = unit_draw(stream, draw)
                draw += 1
                following = np.int64(
                    scan_row(
                        indptr, indices, weights, low, far, far_start, far_size, symmetric, previous, v, back, away, x
                    )
                )
            out[w, step] = following
            step += 1
            previous = node
            node = following
            v = node - low
        walkers[w].draw = draw
        walkers[w].previous = previous
        walkers[w].node = node
        walkers[w].step = step


def start_batches(
    seed: int, epoch: int, num_nodes: int, num_walks: int, batch_size: int, first: int = 0
) -> Iterator[np.ndarray]:
    """The start nodes of an epoch, batch by batch: ``num_walks`` random orders of all nodes, one after the other.

    ``first`` walks are left out, without being walked.

    Yields:
        Shape (B,), int32; the last batch may be shorter.
    """
    total = num_walks * num_nodes
    order, order_of = np.empty(0, np.int32), -1
    for low in range(first, total, batch_size):
        high = min(low + batch_size, total)
        starts = np.empty(high - low, np.int32)
        for round_ in range(low // num_nodes, (high - 1) // num_nodes + 1):
            if round_ != order_of:
                del order  # two of them would be 8 bytes a node
                order, order_of = np.arange(num_nodes, dtype=np.int32), round_
                np.random.default_rng([seed & (2**64 - 1), epoch, round_]).shuffle(order)
            a, b = max(low, round_ * num_nodes), min(high, (round_ + 1) * num_nodes)
            starts[a - low : b - low] = order[a - round_ * num_nodes : b - round_ * num_nodes]
        yield starts


def alias_rows(indptr: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alias tables of all rows of weights, for draws in constant time.

    Args:
        indptr: Shape (R+1,), int64.
        weights: Shape (E,), float32, at least 0 with a positive sum in every row that is not empty; or empty.
    Returns:
        The chance to keep an arc, shape (E,), float32; the offset in its row that is taken otherwise, shape (E,),
        int32; the sum of each row, shape (R,), float64. All are empty where ``weights`` is.
    """
    accept, other = np.empty(len(weights), np.float32), np.empty(len(weights), np.int32)
    total = np.empty(len(indptr) - 1 if len(weights) else 0, np.float64)
    if len(weights):
        fill_alias_rows(frozen(indptr), frozen(weights), accept, other, total)
    return accept, other, total


def stream_key(*words: int) -> np.uint64:
    """One 64-bit key from several integers; any change of any of them changes all its bits."""
    key = 0
    for word in words:
        key = int(mix64(np.uint64((key + word * int(GOLDEN)) % 2**64)))
    return np.uint64(key)


def thread_count(num_threads: int | None) -> int:
    """Threads to use; None takes as many as torch."""
    return at_least_one("num_threads", torch.get_num_threads() if num_threads is None else num_threads)


def check_grown(before: int, now: int) -> None:
    """Raise a ConfigError where a graph to follow has fewer nodes than the one before."""
    if now < before:
        raise ConfigError(
            f"a graph of {now} nodes to follow: the one before has {before}; nodes are added and never taken away, so "
            "make a new sampler"
        )


def at_least_one(option: str, value: int) -> int:
    """``value`` as an integer, or a ConfigError that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
    return int(value)


def finite_positive(option: str, value: float) -> float:
    """``value`` as a float, or a ConfigError that names ``option``."""
    value = float(value)
    if not (0.0 < value < math.inf and 1.0 / value < math.inf):
        raise ConfigError(f"{option} = {value}: must be finite and above 0; 1 means no bias")
    return value
