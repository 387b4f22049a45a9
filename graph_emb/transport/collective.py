"""Tables over many processes in lockstep: ids travel to the ranks that own them, rows come back, gradients follow.

Legend: B asked ids, R distinct ids, S sent rows, D width, W ranks, T tables of a step.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.hash_book import HashPolicy
from graph_emb.graph.partition_book import PartitionBook, RankRanges, Route
from graph_emb.optim.apply import Update, apply_updates, merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.bags import Bags
from graph_emb.table.growing_rows import check_total
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.live_rows import LiveRows
from graph_emb.table.shard import EmbeddingShard, copy_rows, gather, narrower
from graph_emb.table.spec import TableSpec, accumulation_dtype
from graph_emb.table.tier.demoting_shard import growing_shard_for
from graph_emb.table.tier.shard import shard_for
from graph_emb.transport import columns, lockstep
from graph_emb.transport.base import LiveTables, Push, Reach, ShardRows, TableRows, checked_wire, squares
from graph_emb.transport.in_place import InPlace, StepCalls
from graph_emb.transport.lockstep import FIXED, HEAD, RankTable
from graph_emb.transport.pieces import Outgoing, exchange_columns
from graph_emb.transport.prefetching import Prefetching
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.push_packing import Packed, exchange, pack_share, settle

F = TypeVar("F", bound=Callable[..., Any])


class JointCalls:
    """The joint calls of a rank, numbered in their order.

    A call counts from its first check on: a rank that refuses its ids, and goes on, has skipped the call that the
    others wait in, and both sides can name it. An error after numbers have travelled leaves the ranks out of step
    (``ProcessGroup.fail``).

    Args:
        group: The ranks; it keeps the number.
        tables: The live ones, which errors describe.
    """

    def __init__(self, group: ProcessGroup, tables: Mapping[str, RankTable] | None = None) -> None:
        self._group, self._tables = group, {} if tables is None else tables
        self._within = self._travels = False

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """A joint call with its checks; within another one it is a part of that."""
        if self._within:
            yield
            return
        if self._group.failed:
            self._group.check()
        self._group.num_calls += 1
        self._group.last_calls.append(what)
        self._within, self._travels = True, False
        try:
            yield
        except BaseException as error:
            if self._travels:
                self._group.fail(what, error)
            raise
        finally:
            self._within = False

    def agree(self, call: int, number: int, per_rank: Tensor, what: str) -> Tensor:
        """Exchange one row of K numbers with every rank, and check that all are in the same call. Every rank calls it.

        Args:
            call: This rank's call (``PULL`` ...).
            number: What it is about: the ``signature`` of its tables, the round of walks.
            per_rank: The numbers for each rank, (W, K), int64.
            what: The words with which an error names the call.
        Returns:
            The numbers of each rank for this one, (W, K).
        Raises:
            PeerError: a process is gone, is in another call, or has skipped one.
        """
        with self.call(what):
            self._travels = True
            ranks, num, room = self._group.world_size, per_rank.shape[1], HEAD - FIXED
            head = torch.zeros(ranks, HEAD, dtype=torch.int64)
            head[:, :FIXED] = torch.tensor([call, number, num, self._group.num_calls])
            head[:, FIXED : FIXED + num] = per_rank[:, :room]
            got = self._group.exchange_numbers(head, what)
            wrong = (got[:, :FIXED] != head[:, :FIXED]).any(dim=1).nonzero().flatten().tolist()
            if wrong:
                others = {rank: (int(got[rank, 0]), int(got[rank, 1])) for rank in wrong}
                skipped = self._skipped({rank: int(got[rank, 3]) for rank in wrong})
                raise lockstep.told_apart(self._group.rank, what, others, self._tables, skipped)
            if num <= room:
                return got[:, FIXED : FIXED + num]
            rest = self._group.exchange_numbers(per_rank[:, room:].contiguous(), what)
            return torch.cat([got[:, FIXED:], rest], dim=1)

    def _skipped(self, places: Mapping[int, int]) -> str:
        """Who skipped which call, from the number of the call that each rank is in."""
        own, place = self._group.num_calls, min(places.values())
        ahead = [rank for rank, theirs in places.items() if theirs > own]
        if ahead:
            return f"; rank {', '.join(map(str, ahead))} skipped {self._group.last_calls[-1]} (joint call {own})"
        back = own - place
        known = self._group.last_calls[-1 - back] if back < len(self._group.last_calls) else "a call"
        return f"; rank {self._group.rank} skipped {known} (joint call {place})" if back else ""


def _joint(what: str) -> Callable[[F], F]:
    """Decorator of a call about a table, or about pushes, that the ranks make together: see ``Transport.joint``."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call(self: CollectiveTransport, about: Any, *args: Any, **options: Any) -> Any:
            names = [about] if isinstance(about, str) else [one[0] for one in about]  # of a Push it is the table
            with self.joint(f"{what} of table {', '.join(map(repr, names))}"):
                return method(self, about, *args, **options)

        return cast("F", call)

    return decorate


