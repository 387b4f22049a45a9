"""The levels of a composed table: checked, counted, named by their digest; and keys hashed into buckets.

Legend: N nodes, L levels, h hashes, B keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, mix64, njit
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.graph.original_ids import OriginalIds


@njit(cache=True, nogil=True)
def hash_keys(keys: Any, start: Any, buckets: Any, found: Any) -> None:
    """Hash keys (B,) into buckets, (h, B): each hash is a draw of the key's random stream."""
    for i in range(len(keys)):
        stream = mix64((np.uint64(keys[i]) * GOLDEN) ^ start)
        for k in range(len(found)):
            found[k, i] = mix64(stream + np.uint64(k + 1) * GOLDEN) % buckets


def checked_levels(name: str, levels: Tensor | np.ndarray) -> np.ndarray:
    """Levels as (N, L) integers of 32 bits where these hold them.

    Raises:
        ShapeError: they are no matrix of integers, or empty.
        ConfigError: a part is negative, or lies in several parts of the level above.
    """
    found = levels.cpu().numpy() if isinstance(levels, Tensor) else np.asarray(levels)
    if found.ndim != 2 or found.dtype.kind not in "iu" or not len(found):
        raise ShapeError(
            f"table {name!r}: levels have shape {found.shape} of {found.dtype}; give integers (nodes, levels)"
        )
    if found.size and found.min() < 0:
        raise ConfigError(f"table {name!r}: levels have the part {found.min()}; parts are numbered from 0")
    for place in range(1, found.shape[1]):
        coarser = np.full(int(found[:, place].max()) + 1, -1, np.int64)
        coarser[found[:, place]] = found[:, place - 1]  # of several the last
        wrong = np.flatnonzero(coarser[found[:, place]] != found[:, place - 1])
        if len(wrong):
            part = int(found[wrong[0], place])
            raise ConfigError(
                f"table {name!r}: levels are not nested: part {part} of level {place} lies in several parts of level "
                f"{place - 1}; order the columns from coarse to fine"
            )
    return found.astype(np.int32 if not found.size or found.max() < 2**31 else np.int64)


def sizes_of(name: str, levels: np.ndarray, given: Sequence[int] | None) -> tuple[int, ...]:
    """Parts at each level, as given or used.

    Raises:
        ConfigError: fewer are given than are used, or for other levels.
    """
    used = tuple(int(most) + 1 for most in levels.max(axis=0))
    if given is None:
        return used
    if len(given) != len(used) or any(size < most for size, most in zip(given, used, strict=True)):
        raise ConfigError(f"table {name!r}: level_sizes {tuple(given)} for levels that use {used} parts")
    return tuple(int(size) for size in given)


def digest_of(levels: np.ndarray, original: OriginalIds | None, count: int | None = None) -> str:
    """A name of what the levels say of each original id, whatever the order: tables of another partition differ.

    Args:
        count: Of the original ids below it alone; None: of all.
    """
    ids = np.arange(len(levels), dtype=np.int64) if original is None else original.of(0, len(levels))
    if count is not None:
        levels, ids = levels[ids < count], ids[ids < count]
    keys = mix64(ids.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(1))
    for column in levels.T:
        keys = mix64(keys ^ (column.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
    return f"{int(keys.sum(dtype=np.uint64)):016x}"[:8]
