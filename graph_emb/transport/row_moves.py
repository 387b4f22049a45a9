"""Ranges of a table's rows that go with their state from rank to rank, all of them in one exchange.

Every rank knows every move, so neither ids nor counts travel with the rows.

Legend: n rows of a range, C columns (the weight and each piece of state that has rows), W ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from graph_emb.core.errors import PeerError
from graph_emb.graph.partition_book import RankRanges
from graph_emb.table.shard import WEIGHT, EmbeddingShard
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.shm_all_to_all import room_for

Range = tuple[int, int]


class Move(NamedTuple):
    """Rows [low, high) that go from a rank to a rank, which may be the same one."""

    source: int
    target: int
    low: int
    high: int


def from_owners(layout: RankRanges, by_rank: Sequence[Sequence[Range]]) -> list[Move]:
    """The moves that bring the ranges of each rank, (W,), from those that store them."""
    return [
        Move(owner, target, low, high)
        for target, ranges in enumerate(by_rank)
        for whole in ranges
        for owner, low, high in _by_owner(layout, whole)
    ]


def to_owners(layout: RankRanges, by_rank: Sequence[Sequence[Range]]) -> list[Move]:
    """The moves that take the ranges of each rank, (W,), to those that store them."""
    return [Move(target, source, low, high) for source, target, low, high in from_owners(layout, by_rank)]


def _by_owner(layout: RankRanges, whole: Range) -> Iterator[tuple[int, int, int]]:
    """A range by the ranks that store it: rank, low, high."""
    for rank in range(layout.world_size):
        first, end = layout.owned(rank)
        low, high = max(first, whole[0]), min(end, whole[1])
        if low < high:
            yield rank, low, high


class Columns:
    """The columns of some rows in a row of bytes: of each move one column after the other.

    Args:
        shard: Whose columns they are.
    Attributes:
        names: Of the pieces of state that have rows, in the order of their columns, behind the weight.
    """

    def __init__(self, shard: EmbeddingShard) -> None:
        self._dim = shard.spec.dim
        self.names = [name for name, spec in shard.state_specs.items() if spec.kind != "table"]
        self._dtypes = [shard.weight.dtype, *(shard.state[name].dtype for name in self.names)]
        self._specs = [shard.state_specs[name] for name in self.names]

    def _shapes(self, num_rows: int) -> list[tuple[int, ...]]:
        return [(num_rows, self._dim), *(spec.shape(num_rows, self._dim) for spec in self._specs)]

    def num_bytes(self, num_rows: int) -> int:
        """Of a move of so many rows."""
        sizes = zip(self._shapes(num_rows), self._dtypes, strict=True)
        return sum(room_for(math.prod(shape) * dtype.itemsize) for shape, dtype in sizes)

    def views(self, block: Tensor, num_rows: int) -> list[Tensor]:
        """The columns of a move, (C,), in its bytes."""
        found, at = [], 0
        for shape, dtype in zip(self._shapes(num_rows), self._dtypes, strict=True):
            size = math.prod(shape) * dtype.itemsize
            found.append(block[at : at + size].view(dtype).view(shape))
            at += room_for(size)
        return found

    def read(self, shard: EmbeddingShard, start: int, stop: int) -> list[Tensor]:
        """Rows [start, stop) of a shard, (C,), which may share its memory."""
        rows = shard.column(WEIGHT, start, stop) if shard.in_memory else shard.read(torch.arange(start, stop))
        return [rows, *(shard.column(name, start, stop) for name in self.names)]  # pages are in memory from here on

    def write(self, shard: EmbeddingShard, start: int, values: Sequence[Tensor]) -> None:
        """Overwrite the rows of a shard from ``start`` on by columns, (C,)."""
        rows = torch.arange(start, start + len(values[0]))
        shard.write_columns(rows, dict(zip((WEIGHT, *self.names), values, strict=True)))


Arrived = Iterable[tuple[Move, list[Tensor]]]
"""Moves that end at this rank, each with its columns, (C,), in the order in which they were given."""


class RowMoves:
    """The moves of one table.

    Args:
        transport: Of the table.
        table: Its name; an optimizer trains it, and its rows lie on the CPU.
    """

    def __init__(self, transport: CollectiveTransport, table: str) -> None:
        self._transport, self._table = transport, table
        self.columns = Columns(transport.shard(table))

    def start(
        self,
        call: int,
        moves: Sequence[Move],
        read: Callable[[int, int], list[Tensor]],
        what: str,
        background: bool = False,
    ) -> Callable[[], Arrived]:
        """Send rows as they are now. Joint; every rank gives the same moves.

        Args:
            call: The number of the joint call.
            moves: Of all ranks, each with rows.
            read: The columns of rows [low, high) that this rank sends. Those that it sends itself may share memory.
            what: The words with which an error names the call.
            background: Return while rows travel, through sockets.
        Returns:
            A function that waits for those that come here. A second call gives them again.
        Raises:
            PeerError: a rank is gone, or gives other moves.
        """
        transport, rank = self._transport, self._transport.rank
        ranks, size = range(transport.world_size), self.columns.num_bytes
        of_rank = [[move for move in moves if move.source == rank != move.target and move.target == r] for r in ranks]
        coming = [move for r in ranks for move in moves if move.source == r != rank and move.target == rank]
        to_send = [sum(size(m.high - m.low) for m in own) for own in of_rank]
        to_receive = [sum(size(m.high - m.low) for m in coming if m.source == r) for r in ranks]
        with transport.joint(what):
            told = transport.agree(call, transport.signature([self._table]), torch.tensor(to_send).unsqueeze(1), what)
            if told[:, 0].tolist() != to_receive:
                wrong = [r for r in ranks if int(told[r, 0]) != to_receive[r]]
                raise PeerError(f"rank {rank} is in {what}, rank {', '.join(map(str, wrong))} sends it other rows")
            sent, came = torch.empty(sum(to_send), dtype=torch.uint8), torch.empty(sum(to_receive), dtype=torch.uint8)
            for move, block in self._blocks([move for own in of_rank for move in own], sent):
                for target, column in zip(block, read(move.low, move.high), strict=True):
                    target.copy_(column)
            stays = [(m, read(m.low, m.high)) for m in moves if m.source == m.target == rank]
            transport.counts[self._table].bytes_sent += len(sent)
            wait = None
            if background:
                wait = transport.group.start_exchange(came, sent, to_send, to_receive, what, large=True)
            else:
                transport.group.exchange_large(came, sent, to_send, to_receive, what)

        def arrived(_: Tensor = sent) -> Arrived:  # which is not freed before
            if wait is not None:
                wait()
            return [*stays, *self._blocks(coming, came)]

        return arrived

    def _blocks(self, moves: Sequence[Move], memory: Tensor) -> Iterator[tuple[Move, list[Tensor]]]:
        """The columns of moves that lie one after the other in bytes."""
        sizes = [self.columns.num_bytes(move.high - move.low) for move in moves]
        for move, (at, end) in zip(moves, pairwise(accumulate(sizes, initial=0)), strict=True):
            yield move, self.columns.views(memory[at:end], move.high - move.low)
