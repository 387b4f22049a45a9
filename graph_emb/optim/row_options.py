"""What the options of every rule do to a row, compiled: bounds, decay, its share of the step."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from graph_emb.core.compiled import njit
from graph_emb.optim.rounding import FAST

# A helper that is compiled by itself and then put in (forceinline) takes less time to compile than one which is put in
# as source (inline="always"); the machine code is as fast.


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def _scale_to(row, square, norm):
    """Scale a row of a squared norm down to a norm."""
    found = np.sqrt(square)
    if found > norm:
        scale = norm / found
        for d in range(row.shape[0]):
            row[d] *= scale


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def _square(row):
    """The squared norm of a row."""
    square = np.float32(0.0)
    for d in range(row.shape[0]):
        square += row[d] * row[d]
    return square


def _is_none(each, part):
    """Whether the type of the rows' own numbers, a pair or nothing, lacks one of them."""
    return isinstance(each, types.NoneType) or isinstance(each[part], types.NoneType)


def _shrink(row, each, k):
    """Make up for the decay that row k lacks; None: no row lacks any, or has numbers of its own."""


@overload(_shrink, inline="always")
def _shrunk(row, each, k):
    if _is_none(each, 0):
        return lambda row, each, k: None

    def shrink(row, each, k):
        factor = each[0][k]
        for d in range(row.shape[0]):
            row[d] *= factor

    return shrink


def _keep(row, each, old):
    """Keep a row in ``old``, for ``_share_of_step``."""


@overload(_keep, inline="always")
def _kept(row, each, old):
    if _is_none(each, 1):
        return lambda row, each, old: None

    def keep(row, each, old):
        for d in range(row.shape[0]):
            old[d] = row[d]

    return keep


def _share_of_step(row, each, k, old):
    """Take the share of its step that row k has."""


@overload(_share_of_step, inline="always")
def _shared_step(row, each, k, old):
    if _is_none(each, 1):
        return lambda row, each, k, old: None

    def share_of_step(row, each, k, old):
        taken = each[1][k]
        for d in range(row.shape[0]):
            row[d] = old[d] + taken * (row[d] - old[d])

    return share_of_step


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def begin(row, g, options, each, k, old):
    """Bound the merged gradient of a row, then decay: the order that ``Rule`` states."""
    clip, clip_norm, ratio, least, added, factor, _ = options
    _shrink(row, each, k)
    if clip < np.inf or clip_norm < np.inf:  # in one pass, without branches
        square = np.float32(0.0)
        for d in range(row.shape[0]):
            x = g[d]
            x = clip if x > clip else x
            x = -clip if x < -clip else x
            g[d] = x
            square += x * x
        _scale_to(g, square, clip_norm)
    if ratio < np.inf:
        _scale_to(g, _square(g), max(ratio * np.sqrt(_square(row)), least))
    if added != 0.0:
        for d in range(row.shape[0]):
            g[d] += added * row[d]
    if factor != 1.0:
        for d in range(row.shape[0]):
            row[d] *= factor
    _keep(row, each, old)


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def end(row, options, each, k, old):
    """What follows the rule's own formula."""
    _share_of_step(row, each, k, old)
    if options[6] < np.inf:
        _scale_to(row, _square(row), options[6])
