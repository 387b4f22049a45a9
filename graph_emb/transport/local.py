"""One process owns every part: a pull is a read, a push is an update; in kvstore mode handlers may take their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, TypeVar

import numpy as np
from torch import Tensor

from graph_emb.core.compiled import Groups, group_each
from graph_emb.core.errors import ModeError, ShapeError, unknown_name
from graph_emb.graph.partition_book import Rank, check_ids, num_distinct
from graph_emb.optim.apply import Update, apply_updates, merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.bags import Bags
from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.live_rows import LiveRows
from graph_emb.table.shard import EmbeddingShard, copy_rows
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.demoting_shard import growing_shard_for
from graph_emb.table.tier.shard import shard_for
from graph_emb.transport.base import LiveTables, Push, Reach, ShardRows, TableRows, Transport

Handler = TypeVar("Handler")


class LocalTransport(Transport):
    """All rows of all tables in this process, whatever their partition book says."""

    mode = "local"
    rank = Rank(0)
    world_size = 1
    lockstep = False
    takes_bags = groups_ids = True

    def __init__(self) -> None:
        super().__init__()
        self._tables: LiveTables[EmbeddingShard] = LiveTables()
        self._process = os.getpid()
        self._grouped: dict[str, tuple[Tensor, Groups]] = {}

    def _changing(self, table: str) -> EmbeddingShard:
        """The rows of a table that are about to change; a ModeError where a fork has a copy of them."""
        shard = self._tables[table]
        if os.getpid() != self._process and not shard.weight.is_shared():
            raise ModeError(
                f"table {table!r}: this process is a fork of the one that made the table; the change of its copy would "
                "be lost. Train in that process, or start the processes by torchrun or graph-emb launch"
            )
        return shard

    def create(self, spec: TableSpec) -> None:
        self._tables.check_free(spec.name)
        self._tables[spec.name] = growing_shard_for(spec, 0) if spec.growth else shard_for(spec, 0, spec.num_rows)

    def attach(self, table: str, rule: SparseRule) -> None:
        self._tables[table].allocate_state(rule.state_specs())

    def detach(self, table: str) -> None:
        if table in self._tables:
            self._tables[table].settle()  # nobody knows afterwards what rows lack
            self._tables[table].free_state()

    def prefetch(self, table: str, ids: Tensor) -> None:
        self._tables[table].prefetch(ids)

    def destroy(self, table: str) -> None:
        super().destroy(table)
        self._grouped.pop(table, None)

    def will_train(self, asked: Sequence[tuple[str, Tensor]]) -> None:
        told = {table: ids for table, ids in asked if self._gains_by_groups(table, ids)}
        groups = group_each([ids.numpy() for ids in told.values()])
        self._grouped.update(zip(told, zip(told.values(), groups, strict=True), strict=True))

    def _gains_by_groups(self, table: str, ids: Tensor) -> bool:
        shard = self._tables[table]
        return shard.attached and not shard.grows and ids.device.type == "cpu"

    def _groups_of(self, table: str, ids: Tensor) -> Groups | None:
        """The groups of ids that ``will_train`` told last."""
        told, groups = self._grouped.get(table, (None, None))
        return groups if told is ids else None

    def pull(self, table: str, ids: Tensor) -> Tensor:
        shard = self._tables[table]
        self._count_pull(table, ids)
        return shard.read(ids.to(shard.weight.device))

    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """As ``Transport.pull_tables``, by one pass over all rows."""
        copies = []
        for table, ids in asked:
            shard = self._tables[table]
            self._count_pull(table, ids)
            copies.append(shard.copy_of(ids.to(shard.weight.device)))
        return copy_rows(copies)

    def _count_pull(self, table: str, ids: Tensor) -> None:
        groups = self._groups_of(table, ids)
        self._count(table, len(ids), num_distinct(ids) if groups is None else len(groups[0]))

    def _count(self, table: str, asked: int, distinct: int) -> None:
        counts = self.counts[table]
        counts.asked += asked
        counts.distinct += distinct
        counts.local += distinct

    def pull_sums(self, table: str, bags: Bags) -> Tensor:
        shard = self._tables[table]
        if shard.weight.device.type != "cpu" or shard.lazy or shard.grows or not shard.in_memory:
            return super().pull_sums(table, bags)
        self._count(table, *bags.counts())
        return bags.sums(shard.weight, bags.ids)

    def push(self, pushes: Sequence[Push]) -> None:
        self.num_steps += 1
        self._apply([push for push in pushes if push.touched])

    def _apply(self, pushes: Sequence[Push]) -> None:
        """Take the step of tables, all by one pass over their rows."""
        updates = []
        for push in pushes:
            shard = self._changing(push.table)
            device = shard.weight.device
            groups = self._groups_of(push.table, push.ids)
            self._grouped.pop(push.table, None)
            of_rows = push.ids.to(device), push.grads.to(device)
            updates.append(Update(push.rule, shard, *of_rows, push.merge, places=push.places, groups=groups))
        apply_updates(updates)
        for push in pushes:
            self.counts[push.table].steps += 1
        with ExitStack() as ends:  # where a table's rows find no room on a disk, the others' policies go on
            for update in reversed(updates):
                if isinstance(update.shard, GrowingShard):
                    ends.callback(update.shard.after_step, _alone)

    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        shard = self._changing(table)
        shard.write(ids.to(shard.weight.device), values.to(shard.weight.device))

    def read_state(self, table: str, name: str, ids: Tensor) -> Tensor:
        return self._tables[table].state_rows(name, ids)

    def write_state(self, table: str, name: str, ids: Tensor, values: Tensor) -> None:
        self._changing(table).overwrite_state(name, ids, values)

    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        self._tables[table].settle(ids)
        self._tables[table].freeze(ids, frozen)

    def reset(self, table: str, ids: Tensor) -> None:
        self._tables[table].reset(ids)

    def _growing(self, table: str) -> GrowingShard:
        shard = self._changing(table)
        if not isinstance(shard, GrowingShard):
            raise self._fixed(table)
        return shard

    def grow(self, table: str, ids: Tensor) -> None:
        self._growing(table).grow(ids)

    def contains(self, table: str, ids: Tensor) -> Tensor:
        return self._growing(table).contains(ids)

    def evict(self, table: str) -> np.ndarray:
        return self._growing(table).evict(_alone)

    def all_ids(self, table: str) -> np.ndarray:
        return self._growing(table).ids()

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        self._tables.check_open()
        return [list(numbers)]

    def shard(self, table: str) -> EmbeddingShard:
        return self._tables[table]

    def in_reach(self, table: str) -> Reach:
        shard = self._changing(table)
        return Reach(0, shard.weight[: 0 if shard.lazy or shard.grows else None], shard.frozen is not None)

    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        shard = self._tables[table]
        return [LiveRows(shard) if isinstance(shard, GrowingShard) else ShardRows(shard)]

    def close(self) -> None:
        self._tables.close()


class StandaloneTransport(LocalTransport):
    """Kvstore mode without a server: the same interface. Staleness and Hogwild change nothing here."""

    mode = "kvstore"
    takes_bags = False  # a handler may take their place

    def __init__(self) -> None:
        super().__init__()
        self._push_handlers: dict[str, Callable[..., None]] = {}
        self._pull_handlers: dict[str, Callable[..., Tensor]] = {}
        self._unmerged: set[str] = set()

    def destroy(self, table: str) -> None:
        super().destroy(table)
        self._push_handlers.pop(table, None)
        self._unmerged.discard(table)
        self._pull_handlers.pop(table, None)

    def register_push_handler(
        self, table: str, func: Callable[..., None] | None, merge: Literal["none"] | None = None
    ) -> None:
        """As ``KVStoreTransport.register_push_handler``."""
        per_occurrence = takes_occurrences(merge)
        self._register(self._push_handlers, table, func)
        self._unmerged.discard(table)
        if per_occurrence and func is not None:
            self._unmerged.add(table)

    def register_pull_handler(self, table: str, func: Callable[..., Tensor] | None) -> None:
        """As ``KVStoreTransport.register_pull_handler``."""
        self._register(self._pull_handlers, table, func)

    def _register(self, handlers: dict[str, Handler], table: str, func: Handler | None) -> None:
        check_handled(self.shard(table).spec, func)
        if func is None:
            handlers.pop(table, None)
        else:
            handlers[table] = func

    def in_reach(self, table: str) -> Reach:
        """The rows that this process may change in place: all, or none where handlers see them."""
        found = super().in_reach(table)
        handled = table in self._push_handlers or table in self._pull_handlers
        return found._replace(weight=found.weight[:0]) if handled else found

    def pull(self, table: str, ids: Tensor) -> Tensor:
        if table not in self._pull_handlers:
            return super().pull(table, ids)
        self._count_pull(table, ids)
        distinct, inverse = ids.unique(return_inverse=True)
        return self._pull_handlers[table](self._data(), table, distinct)[inverse]

    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        handled = any(table in self._pull_handlers for table, _ in asked)
        return Transport.pull_tables(self, asked) if handled else super().pull_tables(asked)

    def pull_sums(self, table: str, bags: Bags) -> Tensor:
        handled = table in self._pull_handlers
        return Transport.pull_sums(self, table, bags) if handled else super().pull_sums(table, bags)

    def _apply(self, pushes: Sequence[Push]) -> None:
        super()._apply([push for push in pushes if push.table not in self._push_handlers])
        for push in pushes:
            if push.table in self._push_handlers:
                self._hand(push)

    def _hand(self, push: Push) -> None:
        """Hand a push to the table's handler."""
        rows, grads = self.shard(push.table).without_frozen(push.ids, push.grads)
        if push.table not in self._unmerged:
            rows, grads = merge(rows, grads, push.merge)
        self._push_handlers[push.table](self._data(), push.table, rows, grads)
        self.counts[push.table].steps += 1

    def push_data(self, table: str, ids: Tensor, values: Tensor) -> None:
        """As ``KVStoreTransport.push_data``."""
        shard = self.shard(table)
        check_fixed(shard.spec, "push_data")
        ids, values = checked_values(shard.spec, ids, values, table in self._push_handlers)
        if table in self._push_handlers:
            self._push_handlers[table](self._data(), table, ids, values)
        else:
            shard.write(ids, values)

    def _data(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for table, shard in self._tables.items():
            named[table] = shard.weight
            named.update({f"{table}_{name}": tensor for name, tensor in shard.state.items()})
        return named


def _alone(numbers: np.ndarray) -> np.ndarray:
    """The sum over the owners of a table, of which there is one."""
    return numbers


def check_fixed(spec: TableSpec, what: str) -> None:
    """Raise a ModeError where a table grows, whose rows no position finds."""
    if spec.growth is not None:
        raise ModeError(
            f"table {spec.name!r} grows: {what} takes tables of a fixed size; write emb.weight[ids] = values"
        )


def check_handled(spec: TableSpec, func: Handler | None, what: str = "a handler") -> None:
    """Raise a ModeError where handlers cannot see the rows of a table as a tensor."""
    if spec.placement is not None and func is not None:
        raise ModeError(f"table {spec.name!r}: its rows lie in a file, and {what} needs all of them in memory")
    check_fixed(spec, what)


def takes_occurrences(merge: str | None) -> bool:
    """Whether a push handler that asks for this treatment of duplicates gets every occurrence."""
    if merge not in (None, "none"):
        raise unknown_name("merge of a push handler", merge, ["none"])
    return merge == "none"


def checked_values(spec: TableSpec, ids: Tensor, values: Tensor, handled: bool) -> tuple[Tensor, Tensor]:
    """Ids, (B,), int64, and values, (B, ...), of DGL's push, both on the CPU and outside autograd.

    Args:
        spec: Of the table.
        ids: Any integer tensor.
        values: One entry for each id.
        handled: Whether a handler takes them; else they are rows, (B, D).
    Raises:
        PartitionError: an id is out of range.
        ShapeError: ids are no integer tensor, or values do not fit them or the table.
    """
    ids = check_ids(ids, spec.num_rows, spec.name).flatten()
    if len(ids) != len(values):
        raise ShapeError(f"table {spec.name!r}: {len(ids)} ids but {len(values)} rows of values")
    if not handled and tuple(values.shape) != (len(ids), spec.dim):
        raise ShapeError(
            f"table {spec.name!r}: values have shape {tuple(values.shape)}, its rows ({len(ids)}, {spec.dim}); "
            "only a push handler takes other shapes"
        )
    return ids.cpu(), values.detach().cpu()
