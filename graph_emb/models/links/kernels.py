"""Compiled operators of the link predictor: products of pairs of rows, and ReLU with dropout, in one pass each.

Torch's own operators make six passes over the pairs, and its dropout draws the mask on one core.

Legend: R rows, B pairs (of dropout: rows), D and H widths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from graph_emb.core.compiled import njit
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from graph_emb.core.threads import threads_for

BLOCK = 32
"""Columns that a thread takes at least: two cache lines of float32."""
BITS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}
"""The torch dtype whose numpy view holds a dtype's bits; numpy has no bfloat16, the upper half of a float32."""


@njit(cache=True, inline="always")
def _widened(x: Any) -> Any:
    """A bfloat16 by its bits, or a float32, as float32."""
    if isinstance(x, np.uint16):
        return np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return x


@njit(cache=True, parallel=True)
def _multiply(rows: np.ndarray, pairs: np.ndarray, out: np.ndarray) -> None:
    for b in prange(len(pairs)):
        i, j = pairs[b, 0], pairs[b, 1]
        for d in range(rows.shape[1]):
            out[b, d] = rows[i, d] * rows[j, d]


@njit(cache=True, parallel=True)
def _multiply_to_bfloat16(rows: np.ndarray, pairs: np.ndarray, out: np.ndarray) -> None:
    """As ``_multiply``, rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    for b in prange(len(pairs)):
        i, j = pairs[b, 0], pairs[b, 1]
        for d in range(rows.shape[1]):
            product = np.float32(rows[i, d] * rows[j, d])
            bits = product.view(np.uint32)
            bits = np.uint32(bits + np.uint32(0x7FFF) + np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
            half = np.uint16(bits >> np.uint32(16))
            out[b, d] = half if product == product else np.uint16(0x7FC0)  # NaN differs from itself


@njit(cache=True, inline="always")
def _add_product(target: np.ndarray, grad: np.ndarray, row: np.ndarray) -> None:
    for d in range(len(target)):
        target[d] += _widened(grad[d]) * row[d]


@njit(cache=True, parallel=True)
def _add_gradients(rows: np.ndarray, pairs: np.ndarray, grads: np.ndarray, sums: np.ndarray, blocks: int) -> None:
    """Adds to ``sums`` (R, D) what each pair gives its two rows: a block of columns by one thread, pairs in order."""
    width = rows.shape[1]
    for block in prange(blocks):
        begin, end = width * block // blocks, width * (block + 1) // blocks
        for b in range(len(pairs)):
            i, j = pairs[b, 0], pairs[b, 1]
            _add_product(sums[i, begin:end], grads[b, begin:end], rows[j, begin:end])
            _add_product(sums[j, begin:end], grads[b, begin:end], rows[i, begin:end])


class _PairProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, pairs: Tensor, dtype: torch.dtype, sums: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, pairs)
        ctx.sums = sums
        if not _is_compiled(rows, dtype):
            out = torch.empty(len(pairs), rows.shape[1], dtype=dtype, device=rows.device)
            return torch.mul(rows.index_select(0, pairs[:, 0]), rows.index_select(0, pairs[:, 1]), out=out)
        out = torch.empty(len(pairs), rows.shape[1], dtype=dtype)
        multiply = _multiply if dtype == torch.float32 else _multiply_to_bfloat16
        with threads_for(len(pairs)):
            multiply(rows.detach().numpy(), pairs.numpy(), out.view(BITS[dtype]).numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        rows, pairs = ctx.saved_tensors
        sums = torch.zeros_like(rows) if ctx.sums is None else ctx.sums
        grad = grads[0].contiguous()
        if _is_compiled(rows, grad.dtype):
            arrays = (rows.detach().numpy(), pairs.numpy(), grad.view(BITS[grad.dtype]).numpy(), sums.numpy())
            with threads_for(len(pairs)) as threads:
                _add_gradients(*arrays, max(1, min(threads, rows.shape[1] // BLOCK)))
        else:
            for own, other in ((0, 1), (1, 0)):
                sums.index_add_(0, pairs[:, own], rows.index_select(0, pairs[:, other]).mul_(grad))
        return sums if ctx.sums is None else None, None, None, None


def _is_compiled(rows: Tensor, dtype: torch.dtype) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and dtype in BITS


def pair_products(
    rows: Tensor, pairs: Tensor, *, dtype: torch.dtype | None = None, row_grads: Tensor | None = None
) -> Tensor:
    """The element-wise product of the two rows of each pair.

    Args:
        rows: Shape (R, D), floating.
        pairs: Positions in rows, shape (B, 2), int64, on the device of rows.
        dtype: Of the result; None: that of rows.
        row_grads: Shape (R, D): the backward pass adds the gradient of rows there and passes none on, so the chunks of
            a batch need not each make and add a matrix of R rows. None: through autograd.
    Returns:
        Shape (B, D). The same bits at any number of threads, and so are the gradients.
    Raises:
        ShapeError: pairs or row_grads of another shape or dtype.
        ConfigError: row_grads for rows that need no gradient.
        PartitionError: a position outside [0, R); on a GPU torch's own assertion says so.
    """
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ShapeError(f"pairs have shape {tuple(pairs.shape)} and dtype {pairs.dtype}; give int64 (B, 2)")
    if pairs.device.type == "cpu" and len(pairs):  # compiled functions check nothing
        low, high = (int(end) for end in pairs.aminmax())
        if low < 0 or high >= len(rows):
            raise PartitionError(f"pairs name row {low if low < 0 else high}; there are {len(rows)} rows")
    if row_grads is not None and not rows.requires_grad:
        raise ConfigError("row_grads is given, but rows need no gradient; call rows.requires_grad_(), or leave it out")
    if row_grads is not None and (row_grads.shape != rows.shape or row_grads.dtype != rows.dtype):
        raise ShapeError(
            f"row_grads have shape {tuple(row_grads.shape)} and dtype {row_grads.dtype}; "
            f"rows have {tuple(rows.shape)} and {rows.dtype}"
        )
    out: Tensor = _PairProducts.apply(rows.contiguous(), pairs, rows.dtype if dtype is None else dtype, row_grads)
    return out


# The bits of a float as unsigned integers: bfloat16 has no numpy type, and a negative value is one with the top bit.
SIGNS = {
    torch.float64: (torch.uint64, np.uint64(1 << 63)),
    torch.float32: (torch.uint32, np.uint32(1 << 31)),
    torch.bfloat16: (torch.uint16, np.uint16(1 << 15)),
}


@njit(cache=True, parallel=True)
def _clear_negative_or_dropped(bits: np.ndarray, sign: int, key: int, salt: int, threshold: int) -> None:
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
        bit_type, sign = SIGNS[x.dtype]
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
        x: Shape (B, H), float32, float64 or bfloat16, on the CPU, contiguous; no leaf that requires a gradient.
        dropout: Share of the elements that become zero, at least 0 and below 1.
        generator: Gives two numbers, which fix the mask at any number of threads.
    Returns:
        x, its negative and dropped elements zero; gradients pass to the others alone.
    Raises:
        ShapeError: x has another dtype, device, layout or number of dimensions.
    """
    if x.dtype not in SIGNS or x.device.type != "cpu" or x.dim() != 2 or not x.is_contiguous():
        raise ShapeError(
            f"dropped_relu_ got {tuple(x.shape)} {x.dtype} on {x.device}; "
            "give a contiguous float32, float64 or bfloat16 matrix on the CPU"
        )
    key, salt = torch.randint(0, 2**32, (2,), generator=generator, dtype=torch.int64).tolist()
    return _DroppedReLU.apply(x, dropout, key, salt)
