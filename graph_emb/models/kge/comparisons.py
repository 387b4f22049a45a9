"""Comparisons of a query with entities, in which every scorer ends: an inner product or a negative distance.

Legend: K chunks, C queries and N entities of a chunk, D width, M = D / 2 complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.threads import threads_for
from graph_emb.models.kge import distance_kernels
from graph_emb.models.kge.distance_kernels import TINY


class Comparison(Protocol):
    """The score of a query and an entity, higher for a better match.

    Sides that learn are compared as fast as training needs: products of norms, and ``TINY`` under a root, which keeps
    it differentiable at 0. Without a gradient, as ranks call it, float32 rows on the CPU are compared by their plain
    differences, so that rows far from the origin keep their digits and equal distances stay equal.
    """

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Scores of row against row, shapes (..., D) and (..., D), which broadcast; shape (...)."""
        ...

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Scores of all queries (K, C, D) against all entities (K, N, D) of their chunk; shape (K, C, N)."""
        ...


class InnerProduct:
    """``s = sum_d q_d e_d``: a matrix product for each chunk."""

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return (queries * entities).sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        return queries @ entities.transpose(1, 2)


class NegativeL2:
    """``s = -sqrt(sum_d (q_d - e_d)^2)``; of chunks that learn by norms and a matrix product."""

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return -((queries - entities).square().sum(dim=-1) + _tiny(queries, entities)).sqrt()

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if _compiled(queries, entities) and not _learns(queries, entities):
            return _plain_scores(queries, entities, moduli=False)
        centre = queries.mean(dim=1, keepdim=True).detach()  # far from the origin the norms would swallow the distance
        scores: Tensor = _L2Chunks.apply(queries - centre, entities - centre)
        return scores


class NegativeL1:
    """``s = -sum_d |q_d - e_d|``; of chunks by a compiled kernel."""

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return -(queries - entities).abs().sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if not _compiled(queries, entities):
            return self.pairs(queries[:, :, None], entities[:, None])
        kernels = distance_kernels.l1_scores, distance_kernels.l1_gradients
        scores: Tensor = _KernelChunks.apply(queries, entities, *kernels)
        return scores


class NegativeModulus:
    """``s = -sum_m |q_m - e_m|`` of complex numbers; a row holds D / 2 real parts, then as many imaginary ones."""

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        real, imaginary = (queries - entities).chunk(2, dim=-1)
        return -(real.square() + imaginary.square() + _tiny(queries, entities)).sqrt().sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if not _compiled(queries, entities):
            return self.pairs(queries[:, :, None], entities[:, None])
        if not _learns(queries, entities):
            return _plain_scores(queries, entities, moduli=True)
        kernels = distance_kernels.modulus_scores, distance_kernels.modulus_gradients
        scores: Tensor = _KernelChunks.apply(queries, entities, *kernels)
        return scores


DOT, L1, L2, MODULUS = InnerProduct(), NegativeL1(), NegativeL2(), NegativeModulus()


def _compiled(queries: Tensor, entities: Tensor) -> bool:
    return all(side.dtype is torch.float32 and side.device.type == "cpu" for side in (queries, entities))


def _learns(*sides: Tensor) -> bool:
    return torch.is_grad_enabled() and any(side.requires_grad for side in sides)


def _tiny(*sides: Tensor) -> float:
    return float(TINY) if _learns(*sides) else 0.0


def _plain_scores(queries: Tensor, entities: Tensor, *, moduli: bool) -> Tensor:
    out = torch.empty(*queries.shape[:2], entities.shape[1])
    with threads_for(out.numel()):
        distance_kernels.plain_scores(_array(queries), _array(entities), moduli, out.numpy())
    return out


class _L2Chunks(torch.autograd.Function):
    """Distances by norms and a product: ``torch.cdist``'s gradient holds C * N * D numbers or runs without BLAS."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, entities: Tensor) -> Tensor:
        norms = queries.square().sum(-1)[:, :, None] + entities.square().sum(-1)[:, None]
        squares = torch.baddbmm(norms, queries, entities.transpose(1, 2), alpha=-2)
        distances = squares.clamp_(min=float(TINY)).sqrt_()
        ctx.save_for_backward(queries, entities, distances)
        return -distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        queries, entities, distances = ctx.saved_tensors
        pull = grad / distances
        query_grad = pull @ entities - pull.sum(2, keepdim=True) * queries
        turned = pull.transpose(1, 2)
        return query_grad, turned @ queries - turned.sum(2, keepdim=True) * entities


class _KernelChunks(torch.autograd.Function):
    """A compiled distance with its compiled gradient."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, entities: Tensor, scores: Callable, gradients: Callable) -> Tensor:
        ctx.save_for_backward(queries, entities)
        ctx.gradients = gradients
        out = torch.empty(*queries.shape[:2], entities.shape[1])
        with threads_for(out.numel()):
            scores(_array(queries), _array(entities), out.numpy())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        queries, entities = ctx.saved_tensors
        sides = [(queries, entities, grad), (entities, queries, grad.transpose(1, 2))]
        grads = []
        for (rows, others, pull), needed in zip(sides, ctx.needs_input_grad[:2], strict=True):
            out = torch.empty_like(rows, memory_format=torch.contiguous_format) if needed else None
            if out is not None:
                with threads_for(grad.numel()):
                    ctx.gradients(_array(rows), _array(others.transpose(1, 2)), _array(pull), out.numpy())
            grads.append(out)
        return grads[0], grads[1], None, None


def _array(values: Tensor) -> np.ndarray:
    return values.detach().contiguous().numpy()
