"""A table as a server has it: its rows in memory that its machine shares, its optimizers' state, and its users."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.shard import WEIGHT, EmbeddingShard
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.table.tier.shard import shard_for

Key = tuple[str, int]
"""A table's name and how many tables of that name each trainer made before."""


class Segments(NamedTuple):
    """The names of a table's shared memory, and the trainers that have not said that it is mapped."""

    names: dict[str, str]
    waiting: set[int]


class ServerTable:
    """One table at one server, of whose book each server has a range; ``machine``: the servers of this machine."""

    def __init__(self, spec: TableSpec, server: int, machine: range) -> None:
        assert isinstance(spec.book, RangeBook)
        bounds = spec.book.bounds.tolist()
        self.spec = spec
        self.first_id = bounds[machine.start]
        self.num_rows = bounds[machine.stop] - self.first_id
        self.low, self.high = bounds[server] - self.first_id, bounds[server + 1] - self.first_id
        self.segments: dict[int, Segments] = {}  # 0: the weight; 1, 2, ...: the state of the first, second optimizer
        self.shards: dict[int, EmbeddingShard] = {}
        self.users: dict[int, set[int]] = {}
        self.push_handler: Callable[..., None] | None = None
        self.pull_handler: Callable[..., Tensor] | None = None

    def rows(self, ids: Tensor) -> Tensor:
        """Positions in the machine's part of ids that this server owns."""
        rows = ids - self.first_id
        if len(rows) and not (self.low <= int(rows.min()) and int(rows.max()) < self.high):
            raise ConfigError(f"table {self.spec.name!r}: a trainer sent ids that this server does not own")
        return rows

    def read(self, rows: Tensor, decay: float | None) -> Tensor:
        """Copies of rows; of lazy decay as the asking trainer counts it."""
        lazy = [shard for shard in self.shards.values() if shard.lazy]
        return lazy[-1].read(rows, decay) if lazy else self.shards[0].read(rows)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows."""
        self.shards[0].write(rows, values)
        for shard in self.shards.values():
            shard.wrote(rows)

    def write_column(self, optimizer: int, name: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows of the weight, or of a piece of an optimizer's state, as a checkpoint has them."""
        self.shards[0 if name == WEIGHT else optimizer].write_column(name, rows, values)

    def freeze(self, rows: Tensor, frozen: bool) -> None:
        """Keep rows from the updates of every optimizer, or give them back."""
        for shard in self.shards.values():
            shard.settle(rows)
        self.shards[0].freeze(rows, frozen)
        for shard in self.shards.values():
            shard.frozen = self.shards[0].frozen

    def forget(self, optimizer: int) -> None:
        """Free the state of an optimizer; every row is stored as it is read before."""
        self.shards[optimizer].settle(torch.arange(self.low, self.high))
        del self.shards[optimizer], self.segments[optimizer]

    def at_step(self, step: int | None) -> AbstractContextManager[None]:
        """A push that is the sender's ``step``-th step of the table, which a growing table counts."""
        return nullcontext()

    def data(self) -> dict[str, Tensor]:
        """Tensors by name, as handlers of users see them: the weight and the newest state."""
        newest = self.shards[max(self.shards)]
        named = {f"{self.spec.name}_{name}": tensor for name, tensor in newest.state.items()}
        return {self.spec.name: newest.weight, **named}


class OwnedTable(ServerTable):
    """A table whose rows one shard of this server holds, with the state of the newest optimizer.

    Attributes:
        held: That shard.
        optimizer: The number of the newest one, 0 before there was one.
    """

    held: EmbeddingShard

    def hold(self, held: EmbeddingShard, segment: Segments) -> None:
        """Take the shard, and the name of memory that trainers map."""
        self.held, self.optimizer = held, 0
        self.shards, self.segments, self.users = {0: held}, {0: segment}, {}
        self.push_handler = self.pull_handler = None

    def read(self, rows: Tensor, decay: float | None) -> Tensor:
        return self.held.read(rows, decay)

    def write(self, rows: Tensor, values: Tensor) -> None:
        self.held.write(rows, values)

    def freeze(self, rows: Tensor, frozen: bool) -> None:
        self.held.settle(rows)
        self.held.freeze(rows, frozen)

    def attach(self, optimizer: int, specs: tuple[StateSpec, ...]) -> None:
        """Give rows the state of an optimizer; that of an earlier one goes."""
        if optimizer < self.optimizer:
            raise ModeError(f"table {self.spec.name!r} is trained by another optimizer; close() that one first")
        if self.optimizer in self.shards and self.optimizer:
            self.forget(self.optimizer)
        self.held.allocate_state(specs)
        self.optimizer, self.shards[optimizer], self.segments[optimizer] = optimizer, self.held, Segments({}, set())

    def forget(self, optimizer: int) -> None:
        self.held.settle()
        self.held.free_state()
        del self.shards[optimizer], self.segments[optimizer]

    def data(self) -> dict[str, Tensor]:
        return {}  # handlers see tensors with a row for every id


class PlacedTable(OwnedTable):
    """A table with a placement: memory of this server holds a part of its own rows, and trainers map none."""

    def __init__(self, spec: TableSpec, server: int) -> None:
        super().__init__(spec, server, range(server, server + 1))
        self.hold(shard_for(spec, self.first_id, self.num_rows), Segments({}, set()))
