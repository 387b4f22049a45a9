"""Growing tables over ranks in lockstep: each rank owns a range of keys, and decisions are sums over all of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from graph_emb.table.growing_shard import GrowingShard
from graph_emb.table.selection import TotalOf
from graph_emb.transport import columns, lockstep
from graph_emb.transport.named_rows import NamedRows


class GrowingTables(NamedRows):
    """The part of ``CollectiveTransport`` that tables of a fixed size do not need."""

    @abstractmethod
    def _tell(self, call: int, number: int, said: int, what: str) -> int:
        """Tell every rank a number; returns the sum of all, this rank's included."""

    def _growing(self, table: str) -> GrowingShard:
        shard = self._tables[table].shard
        if not isinstance(shard, GrowingShard):
            raise self._fixed(table)
        return shard

    def _total_of(self, table: str) -> TotalOf:
        """Sums over the ranks, which all ask for them in the same joint call."""

        def total_of(numbers: np.ndarray) -> np.ndarray:
            if self.world_size == 1:
                return numbers
            found: np.ndarray = self.group.sum(torch.from_numpy(numbers), f"eviction of table {table!r}").numpy()
            return found

        return total_of

    def grow(self, table: str, ids: Tensor) -> None:
        with self.joint(f"grow of table {table!r}"):
            shard = self._growing(table)
            shard.grow(self._named(lockstep.GROW, table, ids, "grow")[0])

    def contains(self, table: str, ids: Tensor) -> Tensor:
        what = f"contains of table {table!r}"
        with self.joint(what):
            self._growing(table)
            found = self._tables[table]
            return columns.fetch(self.group, self.agree, lockstep.CONTAINS, found, "", ids, what)

    def evict(self, table: str) -> np.ndarray:
        what = f"eviction of table {table!r}"
        with self.joint(what):
            shard = self._growing(table)
            self._tell(lockstep.EVICT, self._tables[table].identity, 0, what)
            return self._from_all(shard.evict(self._total_of(table)), what)

    def all_ids(self, table: str) -> np.ndarray:
        what = f"ids of table {table!r}"
        with self.joint(what):
            shard = self._growing(table)
            self._tell(lockstep.IDS, self._tables[table].identity, 0, what)
            return self._from_all(shard.ids(), what)

    def owns(self, table: str, ids: Tensor) -> Tensor:
        return self._tables[table].ranges.owner(ids) == self.rank

    def _from_all(self, ids: np.ndarray, what: str) -> np.ndarray:
        """The ids of all ranks, ascending."""
        return np.sort(np.concatenate(self.group.gather_objects(ids, what)))
