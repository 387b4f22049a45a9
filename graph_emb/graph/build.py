"""Arc lists to sorted, distinct compressed rows in two counting sorts, without a comparison sort."""

# N nodes, E given arcs

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from graph_emb.core.errors import DataError, ShapeError, unknown_name

Duplicates = Literal["first", "sum"]
SelfLoops = Literal["keep", "drop"]
Rows = tuple[NDArray[np.int64], NDArray[np.int32], "NDArray[np.float32] | None"]

MAX_NODES = 2**31 - 1


def checked_weights(weights: object, num_arcs: int) -> NDArray[np.float32]:
    """Weights as float32, shape (E,).

    Raises:
        ShapeError: not one number for each arc.
        DataError: a weight is not finite or not above 0 in float32.
    """
    given = np.asarray(weights)
    if given.shape != (num_arcs,) or given.dtype.kind not in "biuf":
        raise ShapeError(f"weights: shape {given.shape}, dtype {given.dtype}; expected one for each of {num_arcs} arcs")
    with np.errstate(over="ignore"):
        values = given.astype(np.float32)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise DataError(
            f"weights: value {given[first]} of arc {first} is not finite and above 0 in float32; "
            "drop the arc or rescale the weights"
        )
    return values


def to_rows(
    src: NDArray[np.integer],
    dst: NDArray[np.integer],
    weights: NDArray[np.float32] | None,
    num_nodes: int,
    *,
    directed: bool,
    duplicates: Duplicates = "first",
    self_loops: SelfLoops = "keep",
) -> Rows:
    """Row pointers (N+1,), sorted distinct neighbours (arcs,) and their weights.

    Args:
        src, dst: Shape (E,), each at least 0 and below ``num_nodes``.
        directed: False stores both directions; (u, v) and (v, u) are then the same edge.
        duplicates: ``first`` keeps the weight that comes first, ``sum`` adds them (without a weight: 1).
    Raises:
        ConfigError: ``duplicates`` or ``self_loops`` is an unknown word.
    """
    if duplicates not in get_args(Duplicates):
        raise unknown_name("duplicates policy", duplicates, get_args(Duplicates))
    if self_loops not in get_args(SelfLoops):
        raise unknown_name("self_loops policy", self_loops, get_args(SelfLoops))
    src, dst = src.astype(np.int32, copy=False), dst.astype(np.int32, copy=False)
    if self_loops == "drop":
        keep = src != dst
        src, dst = src[keep], dst[keep]
        weights = None if weights is None else weights[keep]
    if not directed:  # the smaller id first, so that both spellings of an edge meet
        src, dst = np.minimum(src, dst), np.maximum(src, dst)
    if weights is None and duplicates == "sum":
        weights = np.ones(len(src), dtype=np.float32)
    rows = _sort(src, dst, weights, num_nodes)
    del src, dst
    rows = _merge_duplicates(*rows, duplicates)
    if not directed:
        rows = _mirror(*rows)
    indptr, indices, data = rows
    if data.dtype == np.int8 or bool((data == 1).all()):
        return indptr, indices, None
    return indptr, indices, data


def _sort(
    src: NDArray[np.integer], dst: NDArray[np.integer], weights: NDArray[np.float32] | None, num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    """Arcs by (src, dst); equal arcs stay in the order in which they came, as both passes are stable."""
    data = np.ones(len(src), dtype=np.int8) if weights is None else weights
    arcs = sparse.coo_array((data, (dst, src)), shape=(num_nodes, num_nodes))
    arcs.has_canonical_format = True  # else tocsr() would add duplicates up
    by_dst = arcs.tocsr()
    del arcs
    by_src = by_dst.tocsc()
    return by_src.indptr.astype(np.int64), by_src.indices.astype(np.int32, copy=False), by_src.data


def _merge_duplicates(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], data: NDArray, duplicates: Duplicates
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    is_first = np.ones(len(indices), dtype=bool)
    is_first[1:] = indices[1:] != indices[:-1]
    starts = indptr[:-1]
    is_first[starts[starts < len(indices)]] = True
    if is_first.all():
        return indptr, indices, data
    positions = np.flatnonzero(is_first)
    if duplicates == "sum":
        data = np.add.reduceat(data, positions, dtype=np.float64).astype(np.float32)
    else:
        data = data[positions]
    before = np.zeros(len(indices) + 1, dtype=np.int64)
    np.cumsum(is_first, out=before[1:])
    return before[indptr], indices[positions], data


def _mirror(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], data: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray]:
    """Upper triangle to both triangles; a self loop is in both, so that max keeps it single."""
    num_nodes = len(indptr) - 1
    upper = sparse.csr_array((data, indices, indptr), shape=(num_nodes, num_nodes))
    both = upper.maximum(upper.T.tocsr())
    return both.indptr.astype(np.int64), both.indices.astype(np.int32, copy=False), both.data
