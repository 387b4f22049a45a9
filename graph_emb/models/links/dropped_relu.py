"""ReLU with dropout in one fused pass: torch's own dropout draws its mask on one core and outlasts the layer."""

# B rows, H width.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.core.threads import threads_for

# The bits of a float as unsigned integers: bfloat16 has no numpy type, and a negative value is one with the top bit.
BITS = {torch.float32: (torch.uint32, np.uint32(1 << 31)), torch.bfloat16: (torch.uint16, np.uint16(1 << 15))}


@njit(cache=True, parallel=True)
def _clear_negative_or_dropped(
    bits: np.ndarray, sign: int, key: int, salt: int, threshold: int
) -> None:  # pragma: no cover - compiled
    """Zeroes the elements of ``bits`` (B, H) at or above ``sign`` or whose hash is below ``threshold``.

    The hash is the mixer "lowbias32" (C. Wellons, hash-prospector) of the position, keyed before and between its two
    products, so a mask depends on key and salt alone: not on the threads, not on earlier calls. Each step is cast
    to 32 bits because numba widens unsigned arithmetic, which halves the lanes of the vector unit.
    """
    rows, width = bits.shape
    for row in prange(rows):
        first = np.uint32(row * width)
        for column in range(width):
            h = np.uint32(np.uint32(first + np.uint32(column)) ^ key)
            h = np.uint32(h ^ (h >> np.uint32(16)))
            h = np.uint32(h * np.uint32(0x7FEB352D))
            h = np.uint32(np.uint32(h ^ (h >> np.uint32(15))) ^ salt)
            h = np.uint32(h * np.uint32(0x846CA68B))
            h = np.uint32(h ^ (h >> np.uint32(16)))
            value = bits[row, column]
            bits[row, column] = value if (h >= threshold) & (value < sign) else bits.dtype.type(0)


class _DroppedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: float, key: int, salt: int) -> Tensor:
        bit_type, sign = BITS[x.dtype]
        threshold = np.uint32(min(round(dropout * 2**32), 2**32 - 1))
        bits = x.detach().view(bit_type).numpy()
        with threads_for(len(bits)):
            _clear_negative_or_dropped(bits, sign, np.uint32(key), np.uint32(salt), threshold)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # What was dropped is zero in the output as well, so the output is the mask of both.
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], out, 0), None, None, None


def dropped_relu_(x: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """``dropout(relu(x))`` in place, without the division by ``1 - dropout``: fold that into the next weight.

    Args:
        x: Shape (B, H), float32 or bfloat16, on the CPU, contiguous; no leaf that requires a gradient.
        dropout: Share of the elements that become zero, at least 0 and below 1.
        generator: Gives two numbers, which fix the mask at any number of threads.
    Returns:
        x, its negative and dropped elements zero; gradients pass to the others alone.
    Raises:
        ShapeError: x has another dtype, device, layout or number of dimensions.
    """
    if x.dtype not in BITS or x.device.type != "cpu" or x.dim() != 2 or not x.is_contiguous():
        raise ShapeError(
            f"dropped_relu_ got {tuple(x.shape)} {x.dtype} on {x.device}; "
            "give a contiguous float32 or bfloat16 matrix on the CPU"
        )
    key, salt = torch.randint(0, 2**32, (2,), generator=generator, dtype=torch.int64).tolist()
    return _DroppedReLU.apply(x, dropout, key, salt)
