"""A trainer's view of one table: who owns what, the rows of its own machine, and those of machines without trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RangeBook, RankRanges, Route, cut
from graph_emb.optim.apply import Merge, apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.lazy_decay import DECAY
from graph_emb.table.shard import RowCopy, lend
from graph_emb.table.spec import TableSpec
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.rpc import Answer, Asked, Exchange


@dataclass
class TrainerTable:
    """Who owns what, and the rows of the trainer's own machine, which it reads in shared memory."""

    spec: TableSpec
    book: RangeBook
    owners: RankRanges
    key: tuple[str, int]  # the table's name and how many tables of that name were made before
    low: int
    high: int  # the ids of this machine are [low, high)
    shard: shared.SharedShard  # their rows
    optimizers: int = 0  # attached so far
    push_handler: bool = False  # whether a user's is registered
    per_occurrence: bool = False  # whether that one takes gradients unmerged
    pull_handler: bool = False
    pending: int = 0  # pushes since the last flush

    @property
    def grows(self) -> bool:
        return self.spec.growth is not None

    def by_server(self, ids: Tensor) -> tuple[Tensor, list[tuple[int, int, int]]]:
        """The order of ids, (B,), that groups them by server, and (server, start, end) of each that has some."""
        owner = self.owners.owner(ids)
        counts = torch.bincount(owner, minlength=self.owners.world_size).tolist()
        return torch.argsort(owner, stable=True), cut(counts)

    def clocks(self) -> dict[str, float]:
        kinds = self.shard.state_specs
        return {name: value.item() for name, value in self.shard.state.items() if kinds[name].kind == "table"}

    def apply(self, rule: SparseRule, ids: Tensor, grads: Tensor, how: Merge) -> None:
        """Do what the servers of this machine do with a push (Hogwild); the clocks stay as they are."""
        clocks = self.clocks()
        shard = self.shard.narrow(0, self.shard.num_rows)
        shard.state = {name: t.clone() if name in clocks else t for name, t in shard.state.items()}
        apply_update(rule, shard, ids - self.low, grads, how)


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


class TablePull:
    """A pull of a table some of whose rows are elsewhere: calls for those, and the rows once they are answered.

    Args:
        table: Where the near rows are.
        route: Of the asked ids to the servers.
        own: The servers whose rows are read here.
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
        self._out = torch.empty(0)

    def read_own(self) -> None:
        """Read the near rows, while the servers answer."""
        table, ids = self._table, self.route.ids
        self._out = lend((len(ids), table.spec.dim), table.spec.dtype, ids.device)
        for start, end in self._near:
            table.shard.read_into(ids[start:end] - table.low, self._out[start:end])

    def copy(self, answers: Iterator[Answer]) -> RowCopy:
        """The rows in the order asked; takes as many answers as there are calls."""
        for start, end in self._away:
            self._out[start:end] = next(answers).tensors[0]
        num, dim = len(self.route.place), self._out.shape[1]
        return RowCopy(self._out, self.route.place, lend((num, dim), self._out.dtype, self._out.device))
