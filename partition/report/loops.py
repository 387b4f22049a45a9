"""Compiled loops of metrics and forecasts. Those with ``low, high`` write these rows only, so threads share nothing.

Legend: N nodes, E edges, G groups, C columns, P parts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

ENTERS, LEAVES = 1, 2
"""Bits of ``seen[node, part]``: an edge from the node enters the part, or an edge of the part leaves for the node."""
_CERTAIN = 1.0 - 2.0**-53  # log1p(-1) would be minus infinity


@njit(cache=True, nogil=True)
def count_edges(
    src: np.ndarray,
    dst: np.ndarray,
    src_start: int,
    dst_start: int,
    parts: np.ndarray,
    matrix: np.ndarray,
    seen: np.ndarray,
) -> None:
    """Add the edges of one type to (P, P) ``matrix`` by the parts of their ends, and mark (N, P) ``seen``."""
    for edge in range(len(src)):
        u, v = src[edge] + src_start, dst[edge] + dst_start
        a, b = parts[u], parts[v]
        matrix[a, b] += 1
        if a != b:
            seen[u, b] |= ENTERS
            seen[v, a] |= LEAVES


@njit(cache=True, nogil=True)
def count_rows(rows: np.ndarray, start: int, counts: np.ndarray) -> None:
    """Add 1 to ``counts`` for each row, counted from ``start``."""
    for edge in range(len(rows)):
        counts[rows[edge] + start] += 1


@njit(cache=True, nogil=True)
def fill_rows(
    rows: np.ndarray,
    start: int,
    columns: np.ndarray,
    column_of: np.ndarray,
    column_start: int,
    weights: np.ndarray,
    filled: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
) -> None:
    """Write each edge's column (translated by ``column_of`` where it is not empty) and weight into its row."""
    for edge in range(len(rows)):
        row = rows[edge] + start
        column = columns[edge]
        indices[filled[row]] = column_of[column] if len(column_of) > 0 else column + column_start
        if len(weights) > 0:
            values[filled[row]] = weights[edge]
        filled[row] += 1


@njit(cache=True, nogil=True)
def add_neighbours(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    table: np.ndarray,
    low: int,
    high: int,
    out: np.ndarray,
) -> None:
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
def tally_and_scale(
    mass: np.ndarray,
    parts: np.ndarray,
    which: np.ndarray,
    part: np.ndarray,
    scale: np.ndarray,
    low: int,
    high: int,
    here: np.ndarray,
    inside: np.ndarray,
) -> None:
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
def _mixed(state: np.uint64) -> np.uint64:
    """Splitmix64's output of a state (Steele et al., OOPSLA 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@njit(cache=True, nogil=True)
def simulate_walks(
    indptr: np.ndarray,
    indices: np.ndarray,
    nodes: np.ndarray,
    cumulative: np.ndarray,
    starts: np.ndarray,
    parts: np.ndarray,
    low: int,
    high: int,
    visits: np.ndarray,
    remote: np.ndarray,
) -> None:
    """Walk from ``starts[low:high]`` and count; a walk's numbers depend on its place in ``starts`` only.

    Args:
        indices, nodes: An entry of a node's row is a group, the group's node the neighbour.
        cumulative: Running sum of the weights of all entries, (E,), float64; empty: all are 1.
        parts: The part of each node in each assignment, (N, assignments).
        visits, remote: Added to: by assignment, part of the start and step.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    for walk in range(low, high):
        node = start = starts[walk]
        state = _mixed(np.uint64(walk + 1) * step)
        for t in range(visits.shape[2]):
            for k in range(parts.shape[1]):
                home = parts[start, k]
                visits[k, home, t] += 1
                if parts[node, k] != home:
                    remote[k, home, t] += 1
            first, end = indptr[node], indptr[node + 1]
            if first == end:
                break
            state += step
            share = np.float64(_mixed(state) >> np.uint64(11)) * 2.0**-53
            if len(cumulative) > 0:
                before = cumulative[first - 1] if first > 0 else 0.0
                target = before + share * (cumulative[end - 1] - before)
                place = first + np.searchsorted(cumulative[first:end], target, side="right")
            else:
                place = first + np.int64(share * (end - first))
            node = nodes[indices[min(place, end - 1)]]


@njit(cache=True, nogil=True)
def log_absent(chance: np.ndarray, nodes: np.ndarray, factor: np.ndarray, low: int, high: int, out: np.ndarray) -> None:
    """log(1 - chance * factor) of the node of each row of ``out`` (G, C); ``nodes`` and ``factor`` are (G,)."""
    for row in range(low, high):
        node = nodes[row]
        for column in range(chance.shape[1]):
            present = chance[node, column] * factor[row]
            out[row, column] = np.log1p(-min(present, _CERTAIN)) if present > 0.0 else 0.0


@njit(cache=True, nogil=True)
def present_of(absent: np.ndarray, low: int, high: int, out: np.ndarray) -> None:
    """1 - exp(absent), (N, C)."""
    for row in range(low, high):
        for column in range(absent.shape[1]):
            out[row, column] = -np.expm1(absent[row, column])
