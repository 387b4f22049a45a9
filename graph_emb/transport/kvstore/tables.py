"""The server's side: tables, optimizer state and handlers, and the calls that change them.

A server reads and writes only the rows that it owns; the memory holds the rows of its whole machine, so that
trainers there read them without asking.

Importing this module makes a process able to serve; unpickling ``Announce`` imports it, so that DGL's own servers learn
the service from the first message.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.left_behind import shared_name
from graph_emb.optim.apply import Merge, Update, apply_updates
from graph_emb.optim.rule import SparseRule
from graph_emb.table.spec import StateSpec, TableSpec, accumulation_dtype
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.growing_tables import GROWING_CALLS, GrowingCalls
from graph_emb.transport.kvstore.rpc import SERVICE, Answer, Call, describe, rpc
from graph_emb.transport.kvstore.server_table import Key, OwnedTable, PlacedTable, Segments, ServerTable
from graph_emb.transport.kvstore.shared import Place, at

_log = logging.getLogger("graph_emb.kvstore")

Terms = tuple[int, SparseRule, Merge, bool, Mapping[str, float], int | None]
"""Of a push: the number of the optimizer, its rule, what is left to merge, whether ids are distinct, the clocks, and
of a growing table the sender's step."""


class Tables(GrowingCalls):
    """All tables of a server; ``more``: tensors that users' handlers see in addition, DGL's own data.

    Attributes:
        arrived: The trainers that wait at a barrier, each with its DGL client and its numbers.
    """

    def __init__(self, server: int, machine: range, more: dict[str, Tensor]) -> None:
        self._server, self._machine, self._more = server, machine, more
        self._tables: dict[Key, ServerTable] = {}
        self._openings: dict[Key, tuple[Key, int]] = {}
        self._push_buffers: dict[int, Tensor] = {}
        self._failures: dict[int, list[tuple[str, str]]] = {}
        self.arrived: dict[int, tuple[int, list[int]]] = {}

    def handle(self, call: Call) -> Any:
        """Run a call; errors of calls without an answer wait for the sender's next flush."""
        answered = call.method in ANSWERED
        if not answered and call.method not in UNANSWERED:
            raise KeyError(call.method)
        try:
            answer = getattr(self, call.method)(call.sender, *call.arguments, *call.tensors)
        except Exception as error:
            if answered:
                return Answer(error=describe(error))
            _log.exception("%s of trainer %d", call.method, call.sender)
            self._failures.setdefault(call.sender, []).append(describe(error))
            return None
        return (Answer() if answer is None else answer) if answered else None

    def create(self, sender: int, key: Key, spec: TableSpec, trainers: set[int], segment: str | None) -> Answer:
        """Allocate or map the machine's rows and fill this server's own; a repeated call finds them done."""
        self._agree(sender, key, key)
        table = self._tables.get(key)
        if table is not None and segment not in (None, table.segments[0].names.get("")):
            # a trainer dropped it, and the word of that has reached the server that allocates, not this one
            table = None
        if table is None and spec.placement is not None:
            table = self._tables[key] = PlacedTable(spec, self._server)
        elif table is None:
            table = ServerTable(spec, self._server, self._machine)
            create = segment is None
            name = segment or shared_name()
            weight = shared.open_segment(
                name, (table.num_rows, spec.dim), spec.dtype, f"table {spec.name!r}", create=create
            )
            try:
                spec.fill_(weight[table.low : table.high], table.first_id + table.low)
            except Exception:  # a file that cannot be read: the next trainer to ask meets it again
                if create:
                    shared.forget_name(name)
                raise
            table.segments[0] = Segments({"": name}, set(trainers) if create else set())
            table.shards[0] = shared.SharedShard(spec, table.first_id, weight)
            table.shards[0].own = table.low, table.high
            self._tables[key] = table
        mine, theirs = (
            (one.num_rows, one.dim, one.dtype, one.book, one.placement or "host") for one in (table.spec, spec)
        )
        if mine != theirs:
            said = "trainer {} makes it ({}, {}) of {}, placement={}, another one ({}, {}) of {}, placement={}"
            said = said.format(sender, *theirs[:3], theirs[4], *mine[:3], mine[4])
            raise ConfigError(f"table {spec.name!r}: {said}; make the same tables on every trainer")
        table.users.setdefault(0, set()).add(sender)
        return Answer(table.segments[0].names)

    def reopen(self, sender: int, opening: Key, key: Key) -> None:
        """A trainer asked once more for a live table; the others must do the same."""
        self._agree(sender, opening, key)

    def _agree(self, sender: int, opening: Key, key: Key) -> None:
        """Check that the trainers' n-th table of a name is one table; the garbage collector may differ among them."""
        said, first = self._openings.setdefault(opening, (key, sender))
        if said != key:
            new, old = (sender, first) if key == opening else (first, sender)
            raise ConfigError(
                f"table {key[0]!r}: trainer {new} makes a new one, trainer {old} opens the one that is alive; drop the "
                "old DistEmbedding on every trainer (gc.collect() ends those in circles), or keep it on all"
            )

    def attach(
        self,
        sender: int,
        key: Key,
        optimizer: int,
        specs: tuple[StateSpec, ...],
        trainers: set[int],
        segments: dict[str, str] | None,
    ) -> Answer:
        """Allocate or map the state of an optimizer and fill this server's rows of it."""
        table = self._table(key)
        if optimizer in table.shards and segments not in (None, table.segments[optimizer].names):
            del table.shards[optimizer], table.users[optimizer]  # as in ``create``
        if optimizer not in table.shards:
            wanted = {spec.name: spec for spec in specs}
            weight, create = table.shards[0].weight, segments is None
            names = segments or {name: shared_name() for name in wanted if wanted[name].kind != "table"}
            state = shared.open_state(table.spec, table.num_rows, specs, names, create=create)
            for name in names:
                state[name][table.low : table.high] = wanted[name].initial
            shard = shared.SharedShard(table.spec, table.first_id, weight)
            shard.hold_state(wanted, state)
            shard.frozen, shard.own = table.shards[0].frozen, table.shards[0].own
            table.shards[optimizer] = shard
            table.segments[optimizer] = Segments(names, set(trainers) if create else set())
        elif tuple(table.shards[optimizer].state_specs.values()) != specs:
            raise ConfigError(
                f"table {table.spec.name!r}: the trainers' optimizers keep different state; give all the same rule"
            )
        table.users.setdefault(optimizer, set()).add(sender)
        return Answer(table.segments[optimizer].names)

    def attach_owned(self, sender: int, key: Key, optimizer: int, specs: tuple[StateSpec, ...]) -> None:
        """Give the rows of this server an optimizer's state; a repeated call finds it there."""
        table = self._table(key)
        assert isinstance(table, OwnedTable)
        if optimizer not in table.shards:
            table.attach(optimizer, specs)
        elif tuple(table.held.state_specs.values()) != specs:
            raise ConfigError(
                f"table {table.spec.name!r}: the trainers' optimizers keep different state; give all the same rule"
            )
        table.users.setdefault(optimizer, set()).add(sender)

    def prefetch(self, sender: int, key: Key, ids: Tensor) -> None:
        """Start to bring rows of a table with a placement."""
        table = self._table(key)
        table.shards[0].prefetch(table.rows(ids))

    def hold(self, sender: int, key: Key, ranges: list[tuple[int, int]]) -> None:
        """Bring ranges of such a table's rows into memory, which others leave."""
        self._table(key).shards[0].hold_ids(ranges)

    def cache_stats(self, sender: int, key: Key) -> Answer:
        """What this server's cache of such a table did."""
        return Answer(vars(self._table(key).shards[0].cache_stats()))

    def saved_to(self, sender: int, key: Key, checkpoint: str) -> None:
        """Note in the file of such a table which checkpoint stands for it."""
        self._table(key).shards[0].saved_to(checkpoint)

    def mapped(self, sender: int, key: Key, optimizer: int) -> None:
        """The servers, and this trainer where it is near, mapped the segments; after the last trainer the names go."""
        names, waiting = self._table(key).segments[optimizer]
        waiting.discard(sender)
        if not waiting:
            for name in names.values():
                shared.forget_name(name)

    def release(self, sender: int, key: Key, optimizer: int) -> None:
        """A trainer needs the state of an optimizer, or (0) the table, no more; after the last one the memory goes."""
        table = self._tables.get(key)
        if table is None or optimizer not in table.segments:  # it could not be made here
            return
        users = table.users.get(optimizer, set())
        users.discard(sender)
        if not users:
            names, waiting = table.segments[optimizer]
            if waiting:  # it is for the server that allocated: others may still map it
                for name in names.values():
                    shared.forget_name(name)
            if optimizer:
                table.forget(optimizer)
            else:
                del self._tables[key]

    def push(
        self, sender: int, pushes: Sequence[tuple[Key, Terms, tuple[Place, int, int] | None]], *tensors: Tensor
    ) -> None:
        """Apply gradients of rows that this server owns, by the rules or users' handlers; those of rules by one pass.

        Args:
            pushes: Of distinct tables, each with where its ids and gradients lie: rows [start, end) at a place in the
                sender's push buffer; None: they are the next two tensors.
        """
        came, updates = iter(tensors), []
        with ExitStack() as steps:
            try:
                for key, terms, placed in pushes:
                    if placed is None:
                        ids, grads = next(came), next(came)
                    else:
                        ids, grads = (one[slice(*placed[1:])] for one in at(self._push_buffers[sender], placed[0]))
                    updates += self._updates(key, terms, ids, grads, steps)
            finally:  # an error is that of one table
                apply_updates(updates)

    def _updates(self, key: Key, terms: Terms, ids: Tensor, grads: Tensor, steps: ExitStack) -> list[Update]:
        """What a push leaves to do, within the steps that it enters; nothing where a handler has done it."""
        table, (optimizer, rule, how, distinct, clocks, step) = self._table(key), terms
        rows, shard = table.rows(ids), table.shards[optimizer]
        if table.push_handler is not None:
            grads = grads.to(accumulation_dtype(table.spec.dtype))  # they may have come narrower
            table.push_handler(self._data(), table.spec.name, *shard.without_frozen(rows, grads))
            return []
        for name, clock in clocks.items():
            shard.state[name].fill_(clock)
        steps.enter_context(table.at_step(step))
        return [Update(rule, shard, rows, grads, how, distinct=distinct)]

    def push_buffer(self, sender: int, name: str, num_bytes: int) -> None:
        """Map the memory in which a trainer of this machine leaves its gradients."""
        self._push_buffers[sender] = shared.open_segment(
            name, (num_bytes,), torch.uint8, f"the push buffer of trainer {sender}", create=False
        )

    def push_data(self, sender: int, key: Key, ids: Tensor, values: Tensor) -> None:
        """DGL's push: the user's handler, or plain assignment."""
        table = self._table(key)
        rows = table.rows(ids)
        if table.push_handler is not None:
            table.push_handler(self._data(), table.spec.name, rows, values)
        else:
            table.write(rows, values)

    def write(self, sender: int, key: Key, ids: Tensor, values: Tensor) -> None:
        """Overwrite rows; plain assignment whatever handlers are registered."""
        table = self._table(key)
        table.write(table.rows(ids), values)

    def freeze(self, sender: int, key: Key, frozen: bool, ids: Tensor) -> None:
        """Keep rows that this server owns from the updates of every optimizer, or give them back."""
        table = self._table(key)
        table.freeze(table.rows(ids), frozen)

    def reset(self, sender: int, key: Key, ids: Tensor) -> None:
        """First values again for distinct rows that this server owns, and for the state of every optimizer."""
        table = self._table(key)
        rows = table.rows(ids)
        for optimizer, shard in table.shards.items():
            shard.reset(rows, weight=optimizer == 0)

    def read_column(self, sender: int, key: Key, optimizer: int, column: str, low: int, high: int) -> Answer:
        """Rows of the ids [low, high), all of this server, of the weight or of a piece of state."""
        table = self._table(key)
        start, stop = low - table.first_id, high - table.first_id
        return Answer(None, table.shards[optimizer].column(column, start, stop).clone())

    def write_column(self, sender: int, key: Key, optimizer: int, column: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite rows of the weight or of a piece of state, as a checkpoint has them."""
        table = self._table(key)
        table.write_column(optimizer, column, table.rows(ids), values)

    def read_state(self, sender: int, key: Key, optimizer: int, name: str, ids: Tensor) -> Answer:
        """Rows of a piece of state, in the order asked."""
        table = self._table(key)
        return Answer(None, table.shards[optimizer].state_rows(name, table.rows(ids)))

    def write_state(self, sender: int, key: Key, optimizer: int, name: str, ids: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows of a piece of state."""
        table = self._table(key)
        table.shards[optimizer].overwrite_state(name, table.rows(ids), values)

    def pull(self, sender: int, key: Key, decay: float | None, wire: torch.dtype, ids: Tensor) -> Answer:
        """Rows that this server owns, in the order asked."""
        table = self._table(key)
        rows = table.rows(ids)
        if table.pull_handler is not None:
            return Answer(None, table.pull_handler(self._data(), table.spec.name, rows))
        return Answer(None, table.read(rows, decay).to(wire))

    def register(self, sender: int, key: Key, kind: str, handler: Callable[..., Any] | None) -> None:
        """Set a user's push or pull handler; None returns to ours."""
        setattr(self._table(key), f"{kind}_handler", handler)

    def flush(self, sender: int) -> Answer:
        """Everything that the sender pushed before has been applied: calls of one sender are handled in order."""
        return Answer(self._failures.pop(sender, []))

    def barrier(
        self, sender: int, number: int, numbers: list[int], client: int, world_size: int
    ) -> list[tuple[int, Answer]]:
        """Answer all trainers, with the numbers of each in the order of ranks, when the last one arrived."""
        self.arrived[sender] = (client, numbers)
        if len(self.arrived) < world_size:
            return []
        arrived, self.arrived = [told for _, told in sorted(self.arrived.items())], {}
        found = [numbers for _, numbers in arrived]
        return [(client, Answer((number, found))) for client, _ in arrived]

    def close(self) -> None:
        """Free everything, names of segments that were never mapped by all included."""
        for table in self._tables.values():
            for names, _ in table.segments.values():
                for name in names.values():
                    shared.forget_name(name)
        self._tables.clear()

    def _data(self) -> ChainMap[str, Tensor]:
        return ChainMap(*(table.data() for table in self._tables.values()), self._more)

    def _table(self, key: Key) -> ServerTable:
        if key not in self._tables:
            raise ModeError(f"no table {key[0]!r} at server {self._server}; create it on every trainer first")
        return self._tables[key]


ANSWERED = {
    *(
        "create",
        "reopen",
        "attach",
        "attach_owned",
        "cache_stats",
        "saved_to",
        "push_buffer",
        "write",
        "freeze",
        "reset",
        "pull",
        "read_column",
        "write_column",
        "read_state",
        "write_state",
        "register",
    ),
    *("flush", "barrier"),
    *GROWING_CALLS,
}
UNANSWERED = {"mapped", "release", "push", "push_data", "prefetch", "hold"}
"""The calls of trainers: methods of ``Tables``, and whether an answer goes back."""


def tables_of(kv_store: Any) -> Tables:
    """The tables of a DGL ``KVServer``, made at the first call."""
    if not hasattr(kv_store, "graph_emb_tables"):
        server, per_machine = kv_store.server_id, kv_store._group_count
        first = server - server % per_machine
        kv_store.graph_emb_tables = Tables(server, range(first, first + per_machine), kv_store.data_store)
    return kv_store.graph_emb_tables


class ServedCall(Call):
    """A call as a server receives it."""

    def process_request(self, server_state: Any) -> Any:
        """Run at the server; never raises, because DGL's loop would end with it."""
        return tables_of(server_state.kv_store).handle(self)


class Announce:
    """A push handler that does nothing: DGL's servers unpickle it, which imports this module there."""

    def __call__(self, target: Any, name: str, ids: Tensor, data: Tensor) -> None:
        """Never called: no data has the name under which it is registered."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Announce, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Announce)

    def __hash__(self) -> int:
        return hash(Announce)


rpc.register_service(SERVICE, ServedCall, Answer)
