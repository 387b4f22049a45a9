"""Rows of a table that a rank holds alone for a while: it trains them without the others, then they go back.

Ranks whose steps touch disjoint rows need not exchange these in every step. Each one takes its rows with their state
from the owners, reads and changes them in its own memory, and writes them back when it takes others. Where ranks share
the memory of one machine no row moves: all lie where each rank reaches them, and a rank changes those that it holds.
Other tables are pulled and pushed by all ranks as ever.

Legend: B ids, N rows that are held, W ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.partition_book import RankRanges, num_distinct
from graph_emb.optim.apply import Update, apply_updates
from graph_emb.table.bags import Bags
from graph_emb.table.row_memory import allocate
from graph_emb.table.shard import EmbeddingShard
from graph_emb.transport.base import Push, Transport
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.in_place import WholeShard
from graph_emb.transport.lockstep import PREFETCH, PULL, WRITE, share_rows, share_state
from graph_emb.transport.row_moves import Arrived, Range, RowMoves, from_owners, to_owners


class HeldRows:
    """Disjoint rows of one table on each rank of collective mode, with their state. Every rank makes one.

    A context manager, to be entered for each step: within it pulls of the table and pushes to it stay in this process;
    they are made with the joint calls of the other tables, which need the others. Outside of it the table is as ever
    after ``give_back``, until the next step.

    Args:
        transport: Of the table.
        table: Its name; an optimizer trains it.
        num_rows: The most that a rank holds, N.
        early: Bytes, of a rank, of rows in files that are sent and received before ``hold`` asks for them; the same on
            every rank. Of rows in memory there is room for all.
    Attributes:
        in_place: Whether rows stay where they are, as all ranks reach them; on all ranks or on none.
    Raises:
        ConfigError: rows lie on a device or grow, decay lazily, are frozen, or are rounded where they travel; ranks of
            one machine have no memory to share.
    """

    def __init__(self, transport: CollectiveTransport, table: str, num_rows: int, early: int = 0) -> None:
        shard = transport.shard(table)
        if shard.weight.device.type != "cpu" or shard.grows or shard.lazy or shard.frozen is not None:
            raise ConfigError(
                f"table {table!r}: rows that ranks hold lie on the CPU, do not grow or decay lazily, and none is frozen"
            )
        if transport.wire_dtype is not None:
            raise ConfigError(
                f"table {table!r}: wire_dtype={transport.wire_dtype} would round all its rows whenever a rank takes "
                "them; leave it out"
            )
        self._transport, self._name, self._room = transport, table, num_rows
        in_memory = transport.votes(shard.in_memory and shard.spec.placement is None) == transport.world_size
        self.in_place = in_memory and transport.group.same_memory
        self._in_memory, self._early_bytes = in_memory, early
        self._stored, self._moves = shard, RowMoves(transport, table)
        self._shard: EmbeddingShard = _whole(transport, table) if self.in_place else _HeldShard(shard, num_rows)
        self._held: list[list[Range]] = [[] for _ in range(transport.world_size)]
        self._early: tuple[list[list[Range]], Callable[[], Arrived]] | None = None
        self._at: dict[Range, int] = {}
        self._dirty = False

    def __enter__(self) -> HeldRows:
        self._transport.alone = self
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.alone = None

    def hold(self, by_rank: Sequence[Sequence[Range]]) -> None:
        """Write back what is held and not in ranges, then take what is not here. Joint, outside of a step.

        In place it waits until no rank changes rows of before.

        Args:
            by_rank: Rows [low, high) that each rank is to hold, (W,), the same on every rank; none is fine. Two ranges
                of one call or several are disjoint or equal.
        Raises:
            ConfigError: more rows of a rank than there is room for.
        """
        asked = [list(ranges) for ranges in by_rank]
        if (num := max(sum(high - low for low, high in ranges) for ranges in asked)) > self._room:
            raise ConfigError(f"table {self._name!r}: {num} rows to hold, there is room for {self._room}")
        before, self._held = self._held, asked
        if self.in_place:
            self._at = {own: own[0] for own in asked[self._transport.rank]}
            self._transport.barrier()
            return
        if self._dirty:  # on all ranks or on none
            self._write_back(_without(before, asked))
        self._take(_without(asked, before))

    def announce(self, by_rank: Sequence[Sequence[Range]]) -> None:
        """Start to send what ranks hold next, as far as no rank holds it now. Joint, outside of a step.

        It travels while steps train; ``hold`` waits for it. Of rows in files as much as ``early`` has room for. Nothing
        where rows stay in place.

        Args:
            by_rank: As of ``hold``, whose next call it announces.
        """
        if self.in_place:
            return
        busy = [own for ranges in self._held for own in ranges]
        early = [[own for own in ranges if own not in busy] for ranges in by_rank]
        early = early if self._in_memory else self._fitting(early)
        if any(early):
            moves, what = from_owners(self._layout, early), f"prefetch of rows of table {self._name!r}"
            self._early = early, self._moves.start(PREFETCH, moves, self._of_owner, what, background=True)

    def _fitting(self, by_rank: Sequence[Sequence[Range]]) -> list[list[Range]]:
        """The ranges of each rank that travel early: one of each in turn, while every rank has room for its share."""
        found: list[list[Range]] = [[] for _ in by_rank]
        taken = [0] * len(by_rank)
        for turn in range(max(map(len, by_rank))):
            for rank, ranges in enumerate(by_rank):
                after = list(taken)
                for move in from_owners(self._layout, [[]] * rank + [ranges[turn : turn + 1]]):
                    for end in {move.source, move.target}:
                        after[end] += self._moves.columns.num_bytes(move.high - move.low)
                if max(after) <= self._early_bytes:
                    taken = after
                    found[rank] += ranges[turn : turn + 1]
        return found

    def give_back(self) -> None:
        """Write what is held to its owners, and hold it on; no rows travel after it. Joint, outside of a step."""
        if self._early is not None:
            self._early[1]()
        if self._dirty and self.in_place:
            self._transport.barrier()
        elif self._dirty:
            self._write_back(self._held)
        self._dirty = False

    @property
    def _layout(self) -> RankRanges:
        return self._transport.layout_of(self._name)

    def _write_back(self, by_rank: Sequence[Sequence[Range]]) -> None:
        """Send rows that ranks hold to their owners."""
        first, what = self._stored.first_id, f"write of rows of table {self._name!r}"
        for turn in self._turns(by_rank):
            for move, values in self._moves.start(WRITE, to_owners(self._layout, turn), self._of_held, what)():
                self._moves.columns.write(self._stored, move.low - first, values)
                self._transport.mark_changed(self._name, torch.arange(move.low - first, move.high - first))

    def _take(self, by_rank: Sequence[Sequence[Range]]) -> None:
        """Bring rows that ranks do not hold yet, those that were announced first."""
        rank, what = self._transport.rank, f"pull of rows of table {self._name!r}"
        kept = {own: at for own, at in self._at.items() if own in self._held[rank]}
        self._at = self._places(kept, by_rank[rank])
        early, self._early = self._early, None
        if early is not None:
            by_rank = _without(by_rank, early[0])
            self._put(early[1]())
        for turn in self._turns(by_rank):
            self._put(self._moves.start(PULL, from_owners(self._layout, turn), self._of_owner, what)())

    def _put(self, arrived: Arrived) -> None:
        """Rows into their places; those that were announced, and are not held, have none."""
        for move, values in arrived:
            if (at := self._place(move.low)) is not None:
                self._moves.columns.write(self._shard, at, values)

    def _turns(self, by_rank: Sequence[Sequence[Range]]) -> list[list[Sequence[Range]]]:
        """Ranges that travel together: all, or of a table in files, whose memory is short, one of each rank."""
        if self._in_memory:
            return [list(by_rank)] if any(by_rank) else []
        return [[ranges[k : k + 1] for ranges in by_rank] for k in range(max(map(len, by_rank)))]

    def _of_owner(self, low: int, high: int) -> list[Tensor]:
        first = self._stored.first_id
        return self._moves.columns.read(self._stored, low - first, high - first)

    def _of_held(self, low: int, high: int) -> list[Tensor]:
        at = self._place(low)
        assert at is not None
        return self._moves.columns.read(self._shard, at, at + high - low)

    def _place(self, row: int) -> int | None:
        """Where a row lies that this rank holds; None: it does not."""
        return next((at + row - low for (low, high), at in self._at.items() if low <= row < high), None)

    def _places(self, kept: dict[Range, int], coming: Sequence[Range]) -> dict[Range, int]:
        """Where ranges lie; those that stay move to the front."""
        assert isinstance(self._shard, _HeldShard)
        found, end = {}, 0
        for own, at in sorted(kept.items(), key=lambda one: one[1]):
            if at != end:
                self._shard.move(torch.arange(at, at + own[1] - own[0]), end)
            found[own], end = end, end + own[1] - own[0]
        for low, high in coming:
            found[low, high], end = end, end + high - low
        return found

    def _find(self, ids: Tensor) -> Tensor:
        """Positions of ids (B,), each one held."""
        found = torch.full_like(ids, -1)
        for (low, high), at in self._at.items():
            found = torch.where((ids >= low) & (ids < high), ids + (at - low), found)
        if len(found) and int(found.min()) < 0:
            raise ModeError(f"table {self._name!r}: id {int(ids[found < 0][0])} is in no part that this rank holds")
        return found

    def _with_others(self) -> _Outside:
        return _Outside(self._transport)

    def will_train(self, asked: Sequence[tuple[str, Tensor]]) -> None:
        """As ``Transport.will_train``: nothing is gained."""

    def pull(self, table: str, ids: Tensor) -> Tensor:
        """As ``Transport.pull``."""
        return self.pull_tables([(table, ids)])[0]

    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """As ``Transport.pull_tables``."""
        others = [one for one in asked if one[0] != self._name]
        with self._with_others():
            came = iter(self._transport.pull_tables(others) if others else [])
        return [self._pull(ids) if name == self._name else next(came) for name, ids in asked]

    def _pull(self, ids: Tensor) -> Tensor:
        counts, distinct = self._transport.counts[self._name], num_distinct(ids)
        counts.asked, counts.distinct = counts.asked + len(ids), counts.distinct + distinct
        counts.local += distinct
        return self._shard.read(self._find(ids))

    def pull_sums(self, table: str, bags: Bags) -> Tensor:
        """As ``Transport.pull_sums``."""
        return Transport.pull_sums(self._transport, table, bags)

    def push(self, pushes: Sequence[Push]) -> None:
        """As ``Transport.push``: gradients of held rows are applied here, at once."""
        with self._with_others():
            self._transport.push([push for push in pushes if push.table != self._name])
        for push in pushes:
            if push.table == self._name:
                assert isinstance(push.grads, Tensor)
                self._dirty = True
                apply_updates([Update(push.rule, self._shard, self._find(push.ids), push.grads, push.merge)])
                self._transport.counts[self._name].steps += 1

    def square_of_gradients(self, pushes: Sequence[Push]) -> list[float]:
        """As ``Transport.square_of_gradients``."""
        with self._with_others():
            return self._transport.square_of_gradients(pushes)


class _Outside:
    """A part of a step whose calls are those of all ranks."""

    def __init__(self, transport: CollectiveTransport) -> None:
        self._transport, self._alone = transport, transport.alone

    def __enter__(self) -> None:
        self._transport.alone = None

    def __exit__(self, *_: object) -> None:
        self._transport.alone = self._alone


def _whole(transport: CollectiveTransport, name: str) -> EmbeddingShard:
    """All rows of a table, moved with their state to memory of all ranks. Joint."""
    table = transport.rank_table(name)
    share_rows(transport.group, table)
    share_state(transport.group, table)
    return WholeShard(table)


class _HeldShard(EmbeddingShard):
    """Memory of held rows with their state; clocks of the table are those of the rank's own shard."""

    def __init__(self, shard: EmbeddingShard, num_rows: int) -> None:
        spec = shard.spec
        self.spec, self.first_id = spec, 0
        self.weight = allocate((num_rows, spec.dim), spec.dtype, spec.device, spec.name)
        state = {}
        for name, own in shard.state_specs.items():
            shape, dtype = own.shape(num_rows, spec.dim), own.dtype_beside(spec.dtype)
            fresh = shard.state[name] if own.kind == "table" else allocate(shape, dtype, spec.device, spec.name)
            state[name] = fresh
        self.hold_state(shard.state_specs, state)

    def move(self, rows: Tensor, start: int) -> None:
        """Copy rows with their state to those from ``start`` on, which lie in front of them."""
        target = slice(start, start + len(rows))
        for column in [self.weight, *(self.state[n] for n, own in self.state_specs.items() if own.kind != "table")]:
            column[target] = column[rows]


def _without(by_rank: Sequence[Sequence[Range]], others: Sequence[Sequence[Range]]) -> list[list[Range]]:
    """The ranges of each rank that are not among its other ones."""
    return [[own for own in ranges if own not in there] for ranges, there in zip(by_rank, others, strict=True)]