class CollectiveTransport(Prefetching):
    """Every rank stores a part of each table and takes part in every pull and push, with no rows if need be.

    Args:
        group: The processes.
        part: The part at which this rank sits (its machine's part), or None: ranks sit at the parts in order.
        staleness: 0: prefetched rows that a step changed are sent again; 1: they may be one step old.
        hogwild: Lay rows where all ranks reach them (``in_reach``), so that models that train in place need not copy
            each other's: faster, but updates of two ranks to one row at one time can be lost. Pulls and pushes are as
            exact as ever, but for those ``in_place``. None: where several ranks share the memory of one machine.
        wire_dtype: ``torch.bfloat16`` or ``torch.float16``: rows of other ranks, and all gradients, are rounded to it
            where they are exchanged: half the bytes, and not the numbers of one process. ``torch.int8``: copies that
            ranks train (``LocalSGDRows``) have 8 bits a number and a scale a row; all else is bfloat16. None: exact.
    Raises:
        ConfigError: some ranks name a part and others do not, staleness is neither 0 nor 1, or hogwild is asked for
            and ranks do not share memory.
    """

    mode = "collective"
    lockstep = True
    alone: StepCalls | None = None
    """The step in which others than this one answer pulls and pushes (``in_place``, ``HeldRows``)."""

    def __init__(
        self,
        group: ProcessGroup,
        part: int | None = None,
        staleness: int = 0,
        hogwild: bool | None = False,
        wire_dtype: torch.dtype | str | None = None,
    ) -> None:
        # First: a rank that refuses its options at once closes connections that others are still making.
        parts = group.gather_objects(part, "init")
        if staleness not in (0, 1):
            raise ConfigError(f"staleness={staleness!r} must be 0 (prefetched rows are exact) or 1 (one step old)")
        if hogwild and group.world_size > 1 and not group.same_memory:
            raise ConfigError(
                "hogwild=True: ranks must share the memory of one machine with x86 cores, with shared_memory=True and "
                "without $GRAPH_EMB_SHARED_MEMORY=0"
            )
        self.staleness, self.wire_dtype = staleness, checked_wire(wire_dtype, torch.int8)
        self.hogwild = group.world_size > 1 and group.same_memory if hogwild is None else hogwild
        self.group = group
        self.rank = group.rank
        self.world_size = group.world_size
        self.local_rank = group.local_rank
        super().__init__()
        self.link = group.link
        self.machine, self.num_servers = int(os.environ.get("GROUP_RANK", 0)), group.world_size
        self._tables: LiveTables[RankTable] = LiveTables()
        self._created = 0
        calls = JointCalls(group, self._tables)
        self.agree = calls.agree
        if self.world_size > 1:
            self.joint = calls.call
        if any(p is None for p in parts) and any(p is not None for p in parts):
            raise ConfigError(f"init(part=...): the ranks gave {parts}; give a part on every rank or on none")
        self._parts_of_ranks: list[int] | None = None if part is None else parts

    def create(self, spec: TableSpec) -> None:
        self._tables.check_free(spec.name)
        if spec.growth:
            assert isinstance(spec.book, HashPolicy)
            if self.hogwild:
                raise ConfigError(
                    f"table {spec.name!r} grows: its owner makes each row, so hogwild=True cannot hold it"
                )
            places = lockstep.layout_of_keys(spec.book, self.world_size, self._parts_of_ranks, spec.name)
            self._created += 1
            made = lockstep.identity(spec, self._created, places)
            self._tables[spec.name] = RankTable(spec, places, growing_shard_for(spec, self.rank), made)
            return
        places = self.layout(spec.book, spec.name)
        low, high = places.owned(self.rank)
        rows = lockstep.shared_rows(self.group, spec) if self.hogwild else None
        shard = shard_for(spec, low, high - low, None if rows is None else rows[low:high])
        self._created += 1
        self._tables[spec.name] = RankTable(spec, places, shard, lockstep.identity(spec, self._created, places), rows)
        if self.hogwild:
            made = self._tables[spec.name].identity
            self._tell(
                lockstep.CREATE, made, 0, f"create of table {spec.name!r}"
            )  # no rank reads rows that are not filled yet

    @_joint("in_place")
    def in_place(self, tables: Sequence[str]) -> InPlace:
        """As ``Transport.in_place``: ranks share rows, and move their state to where all reach it."""
        if not self.hogwild or self.world_size == 1:
            raise ModeError(
                "in_place: ranks step alone where they share rows; several of one machine, graph_emb.init(hogwild=True)"
            )
        found = {name: self._tables[name] for name in tables}
        for table in found.values():
            lockstep.share_state(self.group, table)
        return InPlace(self, found)

    def layout_of(self, table: str) -> RankRanges:
        """Which rank stores which rows of a live table."""
        return self._tables[table].ranges

    def rank_table(self, table: str) -> RankTable:
        """A live table as this rank sees it."""
        return self._tables[table]

    def mark_changed(self, table: str, rows: Tensor) -> None:
        """Note that rows of this rank's shard change, for those who have fetched them before they ask for them."""
        early = self._tables[table].early
        if early is not None and early.changed is not None:
            early.changed[slice(None) if self._tables[table].shard.lazy else rows] = True

    def layout(self, book: PartitionBook, table: str) -> RankRanges:
        """Which rank stores which rows of a table with this book."""
        return lockstep.layout(book, self.world_size, self._parts_of_ranks, table)

    def attach(self, table: str, rule: SparseRule) -> None:
        self._tables[table].shard.allocate_state(rule.state_specs())

    def detach(self, table: str) -> None:
        if table in self._tables:
            self._tables[table].shard.settle()
            self._tables[table].shard.free_state()

    def will_train(self, asked: Sequence[tuple[str, Tensor]]) -> None:
        if self.alone is not None:
            self.alone.will_train(asked)

    @_joint("pull")
    def pull(self, table: str, ids: Tensor) -> Tensor:
        """As ``Transport.pull``. Each distinct id is asked for once; rows that this rank owns do not travel."""
        if self.alone is not None:
            return self.alone.pull(table, ids)
        found = self._tables[table]
        if found.early is not None:
            rows, route = self._finish(found, ids), found.early.route
            found.early = None
            return gather(rows, route.place.to(rows.device))
        route = found.ranges.route(ids, self.rank)
        self._count(table, route, len(ids))
        weight, remote = found.shard.weight, len(route.ids) - route.counts[self.rank]
        others = weight.new_empty((remote, found.spec.dim), dtype=narrower(weight.dtype, self.wire_dtype))
        if self.world_size > 1:
            asks, wanted, asked = self._ask(lockstep.PULL, found, route)
            served = self.group.outgoing(others, len(asked))
            self.counts[table].bytes_sent += served.numel() * served.element_size()
            if others.dtype is weight.dtype:
                found.shard.read_into(asked, served)
            else:
                served.copy_(found.shard.read(asked))
            self.group.exchange_into(others, served, wanted, asks, f"pull of table {table!r}")
        own = (route.ids[remote:] - found.shard.first_id).to(weight.device)
        return copy_rows([found.shard.copy_of(own, others.to(weight.dtype), route.place.to(weight.device))])[0]

    def pull_sums(self, table: str, bags: Bags) -> Tensor:
        return super().pull_sums(table, bags) if self.alone is None else self.alone.pull_sums(table, bags)

    @_joint("pull")
    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """As ``Transport.pull_tables``; tables with prefetched rows, and those of other devices, are pulled alone."""
        if self.alone is not None:
            return self.alone.pull_tables(asked)
        rows: dict[int, Tensor] = {}
        device = self._tables[asked[0][0]].spec.device
        for k, (name, ids) in enumerate(asked):
            table = self._tables[name]
            if self.world_size == 1 or table.early is not None or table.spec.device != device:
                rows[k] = self.pull(name, ids)
        together = [k for k in range(len(asked)) if k not in rows]
        if together:
            rows.update(zip(together, self._pull_at_once([asked[k] for k in together]), strict=True))
        return [rows[k] for k in range(len(asked))]

    def _pull_at_once(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """Rows of tables of one device by one exchange of counts, one of ids and one of rows."""
        names = [name for name, _ in asked]
        what = f"pull of table {', '.join(map(repr, names))}"
        tables = [self._tables[name] for name in names]
        routes = [table.ranges.route(ids, self.rank) for table, (_, ids) in zip(tables, asked, strict=True)]
        asks = [[0 if rank == self.rank else n for rank, n in enumerate(route.counts)] for route in routes]
        wanted = self.agree(lockstep.PULL, self.signature(names), torch.tensor(asks).T, what).T.tolist()
        sent = [route.ids[: sum(counts)] for route, counts in zip(routes, asks, strict=True)]
        came = exchange_columns(self.group, sent, asks, wanted, what)
        room = Outgoing(self.group, [self._wired(table.shard.weight[:0]) for table in tables], wanted)
        copies = []
        for k, (table, ids) in enumerate(zip(tables, came, strict=True)):
            for of_rank, rows in zip(room.pieces, _rows(table, ids).split(wanted[k]), strict=True):
                if of_rank[k].dtype is table.spec.dtype:
                    copies.append(table.shard.copy_of(rows, out=of_rank[k]))
                else:
                    of_rank[k].copy_(table.shard.read(rows))
        copy_rows(copies)
        others = room.exchange(asks, what)
        found = []
        for (name, ids), table, route, away, given in zip(asked, tables, routes, others, wanted, strict=True):
            self._count(name, route, len(ids))
            row_bytes = table.spec.dim * away.element_size()
            self.counts[name].bytes_sent += len(away) * 8 + sum(given) * row_bytes
            own = _rows(table, route.ids[len(away) :])
            found.append(table.shard.copy_of(own, away.to(table.spec.dtype), route.place.to(own.device)))
        return copy_rows(found)

    def _ask(self, call: int, found: RankTable, route: Route) -> tuple[list[int], list[int], Tensor]:
        """Send the remote ids to their owners: counts that this rank asks for, is asked for, and the rows wanted."""
        asks = list(route.counts)
        asks[self.rank] = 0
        what = f"{'pull' if call == lockstep.PULL else 'prefetch'} of table {found.spec.name!r}"
        wanted = self._agree_counts(call, found.identity, asks, what)
        asked = self.group.exchange(route.ids[: sum(asks)], asks, wanted, what)
        self.counts[found.spec.name].bytes_sent += sum(asks) * 8
        return asks, wanted, asked.to(found.shard.weight.device) - found.shard.first_id

    @_joint("push")
    def push(self, pushes: Sequence[Push]) -> None:
        """Merge, send to the owners, merge there in the order (id, source rank, position), apply.

        One exchange carries the gradients of all tables, and one pass applies them. A table that no rank touched is
        left alone.
        """
        if self.alone is not None:
            self.alone.push(pushes)
            return
        packed, touched = self._at_owners(lockstep.PUSH, pushes, "push")
        reached: list[tuple[str, Update]] = []
        for push, came, any_rank in zip(pushes, packed, touched, strict=True):
            if any_rank:
                shard = self._tables[push.table].shard
                ids, grads, occurrences = settle(came)
                rows = ids.to(grads.device) - shard.first_id
                self.mark_changed(push.table, rows)
                update = Update(push.rule, shard, rows, grads, prepared=True, occurrences=occurrences)
                reached.append((push.table, update))
        apply_updates([update for _, update in reached])
        for table, update in reached:
            if isinstance(update.shard, GrowingShard):
                update.shard.after_step(self._total_of(table))
            self.counts[table].steps += 1
        self.num_steps += 1

    @_joint("norm of the gradients")
    def square_of_gradients(self, pushes: Sequence[Push]) -> list[float]:
        """As ``Transport.square_of_gradients``, of all ranks, merged at the owners: the same numbers on each."""
        if self.alone is not None:
            return self.alone.square_of_gradients(pushes)
        packed, _ = self._at_owners(lockstep.NORM, pushes, "norm of the gradients")
        own = [number for came in packed for number in squares(merge(*settle(came)[:2])[1])]
        names = [push.table for push in pushes]
        told = torch.tensor([own] * self.world_size, dtype=torch.float64).view(torch.int64)
        if self.world_size == 1:
            return own
        what = f"norm of the gradients of table {', '.join(map(repr, names))}"
        got = self.agree(lockstep.NORM, self.signature(names), told, what)
        found: list[float] = got.contiguous().view(torch.float64).flatten().tolist()
        return found

    def _at_owners(self, call: int, pushes: Sequence[Push], word: str) -> tuple[list[Packed], list[bool]]:
        """Gradients merged on each rank, at the owners of their rows, by table; and which tables any rank touched."""
        both = [(push, self._tables[push.table]) for push in pushes]
        packed = [
            pack_share(p, t.ranges, accumulation_dtype(t.spec.dtype), t.spec.device, t.spec.counts_occurrences)
            for p, t in both
        ]
        touched = [push.touched for push in pushes]
        if self.world_size > 1:
            names, exact = [push.table for push in pushes], [p.grads.dtype for p in packed]
            packed = [p._replace(grads=self._wired(p.grads)) for p in packed]
            what = f"{word} of table {', '.join(map(repr, names))}"
            numbers = [[*(p.counts[rank] for p in packed), *touched] for rank in range(self.world_size)]
            growing = [table.shard for _, table in both if isinstance(table.shard, GrowingShard)]
            rules = lockstep.number_of_rules(push.rule for push in pushes)
            told = torch.tensor([[*row, *(shard.num_rows for shard in growing), rules] for row in numbers])
            got = self.agree(call, self.signature(names), told, what)
            lockstep.check_rules(what, rules, got[:, -1].tolist(), pushes)
            touched = got[:, len(packed) : 2 * len(packed)].any(dim=0).tolist()
            for shard, num in zip(growing, got[:, 2 * len(packed) : -1].sum(dim=0).tolist(), strict=True):
                check_total(shard.spec, num)
            for name, p in zip(names, packed, strict=True):
                travelling = len(p.ids) - p.counts[self.rank]
                row_bytes = (8 if p.occurrences is None else 16) + p.grads.shape[1] * p.grads.element_size()
                self.counts[name].bytes_sent += travelling * row_bytes
            packed = exchange(self.group, packed, got[:, : len(packed)].T.tolist(), what)
            packed = [p._replace(grads=p.grads.to(dtype)) for p, dtype in zip(packed, exact, strict=True)]
        return packed, touched

    def _wired(self, values: Tensor) -> Tensor:
        """Rows or gradients as they travel."""
        return values.to(narrower(values.dtype, self.wire_dtype))

    def signature(self, tables: Sequence[str]) -> int:
        """A number that tells calls for these tables from calls for others."""
        return lockstep.signature([self._tables[name].identity for name in tables])

    def _agree_counts(self, call: int, number: int, counts: list[int], what: str) -> list[int]:
        """Tell every rank how many rows are for it; returns how many each has for this one."""
        return self.agree(call, number, torch.tensor(counts).unsqueeze(1), what)[:, 0].tolist()

    def _tell(self, call: int, number: int, said: int, what: str) -> int:
        """Tell every rank a number; returns the sum of all, this rank's included."""
        return int(self.agree(call, number, torch.full((self.world_size, 1), said), what).sum())

    @_joint("write")
    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        found, what = self._tables[table], f"write of table {table!r}"
        sent = values.to(found.shard.weight)
        for rows, block in columns.blocks_for_owner(self.group, self.agree, lockstep.WRITE, found, "", ids, sent, what):
            found.shard.write(rows, block)
            self.mark_changed(table, rows)

    @_joint("state")
    def read_state(self, table: str, name: str, ids: Tensor) -> Tensor:
        what = f"read of {name} of table {table!r}"
        return columns.fetch(self.group, self.agree, lockstep.READ_STATE, self._tables[table], name, ids, what)

    @_joint("state")
    def write_state(self, table: str, name: str, ids: Tensor, values: Tensor) -> None:
        found, what = self._tables[table], f"write of {name} of table {table!r}"
        sent = values.to(found.shard.state[name])
        for rows, block in columns.blocks_for_owner(
            self.group, self.agree, lockstep.WRITE_STATE, found, name, ids, sent, what
        ):
            found.shard.overwrite_state(name, rows, block)
            self.mark_changed(table, rows)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        self._tables.check_open()
        told = torch.tensor([list(numbers)] * self.world_size)
        found: list[list[int]] = self.agree(lockstep.VOTES, 0, told, "votes").tolist()
        return found

    def barrier(self) -> None:
        self._tables.check_open()
        self._tell(lockstep.BARRIER, 0, 0, "barrier")

    def shard(self, table: str) -> EmbeddingShard:
        return self._tables[table].shard

    def in_reach(self, table: str) -> Reach:
        """As ``Transport.in_reach``: the rows of this rank, in Hogwild all."""
        found = self._tables[table]
        frozen = found.shard.frozen is not None  # on every rank, where rows of any are
        end = 0 if found.shard.lazy or found.shard.grows else None
        if self.hogwild and found.shared is not None:
            return Reach(0, found.shared[:end], frozen)
        return Reach(found.shard.first_id, found.shard.weight[:end], frozen)

    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        found = self._tables[table]
        if overwrite and found.early is not None:
            if found.early.changed is not None:
                found.early.changed[:] = True
            elif self.world_size > 1:
                raise ModeError(f"table {table!r}: pull the prefetched rows before a checkpoint is loaded")
        return [LiveRows(found.shard) if isinstance(found.shard, GrowingShard) else ShardRows(found.shard)]

    def close(self) -> None:
        if not self._tables.closed:
            self._tables.close()
            self.group.close()

    def _count(self, table: str, route: Route, asked: int) -> None:
        counts = self.counts[table]
        counts.asked += asked
        counts.distinct += len(route.ids)
        counts.local += route.counts[self.rank]


def _rows(table: RankTable, ids: Tensor) -> Tensor:
    """Positions in this rank's shard of ids that it owns, where the shard lies."""
    return ids.to(table.shard.weight.device) - table.shard.first_id
