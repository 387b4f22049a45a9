"""Input checks of the metrics: finite embeddings and float32 scores, as torch or numpy arrays."""

# N nodes, D width, B positives, M negatives.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graph_emb.core.errors import DataError, ShapeError

ROWS_AT_ONCE = 1 << 16
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)


def as_embeddings(embeddings: Any) -> NDArray[np.floating]:
    """Embeddings as a matrix (N, D) of float32 or float64 without a copy where possible; 16-bit rows are widened.

    Raises:
        ShapeError: not a floating matrix of at least one row and column.
        DataError: a value is not finite.
    """
    table = embeddings.detach() if isinstance(embeddings, Tensor) else torch.from_numpy(np.asarray(embeddings))
    if table.dim() != 2 or table.numel() == 0 or table.dtype not in _WIDE + _NARROW:
        raise ShapeError(
            f"embeddings have shape {tuple(table.shape)} and dtype {table.dtype}; give a floating matrix (N, D)"
        )
    matrix: NDArray[np.floating] = (table.float() if table.dtype in _NARROW else table).cpu().numpy()
    for begin in range(0, len(matrix), ROWS_AT_ONCE):
        finite = np.isfinite(matrix[begin : begin + ROWS_AT_ONCE]).all(axis=1)
        if not finite.all():
            row = begin + int(np.argmin(finite))
            raise DataError(f"embeddings: row {row} is not finite; training diverged, try a lower learning rate")
    return matrix


def as_scores(name: str, scores: Any, dims: tuple[int, ...]) -> Tensor:
    """Scores as a detached float32 or float64 tensor without NaN.

    Args:
        name: The word for them in errors.
        scores: Torch or numpy, one of the numbers of dimensions ``dims``.
    Raises:
        ShapeError: another shape or dtype. 16-bit scores are refused: they hold 3 digits (float16) or 2 (bfloat16),
            so distinct logits become ties and ranks mean nothing.
        DataError: empty, or NaN.
    """
    tensor = scores.detach() if isinstance(scores, Tensor) else torch.from_numpy(np.asarray(scores))
    if tensor.dtype in _NARROW:
        raise ShapeError(f"{name} scores are {tensor.dtype}, which rounds distinct logits to ties; compute in float32")
    if tensor.dtype not in _WIDE or tensor.dim() not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ShapeError(
            f"{name} scores have shape {tuple(tensor.shape)} and dtype {tensor.dtype}; "
            f"give float32 of {wanted} dimensions"
        )
    if tensor.numel() == 0:
        raise DataError(f"there are no {name} scores (shape {tuple(tensor.shape)}); nothing can be ranked")
    if bool(tensor.isnan().any()):
        count = int(tensor.isnan().sum())
        raise DataError(f"{count} of {tensor.numel()} {name} scores are NaN; the model diverged")
    return tensor


def mean_and_std(values: Any) -> tuple[Any, Any]:
    """Means and unbiased standard deviations over the last axis; NaN of one value."""
    found = np.asarray(values, np.float64)
    alone = found.shape[-1] == 1
    return found.mean(axis=-1), np.full(found.shape[:-1], np.nan)[()] if alone else found.std(axis=-1, ddof=1)
