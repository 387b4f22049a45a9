"""Complex numbers in real rows: D / 2 real parts, then D / 2 imaginary parts."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-12  # keeps the modulus of 0 differentiable


def times(left: Tensor, right: Tensor) -> Tensor:
    """The products of the numbers of two rows (..., D)."""
    a, b = left.chunk(2, dim=-1)
    c, d = right.chunk(2, dim=-1)
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def times_conjugate(left: Tensor, right: Tensor) -> Tensor:
    """The products of the numbers of a row with the conjugates of another's, (..., D)."""
    a, b = left.chunk(2, dim=-1)
    c, d = right.chunk(2, dim=-1)
    return torch.cat([a * c + b * d, b * c - a * d], dim=-1)


def complex_moduli(rows: Tensor) -> Tensor:
    """The absolute values of the numbers of rows (..., D); shape (..., D / 2)."""
    real, imaginary = rows.chunk(2, dim=-1)
    return (real.square() + imaginary.square() + TINY).sqrt()
