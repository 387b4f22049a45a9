"""Sums and means of messages, with gradients: a compiled kernel on the CPU, torch's sparse product elsewhere.

Legend: E edges, S source rows, T destination rows, D width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ShapeError
from graph_emb.core.threads import threads_for
from graph_emb.sampling.blocks import BlockEdges

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


def _summed(indptr: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """For each compressed row the sum of the rows that it lists, shape (T, D)."""
    if rows.device.type == "cpu":
        rows = rows.contiguous()
        out = rows.new_empty((len(indptr) - 1, rows.shape[1]))
        arrays = (indptr.numpy(), indices.numpy(), rows.detach().numpy(), out.numpy())
        if len(indices) * rows.shape[1] < SMALL:
            _sum_few_rows(*arrays)
        else:
            with threads_for(len(indices)):
                _sum_rows(*arrays)
        return out
    size = (len(indptr) - 1, rows.shape[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        # torch warns unless check_invariants is given, on a GPU even then
        warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
        ones = rows.new_ones(len(indices))
        matrix = torch.sparse_csr_tensor(indptr, indices, ones, size=size, check_invariants=False)
        return matrix @ rows


Linear = Callable[[Tensor], Tensor]


class _LinearMap(torch.autograd.Function):
    """A linear map of rows with its transpose as the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, apply: Linear, transposed: Linear) -> Tensor:
        ctx.transposed = transposed
        return apply(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(grads[0]), None, None


def sum_neighbours(rows: Tensor, edges: BlockEdges) -> Tensor:
    """Sum the source rows of each destination.

    Args:
        rows: Shape (S, D), float32 or float64.
        edges: From S source rows to T destination rows.
    Returns:
        Shape (T, D), zero where no edge comes in.
    Raises:
        ShapeError: rows does not have S rows.
    """
    _check(rows, edges.num_sources, "source rows")
    out: Tensor = _LinearMap.apply(
        rows,
        lambda rows: _summed(edges.indptr, edges.sources, rows),
        lambda grad: _summed(edges.by_source[0], edges.destinations_by_source, grad),
    )
    return out


def mean_neighbours(rows: Tensor, edges: BlockEdges) -> Tensor:
    """As ``sum_neighbours``, divided by the number of edges that come in."""
    return _divided(sum_neighbours(rows, edges), edges)


def gather_sources(rows: Tensor, edges: BlockEdges) -> Tensor:
    """The source row of each edge, shape (E, D), in the order of ``edges``."""
    _check(rows, edges.num_sources, "source rows")
    out: Tensor = _LinearMap.apply(
        rows,
        lambda rows: rows.index_select(0, edges.sources),
        lambda grad: _summed(*edges.by_source, grad),  # torch's own backward adds row by row on one core
    )
    return out


def mean_messages(messages: Tensor, edges: BlockEdges) -> Tensor:
    """Average the messages that reach each destination.

    Args:
        messages: One for each edge in the order of ``edges``, shape (E, D).
        edges: To T destination rows.
    Returns:
        Shape (T, D), zero where no edge comes in.
    """
    _check(messages, edges.num_edges, "messages")
    places = torch.arange(edges.num_edges, device=messages.device)
    out: Tensor = _LinearMap.apply(
        messages,
        lambda rows: _summed(edges.indptr, places, rows),
        lambda grad: grad.index_select(0, edges.destinations),
    )
    return _divided(out, edges)


def _divided(sums: Tensor, edges: BlockEdges) -> Tensor:
    return sums / edges.degrees.clamp(min=1).to(sums.dtype).unsqueeze(1)


def _check(rows: Tensor, expected: int, word: str) -> None:
    if rows.dim() != 2 or len(rows) != expected:
        raise ShapeError(f"{word} have shape {tuple(rows.shape)}; the edges name ({expected}, D)")
