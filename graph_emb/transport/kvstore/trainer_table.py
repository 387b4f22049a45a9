"""A table as a trainer of kvstore mode sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.apply import apply_update
from graph_emb.optim.merge import Merge
from graph_emb.optim.rule import SparseRule
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.transport.kvstore import shared
from graph_emb.transport.routing import Layout


@dataclass
class TrainerTable:
    """Who owns what, and the rows of the trainer's own machine, which it reads in shared memory.

    Attributes:
        key: The table's name and how many tables of that name were made before.
        low, high: The ids of this machine.
        shard: Their rows.
        optimizers: How many were attached so far.
        attached: Whether one is now.
        push_handler, pull_handler: Whether a user's handler is registered.
        pending: Pushes since the last flush.
    """

    spec: TableSpec
    book: RangeBook
    owners: Layout
    key: tuple[str, int]
    low: int
    high: int
    shard: shared.SharedShard
    optimizers: int = 0
    attached: bool = False
    push_handler: bool = False
    pull_handler: bool = False
    pending: int = 0

    def open_state(self, spec: StateSpec, names: dict[str, str]) -> Tensor:
        """A piece of the optimizer's state: mapped, or, of a per-table clock, the trainer's own."""
        weight = self.shard.weight
        shape, dtype = shared.state_shape(spec, weight), shared.state_dtype(spec, weight)
        if spec.kind == "table":  # it travels with each push
            return torch.full(shape, spec.initial, dtype=dtype)
        return shared.open_segment(names[spec.name], shape, dtype, create=False)

    def clocks(self) -> dict[str, float]:
        """The per-table clocks as they stand."""
        kinds = self.shard.state_specs
        return {name: value.item() for name, value in self.shard.state.items() if kinds[name].kind == "table"}

    def apply(self, rule: SparseRule, ids: Tensor, grads: Tensor, how: Merge) -> None:
        """Do what the servers of this machine do with a push (Hogwild); the clocks stay as they are."""
        clocks = self.clocks()
        shard = self.shard.narrow(0, self.shard.num_rows)
        shard.state = {name: t.clone() if name in clocks else t for name, t in shard.state.items()}
        apply_update(rule, shard, ids - self.low, grads, how)
