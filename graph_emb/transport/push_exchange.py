"""Exchange the packed gradients of a step: every rank's rows to their owners, all tables at once.

Legend: S sent rows, D width, W ranks, T tables.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.push_packing import Packed


def exchange(group: ProcessGroup, packed: list[Packed], incoming: list[list[int]], what: str) -> list[Packed]:
    """Send the pieces of every table to their owners and receive those for this rank, in the order of the senders.

    Args:
        group: The processes.
        packed: One for each table, (T,), the same tables on every rank.
        incoming: Rows that come from each rank for each table, (T, W).
        what: The words with which an error names the call.
    """
    ids = _exchange(group, [p.ids for p in packed], packed, incoming, what)
    grads = _exchange(group, [p.grads for p in packed], packed, incoming, what)
    occurrences: list[Tensor | None] = [None] * len(packed)
    averaged = [k for k, p in enumerate(packed) if p.occurrences is not None]
    if averaged:
        some = [packed[k] for k in averaged]
        columns = [p.occurrences for p in some if p.occurrences is not None]
        found = _exchange(group, columns, some, [incoming[k] for k in averaged], what)
        for k, column in zip(averaged, found, strict=True):
            occurrences[k] = column
    came = zip(ids, grads, incoming, occurrences, strict=True)
    return [Packed(i, g, counts, occurrences=o) for i, g, counts, o in came]


def _exchange(
    group: ProcessGroup, columns: list[Tensor], packed: list[Packed], incoming: list[list[int]], what: str
) -> list[Tensor]:
    """One column of every table by one all_to_all: bytes, destination after destination, table after table."""
    if len(columns) == 1:  # nothing to interleave: no copy
        return [group.exchange(columns[0], packed[0].counts, incoming[0], what)]
    widths = [_row_bytes(column) for column in columns]
    pieces = [column.split(p.counts) for column, p in zip(columns, packed, strict=True)]
    ranks = range(group.world_size)
    flat = [piece[rank].contiguous().view(-1).view(torch.uint8) for rank in ranks for piece in pieces]
    to_send = [sum(p.counts[rank] * w for p, w in zip(packed, widths, strict=True)) for rank in ranks]
    to_receive = [sum(c[rank] * w for c, w in zip(incoming, widths, strict=True)) for rank in ranks]
    came = group.exchange(torch.cat(flat), to_send, to_receive, what)
    found: list[list[Tensor]] = [[] for _ in columns]
    start = 0
    for rank in ranks:
        for k, width in enumerate(widths):
            end = start + incoming[k][rank] * width
            found[k].append(came[start:end])
            start = end
    return [
        torch.cat(parts).view(column.dtype).view(-1, *column.shape[1:])
        for parts, column in zip(found, columns, strict=True)
    ]


def _row_bytes(column: Tensor) -> int:
    return math.prod(column.shape[1:]) * column.element_size()
