"""Compiled passes over copied rows: each row is met once where it leaves, once where it goes, and once where it comes.

The arrays of a job (``graph_emb.core.addresses``) stand at the places that are named below; rows of 16 bits are as
``memory_of`` gives them, and rounded to the nearest. Rows of 8 bits are int8 numbers of a 127th of the row's largest
one, rounded to the nearest, and that 127th as a float32 in ``SCALE`` more places: rows with no number of 1e-30 travel
as zeros, and rows with an infinite one as NaN.

Legend: R rows of a table, N nodes that a rank copies, S rows of a message, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import types
from numba.extending import overload

from graph_emb.core.addresses import RowLoop, array_at
from graph_emb.core.compiled import INSIDE, njit
from graph_emb.optim.rounding import FAST, bits_of, float_of, number_at, put_number
from graph_emb.table.row_memory import prefetch, prefetch_to_read

ROWS, AT, SPAN, FROZEN, BEFORE, MESSAGE, SHARE, LATER, PLACES = range(9)
"""Of what an owner does for a rank, by groups of nodes: all rows of the first table, (R, D), which nodes of it (N,),
where their rows begin in ``BEFORE`` and ``MESSAGE``, and how many tables they have, (2,); which rows keep their values,
(R,), uint8, or None; rows as they were laid out, (S, D), or None; what leaves or came, (S, D), or None. Of changes
alone: how much of what a row has gone down since it was laid out counts, (1,), float32; rows that were laid out for the
rank since, or None; and where a row of this message is among them, (S,), or -1. Jobs of the other tables, without
nodes, follow: the rows of a node lie side by side in a message, so that a pass for each table would read it all."""
CAME, COPIES, GONE, GONE_AT, LEAVING = range(5)
"""Of ``widen_rows`` and ``round_changes``: rows as they came, copies, and what leaves, each (S, D); own changes
that were under way when these rows left, (S', D), and which of them is of a row, (S,), or -1; both may be None."""
SCALE = 4
"""Bytes of a row's scale, behind its numbers of 8 bits."""
LEAST = np.float32(1e-30)
AHEAD = 8  # rows whose memory is asked for before they are needed


def bytes_on_wire(dim: int, dtype: torch.dtype) -> int:
    """Bytes of a copied row as it travels."""
    return dim + SCALE if dtype is torch.int8 else dim * dtype.itemsize


def is_frozen(frozen, row):
    """Whether a row keeps its values; none does where there is no mask."""


@overload(is_frozen, inline="always")
def _is_frozen(frozen, row):
    if isinstance(frozen, types.NoneType):
        return lambda frozen, row: False
    return lambda frozen, row: frozen[row] != 0


def put_row(target, place, row):
    """Write a row to a place of target, rounded where that has 16 or 8 bits; nothing where there is none."""


@overload(put_row, jit_options={**INSIDE, "error_model": "numpy"})
def _put_row(target, place, row):
    if isinstance(target, types.NoneType):
        return lambda target, place, row: None

    def scaled(target, place, row):
        out, top = target[place], np.uint32(0)
        for d in range(row.shape[0]):
            top = np.uint32(max(top, np.uint32(bits_of(row[d]) & np.uint32(0x7FFFFFFF))))
        largest = float_of(top)  # NaN is larger than infinity, and this than numbers
        number = np.float32(127) / largest  # whatever that is of others: their scale is 0 or not finite
        scale = np.float32(0) if largest < LEAST else np.float32(largest / np.float32(127))
        bits = bits_of(scale)
        for b in range(SCALE):
            out[row.shape[0] + b] = np.int8(bits >> np.uint32(8 * b))
        for d in range(row.shape[0]):  # 1.5 * 2^23 and a number: its last digit is a one, its last byte the number's
            near = np.float32(np.float32(row[d] * number) + np.float32(12582912.0))
            out[d] = np.int8(bits_of(near))

    if target.dtype == types.int8:
        return scaled

    def put(target, place, row):
        out = target[place]
        for d in range(row.shape[0]):
            put_number(out, d, row[d])

    return put


def get_row(source, place, out):
    """The float32 of a row of 16 or 8 bits at a place of source, to ``out``."""


@overload(get_row, jit_options={**INSIDE, "error_model": "numpy"})
def _get_row(source, place, out):
    def scaled(source, place, out):
        row, bits = source[place], np.uint32(0)
        for b in range(SCALE):
            bits = np.uint32(bits | np.uint32(np.uint32(np.uint8(row[out.shape[0] + b])) << np.uint32(8 * b)))
        scale = float_of(bits)
        for d in range(out.shape[0]):
            out[d] = scale * np.float32(row[d])

    def widened(source, place, out):
        row = source[place]
        for d in range(out.shape[0]):
            out[d] = number_at(row, d)

    return scaled if source.dtype == types.int8 else widened


def _lay(kind, where, j, low, high, _, __, ___):
    at, span = array_at(kind, where, j, AT), array_at(kind, where, j, SPAN)
    before, message = array_at(kind, where, j, BEFORE), array_at(kind, where, j, MESSAGE)
    start, tables = span[0], span[1]
    for k in range(low, high):
        for t in range(tables):
            rows = array_at(kind, where, j + t, ROWS)
            if k + AHEAD < high:
                prefetch_to_read(rows, at[k + AHEAD])
            row = rows[at[k]]
            put_row(before, start + k * tables + t, row)
            put_row(message, start + k * tables + t, row)


lay_rows = RowLoop(_lay, AT, error_model="numpy")
"""Copy rows that others asked for to ``BEFORE`` and to ``MESSAGE``."""


@njit(forceinline=True, error_model="numpy")
def subtract_row(row, change):
    """As it says, and not fused with what is computed before."""
    for d in range(len(change)):
        row[d] -= change[d]


def _take(kind, where, j, low, high, joined, copies, later):
    at, span = array_at(kind, where, j, AT), array_at(kind, where, j, SPAN)
    before, message = array_at(kind, where, j, BEFORE), array_at(kind, where, j, MESSAGE)
    counted = array_at(kind, where, j, SHARE)[0]
    start, tables = span[0], span[1]
    change = np.empty(array_at(kind, where, j, ROWS).shape[1], np.float32)
    for k in range(low, high):
        for t in range(tables):
            rows, frozen = array_at(kind, where, j + t, ROWS), array_at(kind, where, j + t, FROZEN)
            if k + AHEAD < high:
                prefetch(rows, at[k + AHEAD])
            if is_frozen(frozen, at[k]):
                continue
            row, place = rows[at[k]], start + k * tables + t
            if copies is None:
                get_row(message, place, change)
            else:
                first, last = before[place], message[place]
                for d in range(len(change)):
                    change[d] = first[d] - last[d]
            if joined is not None:
                first = before[place]
                common, near, far = np.float32(0), np.float32(0), np.float32(0)
                for d in range(len(change)):
                    own = counted * (first[d] - row[d])
                    common += own * change[d]
                    near += own * own
                    far += change[d] * change[d]
                if near != 0 and far != 0:
                    half = common / np.float32(2)
                    less, own_less = half / far, half / near
                    for d in range(len(change)):
                        change[d] -= less * change[d] + own_less * (counted * (first[d] - row[d]))
            subtract_row(row, change)
            if later is not None:
                next_place = array_at(kind, where, j, PLACES)[place]
                if next_place >= 0:
                    subtract_row(array_at(kind, where, j, LATER)[next_place], change)


take_changes = RowLoop(_take, AT, fastmath=FAST, error_model="numpy")
"""Take from rows what another rank's copies have gone down. With the first flag joined by AdaSum with how far the rows
have gone down from ``BEFORE`` here meanwhile. With the second copies came, whose difference from ``BEFORE`` the changes
are; without either that may be None. With the third what is taken is taken from ``LATER`` as well."""


def begun_row(came, gone, places, k, held, out):
    """The row of which a copy was made, to ``out``: as it came, less a change that its owner had not yet taken."""


@overload(begun_row, jit_options={**INSIDE, "error_model": "numpy"})
def _begun_row(came, gone, places, k, held, out):
    if isinstance(gone, types.NoneType):
        return lambda came, gone, places, k, held, out: get_row(came, k, out)

    def corrected(came, gone, places, k, held, out):
        if k + AHEAD < len(places) and places[k + AHEAD] >= 0:
            prefetch_to_read(gone, places[k + AHEAD])
        get_row(came, k, out)
        if places[k] >= 0:
            get_row(gone, places[k], held)
            subtract_row(out, held)

    return corrected


def _widen(kind, where, j, low, high, _, __, ___):
    came, copies = array_at(kind, where, j, CAME), array_at(kind, where, j, COPIES)
    gone, places = array_at(kind, where, j, GONE), array_at(kind, where, j, GONE_AT)
    held = np.empty(copies.shape[1], np.float32)
    for k in range(low, high):
        begun_row(came, gone, places, k, held, copies[k])


widen_rows = RowLoop(_widen, CAME, error_model="numpy")
"""Copies of the rows that came."""


def _round(kind, where, j, low, high, _, __, ___):
    came, copies = array_at(kind, where, j, CAME), array_at(kind, where, j, COPIES)
    gone, places = array_at(kind, where, j, GONE), array_at(kind, where, j, GONE_AT)
    leaving = array_at(kind, where, j, LEAVING)
    held, change = np.empty(copies.shape[1], np.float32), np.empty(copies.shape[1], np.float32)
    for k in range(low, high):
        begun_row(came, gone, places, k, held, change)
        copy = copies[k]
        for d in range(len(change)):
            change[d] -= copy[d]
        put_row(leaving, k, change)


round_changes = RowLoop(_round, CAME, error_model="numpy")
"""How far copies have gone down from what they were, rounded as they leave."""
