"""Ids as people write them (any integers, strings) to node numbers 0 .. N-1 and back."""

# E arcs, N distinct ids

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, ShapeError

if TYPE_CHECKING:
    import pyarrow as pa

# A table of this many bytes a given id costs less than hashing the ids.
_TABLE_BYTES_PER_ID = 16
_TABLE_FREE_BYTES = 1 << 24

Numbered = tuple[NDArray[np.integer], NDArray[np.integer], "NDArray | None"]


def as_ids(values: object, name: str) -> NDArray:
    """Ids as a one-dimensional array of int64 or strings.

    Raises:
        ShapeError: not one-dimensional, or neither integers nor strings.
        DataError: an integer is above the largest int64.
    """
    ids = np.asarray(values)
    if ids.size == 0 and ids.ndim == 1 and ids.dtype.kind == "f":
        return ids.astype(np.int64)  # what asarray makes of an empty list
    if ids.dtype.kind == "O" and all(isinstance(value, str) for value in ids.flat):
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise ShapeError(f"{name}: shape {ids.shape}, dtype {ids.dtype}; expected one-dimensional integers or strings")
    if ids.dtype.kind == "u" and ids.size and int(ids.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{name}: id {int(ids.max())} is above {np.iinfo(np.int64).max}; pass such ids as strings")
    return ids


def number_ids(src: NDArray, dst: NDArray) -> Numbered:
    """Both ends as node numbers, and the id of each node (None where ids are 0 .. N-1 already).

    Nodes are numbered in the order of their ids, so the numbers do not depend on the order of the arcs.

    Args:
        src, dst: Shape (E,), integers of at least 0 or strings, both of one kind.
    Returns:
        src and dst (E,), ids (N,) sorted, int64 or strings, or None.
    """
    if src.dtype.kind == "U" or dst.dtype.kind == "U":
        import pyarrow as pa

        return number_strings(pa.chunked_array([pa.array(src)]), pa.chunked_array([pa.array(dst)]))
    if not src.size:
        return src, dst, None
    largest = max(int(src.max()), int(dst.max()))
    if largest < max(_TABLE_FREE_BYTES, _TABLE_BYTES_PER_ID * src.size):
        return _number_by_table(src, dst, largest)
    return _number_by_hash(src, dst)


def _number_by_table(src: NDArray, dst: NDArray, largest: int) -> Numbered:
    used = np.zeros(largest + 1, dtype=bool)
    used[src] = True
    used[dst] = True
    if used.all():
        return src, dst, None
    number = np.cumsum(used, dtype=np.int64) - 1
    return number[src], number[dst], np.flatnonzero(used).astype(np.int64)


def _number_by_hash(src: NDArray, dst: NDArray) -> Numbered:
    import pyarrow as pa

    columns = [pa.chunked_array([pa.array(np.ascontiguousarray(column, dtype=np.int64))]) for column in (src, dst)]
    return _number_by_dictionary(*columns)


def number_strings(src: pa.ChunkedArray, dst: pa.ChunkedArray) -> Numbered:
    """As number_ids, for Arrow string columns; no id becomes a Python object on the way."""
    return _number_by_dictionary(src, dst)


def _number_by_dictionary(src: pa.ChunkedArray, dst: pa.ChunkedArray) -> Numbered:
    import pyarrow as pa
    from pyarrow import compute

    both = pa.chunked_array([*src.chunks, *dst.chunks], type=src.type)
    encoded: Any = both.dictionary_encode().combine_chunks()
    order = compute.array_sort_indices(encoded.dictionary)
    distinct = encoded.dictionary.take(order).to_numpy(zero_copy_only=False)
    order = order.to_numpy()
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    codes = number[encoded.indices.to_numpy(zero_copy_only=False)]
    ids = distinct.astype(np.int64 if distinct.dtype.kind in "iu" else str)
    return codes[: len(src)], codes[len(src) :], ids


def find_ids(known: NDArray | None, num_nodes: int, asked: NDArray) -> NDArray[np.int64]:
    """Node numbers of ids, shape of ``asked``, -1 for an id that no node has.

    Args:
        known: Shape (N,), the id of each node, or None for 0 .. N-1.
    """
    if known is None:
        if asked.dtype.kind == "U":
            return np.full(len(asked), -1, dtype=np.int64)
        return np.where((asked >= 0) & (asked < num_nodes), asked, -1).astype(np.int64)
    if (known.dtype.kind == "U") != (asked.dtype.kind == "U"):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(known, kind="stable")  # linear on the sorted ids that readers make
    position = np.searchsorted(known, asked, sorter=order)
    candidate = order[np.minimum(position, len(known) - 1)]
    return np.where(known[candidate] == asked, candidate, -1).astype(np.int64)
