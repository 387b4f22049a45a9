"""Sums of the rows that each row of a compressed matrix lists: neighbours of nodes, edges of destinations.

Legend: E entries, S source rows, T sums, D width.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from graph_emb.core.compiled import njit
from graph_emb.core.threads import threads_for

SMALL = 1 << 16
"""Elements below which one core is faster than waking several."""


@njit(cache=True, inline="always")
def _sum_row(t: int, indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    for i in range(rows.shape[1]):
        out[t, i] = 0.0
    k, end = indptr[t], indptr[t + 1]
    while k + 8 <= end:  # the sum stays in registers over eight rows; the order of the additions is that of the rest
        a, b, c, d = rows[indices[k]], rows[indices[k + 1]], rows[indices[k + 2]], rows[indices[k + 3]]
        e, f, g, h = rows[indices[k + 4]], rows[indices[k + 5]], rows[indices[k + 6]], rows[indices[k + 7]]
        for i in range(rows.shape[1]):
            out[t, i] = out[t, i] + a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i]
        k += 8
    for rest in range(k, end):
        row = indices[rest]
        for i in range(rows.shape[1]):
            out[t, i] += rows[row, i]


@njit(cache=True, parallel=True)
def _sum_rows(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[t] = sum of rows[indices[k]] for k in indptr[t]:indptr[t + 1]; each t by one thread, in order."""
    for t in prange(len(indptr) - 1):
        _sum_row(t, indptr, indices, rows, out)


@njit(cache=True)
def _sum_few_rows(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    for t in range(len(indptr) - 1):
        _sum_row(t, indptr, indices, rows, out)


def sum_listed(indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Write the sums of the rows that are listed, in the order of the list, whatever the threads.

    Args:
        indptr: Where each list begins and ends, (T + 1,).
        indices: The lists, (E,), of [0, S).
        rows: (S, D), float32 or float64.
        out: The sums, (T, D), added up in its own type, which is theirs or float64; zero where a list is empty.
    """
    if len(indices) * rows.shape[1] < SMALL:
        _sum_few_rows(indptr, indices, rows, out)
        return
    with threads_for(len(indices)):
        _sum_rows(indptr, indices, rows, out)
