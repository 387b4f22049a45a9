"""Joint calls about rows that any rank may name: their owners freeze them, or give them first values again."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from graph_emb.transport import columns, lockstep
from graph_emb.transport.base import LiveTables, Transport
from graph_emb.transport.lockstep import RankTable
from graph_emb.transport.process_group import ProcessGroup


class NamedRows(Transport):
    """The part of ``CollectiveTransport`` that brings ids to the owners of their rows, and no values."""

    group: ProcessGroup
    _tables: LiveTables[RankTable]
    agree: columns.Agree

    @abstractmethod
    def mark_changed(self, table: str, rows: Tensor) -> None:
        """Note that rows of this rank's shard change."""

    def freeze(self, table: str, ids: Tensor, frozen: bool) -> None:
        with self.joint(f"freeze of table {table!r}"):
            rows, anywhere = self._named(lockstep.FREEZE, table, ids, "freeze")
            if anywhere:  # of all ranks: each knows whether any froze rows
                self._tables[table].shard.settle(rows)
                self._tables[table].shard.freeze(rows, frozen)

    def reset(self, table: str, ids: Tensor) -> None:
        with self.joint(f"reset of table {table!r}"):
            rows, _ = self._named(lockstep.RESET, table, ids, "reset")
            self._tables[table].shard.reset(rows)
            self.mark_changed(table, rows)

    def _named(self, call: int, table: str, ids: Tensor, word: str) -> tuple[Tensor, bool]:
        """The rows of this rank that any rank names by ids, repeats kept, and whether any rank names one anywhere."""
        found = self._tables[table]
        what = f"{word} of table {table!r}"
        route = found.ranges.route(ids, self.rank)
        remote = len(route.ids) - route.counts[self.rank]
        rows, anywhere = route.ids[remote:], len(route.ids) > 0
        if self.world_size > 1:
            counts = list(route.counts)
            counts[self.rank] = 0
            told = torch.tensor([[count, int(anywhere)] for count in counts])
            got = self.agree(call, found.identity, told, what)
            coming, anywhere = got[:, 0].tolist(), bool(got[:, 1].any())
            rows = torch.cat([rows, self.group.exchange(route.ids[:remote], counts, coming, what)])
        return rows - found.shard.first_id, anywhere
