"""Compiled passes over copied rows: each row is met once where it leaves, once where it goes, and once where it comes.

The arrays of a job (``graph_emb.core.addresses``) stand at the places that are named below; rows of 16 bits are as
``memory_of`` gives them, and rounded to the nearest.

Legend: R rows of a table, N nodes that a rank copies, S rows of a message, D width.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from graph_emb.core.addresses import RowLoop, array_at
from graph_emb.core.compiled import INSIDE, njit
from graph_emb.optim.rounding import FAST, number_at, put_number
from graph_emb.table.row_memory import prefetch, prefetch_to_read

ROWS, AT, SPAN, FROZEN, BEFORE, MESSAGE = range(6)
"""Of what an owner does for a rank, by groups of nodes: all rows of the first table, (R, D), which nodes of it (N,),
where their rows begin in both of the last two, and how many tables they have, (2,); which rows keep their values, (R,),
uint8, or None; rows as they were laid out, (S, D), or None; what leaves or came, (S, D), or None. Jobs of the other
tables, without nodes, follow: the rows of a node lie side by side in a message, so that a pass for each table would
read it all every time."""
CAME, COPIES, LEAVING = range(3)
"""Of ``round_changes``, each (S, D)."""
AHEAD = 8  # rows whose memory is asked for before they are needed


def is_frozen(frozen, row):
    """Whether a row keeps its values; none does where there is no mask."""


@overload(is_frozen, inline="always")
def _is_frozen(frozen, row):
    if isinstance(frozen, types.NoneType):
        return lambda frozen, row: False
    return lambda frozen, row: frozen[row] != 0


def put_row(target, place, row):
    """Write a row to a place of target, rounded where that has 16 bits; nothing where there is none."""


@overload(put_row, jit_options={**INSIDE, "error_model": "numpy"})
def _put_row(target, place, row):
    if isinstance(target, types.NoneType):
        return lambda target, place, row: None

    def put(target, place, row):
        out = target[place]
        for d in range(row.shape[0]):
            put_number(out, d, row[d])

    return put


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


def change_of(before, message, place, out):
    """How far a copy has gone down: itself came as float32, the change came as 16 bits."""


@overload(change_of, jit_options={**INSIDE, "error_model": "numpy"})
def _change_of(before, message, place, out):
    if message.dtype in (types.uint16, types.int16):

        def widened(before, message, place, out):
            change = message[place]
            for d in range(out.shape[0]):
                out[d] = number_at(change, d)

        return widened

    def subtracted(before, message, place, out):
        first, last = before[place], message[place]
        for d in range(out.shape[0]):
            out[d] = first[d] - last[d]

    return subtracted


@njit(forceinline=True, error_model="numpy")
def subtract_row(row, change):
    """As it says, and not fused with what is computed before."""
    for d in range(len(change)):
        row[d] -= change[d]


def _take(kind, where, j, low, high, joined, __, ___):
    at, span = array_at(kind, where, j, AT), array_at(kind, where, j, SPAN)
    before, message = array_at(kind, where, j, BEFORE), array_at(kind, where, j, MESSAGE)
    start, tables = span[0], span[1]
    change = np.empty(message.shape[1], np.float32)
    for k in range(low, high):
        for t in range(tables):
            rows, frozen = array_at(kind, where, j + t, ROWS), array_at(kind, where, j + t, FROZEN)
            if k + AHEAD < high:
                prefetch(rows, at[k + AHEAD])
            if is_frozen(frozen, at[k]):
                continue
            row, place = rows[at[k]], start + k * tables + t
            change_of(before, message, place, change)
            if joined is not None:
                first = before[place]
                common, near, far = np.float32(0), np.float32(0), np.float32(0)
                for d in range(len(change)):
                    own = first[d] - row[d]
                    common += own * change[d]
                    near += own * own
                    far += change[d] * change[d]
                if near != 0 and far != 0:
                    half = common / np.float32(2)
                    less, own_less = half / far, half / near
                    for d in range(len(change)):
                        change[d] -= less * change[d] + own_less * (first[d] - row[d])
            subtract_row(row, change)


take_changes = RowLoop(_take, AT, fastmath=FAST, error_model="numpy")
"""Take from rows what another rank's copies have gone down. With the first flag joined by AdaSum with how far the rows
have gone down from ``BEFORE`` here meanwhile; without it, where changes came as 16 bits, that may be None."""


def _round(kind, where, j, low, high, _, __, ___):
    came, copies, leaving = (
        array_at(kind, where, j, CAME),
        array_at(kind, where, j, COPIES),
        array_at(kind, where, j, LEAVING),
    )
    for k in range(low, high):
        first, copy, out = came[k], copies[k], leaving[k]
        for d in range(len(copy)):
            put_number(out, d, number_at(first, d) - copy[d])


round_changes = RowLoop(_round, CAME, error_model="numpy")
"""How far copies have gone down from the rows of 16 bits that came, rounded to as many."""
