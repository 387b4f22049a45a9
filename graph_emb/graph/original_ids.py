"""Original ids of a table's rows: the keys of first values and checkpoints, however the graph was partitioned.

A table counts its rows in partition order; the original id of a row is its position in the input of the partitioner.
Legend: N rows of a table, B asked ids.
"""

from __future__ import annotations

import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from graph_emb.core.errors import DataError, PartitionError
from graph_emb.graph.ids import first_repeated


@runtime_checkable
class OriginalIds(Protocol):
    """Both directions between partition-order ids and original ids."""

    @property
    def num_rows(self) -> int: ...
    def of(self, low: int, high: int) -> np.ndarray: ...
    def find(self, original: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class FileIds:
    """Maps in two ``.npy`` files, mapped into memory: only the entries that are asked for are read.

    Args:
        to_original: Path of (N,) integers: the original id of each partition-order id.
        to_partition: Path of its inverse.
    """

    to_original: Path
    to_partition: Path

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self._map(self.to_original))

    def of(self, low: int, high: int) -> np.ndarray:
        """Original ids of the partition-order ids [low, high), int64."""
        return self._map(self.to_original)[low:high].astype(np.int64)

    def find(self, original: np.ndarray) -> np.ndarray:
        """Partition-order ids of original ids, (B,), int64; -1 for ids that the table lacks."""
        return _looked_up(self._map(self.to_partition), original)

    @staticmethod
    def _map(path: Path) -> np.ndarray:
        try:
            return np.load(path, mmap_mode="r")
        except (OSError, ValueError, tokenize.TokenError) as error:
            raise DataError(f"{path}: cannot be read ({error}); the partition's id maps must be on this host") from None


def _looked_up(places: np.ndarray, original: np.ndarray) -> np.ndarray:
    known = (original >= 0) & (original < len(places))
    found = np.full(len(original), -1, np.int64)
    found[known] = places[original[known]]
    return found


class ArrayIds:
    """A map in memory.

    Args:
        array: (N,) integers, or a function that reads them when they are first needed.
        num_rows: N.
        first_id: The partition-order id of the array's first entry: a server gets its own rows alone.
    """

    def __init__(self, array: np.ndarray | Callable[[], np.ndarray], num_rows: int, first_id: int = 0) -> None:
        self._source, self.num_rows, self._first_id = array, num_rows, first_id

    @cached_property
    def _array(self) -> np.ndarray:
        return self._source() if callable(self._source) else self._source

    @cached_property
    def _places(self) -> np.ndarray | None:
        """The entry of each original id, -1 where there is none; None where the ids are too far apart for that."""
        end = int(self._array.max(initial=-1)) + 1
        if end > 2 * len(self._array):
            return None
        places = np.full(end, -1, np.int64)
        places[self._array] = np.arange(self._first_id, self._first_id + len(self._array))
        return places

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self._array, kind="stable")

    def of(self, low: int, high: int) -> np.ndarray:
        """As ``FileIds.of``."""
        return self._array[low - self._first_id : high - self._first_id].astype(np.int64)

    def find(self, original: np.ndarray) -> np.ndarray:
        """As ``FileIds.find``."""
        if self._places is not None:
            return _looked_up(self._places, original)
        places = np.searchsorted(self._array, original, sorter=self._order)
        candidates = self._order[np.minimum(places, len(self._array) - 1)]
        return np.where(self._array[candidates] == original, candidates + self._first_id, -1)


class SameIds:
    """No map: the ids are original already."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def of(self, low: int, high: int) -> np.ndarray:
        """As ``FileIds.of``."""
        return np.arange(low, high)

    def find(self, original: np.ndarray) -> np.ndarray:
        """As ``FileIds.find``."""
        return np.where((original >= 0) & (original < self.num_rows), original, -1)


def as_original_ids(given: Any, policy: object, num_rows: int, table: str) -> OriginalIds | None:
    """The map that a table follows: the caller's, else the policy's own, else None (the ids are original already).

    Args:
        given: None, an ``OriginalIds`` or (N,) distinct integers: the original id of each row.
        policy: The table's ``part_policy``; those of ``partition`` carry a map.
        num_rows: N.
        table: The name that an error shows.
    Raises:
        PartitionError: the map covers another number of rows, or an id is negative or given twice.
    """
    ids = given if given is not None else getattr(policy, "original_ids", None)
    if ids is not None and not isinstance(ids, OriginalIds):
        array = ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            found = f"shape {array.shape} of {array.dtype}"
            raise PartitionError(f"table {table!r}: original_ids has {found}; pass (num_embeddings,) integers")
        array = array.astype(np.int64)
        if len(array) and array.min() < 0:
            raise PartitionError(f"table {table!r}: original id {array.min()} is negative")
        twice = first_repeated(array)
        if twice is not None:
            raise PartitionError(f"table {table!r}: original id {twice} is given to two rows")
        ids = ArrayIds(array, len(array))
    if ids is not None and ids.num_rows != num_rows:
        raise PartitionError(
            f"table {table!r}: original_ids has {ids.num_rows} ids but num_embeddings is {num_rows}; they must be equal"
        )
    return ids
