"""One process owns every part: a pull is a read, a push is an update."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from graph_emb.graph.partition_book import Rank
from graph_emb.optim.apply import apply_update
from graph_emb.optim.rule import SparseRule
from graph_emb.table.shard import EmbeddingShard, TableSpec
from graph_emb.transport.base import LiveTables, Push, Reach, ShardRows, TableRows, Transport


class LocalTransport(Transport):
    """All rows of all tables in this process, whatever their partition book says."""

    mode = "local"
    rank = Rank(0)
    world_size = 1
    lockstep = False

    def __init__(self) -> None:
        self._tables: LiveTables[EmbeddingShard] = LiveTables()

    def create(self, spec: TableSpec) -> None:
        self._tables.check_free(spec.name)
        self._tables[spec.name] = EmbeddingShard(spec, 0, spec.num_rows)

    def attach(self, table: str, rule: SparseRule) -> None:
        self._tables[table].allocate_state(rule.state_specs())

    def detach(self, table: str) -> None:
        if table in self._tables:
            self._tables[table].free_state()

    def pull(self, table: str, ids: Tensor) -> Tensor:
        shard = self._tables[table]
        return shard.read(ids.to(shard.weight.device))

    def push(self, pushes: Sequence[Push]) -> None:
        for table, ids, grads, rule, merge, touched in pushes:
            if touched:
                shard = self._tables[table]
                device = shard.weight.device
                apply_update(rule, shard, ids.to(device), grads.to(device), merge)

    def write(self, table: str, ids: Tensor, values: Tensor) -> None:
        shard = self._tables[table]
        shard.write(ids.to(shard.weight.device), values.to(shard.weight.device))

    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        self._tables[table].freeze(ids, frozen)

    def votes(self, yes: bool) -> int:
        self._tables.check_open()
        return int(yes)

    def shard(self, table: str) -> EmbeddingShard:
        return self._tables[table]

    def in_reach(self, table: str) -> Reach:
        shard = self._tables[table]
        return Reach(0, shard.weight, shard.frozen is not None)

    def rows(self, table: str, *, overwrite: bool = False) -> list[TableRows]:
        return [ShardRows(self._tables[table])]

    def close(self) -> None:
        self._tables.close()
