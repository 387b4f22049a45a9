"""What the options of every rule do to a row, compiled: bounds, decay, its share of the step."""

from __future__ import annotations

import numpy as np

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


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def _shrink(row, factors, k):
    """Make up for the decay that row k lacks; without factors no row lacks any."""
    if len(factors) > 0:
        factor = factors[k]
        for d in range(row.shape[0]):
            row[d] *= factor


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def _keep(row, shares, old):
    """Keep a row in ``old``, for ``_share_of_step``."""
    if len(shares) > 0:
        for d in range(row.shape[0]):
            old[d] = row[d]


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def _share_of_step(row, shares, k, old):
    """Take the share of its step that row k has; without shares it is the whole."""
    if len(shares) > 0:
        taken = shares[k]
        for d in range(row.shape[0]):
            row[d] = old[d] + taken * (row[d] - old[d])


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def begin(row, g, options, each, k, old):
    """Bound the merged gradient of a row, then decay: the order that ``Rule`` states."""
    clip, clip_norm, ratio, least, added, factor, _ = options
    _shrink(row, each[0], k)
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
    _keep(row, each[1], old)


@njit(forceinline=True, fastmath=FAST, error_model="numpy")
def end(row, options, each, k, old):
    """What follows the rule's own formula."""
    _share_of_step(row, each[1], k, old)
    if options[6] < np.inf:
        _scale_to(row, _square(row), options[6])
