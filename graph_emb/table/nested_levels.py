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

MOST_PARTS = 2**31 - 1
MOST_NODES = 2**48
"""More than any memory has rows for."""


@njit(cache=True, nogil=True)
def hash_keys(keys: Any, start: Any, buckets: Any, found: Any) -> None:
    """Hash keys (B,) into buckets, (h, B): each hash is a draw of the key's random stream."""
    for i in range(len(keys)):
        stream = mix64((np.uint64(keys[i]) * GOLDEN) ^ start)
        for k in range(len(found)):
            found[k, i] = mix64(stream + np.uint64(k + 1) * GOLDEN) % buckets


def checked_levels(name: str, levels: Tensor | np.ndarray | int) -> np.ndarray:
    """Levels as (N, L) integers of 32 bits; (N, 0) of a number of nodes.

    Raises:
        ShapeError: they are no matrix of integers, or empty.
        ConfigError: a part is negative or above 2**31 - 1, or lies in several parts of the level above; or a number of
            nodes below 1.
    """
    if isinstance(levels, int | np.integer):
        if isinstance(levels, bool) or not 1 <= levels <= MOST_NODES:
            raise ConfigError(f"table {name!r}: {levels} nodes; give a number from 1 to {MOST_NODES}, or their levels")
        return np.empty((int(levels), 0), np.int32)
    try:
        found = levels.cpu().numpy() if isinstance(levels, Tensor) else np.asarray(levels)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of several lengths; no dense memory
        raise ShapeError(f"table {name!r}: levels are no matrix ({error}); give integers (nodes, levels)") from error
    if found.ndim != 2 or found.dtype.kind not in "iu" or not len(found):
        raise ShapeError(
            f"table {name!r}: levels have shape {found.shape} of {found.dtype}; give integers (nodes, levels)"
        )
    for wrong in (found.min(), found.max()) if found.size else ():
        if not 0 <= wrong <= MOST_PARTS:
            raise ConfigError(
                f"table {name!r}: levels have the part {wrong}; parts are numbered from 0, to {MOST_PARTS} at most"
            )
    found = found.astype(np.int32)
    for place in range(1, found.shape[1]):
        own = found[:, place]
        if own.max() > 4 * len(own):  # few of many numbers
            own = np.unique(own, return_inverse=True)[1]
        coarser = np.full(int(own.max()) + 1, -1, np.int32)
        coarser[own] = found[:, place - 1]  # of several the last
        wrong = np.flatnonzero(coarser[own] != found[:, place - 1])
        if len(wrong):
            part = int(found[wrong[0], place])
            raise ConfigError(
                f"table {name!r}: levels are not nested: part {part} of level {place} lies in several parts of level "
                f"{place - 1}; order the columns from coarse to fine"
            )
    return found


def sizes_of(name: str, levels: np.ndarray, given: Sequence[int] | None) -> tuple[int, ...]:
    """Parts at each level, as given or used.

    Raises:
        ConfigError: fewer are given than are used, or for other levels.
    """
    used = tuple(int(most) + 1 for most in levels.max(axis=0))
    if given is None:
        return used
    if not isinstance(given, Sequence | np.ndarray) or not all(_is_number(size) for size in given):
        raise ConfigError(
            f"table {name!r}: level_sizes {given!r:.60}; give a number of parts for each of {len(used)} levels"
        )
    if len(given) != len(used) or any(size < most for size, most in zip(given, used, strict=True)):
        raise ConfigError(f"table {name!r}: level_sizes {tuple(given)} for levels that use {used} parts")
    return tuple(int(size) for size in given)


def _is_number(size: Any) -> bool:
    return isinstance(size, int | np.integer) and not isinstance(size, bool)


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
