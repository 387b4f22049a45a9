"""Tables over many processes in lockstep: ids travel to the ranks that own them, rows come back, gradients follow.

Legend: B asked ids, R distinct ids, D width, W ranks, T tables of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.errors import ConfigError, ModeError, PeerError
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.gather import gather
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.transport import sending
from graph_emb.transport.base import Push
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.routing import Layout, Route, layout

PULL, PUSH, WRITE = 1, 2, 3
HEAD = 16
"""Numbers that every call exchanges first: enough for a push of six tables."""


@dataclass
class _Table:
    """A table as this rank sees it: its shard, who stores the rest, and whether an optimizer trains it."""

    spec: TableSpec
    layout: Layout
    shard: EmbeddingShard
    number: int
    attached: bool = False


@dataclass
class Traffic:
    """What this rank asked for and sent, since the start.

    Attributes:
        asked: Ids asked for, repeats counted.
        distinct: Ids asked for, each once a pull.
        local: Distinct ids that this rank owns.
        bytes_sent: Ids, rows and gradients sent to other ranks.
        steps: Pushes.
    """

    asked: int = 0
    distinct: int = 0
    local: int = 0
    bytes_sent: int = 0
    steps: int = 0

    @property
    def local_share(self) -> float:
        """The share of distinct ids that did not travel."""
        return self.local / self.distinct if self.distinct else 1.0


class CollectiveTransport:
    """Every rank stores a part of each table and takes part in every pull and push, with no rows if need be.

    Args:
        group: The processes.
        part: The part at which this rank sits (its machine's part), or None: ranks sit at the parts in order.
    Raises:
        ConfigError: some ranks name a part and others do not.
    """

    lockstep = True

    def __init__(self, group: ProcessGroup, part: int | None = None) -> None:
        self.group = group
        self.rank = group.rank
        self.world_size = group.world_size
        self.local_rank = group.local_rank
        self.traffic = Traffic()
        self._tables: dict[str, _Table] = {}
        self._created = 0
        self._closed = False
        parts = group.gather_objects(part, "init")
        if any(p is None for p in parts) and any(p is not None for p in parts):
            raise ConfigError(f"init(part=...): the ranks gave {parts}; give a part on every rank or on none")
        self._parts_of_ranks: list[int] | None = None if part is None else parts

    def create(self, spec: TableSpec) -> None:
        """Allocate and initialise the rows of this rank. Every rank must create the same tables in the same order.

        Raises:
            ConfigError: a live table has the name already, or the partition does not fit the ranks.
        """
        self._check_open()
        if spec.name in self._tables:
            old = self._tables[spec.name].spec
            raise ConfigError(
                f"a table {spec.name!r} of shape ({old.num_rows}, {old.dim}) is alive already; "
                "choose another name or drop the old DistEmbedding first"
            )
        places = layout(spec.book, self.world_size, self._parts_of_ranks, spec.name)
        low, high = places.owned(self.rank)
        self._created += 1
        self._tables[spec.name] = _Table(spec, places, EmbeddingShard(spec, low, high - low), self._created)

    def destroy(self, table: str) -> None:
        """Free this rank's rows of a table. Waits for nobody, so that a garbage collector may call it."""
        self._tables.pop(table, None)

    def attach(self, table: str, rule: SparseRule) -> None:
        """Allocate the rule's state beside this rank's rows.

        Raises:
            ModeError: another optimizer trains the table.
        """
        found = self._table(table)
        if found.attached:
            raise ModeError(f"table {table!r} is trained by another optimizer; close() that one first")
        found.shard.allocate_state(rule.state_specs())
        found.attached = True

    def detach(self, table: str) -> None:
        """Free the optimizer state of a table; a table that is gone already is fine."""
        if table in self._tables and self._tables[table].attached:
            self._tables[table].shard.free_state()
            self._tables[table].attached = False

    def pull(self, table: str, ids: Tensor) -> Tensor:
        """Rows of checked ids, shape (B, D), in request order, duplicates kept. Every rank must call it.

        Each distinct id is asked for once; rows that this rank owns do not travel.

        Raises:
            PeerError: a process is gone, or is in another call.
        """
        found = self._table(table)
        route = found.layout.route(ids, self.rank)
        self._count(route, len(ids), found.spec)
        rows = self._fetch(found, route)
        return gather(rows, route.place.to(rows.device))

    def _fetch(self, found: _Table, route: Route) -> Tensor:
        """The rows of a route's ids, shape (R, D), in the route's order."""
        own, shard = route.counts[self.rank], found.shard
        rows = shard.weight.new_empty((len(route.ids), found.spec.dim))
        remote = len(route.ids) - own
        shard.read_into(route.ids[remote:] - shard.first_id, rows[remote:])
        if self.world_size > 1:
            asks = list(route.counts)
            asks[self.rank] = 0
            what = f"pull of table {found.spec.name!r}"
            wanted = self._agree_counts(PULL, found.number, asks, what)
            asked = self.group.exchange(route.ids[:remote], asks, wanted, what)
            served = shard.read(asked.to(shard.weight.device) - shard.first_id)
            self.group.exchange_into(rows[:remote], served, wanted, asks, what)
            self.traffic.bytes_sent += remote * 8 + served.numel() * served.element_size()
        return rows

    def push(self, pushes: Sequence[Push]) -> None:
        """Merge, send to the owners, merge there in the order (id, source rank, position), apply. Every rank calls it.

        One exchange carries the gradients of all tables. A table that no rank touched is left alone.

        Raises:
            PeerError: a process is gone, or is in another call.
        """
        tables = [self._table(push.table) for push in pushes]
        parcels = [sending.pack(push, t.layout, t.spec) for push, t in zip(pushes, tables, strict=True)]
        if self.world_size > 1:
            parcels = self._deliver(tables, parcels)
        for push, table, parcel in zip(pushes, tables, parcels, strict=True):
            if parcel.touched:
                ids, grads = sending.unpack(parcel, push)
                rows = ids.to(grads.device) - table.shard.first_id
                apply_update(push.rule, table.shard, rows, grads, "sum", prepared=True)
        self.traffic.steps += 1

    def _deliver(self, tables: list[_Table], parcels: list[sending.Parcel]) -> list[sending.Parcel]:
        """Exchange the parcels of all tables: sizes, then ids, then gradients."""
        what = f"push of table {', '.join(repr(table.spec.name) for table in tables)}"
        signature = sum((k + 1) * table.number for k, table in enumerate(tables))
        numbers = [[p.counts[rank] for p in parcels] + [p.touched for p in parcels] for rank in range(self.world_size)]
        got = self._agree(PUSH, signature, torch.tensor(numbers, dtype=torch.int64), what)
        incoming, touched = got[:, : len(parcels)].T.tolist(), got[:, len(parcels) :].any(dim=0).tolist()
        for parcel in parcels:
            travelling = len(parcel.ids) - parcel.counts[self.rank]
            self.traffic.bytes_sent += travelling * (8 + parcel.grads.shape[1] * parcel.grads.element_size())
        return sending.exchange(self.group, parcels, incoming, touched, what)

    def _agree(self, call: int, number: int, per_rank: Tensor, what: str) -> Tensor:
        """Exchange one row of numbers with every rank, shape (W, K), and check that all are in the same call.

        Raises:
            PeerError: a rank is in another call.
        """
        num = per_rank.shape[1]
        head = torch.zeros(self.world_size, HEAD, dtype=torch.int64)
        head[:, :3] = torch.tensor([call, number, num])
        head[:, 3 : 3 + num] = per_rank[:, : HEAD - 3]
        ones = [1] * self.world_size
        got = self.group.exchange(head, ones, ones, what)
        wrong = (got[:, :3] != head[:, :3]).any(dim=1).nonzero().flatten().tolist()
        if wrong:
            raise PeerError(
                f"rank {self.rank} is in {what}, rank {', '.join(map(str, wrong))} in another call; in collective mode "
                "every rank makes the same calls in the same order (graph_emb.in_step keeps loops of unequal length "
                "together)"
            )
        if num <= HEAD - 3:
            return got[:, 3 : 3 + num]
        rest = self.group.exchange(per_rank[:, HEAD - 3 :].contiguous(), ones, ones, what)
        return torch.cat([got[:, 3:], rest], dim=1)

    def _agree_counts(self, call: int, number: int, counts: list[int], what: str) -> list[int]:
        """Tell every rank how many rows are for it; returns how many each has for this one."""
        return self._agree(call, number, torch.tensor(counts).unsqueeze(1), what)[:, 0].tolist()

    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite rows of checked distinct ids. Every rank must call it; the highest rank wins where ids overlap."""
        found = self._table(table)
        shard, what = found.shard, f"write of table {table!r}"
        route = found.layout.route(ids, self.rank)
        sent = values.to(shard.weight.device, shard.weight.dtype).index_select(0, torch.from_numpy(route.first))
        own = route.counts[self.rank]
        remote = len(route.ids) - own
        blocks = [(route.ids[remote:], sent[remote:])]
        if self.world_size > 1:
            counts = list(route.counts)
            counts[self.rank] = 0
            coming = self._agree_counts(WRITE, found.number, counts, what)
            got_ids = self.group.exchange(route.ids[:remote], counts, coming, what).split(coming)
            got = self.group.exchange(sent[:remote].contiguous(), counts, coming, what).split(coming)
            others = list(zip(got_ids, got, strict=True))
            blocks = [*others[: self.rank], blocks[0], *others[self.rank + 1 :]]
        for block_ids, block in blocks:
            shard.write(block_ids.to(shard.weight.device) - shard.first_id, block)

    def flush(self) -> None:
        """Nothing is ever pending: a push returns when this rank's rows are updated."""
        self._check_open()

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._check_open()
        self.group.barrier()

    def shard(self, table: str) -> EmbeddingShard:
        """The rows that this rank stores.

        Raises:
            ModeError: no such table, or the transport was closed.
        """
        return self._table(table).shard

    def close(self) -> None:
        """Free every table and leave the group; later calls raise."""
        if not self._closed:
            self._tables.clear()
            self._closed = True
            self.group.close()

    def _table(self, table: str) -> _Table:
        self._check_open()
        if table not in self._tables:
            raise ModeError(f"no table {table!r} here; live tables: {', '.join(sorted(self._tables)) or 'none'}")
        return self._tables[table]

    def _count(self, route: Route, asked: int, spec: TableSpec) -> None:
        self.traffic.asked += asked
        self.traffic.distinct += len(route.ids)
        self.traffic.local += route.counts[self.rank]

    def _check_open(self) -> None:
        if self._closed:
            raise ModeError("graph_emb was shut down; call graph_emb.init() and create the tables again")
