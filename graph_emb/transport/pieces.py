"""Columns of several tables in one exchange: a piece of each for every rank, without a copy in between.

Legend: T columns, W ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.shm_all_to_all import room_for

Counts = Sequence[Sequence[int]]
"""Rows of each column for, or from, each rank, (T, W)."""


class Outgoing:
    """Room for the pieces of the next exchange, in the memory that other ranks of this machine map, where they do.

    Rank after rank, and of each rank column after column; the caller fills ``pieces`` and calls ``exchange``.

    Args:
        group: The ranks.
        columns: One tensor of each column's width, dtype and device; the device is one.
        counts: Rows for each rank; none for this one.
    Attributes:
        pieces: Contiguous memory of each piece, (W, T).
    """

    def __init__(self, group: ProcessGroup, columns: Sequence[Tensor], counts: Counts) -> None:
        self._group, self._columns = group, columns
        ranks, widths = range(group.world_size), [math.prod(c.shape[1:]) * c.element_size() for c in columns]
        sizes = [[num[rank] * width for num, width in zip(counts, widths, strict=True)] for rank in ranks]
        self._to_send = [sum(map(room_for, of_rank)) for of_rank in sizes]
        self._block = group.outgoing(columns[0].new_empty(0, dtype=torch.uint8), sum(self._to_send))
        self.pieces: list[list[Tensor]] = []
        at = 0
        for of_rank in sizes:
            self.pieces.append([])
            for column, size in zip(columns, of_rank, strict=True):
                piece = self._block[at : at + size].view(column.dtype) if size else column.new_empty(0)
                self.pieces[-1].append(piece.view(-1, *column.shape[1:]))
                at += room_for(size)

    def exchange(self, incoming: Counts, what: str, own: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Send the pieces and receive those of the other ranks; every rank calls it.

        Args:
            incoming: Rows that come from each rank.
            what: The words with which an error names the call.
            own: This rank's rows of each column for itself, (T,), which do not travel; None: none.
        Returns:
            Each column, (T,), rank after rank.
        Raises:
            PeerError: a process is gone or did not answer in time.
        """
        ranks = range(self._group.world_size)
        found: list[Tensor] = []
        targets: list[list[Tensor]] = [[] for _ in ranks]
        for column, numbers in zip(self._columns, incoming, strict=True):
            found.append(column.new_empty((sum(numbers), *column.shape[1:])))
            for rank, piece in enumerate(found[-1].split(list(numbers))):
                targets[rank].append(piece)
        if own is not None:
            for piece, rows in zip(targets[self._group.rank], own, strict=True):
                piece.copy_(rows)
        targets[self._group.rank] = []
        self._group.exchange_pieces(targets, self._block, self._to_send, what)
        return found


def exchange_columns(
    group: ProcessGroup, columns: Sequence[Tensor], outgoing: Counts, incoming: Counts, what: str
) -> list[Tensor]:
    """Send the rows of each column, which lie rank after rank, and receive this rank's: one all_to_all for all.

    Args:
        outgoing, incoming: Rows for and from each rank.
        what: The words with which an error names the call.
    """
    if len(columns) == 1:  # nothing to lay out
        return [group.exchange(columns[0], outgoing[0], incoming[0], what)]
    ranks = range(group.world_size)
    room = Outgoing(group, columns, [[0 if rank == group.rank else c[rank] for rank in ranks] for c in outgoing])
    own = []
    for k, (column, counts) in enumerate(zip(columns, outgoing, strict=True)):
        for rank, piece in enumerate(column.split(list(counts))):
            if rank == group.rank:
                own.append(piece)
            else:
                room.pieces[rank][k].copy_(piece)
    return room.exchange(incoming, what, own)
