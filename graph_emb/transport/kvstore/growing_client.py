"""Growing tables as a trainer has them: who owns which key, calls to the servers, and the rows of its own machine.

Between barriers rows are made, and none leaves: a barrier ends the steps before it. A trainer saves and restores the
rows of every ``world_size``-th server.

Legend: B asked keys, R rows, S servers.
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import numbered
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.hash_book import ExtendedBook, ExtendedRanges, HashPolicy, key_of, keys_of, ranges_of_keys
from graph_emb.graph.partition_book import RangeBook, RankRanges
from graph_emb.optim.rule import SparseRule
from graph_emb.table.growing_rows import COUNTS, GrowingRows, check_evicts, check_total
from graph_emb.table.id_map import IdMap
from graph_emb.table.live_rows import ChangedRows
from graph_emb.table.placement import File
from graph_emb.table.shard import RowCopy, lend
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.cache import CacheStats
from graph_emb.transport.base import LiveTables, TableRows, Transport
from graph_emb.transport.kvstore.layout import Hosts, server_book
from graph_emb.transport.kvstore.rpc import Answer, Exchange, Session, sendable
from graph_emb.transport.kvstore.shared import SharedShard, SparseRows
from graph_emb.transport.kvstore.trainer_table import TrainerTable

Calls = Callable[[Sequence[int], Callable[[int], Any]], list[Any]]
"""From servers, and a function that gives the segments that a server shall map (None: allocate), to calls."""


def with_whole_path(spec: TableSpec) -> TableSpec:
    """The same table, whose file a server finds that began in another folder."""
    if not isinstance(spec.placement, File):
        return spec
    return replace(spec, placement=replace(spec.placement, folder=os.path.abspath(spec.placement.path)))


def server_ranges(book: HashPolicy, hosts: Hosts, table: str) -> RankRanges:
    """The server that stores each key: parts follow machines as those of ids do (``server_book``)."""

    def servers(of: RangeBook) -> RankRanges:
        bounds = server_book(of, hosts, table).bounds.tolist()
        return RankRanges(bounds, range(hosts.num_servers), hosts.num_servers)

    others = ranges_of_keys(servers(RangeBook(book.buckets())))
    if not isinstance(book, ExtendedBook):
        return others
    return ExtendedRanges(others, book.known_ranks(servers(book.known)))


class GrowingClient(Transport):
    """The part of ``KVStoreTransport`` that tables of a fixed size do not need, and how both are made."""

    _exchange: Exchange
    _hosts: Hosts
    _session: Session
    _servers: range
    hogwild: bool
    _made: dict[str, int]
    _tables: LiveTables[TrainerTable]
    _unflushed: set[int]

    _everyone: set[int]
    _garbage: deque[tuple[tuple[str, int], int]]

    @abstractmethod
    def _collect_garbage(self) -> None: ...

    @abstractmethod
    def cache_stats(self, table: str) -> CacheStats: ...

    @abstractmethod
    def saved_to(self, table: str, checkpoint: str) -> None: ...

    def _on_all_servers(self, calls: Calls) -> dict[str, str]:
        """Make calls that allocate at each machine's first server, then those by which the others map; returns the
        names of this machine's segments."""
        hosts, firsts = self._hosts, self._firsts
        names = [answer.value for answer in self._exchange.ask(calls(firsts, lambda server: None))]

        def known(server: int) -> Any:
            found = names[hosts.machine_of(server)]
            return found.get("", found)

        self._exchange.ask(calls([server for server in range(hosts.num_servers) if server not in firsts], known))
        here: dict[str, str] = names[self._session.machine]
        return here

    def _tell_mapped(self, key: tuple[str, int], optimizer: int) -> None:
        """Let the servers that allocated know that this trainer needs the names of the segments no more."""
        for server in self._firsts:
            self._exchange.tell(server, "mapped", key, optimizer)

    @property
    def _firsts(self) -> range:
        """The first server of each machine."""
        return range(0, self._hosts.num_servers, self._hosts.servers_per_machine)

    @property
    def _all(self) -> range:
        return range(self._hosts.num_servers)

    @property
    def _saved(self) -> range:
        """The servers whose rows this trainer saves and restores."""
        return range(int(self.rank), self._hosts.num_servers, self.world_size)

    def _create_growing(self, spec: TableSpec) -> None:
        if self.hogwild:
            raise ConfigError(f"table {spec.name!r} grows: its owner makes each row, so hogwild=True cannot hold it")
        assert isinstance(spec.book, HashPolicy)
        owners = server_ranges(spec.book, self._hosts, spec.name)
        what = f"table {spec.name!r}: "
        sent = replace(
            with_whole_path(spec),
            book=HashPolicy(),
            initializer=sendable(spec.initializer, what + "init_func"),
            growth=sendable(spec.growth, what + "admission and eviction"),
        )
        key = (spec.name, self._made.get(spec.name, 0))
        self._collect_garbage()
        self._made[spec.name] = key[1] + 1
        digest = hashlib.blake2b(repr(owners.facts).encode(), digest_size=16).hexdigest()

        def calls(servers: Sequence[int], segment: Callable[[int], str | None]) -> list[Any]:
            return [(s, "create_growing", (key, sent, digest, self._everyone, segment(s)), ()) for s in servers]

        try:
            names = self._on_all_servers(calls)
        except Exception:
            self._garbage.append((key, 0))  # servers that could make it
            raise
        memory = SparseRows(names[""], spec, len(self._servers))
        self._tell_mapped(key, 0)
        shard = ServedShard(spec, self, memory)
        bounds = RangeBook([0] * (self._hosts.num_servers + 1))
        self._tables[spec.name] = TrainerTable(
            spec, bounds, owners, key, 0, 0, shard, per_occurrence=spec.counts_occurrences
        )

    def _attach_owned(self, found: TrainerTable, rule: SparseRule) -> None:
        """Let the servers, which alone write and know the rows, keep an optimizer's state beside them."""
        specs, number = tuple(rule.state_specs()), found.optimizers + 1
        self._exchange.ask([(s, "attach_owned", (found.key, number, specs), ()) for s in self._all])
        state = {}
        for spec in specs:
            shape = spec.shape(0, found.spec.dim)
            state[spec.name] = torch.full(shape, spec.initial, dtype=spec.dtype_beside(found.spec.dtype))
        found.shard.hold_state({spec.name: spec for spec in specs}, state)
        found.optimizers = number

    def _growing(self, table: str) -> TrainerTable:
        """A growing table, whose servers have applied what this trainer pushed."""
        found = self._tables[table]
        if not found.grows:
            raise self._fixed(table)
        if found.pending:
            self.flush()
        return found

    def grow(self, table: str, ids: Tensor) -> None:
        found, ids = self._growing(table), ids.cpu().unique()
        order, pieces = found.by_server(ids)
        self._exchange.ask([(s, "grow", (found.key,), (ids[order[i:j]],)) for s, i, j in pieces])

    def contains(self, table: str, ids: Tensor) -> Tensor:
        found, ids = self._growing(table), ids.cpu()
        order, pieces = found.by_server(ids)
        answers = self._exchange.ask([(s, "contains", (found.key,), (ids[order[i:j]],)) for s, i, j in pieces])
        there = torch.zeros(len(ids), dtype=torch.bool)
        there[order] = _joined(answers, torch.uint8).bool()
        return there

    def all_ids(self, table: str) -> np.ndarray:
        return self._from_servers(self._growing(table), "all_ids", self._all)

    def evict(self, table: str) -> np.ndarray:
        """As ``Transport.evict``; every trainer calls it, as a barrier."""
        found = self._growing(table)
        check_evicts(found.spec)
        self.barrier()
        if self.rank == 0:
            self._together(found, "evict")
        self._exchange.barrier()
        self._learn(found)
        gone = self._from_servers(found, "gone_ids", self._all)
        self._exchange.barrier()  # no trainer begins another pass before all know the ids of this one
        return gone

    def owns(self, table: str, ids: Tensor) -> Tensor:
        found = self._tables[table]
        return found.owners.owner(ids) % self.world_size == int(self.rank)

    def end_steps(self) -> None:
        """End the steps before a barrier that all trainers are in: halve counts, forget candidates, let rows leave.

        Raises:
            ConfigError: all servers together have more rows than a table may.
        """
        growing = [table for table in self._tables.values() if table.grows]
        if not growing:
            return
        if self.rank == 0:
            for table in growing:
                self._together(table, "end_steps")
        self._exchange.barrier()
        for table in growing:
            self._learn(table)

    def _together(self, table: TrainerTable, call: str) -> None:
        """Let all servers do at once what needs sums over them: ``evict`` or ``end_steps``."""
        answers = self._exchange.ask([(s, call, (table.key,), ()) for s in self._all])
        while answers[0].value:
            total = torch.stack([answer.tensors[0] for answer in answers]).sum(dim=0)
            answers = self._exchange.ask([(s, "go_on", (table.key,), (total,)) for s in self._all])

    def _learn(self, table: TrainerTable) -> None:
        """Take the step of the trainer that is ahead, and the epoch."""
        shard = _served(table)
        told = [answer.value for answer in self._exchange.ask([(s, "facts", (table.key,), ()) for s in self._all])]
        before, (shard.step, shard.epoch, _) = shard.epoch, told[0]
        if shard.epoch == before + 1:
            shard.forget(self._from_servers(table, "gone_ids", self._servers))
        elif shard.epoch != before:
            shard.forget(None)
        check_total(table.spec, sum(num_rows for *_, num_rows in told))

    def _from_servers(self, table: TrainerTable, call: str, servers: Iterable[int]) -> np.ndarray:
        """The ids that servers answer, ascending."""
        answers = self._exchange.ask([(s, call, (table.key,), ()) for s in servers])
        return np.sort(_joined(answers, torch.int64).numpy())

    def saved_rows(self, table: TrainerTable) -> list[TableRows]:
        """The rows that this trainer saves."""
        found: list[TableRows] = []
        first = 0
        for server in self._saved:
            (answer,) = self._exchange.ask([(server, "list_rows", (table.key,), ())])
            found.append(ListedRows(self._exchange, server, table.key, first, answer.tensors[0].numpy()))
            first += found[-1].num_rows
        return found

    def changed_rows(self, table: str) -> ChangedRows:
        found, key = [], self._tables[table].key
        ids, halvings, total, first = [torch.empty(0, dtype=torch.int64)], 0, 0, 0
        for server in self._saved:
            (answer,) = self._exchange.ask([(server, "list_changed", (key,), ())])
            found.append(ListedRows(self._exchange, server, key, first, answer.tensors[0].numpy()))
            first += found[-1].num_rows
            ids.append(answer.tensors[1])
            halvings, total = answer.value[0], total + answer.value[1]  # all servers halve in the same steps
        return ChangedRows(found, torch.cat(ids).sort().values.numpy(), halvings, total)

    def track(self, table: str, checkpoint: str | None) -> None:
        """``GrowingRows.track`` of those servers; a barrier, since other trainers' next pushes are changes already."""
        self._exchange.ask([(s, "track", (self._tables[table].key, checkpoint), ()) for s in self._saved])
        self._exchange.barrier()

    def find_near(self, table: str, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Where rows lie in this machine's memory, (B,), -1 for none, and what keys without one read as.

        Args:
            keys: Distinct, (B,), of servers of this machine.
        """
        found = self._tables[table]
        assert found.spec.growth is not None
        order, pieces = found.by_server(keys)
        answers = self._exchange.ask([(s, "find", (found.key,), (keys[order[i:j]],)) for s, i, j in pieces])
        at, size = torch.empty_like(keys), found.spec.growth.max_rows
        lacking, values = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, found.spec.dim, dtype=found.spec.dtype)]
        for (server, i, j), answer in zip(pieces, answers, strict=True):
            there, missing = answer.tensors
            at[order[i:j]] = torch.where(there >= 0, there + (server - self._servers.start) * size, -1)
            lacking.append(order[i:j][there < 0])
            values.append(missing)
        return at, torch.cat(values)[torch.argsort(torch.cat(lacking))]

    def candidates_of(self, table: str) -> dict[str, np.ndarray]:
        """``GrowingRows.candidates`` of the servers that this trainer saves."""
        answers = self._exchange.ask([(s, "candidates", (self._tables[table].key,), ()) for s in self._saved])
        columns = [torch.cat([torch.empty(0, dtype=torch.int64), *(a.tensors[k] for a in answers)]) for k in range(3)]
        order = torch.argsort(columns[0])
        return {name: column[order].numpy() for name, column in zip(("ids", *COUNTS), columns, strict=True)}

    def frozen_of(self, table: str) -> np.ndarray:
        """``GrowingRows.frozen_ids`` of those servers."""
        return self._from_servers(self._tables[table], "frozen_ids", self._saved)

    def clear(self, table: str, step: int) -> None:
        """``GrowingRows.clear`` of those servers."""
        self._exchange.ask([(s, "clear", (self._tables[table].key, step), ()) for s in self._saved])

    def send_rows(self, table: str, call: str, arguments: tuple[Any, ...], columns: Sequence[Tensor]) -> None:
        """Let the owners of ids take what columns, the ids first, have of each."""
        found = self._tables[table]
        order, pieces = found.by_server(key_of(columns[0]))
        sent = [column.index_select(0, order) for column in columns]
        self._exchange.ask([(s, call, (found.key, *arguments), tuple(c[i:j] for c in sent)) for s, i, j in pieces])


class ServedShard(GrowingRows, SharedShard):
    """A growing table as a trainer has it: the optimizer's clocks, and rows of its machine, which it reads.

    Where a row lies it asks once: rows never move, and leave at barriers alone. Checkpoints reach its share by calls.

    Args:
        room: The rows that the servers of this machine make.
    """

    def __init__(self, spec: TableSpec, client: GrowingClient, room: SparseRows) -> None:
        SharedShard.__init__(self, spec, 0, torch.empty((0, spec.dim), dtype=spec.dtype))
        self._client, self._room = client, room
        self.step = self.epoch = 0
        self.since = None
        self.forget(None)

    def forget(self, ids: np.ndarray | None) -> None:
        """Forget where the rows of ids lay, those of all where None."""
        if ids is None:
            self._map = IdMap(len(self._room.weight), f"table {self.spec.name!r}")
            return
        keys = keys_of(ids)
        self._map.remove(keys[self._map.find(keys) >= 0])

    def copy_of(
        self, rows: Tensor, others: Tensor | None = None, place: Tensor | None = None, out: Tensor | None = None
    ) -> RowCopy:
        """The copy of the rows of keys, (B,), of servers of this machine."""
        assert others is None
        assert place is None
        out = lend((len(rows), self.spec.dim), self.spec.dtype, self.spec.device) if out is None else out
        at = self._map.find(rows.numpy())
        absent = np.flatnonzero(at < 0)
        if not len(absent):
            return RowCopy(self._room.weight, torch.from_numpy(at), out)
        keys, of = (torch.from_numpy(column) for column in numbered(rows.numpy()[absent]))
        there, values = self._client.find_near(self.spec.name, keys)
        known = there >= 0
        self._map.add(keys[known].numpy(), there[known].numpy())
        at[absent] = there[of].numpy()
        if known.all():
            return RowCopy(self._room.weight, torch.from_numpy(at), out)
        lacking = torch.cumsum(~known, 0) - 1  # of each asked key its place among the values
        is_row = torch.from_numpy(at >= 0)
        from_rows = torch.cumsum(is_row, 0) - 1 + len(values)
        from_rows[torch.from_numpy(absent)[~known[of]]] = lacking[of][~known[of]]
        return RowCopy(self._room.weight, torch.from_numpy(at)[is_row], out, values, from_rows)

    def saved_state(self) -> dict[str, Tensor]:
        raise ModeError(
            f"table {self.spec.name!r} grows at the servers of kvstore mode: no trainer has rows of its state; read "
            "emb.optm_state by id, or save a checkpoint"
        )

    def cache_stats(self) -> CacheStats:
        if self.spec.placement is None:
            return super().cache_stats()
        return self._client.cache_stats(self.spec.name)

    def saved_to(self, checkpoint: str) -> None:
        if self.spec.placement is not None:
            self._client.saved_to(self.spec.name, checkpoint)

    def contains(self, rows: Tensor) -> Tensor:
        return self._client.contains(self.spec.name, rows)

    def freeze(self, rows: Tensor, frozen: bool = True) -> None:
        self._client.freeze(self.spec.name, rows, frozen)

    def frozen_ids(self) -> np.ndarray:
        return self._client.frozen_of(self.spec.name)

    def candidates(self) -> dict[str, np.ndarray]:
        return self._client.candidates_of(self.spec.name)

    def clear(self, step: int) -> None:
        self._client.clear(self.spec.name, step)
        self.step, self.epoch, self.since = step, self.epoch + 1, None
        self.forget(None)

    def restore(
        self,
        ids: np.ndarray,
        weight: Tensor,
        state: Mapping[str, Tensor],
        uses: np.ndarray | None = None,
        last: np.ndarray | None = None,
    ) -> None:
        counts = [torch.from_numpy(column) for column in (uses, last) if column is not None]
        columns = [torch.from_numpy(ids), weight, *state.values(), *counts]
        self._client.send_rows(self.spec.name, "restore", (tuple(state),), columns)

    def restore_candidates(self, ids: np.ndarray, uses: np.ndarray, last: np.ndarray) -> None:
        columns = [torch.from_numpy(column) for column in (ids, uses, last)]
        self._client.send_rows(self.spec.name, "restore_candidates", (), columns)

    def track(self, checkpoint: str | None) -> None:
        self._client.track(self.spec.name, checkpoint)
        self.since = checkpoint


class ListedRows:
    """Rows of a server, as they were when it listed them (``TableRows``).

    Attributes:
        ids: Of the rows, ascending, (R,).
    """

    def __init__(self, exchange: Exchange, server: int, key: tuple[str, int], first_id: int, ids: np.ndarray) -> None:
        self.first_id, self.num_rows, self.ids = first_id, len(ids), ids
        self._exchange, self._server, self._key = exchange, server, key

    def read(self, column: str, start: int, stop: int) -> Tensor:
        (answer,) = self._exchange.ask([(self._server, "read_listed", (self._key, column, start, stop), ())])
        return answer.tensors[0]

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        raise AssertionError("rows of growing tables are restored by id")

    def memory(self, column: str) -> Tensor | None:
        return None


def _served(table: TrainerTable) -> ServedShard:
    assert isinstance(table.shard, ServedShard)
    return table.shard


def _joined(answers: Sequence[Answer], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.empty(0, dtype=dtype), *(answer.tensors[0] for answer in answers)])
