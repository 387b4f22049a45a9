"""A trainer's view of one table: who owns what, the rows of its own machine, and those of machines without trainers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RangeBook, RankRanges, cut
from graph_emb.optim.apply import Merge, apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.growing_rows import GrowingRows
from graph_emb.table.spec import TableSpec
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.rpc import Exchange


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
    per_occurrence: bool = False  # whether that one, or counts of a growing table, want gradients unmerged
    pull_handler: bool = False
    pending: int = 0  # pushes since the last flush

    @property
    def grows(self) -> bool:
        return self.spec.growth is not None

    @property
    def placed(self) -> bool:
        """Whether the servers' memory holds a part of the rows, and trainers none."""
        return self.spec.placement is not None

    def next_step(self) -> int | None:
        """Count a push of a growing table: the step that it is; None of others."""
        if not isinstance(self.shard, GrowingRows):
            return None
        self.shard.step += 1
        return self.shard.step

    def by_server(self, ids: Tensor) -> tuple[Tensor, list[tuple[int, int, int]]]:
        """The order of ids, (B,), that groups them by server, and (server, start, end) of each that has some."""
        owner = self.owners.owner(ids)
        pieces = cut(torch.bincount(owner, minlength=self.owners.world_size).tolist())
        return torch.arange(len(ids)) if len(pieces) == 1 else torch.argsort(owner, stable=True), pieces

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
