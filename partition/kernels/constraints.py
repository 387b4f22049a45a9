"""Counting without a temporary copy of the ids."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def count_ids(ids, start, out):
    """Add 1 to out[start + id] for each id."""
    for i in ids:
        out[start + i] += 1
