"""Ids as people write them (any integers, strings) to node numbers 0 .. N-1 and back."""

# E arcs, N distinct ids

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, ShapeError

# A table of this many bytes a given id costs less than hashing the ids.
_TABLE_BYTES_PER_ID = 16
_TABLE_FREE_BYTES = 1 << 24

Numbered = tuple[list[NDArray], "NDArray | None", int]


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


def number_ids(*columns: Sequence[Any]) -> Numbered:
    """Columns of ids as node numbers, which all columns share.

    Nodes are numbered in the order of their ids, so the numbers do not depend on the order of the arcs.

    Args:
        columns: Each in pieces: integer arrays of at least 0, or strings of numpy or Arrow; all of one kind.
    Returns:
        The numbers of each column (R,); the ids (N,) in sorted order, int64 or strings, None where they are 0 .. N-1
        already; and N.
    """
    pieces = [piece for column in columns for piece in column]
    if not all(isinstance(piece, np.ndarray) and piece.dtype.kind in "iu" for piece in pieces):
        return _number_by_dictionary(columns)
    joined = [column[0] if len(column) == 1 else np.concatenate(column) for column in columns]
    largest = max((int(column.max()) for column in joined if column.size), default=-1)
    if largest < max(_TABLE_FREE_BYTES, _TABLE_BYTES_PER_ID * sum(map(len, joined)) // 2):
        used = np.zeros(largest + 1, dtype=bool)
        for column in joined:
            used[column] = True
        if used.all():
            return joined, None, largest + 1
        number = np.cumsum(used, dtype=np.int64) - 1
        ids = np.flatnonzero(used).astype(np.int64)
        return [number[column] for column in joined], ids, len(ids)
    return _number_by_dictionary([[column.astype(np.int64, copy=False)] for column in joined])


def _number_by_dictionary(columns: Sequence[Sequence[Any]]) -> Numbered:
    """By Arrow's hashing: no id becomes a Python object on the way."""
    import pyarrow as pa
    from pyarrow import compute

    chunks = [[chunk for piece in column for chunk in _chunks(piece)] for column in columns]
    encoded: Any = pa.chunked_array([chunk for own in chunks for chunk in own]).dictionary_encode().combine_chunks()
    order = compute.array_sort_indices(encoded.dictionary)
    distinct = encoded.dictionary.take(order).to_numpy(zero_copy_only=False)
    order = order.to_numpy()
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    codes = number[encoded.indices.to_numpy(zero_copy_only=False)]
    ids = distinct.astype(np.int64 if distinct.dtype.kind in "iu" else str)
    ends = np.cumsum([sum(map(len, own)) for own in chunks])
    return np.split(codes, ends[:-1]), ids, len(ids)


def _chunks(piece: Any) -> list[Any]:
    """A piece of a column as Arrow arrays of one type."""
    import pyarrow as pa

    if isinstance(piece, np.ndarray):
        return [arrow_ids(piece)]
    return [chunk.cast(pa.string()) for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])]


def arrow_ids(ids: NDArray) -> Any:
    """Ids as an Arrow array, strings whole: of numpy's own memory Arrow ends each at its first NUL.

    Raises:
        DataError: a string is no Unicode text, as a name of a file may be.
    """
    import pyarrow as pa

    if ids.dtype.kind != "U":
        return pa.array(np.ascontiguousarray(ids))
    try:
        return pa.array(ids.tolist(), pa.string())
    except UnicodeError:
        odd = next(value for value in ids.tolist() if not _is_unicode(value))
        raise DataError(f"id {odd!r} is no Unicode text; rename it, or export npy or pt") from None


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeError:
        return False
    return True


def find_ids(known: NDArray | None, num_nodes: int, asked: NDArray) -> NDArray[np.int64]:
    """Node numbers of ids, shape of ``asked``, -1 for an id that no node has.

    Args:
        known: Shape (N,), the id of each node, or None for 0 .. N-1.
    """
    if (known is not None and known.dtype.kind == "U") != (asked.dtype.kind == "U"):
        return np.full(len(asked), -1, dtype=np.int64)
    if known is None:
        return np.where((asked >= 0) & (asked < num_nodes), asked, -1).astype(np.int64)
    order = np.argsort(known, kind="stable")  # linear on the sorted ids that readers make
    candidate = order[_places(known[order], asked)]
    return np.where(known[candidate] == asked, candidate, -1).astype(np.int64)


def are_among(keys: NDArray, others: NDArray) -> NDArray[np.bool_]:
    """Whether each key (K,) is one of the others (O,), (K,); both in any order, repeats allowed.

    Faster than ``numpy.isin`` (2.4), which hashes millions of keys.
    """
    known = np.sort(others)
    return known[_places(known, keys)] == keys if known.size else np.zeros(len(keys), bool)


def _places(known: NDArray, asked: NDArray) -> NDArray[np.int64]:
    """Where each id that is asked for (A,) is among the ascending ones (N,), at least one, if it is there; (A,).

    The search goes up in both, so that it meets memory in its order.
    """
    order, places = np.argsort(asked), np.empty(len(asked), np.int64)
    places[order] = np.searchsorted(known, asked[order])
    return np.minimum(places, len(known) - 1)


def first_outside(ids: NDArray, limit: int) -> int | None:
    """The position of the first id outside [0, ``limit``); None: all lie inside."""
    if not ids.size or (ids.min() >= 0 and ids.max() < limit):
        return None
    return int(np.argmax((ids < 0) | (ids >= limit)))


def first_repeated(ids: NDArray) -> Any | None:
    """The least id that is there twice, as Python's type; None: all are distinct."""
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    return repeated[0].item() if repeated.size else None


def distinct_ids(node_ids: object, num_nodes: int | None) -> NDArray:
    """Ids as int64 or strings, (N,).

    Raises:
        ShapeError: neither integers nor strings, or not ``num_nodes`` of them.
        DataError: an id is given twice.
    """
    ids = as_ids(node_ids, "node_ids")
    ids = ids if ids.dtype.kind == "U" else ids.astype(np.int64, copy=False)
    if num_nodes is not None and len(ids) != num_nodes:
        raise ShapeError(f"node_ids: {len(ids)} ids for {num_nodes} nodes; expected one for each")
    repeated = first_repeated(ids)
    if repeated is not None:
        raise DataError(f"node_ids: id {repeated!r} is given twice; expected distinct ids")
    return ids
