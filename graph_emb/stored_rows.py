"""What can be asked of the rows of a ``DistEmbedding`` where they lie, and done to them beside training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.partition_book import Ids
from graph_emb.optim.rule import ROW_COUNT, ROW_STEP, RowCounts
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.cache import CacheStats
from graph_emb.transport.base import Transport
from graph_emb.transport.traffic import Traffic


class StoredRows:
    """Rows that are held in memory, frozen, reset and counted."""

    _name: str
    _spec: TableSpec
    _transport: Transport

    if TYPE_CHECKING:

        @property
        def shard(self) -> EmbeddingShard: ...
        @property
        def num_embeddings(self) -> int: ...
        def _checked(self, ids: Ids) -> Tensor: ...

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to bring ranges of rows into memory, which others leave: what a schedule of buckets asks for.

        A hint that changes no result: rows outside the ranges are read and trained as ever, slowly. Each rank calls it
        for itself, in kvstore mode for all servers; of a table in memory it does nothing.

        Args:
            ranges: Ids [low, high) each, those that are needed first in front; as many rows as memory holds come.
        Raises:
            PartitionError: a range is not inside the table.
        """
        for low, high in ranges:
            if not 0 <= low <= high <= self.num_embeddings:
                raise PartitionError(
                    f"table {self._name!r}: the range [{low}, {high}) is not inside [0, {self.num_embeddings})"
                )
        if self._spec.placement is not None:
            self.shard.hold_ids(ranges)

    def freeze(self, ids: Ids) -> None:
        """Keep rows and their optimizer state as they are: no ``step()`` changes them any more.

        They are pulled as before; ``emb.weight[ids] = values`` still writes them. State of frozen rows takes memory
        as that of others does, and a clock that counts the table's steps goes on. In collective mode every rank
        calls it and the ids of all count; in kvstore mode the call of one trainer is enough.

        Args:
            ids: Partition-order ids, as ``emb(ids)`` takes them, any shape, repeats allowed.
        Raises:
            PartitionError: an id is out of range.
            ShapeError: ids are no integers.
            ModeError: kvstore mode with ``hogwild=True``, where trainers update rows without asking the owner.
        """
        self._freeze(ids, True)

    def unfreeze(self, ids: Ids) -> None:
        """Let optimizers change rows again; arguments and errors as ``freeze``."""
        self._freeze(ids, False)

    def _freeze(self, ids: Ids, frozen: bool) -> None:
        with self._transport.joint(f"freeze of table {self._name!r}"):
            self._transport.freeze(self._name, self._checked(ids).flatten(), frozen)

    def reset_rows(self, ids: Ids) -> None:
        """Give rows the values that they began with, and every state that an optimizer keeps of them.

        Frozen rows too; gradients that came back stay. Clocks that count the steps of the table go on. In collective
        mode every rank calls it and the ids of all count; in kvstore mode the call of one trainer is enough.

        Args:
            ids: As ``freeze`` takes them.
        Raises:
            PartitionError: an id is out of range.
            ShapeError: ids are no integers.
            ConfigError: ``init_func`` was a function of the shape, whose values belong to no id.
        """
        with self._transport.joint(f"reset of table {self._name!r}"):
            self._transport.reset(self._name, self._checked(ids).flatten())

    def cache_stats(self) -> CacheStats:
        """Hits, misses and transfers of the rows of this process, in kvstore mode of all servers, where they lie in a
        file.

        Raises:
            ConfigError: they lie in memory.
        """
        stats: CacheStats = self.shard.cache_stats()
        return stats

    @property
    def traffic(self) -> Traffic:
        """Ids and bytes of the table that this process asked for and sent since it was made: a copy."""
        return self._transport.traffic_of(self._name)

    def row_counts(self) -> RowCounts:
        """How often, and when last, steps of an optimizer with ``count_rows=True`` touched the rows of this process.

        Raises:
            ConfigError: no optimizer counts rows.
        Example:
            >>> emb = ge.DistEmbedding(3, 1)
            >>> opt = ge.SparseSGD([emb], lr=0.5, count_rows=True, count_power=0.5)  # a row's n-th step: 0.5 / sqrt(n)
            >>> for ids in ([0, 0, 2], [2]):
            ...     emb(torch.tensor(ids)).sum().backward()
            ...     opt.step()
            >>> emb.row_counts().steps.tolist(), emb.row_counts().last.tolist()
            ([1, 0, 2], [1, 0, 2])
        """
        state = self.shard.state
        if ROW_COUNT not in state:
            raise ConfigError(f"table {self._name!r}: no optimizer counts its rows; make one with count_rows=True")
        return RowCounts(self.shard.first_id, state[ROW_COUNT].clone(), state[ROW_STEP].clone())
