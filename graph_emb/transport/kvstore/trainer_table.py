"""A table as a trainer of kvstore mode sees it, and as each server needs it.

Legend: S rows of a push, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graph_emb.graph.original_ids import ArrayIds, FileIds
from graph_emb.graph.partition_book import RangeBook, RankRanges
from graph_emb.optim.apply import Merge, apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.initializers import FromArray, OwnerInitializer
from graph_emb.table.shard import StateSpec, TableSpec
from graph_emb.transport.base import ShardRows, TableRows
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.calls import Exchange, Session


@dataclass
class TrainerTable:
    """Who owns what, and the rows of the trainer's own machine, which it reads in shared memory.

    Attributes:
        key: The table's name and how many tables of that name were made before.
        low, high: The ids of this machine.
        shard: Their rows.
        optimizers: How many were attached so far.
        push_handler, pull_handler: Whether a user's handler is registered.
        pending: Pushes since the last flush.
    """

    spec: TableSpec
    book: RangeBook
    owners: RankRanges
    key: tuple[str, int]
    low: int
    high: int
    shard: shared.SharedShard
    optimizers: int = 0
    push_handler: bool = False
    pull_handler: bool = False
    pending: int = 0

    def open_state(self, spec: StateSpec, names: dict[str, str]) -> Tensor:
        """A piece of the optimizer's state: mapped, or, of a per-table clock, the trainer's own."""
        shape, dtype = spec.shape(self.shard.num_rows, self.spec.dim), spec.dtype_beside(self.spec.dtype)
        if spec.kind == "table":  # it travels with each push
            return torch.full(shape, spec.initial, dtype=dtype)
        return shared.open_segment(
            names[spec.name], shape, dtype, f"table {self.spec.name!r}: {spec.name}", create=False
        )

    def clocks(self) -> dict[str, float]:
        kinds = self.shard.state_specs
        return {name: value.item() for name, value in self.shard.state.items() if kinds[name].kind == "table"}

    def apply(self, rule: SparseRule, ids: Tensor, grads: Tensor, how: Merge) -> None:
        """Do what the servers of this machine do with a push (Hogwild); the clocks stay as they are."""
        clocks = self.clocks()
        shard = self.shard.narrow(0, self.shard.num_rows)
        shard.state = {name: t.clone() if name in clocks else t for name, t in shard.state.items()}
        apply_update(rule, shard, ids - self.low, grads, how)


class ServerArray(FromArray):
    """The rows of an array from ``first_id`` on."""

    def __init__(self, array: Tensor, first_id: int) -> None:
        super().__init__(array)
        self._first_id = first_id

    def fill_(self, weight: Tensor, first_id: int) -> None:
        super().fill_(weight, first_id - self._first_id)


def for_server(spec: TableSpec, book: RangeBook, server: int, *, send_ids: bool = False) -> TableSpec:
    """The spec with ranges per server, and of an array, a file's ids or original ids only the server's own rows.

    With ``send_ids`` the original ids that lie in files are sent too: the server cannot read those.
    """
    low, high = book.bounds[server : server + 2].tolist()
    ids = spec.original_ids
    if isinstance(spec.initializer, FromArray):
        first = spec.initializer
        rows = first.array[low:high].clone() if ids is None else first.rows_of(ids.of(low, high), spec.dim)
        return replace(spec, book=book, initializer=ServerArray(rows, low), original_ids=None)
    if isinstance(spec.initializer, OwnerInitializer):
        spec = replace(spec, initializer=spec.initializer.for_owner(low, high))
    if ids is not None and (send_ids or not isinstance(ids, FileIds)):
        ids = ArrayIds(ids.of(low, high), high - low, low)
    return replace(spec, book=book, original_ids=ids)


class FarRows:
    """Rows of a machine where no trainer runs: the server that owns them reads and writes them (``TableRows``)."""

    def __init__(self, exchange: Exchange, server: int, table: TrainerTable) -> None:
        bounds = table.book.bounds.tolist()
        self.first_id, self.num_rows = bounds[server], bounds[server + 1] - bounds[server]
        self._exchange, self._server = exchange, server
        self._named = (table.key, table.optimizers if table.shard.attached else 0)

    def read(self, column: str, start: int, stop: int) -> Tensor:
        wanted = (*self._named, column, self.first_id + start, self.first_id + stop)
        return self._exchange.ask([(self._server, "read_column", wanted, ())])[0].tensors[0]

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        call = (self._server, "write_column", (*self._named, column), (rows + self.first_id, values))
        self._exchange.ask([call])

    def memory(self, column: str) -> Tensor | None:
        return None  # the rows are elsewhere


def own_share(table: TrainerTable, session: Session) -> shared.SharedShard:
    """A trainer's share of its machine's rows."""
    here = [trainer for trainer, machine in enumerate(session.machines) if machine == session.machine]
    bounds = RangeBook.even(table.high - table.low, len(here)).bounds
    low, high = bounds[here.index(session.rank) :][:2].tolist()
    return table.shard.narrow(low, high)


def shares(table: TrainerTable, exchange: Exchange, session: Session) -> list[TableRows]:
    """The pieces that a trainer saves and loads: its share of its machine's rows; machines without trainers in turn."""
    rank, machines = session.rank, list(session.machines)
    found: list[TableRows] = [ShardRows(own_share(table, session))]
    for machine in sorted(set(range(session.hosts.num_machines)) - set(machines)):
        if machine % len(machines) == rank:
            found += [FarRows(exchange, server, table) for server in session.hosts.servers_of(machine)]
    return found
