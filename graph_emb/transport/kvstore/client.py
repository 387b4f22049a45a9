"""``KVStoreTransport``: tables that live in DGL's servers, written by one process per row.

Legend: B asked ids, R distinct ids, S rows of a push, D width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, ModeError, PartitionError
from graph_emb.graph.partition_book import RangeBook, Rank, RankRanges, Route, cut, num_distinct
from graph_emb.optim.rule import SparseRule, advance
from graph_emb.table.lazy_decay import DECAY
from graph_emb.table.shard import RowCopy, copy_rows, lend, narrower
from graph_emb.table.spec import CPU, TableSpec, accumulation_dtype
from graph_emb.transport.base import LiveTables, Push, Reach, ShardRows, TableRows, checked_wire
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.layout import server_book
from graph_emb.transport.kvstore.placed_client import PlacedClient
from graph_emb.transport.kvstore.rpc import Answer, Asked, Exchange, Session, sendable
from graph_emb.transport.kvstore.server_spec import for_server
from graph_emb.transport.kvstore.session import dgl_policies
from graph_emb.transport.kvstore.shared import PushBuffer
from graph_emb.transport.kvstore.trainer_table import FarRows, TrainerTable
from graph_emb.transport.local import check_fixed, check_handled, checked_values, takes_occurrences
from graph_emb.transport.push_packing import pack

MOST_PENDING = 16
"""Pushes that may wait at the servers: a faster trainer is held back instead of filling the queues."""


class TablePull:
    """A pull of a table some of whose rows are elsewhere: calls for those, and the rows once they are answered.

    Args:
        table: Where the near rows are.
        route: Of the asked ids to the servers.
        own: The servers whose rows are read here. Where those of keys lie is asked now.
        wires: The dtype in which those of each other server come, by server.
    """

    def __init__(self, table: TrainerTable, route: Route, own: range, wires: Callable[[int], torch.dtype]) -> None:
        self.route, self._table = route, table
        pieces = cut(route.counts)
        self._near = [(start, end) for server, start, end in pieces if server in own]
        away = [piece for piece in pieces if piece[0] not in own]
        self._away = [(start, end) for _, start, end in away]
        decay = table.shard.state[DECAY].item() if table.shard.lazy else None  # the sum as this trainer counts it
        self.calls: list[Asked] = [(s, "pull", (table.key, decay, wires(s)), (route.ids[i:j],)) for s, i, j in away]
        self.num_away = sum(end - start for start, end in self._away)
        self._out = lend((len(route.ids), table.spec.dim), table.spec.dtype, route.ids.device)
        pieces_of = ((route.ids[i:j], self._out[i:j]) for i, j in self._near)
        self._own = [table.shard.copy_of(ids, out=out) for ids, out in pieces_of] if table.spec.growth else []

    def read_own(self) -> None:
        """Read the near rows, while the servers answer."""
        copy_rows(self._own)
        for start, end in [] if self._own else self._near:
            self._table.shard.read_into(self.route.ids[start:end] - self._table.low, self._out[start:end])

    def copy(self, answers: Iterator[Answer]) -> RowCopy:
        """The rows in the order asked; takes as many answers as there are calls."""
        for start, end in self._away:
            self._out[start:end] = next(answers).tensors[0]
        num, dim = len(self.route.place), self._out.shape[1]
        return RowCopy(self._out, self.route.place, lend((num, dim), self._out.dtype, self._out.device))


class KVStoreTransport(PlacedClient):
    """Tables in DGL's servers; each row is written by the server that owns it.

    ``push`` sends merged gradients and returns; ``flush`` returns when they are applied. A pull sees all of this
    trainer's own pushes but the last ``staleness``; what the others pushed meanwhile may or may not be there.

    Args:
        session: The way to the servers.
        staleness, hogwild, wire_dtype: As ``graph_emb.transport.kvstore.connect``.
    """

    mode = "kvstore"
    lockstep = False

    def __init__(
        self, session: Session, *, staleness: int = 0, hogwild: bool | None = False, wire_dtype: Any = None
    ) -> None:
        super().__init__()
        self.wire_dtype = checked_wire(wire_dtype)
        if staleness < 0:
            raise ConfigError(f"staleness {staleness} must not be negative")
        self.rank, self.world_size = Rank(session.rank), len(session.machines)
        self.machine, self.num_servers = session.machine, session.hosts.num_servers
        self.num_machines = session.hosts.num_machines
        self._session, self._exchange = session, Exchange(session)
        self.link = self._exchange.link
        self.hogwild = self.num_machines == 1 if hogwild is None else hogwild
        self._staleness, self._hosts = staleness, session.hosts
        self._servers = self._hosts.servers_of(session.machine)
        self._everyone = set(range(self.world_size))
        self._tables: LiveTables[TrainerTable] = LiveTables()
        self._made: dict[str, int] = {}
        self._unflushed: set[int] = set()
        self._failures: list[GraphEmbError] = []
        self._garbage: deque[tuple[tuple[str, int], int]] = deque()
        self._push_buffer: PushBuffer | None = None
        self._waiting: dict[int, tuple[list[tuple[Any, ...]], list[Tensor]]] = {}

    def create(self, spec: TableSpec) -> None:
        """Make the table at every server, with values that depend on seed and id alone; waits for no trainer."""
        self._tables.check_free(spec.name)
        if spec.device.type != "cpu":
            raise ConfigError(f"table {spec.name!r}: device {spec.device}; servers keep rows in host memory, use 'cpu'")
        if spec.growth:
            return self._create_growing(spec)
        if spec.placement is not None:
            return self._create_placed(spec)
        book = server_book(spec.book, self._hosts, spec.name)
        key = (spec.name, self._made.get(spec.name, 0))
        self._collect_garbage()

        def calls(servers: Sequence[int], segment: Callable[[int], str | None], send_ids: bool = False) -> list[Any]:
            specs = {s: for_server(spec, book, s, send_ids=send_ids) for s in servers}
            return [(s, "create", (key, specs[s], self._everyone, segment(s)), ()) for s in servers]

        self._made[spec.name] = key[1] + 1
        try:
            try:
                names = self._on_all_servers(calls)
            except DataError:  # a server does not see the files of the partition's id maps
                names = self._on_all_servers(partial(calls, send_ids=True))
        except Exception:
            self._garbage.append((key, 0))  # servers that could make it
            raise
        low, high = int(book.bounds[self._servers.start]), int(book.bounds[self._servers.stop])
        weight = shared.open_segment(
            names[""], (high - low, spec.dim), spec.dtype, f"table {spec.name!r}", create=False
        )
        self._tell_mapped(key, 0)
        owners = RankRanges(book.bounds.tolist(), range(book.num_parts), book.num_parts)
        self._tables[spec.name] = TrainerTable(
            spec, book, owners, key, low, high, shared.SharedShard(spec, low, weight)
        )

    def policy_for(self, num_rows: int, table: str) -> Any:
        fitting = [policy for policy in dgl_policies() if policy.get_size() == num_rows]
        if len(fitting) > 1:
            raise PartitionError(
                f"table {table!r}: {' and '.join(policy.policy_str for policy in fitting)} have {num_rows} ids each; "
                "pass part_policy, such as graph.get_node_partition_policy(...)"
            )
        return fitting[0] if fitting else None

    def reopen(self, table: str) -> None:
        found = self._tables[table]
        opening = (table, self._made[table])
        self._made[table] += 1
        self._exchange.ask([(0, "reopen", (opening, found.key), ())])

    def destroy(self, table: str) -> None:
        """Forget a table. Sends nothing, because the garbage collector may call it at any moment: the servers hear
        of it with the next create, flush, barrier or close, and free the memory when every trainer forgot it."""
        found = self._tables.get(table)
        super().destroy(table)
        if found is not None:
            if found.shard.attached:
                self._garbage.append((found.key, found.optimizers))
            self._garbage.append((found.key, 0))

    def attach(self, table: str, rule: SparseRule) -> None:
        found = self._tables[table]
        if found.shard.attached:
            raise ModeError(f"table {table!r} is trained by another optimizer; close() that one first")
        self._collect_garbage()
        if found.grows or found.placed:
            return self._attach_owned(found, rule)
        specs, number = tuple(rule.state_specs()), found.optimizers + 1

        def calls(servers: Sequence[int], names: Callable[[int], Any]) -> list[Any]:
            return [(s, "attach", (found.key, number, specs, self._everyone, names(s)), ()) for s in servers]

        try:
            names = self._on_all_servers(calls)
        except Exception:
            self._garbage.append((found.key, number))  # servers that could make it
            raise
        state = shared.open_state(found.spec, found.shard.num_rows, specs, names, create=False)
        self._tell_mapped(found.key, number)
        found.shard.hold_state({spec.name: spec for spec in specs}, state)
        found.optimizers = number

    def detach(self, table: str) -> None:
        found = self._tables.get(table)
        if found is not None and found.shard.attached:
            self._garbage.append((found.key, found.optimizers))
            found.shard.free_state()

    def pull(self, table: str, ids: Tensor) -> Tensor:
        """As ``Transport.pull``.

        Rows of this machine are read from shared memory; of the others each distinct id is asked for once, at its
        owner.
        """
        return self.pull_tables([(table, ids)])[0]

    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """As ``Transport.pull_tables``: the servers are asked for the rows of all tables before any is awaited."""
        if any(self._tables[table].pending > self._staleness for table, _ in asked):
            self._drain()
            self._raise_failure()
        self._exchange.check()
        plans = [self._plan_pull(table, ids.to("cpu")) for table, ids in asked]
        pulls = [plan for plan in plans if isinstance(plan, TablePull)]
        started = self._exchange.start([call for pull in pulls for call in pull.calls])
        for pull in pulls:
            pull.read_own()
        answers = iter(self._exchange.finish(started))
        return copy_rows([plan.copy(answers) if isinstance(plan, TablePull) else plan for plan in plans])

    def _plan_pull(self, table: str, ids: Tensor) -> RowCopy | TablePull:
        """The copy of rows, where all are in this machine, or what has to be asked."""
        found = self._tables[table]
        grows, exact = found.spec.growth is not None, found.spec.dtype
        unread = found.pull_handler or found.spec.placement is not None or (grows and found.shard.lazy)
        own = range(0) if unread else self._servers
        if grows:
            here, local = self.num_machines == 1, ids
        else:
            here, local = not len(ids) or (int(ids.min()) >= found.low and int(ids.max()) < found.high), ids - found.low
        if own and here:
            distinct = num_distinct(ids)
            self._count(table, len(ids), distinct, distinct)
            return found.shard.copy_of(local)
        wire = narrower(exact, self.wire_dtype)
        pull = TablePull(found, found.owners.route(ids), own, lambda s: exact if s in self._servers else wire)
        self._count(table, len(ids), len(pull.route.ids), len(pull.route.ids) - pull.num_away)
        self.counts[table].bytes_sent += 8 * pull.num_away
        return pull

    def _count(self, table: str, asked: int, distinct: int, local: int) -> None:
        counts = self.counts[table]
        counts.asked += asked
        counts.distinct += distinct
        counts.local += local

    def push(self, pushes: Sequence[Push]) -> None:
        """Send the gradients of one step to the owners, merged; a later push, flush or pull raises a failure there.

        Those of all tables go to a server in one message, which it applies by one pass.
        The learning rate and other numbers travel with each push. A per-table clock is the pushing trainer's own.
        Where the servers' answers are awaited here, what failed is raised when all tables are sent.
        """
        self.num_steps += 1
        try:
            for push in pushes:
                if push.touched:
                    self._push(self._tables[push.table], push)
        finally:
            self._send_waiting()
        if any(self._tables[push.table].pending >= max(MOST_PENDING, self._staleness) for push in pushes):
            self._drain()
        self._raise_failure()

    def _push(self, table: TrainerTable, push: Push) -> None:
        if not table.shard.attached and push.rule.state_specs():
            raise ModeError(f"table {push.table!r}: no state of {type(push.rule).__name__}; attach() it first")
        packed = pack(push, table.owners, accumulation_dtype(table.spec.dtype), CPU, self._lend, table.per_occurrence)
        assert self._push_buffer is not None  # pack() has laid the rows there
        clocks = table.clocks()
        optimizer = table.optimizers if table.shard.attached else 0
        pieces, step = cut(packed.counts), table.next_step()
        if clocks or table.grows:  # an empty batch still counts as a step of the table
            pieces = pieces + [(s, 0, 0) for s in range(self._hosts.num_servers) if s not in {p[0] for p in pieces}]
        for server, start, end in pieces:
            ids, grads = packed.ids[start:end], packed.grads[start:end]
            if server in self._servers and self.hogwild and not (table.push_handler or table.placed):
                table.apply(push.rule, ids, grads, packed.how)
                continue
            arguments = (table.key, (optimizer, push.rule, packed.how, packed.distinct, clocks, step))
            told, tensors = self._waiting.setdefault(server, ([], []))
            if server in self._servers:
                told.append((*arguments, (self._push_buffer.last, start, end)))
            else:
                grads = grads.to(narrower(grads.dtype, self.wire_dtype))
                told.append((*arguments, None))
                tensors += ids, grads
                self.counts[push.table].bytes_sent += len(ids) * 8 + grads.numel() * grads.element_size()
            self._unflushed.add(server)
        table.pending += 1
        self.counts[push.table].steps += 1
        advance(push.rule, table.shard)

    def _send_waiting(self) -> None:
        """Tell servers of gradients: those of this machine where they lie in the push buffer, others get them."""
        waiting, self._waiting = self._waiting, {}
        for server, (told, tensors) in waiting.items():
            self._exchange.tell(server, "push", told, tensors=tensors)

    def _lend(self, ids: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Memory of the push buffer, which is emptied or enlarged where it is full (``PushMemory``)."""
        if self._push_buffer is None or not self._push_buffer.fits(len(ids), width, dtype):
            self._drain()  # does not raise: the tables of a step that are still to come would never be sent
        if self._push_buffer is None or not self._push_buffer.fits(len(ids), width, dtype):
            made = PushBuffer(PushBuffer.size_for(len(ids), width, dtype))
            try:
                self._exchange.ask([(s, "push_buffer", (made.name, len(made.memory)), ()) for s in self._servers])
            finally:
                shared.forget_name(made.name)
            self._push_buffer = made
        return self._push_buffer.lend(ids, width, dtype)

    def push_data(self, table: str, ids: Tensor, values: Tensor) -> None:
        """DGL's ``push``: values go to the table's push handler at the owners; without one they are assigned.

        Args:
            table: The table's name.
            ids: Shape (B,); distinct where no handler is registered.
            values: Shape (B, ...), handed to the handler as they are; (B, D) where no handler is registered.
        Raises:
            PartitionError: an id is out of range.
            ShapeError: ids are no integer tensor, or values do not fit them.
        """
        found = self._tables[table]
        check_fixed(found.spec, "push_data")
        ids, values = checked_values(found.spec, ids, values, found.push_handler)
        order = torch.argsort(ids, stable=True)
        ids, values = ids[order], values[order]
        for server, start, end in found.book.pieces(ids):
            self._exchange.tell(server, "push_data", found.key, tensors=(ids[start:end], values[start:end]))
            self._unflushed.add(server)
        found.pending += 1

    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        found = self._tables[table]
        order, pieces = found.by_server(ids := ids.to("cpu"))
        ids, values = ids[order], values.to("cpu", found.spec.dtype)[order]
        self._exchange.ask([(s, "write", (found.key,), (ids[i:j], values[i:j])) for s, i, j in pieces])

    def read_state(self, table: str, name: str, ids: Tensor) -> Tensor:
        found = self._tables[table]
        if found.pending:
            self.flush()
        distinct, place = ids.to("cpu").unique(return_inverse=True)
        state = found.shard.state[name]
        rows = state.new_empty((len(distinct), *state.shape[1:]))
        order, pieces = found.by_server(distinct)
        near = [] if found.grows or found.placed else [piece for piece in pieces if piece[0] in self._servers]
        for _, i, j in near:
            rows[order[i:j]] = state.index_select(0, distinct[order[i:j]] - found.low)
        away = [piece for piece in pieces if piece not in near]
        asked = [(s, "read_state", (found.key, found.optimizers, name), (distinct[order[i:j]],)) for s, i, j in away]
        for (_, i, j), answer in zip(away, self._exchange.ask(asked), strict=True):
            rows[order[i:j]] = answer.tensors[0]
        return rows.index_select(0, place)

    def write_state(self, table: str, name: str, ids: Tensor, values: Tensor) -> None:
        found, ids = self._tables[table], ids.to("cpu")
        order, pieces = found.by_server(ids)
        named, ids, rows = (found.key, found.optimizers, name), ids[order], values.to("cpu")[order]
        self._exchange.ask([(s, "write_state", named, (ids[i:j], rows[i:j])) for s, i, j in pieces])

    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        found = self._tables[table]
        if self.hogwild:
            raise ModeError(f"table {table!r}: hogwild trainers update rows that others froze; init(hogwild=False)")
        ids = ids.to("cpu").unique()
        order, pieces = found.by_server(ids)
        self._exchange.ask([(s, "freeze", (found.key, frozen), (ids[order[i:j]],)) for s, i, j in pieces])
        if not found.grows:
            found.shard.freeze(ids[(ids >= found.low) & (ids < found.high)] - found.low, frozen)

    def reset(self, table: str, ids: Tensor) -> None:
        found, ids = self._tables[table], ids.to("cpu").unique()
        order, pieces = found.by_server(ids)
        self._exchange.ask([(s, "reset", (found.key,), (ids[order[i:j]],)) for s, i, j in pieces])

    def register_push_handler(
        self, table: str, func: Callable[..., None] | None, merge: Literal["none"] | None = None
    ) -> None:
        """Let ``func(data_store, name, local_offset, data)`` apply pushes at the owners; every trainer calls it.

        Args:
            table: The table's name.
            func: DGL's signature: ``data_store`` maps names to the tensors of the owner's machine (the table's rows
                under its name, optimizer state under ``<table>_<state>``, DGL's own data); ``local_offset`` are
                positions in them, shape (R,); ``data`` is what was pushed, shape (R, D). None returns to the rule.
            merge: Of an optimizer's gradients: ``"none"`` hands out every occurrence, as DGL 0.5 did; None: those of
                an id are merged as the optimizer says. What ``push_data`` sends is not merged.
        Raises:
            ConfigError: the function cannot be sent, or another ``merge``.
        """
        per_occurrence = takes_occurrences(merge)
        self._register(table, "push", func)
        self._tables[table].per_occurrence = per_occurrence and func is not None

    def register_pull_handler(self, table: str, func: Callable[..., Tensor] | None) -> None:
        """Let ``func(data_store, name, local_offset)`` answer the pulls of a table, at the owners; None: plain rows."""
        self._register(table, "pull", func)

    def _register(self, table: str, kind: str, func: Callable[..., Any] | None) -> None:
        found = self._tables[table]
        check_handled(found.spec, func, f"a {kind} handler")
        sent = sendable(func, f"table {table!r}: {kind} handler")
        self._exchange.ask([(s, "register", (found.key, kind, sent), ()) for s in range(self._hosts.num_servers)])
        setattr(found, f"{kind}_handler", func is not None)

    def flush(self) -> None:
        self._tables.check_open()
        self._drain()
        self._raise_failure()

    def _drain(self) -> None:
        """Wait until everything that this trainer pushed is applied, or failed."""
        self._exchange.check()
        self._send_waiting()
        self._collect_garbage()
        self._failures += self._exchange.flush(sorted(self._unflushed))
        self._unflushed.clear()
        if self._push_buffer is not None:
            self._push_buffer.used = 0
        for table in self._tables.values():
            table.pending = 0

    def _raise_failure(self) -> None:
        if self._failures:
            first, self._failures = self._failures[0], []
            raise first

    def barrier(self) -> None:
        """Wait until every trainer is here; ends with an error that names the dead when one is.

        Steps of growing tables end here (``end_steps``), once what trainers pushed is applied.
        """
        self._tables.check_open()
        self._collect_garbage()
        if any(table.grows for table in self._tables.values()):
            self.flush()
        self._exchange.barrier()
        self.end_steps()

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        self._tables.check_open()
        return self._exchange.barrier(numbers)

    def shard(self, table: str) -> shared.SharedShard:
        """This trainer's share of its machine's rows; with a trainer on every machine, all shares make the table."""
        found, machine = self._tables[table], self._session.machine
        if found.grows or found.placed:
            return found.shard
        here = [trainer for trainer, of in enumerate(self._session.machines) if of == machine]
        bounds = RangeBook.even(found.high - found.low, len(here)).bounds
        low, high = bounds[here.index(self.rank) :][:2].tolist()
        return found.shard.narrow(low, high)

    def local_partition(self, table: str) -> Tensor:
        return self._tables[table].shard.weight

    def in_reach(self, table: str) -> Reach:
        """The rows that this trainer may change in place: in Hogwild those of its machine, unless handlers see them."""
        found = self._tables[table]
        hidden = found.push_handler or found.pull_handler or found.shard.lazy
        end = found.high - found.low if self.hogwild and not hidden else 0
        return Reach(found.low, found.shard.weight[:end], found.shard.frozen is not None)

    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        """As ``Transport.rows``: this trainer's share of its machine's rows; machines without trainers in turn."""
        if self._tables[table].grows:
            return self.saved_rows(self._tables[table])
        if self._tables[table].placed:
            return self.placed_rows(self._tables[table])
        machines, hosts = self._session.machines, self._hosts
        found: list[TableRows] = [ShardRows(self.shard(table))]
        for machine in sorted(set(range(hosts.num_machines)) - set(machines)):
            if machine % len(machines) == self.rank:
                found += [FarRows(self._exchange, server, self._tables[table]) for server in hosts.servers_of(machine)]
        return found

    def close(self) -> None:
        """As ``Transport.close``; the servers end when every trainer has left."""
        if self._tables.closed:
            return
        try:
            if self._exchange.broken is None:
                self._unflushed.update(range(self._hosts.num_servers))  # a goodbye must not overtake a push
                self.flush()
        finally:
            self._tables.close()
            self._session.close(self._exchange.broken is not None)

    def _collect_garbage(self) -> None:
        while self._garbage:
            key, optimizer = self._garbage.popleft()
            for server in range(self._hosts.num_servers):
                self._exchange.tell(server, "release", key, optimizer)
