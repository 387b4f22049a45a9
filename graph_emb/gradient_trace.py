"""How gradients of handed-out rows reach the table instead of a parameter.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.table.bags import BagGradients


class Capture(torch.autograd.Function):
    """Identity whose backward hands the gradient to the table instead of to a parameter.

    The anchor is a scalar that requires a gradient, so that autograd visits this node; it never gets one.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: Tensor, trace: Trace, ids: Tensor) -> Tensor:
        ctx.trace, ctx.ids = trace, ids
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        ctx.trace.add(ctx.ids, grad.reshape(ctx.ids.numel(), grad.shape[-1]))
        return None, None, None, None


class Trace:
    """Gradients that came back since the last step. One trace lives from one reset to the next.

    They are kept without a copy, with the version that torch counts up whenever a tensor is written in place.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Tensor, Tensor | BagGradients, int]] = []
        self.touched = False

    def add(self, ids: Tensor, grads: Tensor | BagGradients) -> None:
        """Keep the gradients of ids, (B, D), or of the bags that they are in."""
        self.touched = True
        self.entries.append((ids, grads, received(grads)._version))


def received(grads: Tensor | BagGradients) -> Tensor:
    """The tensor that backward handed in."""
    return grads if isinstance(grads, Tensor) else grads.grads
