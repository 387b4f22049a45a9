"""Sums and means of messages, with gradients: a compiled kernel on the CPU, torch's sparse product elsewhere.

Legend: E edges, S source rows, T destination rows, D width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.core.listed_sums import sum_listed
from graph_emb.sampling.blocks import BlockEdges


def _summed(indptr: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """For each compressed row the sum of the rows that it lists, shape (T, D)."""
    if rows.device.type == "cpu":
        rows = rows.contiguous()
        out = rows.new_empty((len(indptr) - 1, rows.shape[1]))
        sum_listed(indptr.numpy(), indices.numpy(), rows.detach().numpy(), out.numpy())
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
