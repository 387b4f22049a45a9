"""Compiled distances of every query to every entity of its chunk, and their gradients, with nothing of size (C, N, D).

TransE's L1 distance (Bordes et al. 2013) and RotatE's sum of complex moduli (Sun et al. 2019), tiled as a matrix
product is: a task takes ``ROWS`` queries, and ``ENTITIES`` rows stay in the nearest cache while they pass. The plain
torch form, which holds C * N * D numbers, is the oracle in the tests. Each sum runs in one thread in a fixed order, so
any number of threads gives the same bits.

Legend: K chunks, C queries and N entities of a chunk, D width, M = D / 2 complex numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}  # NaN and infinity keep their meaning
ROWS = 32  # of a task, so that one chunk keeps several threads busy
ENTITIES = 16  # whose rows stay in the nearest cache while the queries of a task pass by
ZERO = np.float32(0.0)
TINY = np.float32(1e-12)  # keeps the modulus of 0 differentiable; its gradient there is 0


def _compiled(function: Any) -> Any:
    return njit(parallel=True, fastmath=FAST, cache=True, nogil=True, error_model="numpy")(function)


@_compiled
def l1_scores(queries: np.ndarray, entities: np.ndarray, out: np.ndarray) -> None:
    """out[k, i, j] = -sum_d |queries[k, i, d] - entities[k, j, d]|; shapes (K, C, D), (K, N, D), (K, C, N)."""
    chunks, size, width = queries.shape
    num = entities.shape[1]
    tasks = (size + ROWS - 1) // ROWS
    for task in prange(chunks * tasks):
        k, low = task // tasks, (task % tasks) * ROWS
        for first in range(0, num, ENTITIES):  # a tile of entities, against each query of the task
            for i in range(low, min(low + ROWS, size)):
                q = queries[k, i]
                for j in range(first, min(first + ENTITIES, num)):
                    e = entities[k, j]
                    total = np.float32(0.0)
                    for d in range(width):
                        total += abs(q[d] - e[d])
                    out[k, i, j] = -total


@_compiled
def l1_gradients(rows: np.ndarray, others: np.ndarray, grad: np.ndarray, out: np.ndarray) -> None:
    """out[k, a, d] = sum_b grad[k, a, b] * sign(others[k, d, b] - rows[k, a, d]).

    That is the gradient of ``l1_scores`` for either side: rows (K, A, D) against the other side transposed, (K, D, B).
    """
    chunks, size, width = rows.shape
    num = others.shape[2]
    tasks = (size + ROWS - 1) // ROWS
    for task in prange(chunks * tasks):
        k, low = task // tasks, (task % tasks) * ROWS
        for d in range(width):  # one dimension of all partners is contiguous
            other = others[k, d]
            for a in range(low, min(low + ROWS, size)):
                g, x = grad[k, a], rows[k, a, d]
                total = np.float32(0.0)
                for b in range(num):
                    y = other[b] - x
                    total += g[b] if y > ZERO else (-g[b] if y < ZERO else ZERO)
                out[k, a, d] = total


@_compiled
def modulus_scores(queries: np.ndarray, entities: np.ndarray, out: np.ndarray) -> None:
    """out[k, i, j] = -sum_m |queries[k, i, m] - entities[k, j, m]| of complex rows: real halves, then imaginary."""
    chunks, size, width = queries.shape
    num, half = entities.shape[1], width // 2
    tasks = (size + ROWS - 1) // ROWS
    for task in prange(chunks * tasks):
        k, low = task // tasks, (task % tasks) * ROWS
        for first in range(0, num, ENTITIES):  # a tile of entities, against each query of the task
            for i in range(low, min(low + ROWS, size)):
                a, b = queries[k, i, :half], queries[k, i, half:]
                for j in range(first, min(first + ENTITIES, num)):
                    c, d = entities[k, j, :half], entities[k, j, half:]
                    total = np.float32(0.0)
                    for m in range(half):
                        x, y = a[m] - c[m], b[m] - d[m]
                        total += np.sqrt(x * x + y * y + TINY)
                    out[k, i, j] = -total


@njit(parallel=True, fastmath={"reassoc", "nsz"}, cache=True, nogil=True, error_model="numpy")
def plain_scores(queries: np.ndarray, entities: np.ndarray, moduli: bool, out: np.ndarray) -> None:
    """The scores of ``NegativeModulus``, or else of ``NegativeL2``, for ranks: exact roots, no fused products.

    A fused product rounds one of the squares of x * x + y * y only, and ``TINY`` makes two short moduli longer than one
    of the same length: both tell apart entities of equal distance.
    """
    chunks, size, width = queries.shape
    num, half = entities.shape[1], width // 2
    tasks = (size + ROWS - 1) // ROWS
    for task in prange(chunks * tasks):
        k, low = task // tasks, (task % tasks) * ROWS
        for first in range(0, num, ENTITIES):  # a tile of entities, against each query of the task
            for i in range(low, min(low + ROWS, size)):
                q = queries[k, i]
                for j in range(first, min(first + ENTITIES, num)):
                    e = entities[k, j]
                    total = np.float32(0.0)
                    if moduli:
                        for m in range(half):
                            x, y = q[m] - e[m], q[half + m] - e[half + m]
                            total += np.sqrt(x * x + y * y)
                    else:
                        for d in range(width):
                            total += (q[d] - e[d]) * (q[d] - e[d])
                        total = np.sqrt(total)
                    out[k, i, j] = -total


@_compiled
def modulus_gradients(rows: np.ndarray, others: np.ndarray, grad: np.ndarray, out: np.ndarray) -> None:
    """``l1_gradients`` for ``modulus_scores``: the sign is that of a complex number, z / |z|."""
    chunks, size, width = rows.shape
    num, half = others.shape[2], width // 2
    tasks = (size + ROWS - 1) // ROWS
    for task in prange(chunks * tasks):
        k, low = task // tasks, (task % tasks) * ROWS
        for m in range(half):  # one complex dimension of all partners is contiguous
            other_x, other_y = others[k, m], others[k, half + m]
            for a in range(low, min(low + ROWS, size)):
                g, x, y = grad[k, a], rows[k, a, m], rows[k, a, half + m]
                total_x, total_y = np.float32(0.0), np.float32(0.0)
                for b in range(num):
                    u, v = other_x[b] - x, other_y[b] - y
                    s = g[b] / np.sqrt(u * u + v * v + TINY)
                    total_x += s * u
                    total_y += s * v
                out[k, a, m] = total_x
                out[k, a, half + m] = total_y
