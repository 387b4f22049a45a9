"""Tables of which each server's memory holds a part, as a trainer has them: their rows are reached by calls alone.

Every server has a file, or a cache of its own memory, for the rows that it owns. A trainer saves and restores the rows
of every ``world_size``-th server, as those of growing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import Tensor

from graph_emb.core.errors import DataError, ModeError
from graph_emb.graph.partition_book import RankRanges
from graph_emb.table.spec import TableSpec
from graph_emb.table.tier.cache import CacheStats, sum_of
from graph_emb.transport.base import TableRows
from graph_emb.transport.kvstore.growing_client import GrowingClient, with_whole_path
from graph_emb.transport.kvstore.layout import server_book
from graph_emb.transport.kvstore.server_spec import for_server
from graph_emb.transport.kvstore.shared import SharedShard
from graph_emb.transport.kvstore.trainer_table import FarRows, TrainerTable


class PlacedClient(GrowingClient):
    """The part of ``KVStoreTransport`` about tables with a placement."""

    def _create_placed(self, spec: TableSpec) -> None:
        book = server_book(spec.book, self._hosts, spec.name)
        spec = with_whole_path(spec)
        key = (spec.name, self._made.get(spec.name, 0))
        self._collect_garbage()
        self._made[spec.name] = key[1] + 1

        def create(send_ids: bool) -> None:
            specs = [for_server(spec, book, server, send_ids=send_ids) for server in self._all]
            self._exchange.ask([(s, "create", (key, specs[s], self._everyone, None), ()) for s in self._all])

        try:
            try:
                create(send_ids=False)
            except DataError:  # a server does not see the files of the partition's id maps
                create(send_ids=True)
        except Exception:
            self._garbage.append((key, 0))  # servers that could make it
            raise
        owners = RankRanges(book.bounds.tolist(), range(book.num_parts), book.num_parts)
        self._tables[spec.name] = TrainerTable(spec, book, owners, key, 0, 0, PlacedShard(spec, self))

    def prefetch(self, table: str, ids: Tensor) -> None:
        """As ``Transport.prefetch``: servers bring rows of tables with a placement while this process goes on."""
        found = self._tables[table]
        if not found.placed:
            return
        ids = ids.to("cpu").unique()
        order, pieces = found.by_server(ids)
        for server, start, end in pieces:
            self._exchange.tell(server, "prefetch", found.key, tensors=(ids[order[start:end]],))

    def hold(self, table: str, ranges: Sequence[tuple[int, int]]) -> None:
        """``EmbeddingShard.hold_ids`` of all servers."""
        for server in self._all:
            self._exchange.tell(server, "hold", self._tables[table].key, list(ranges))

    def cache_stats(self, table: str) -> CacheStats:
        """What the caches of all servers did."""
        key = self._tables[table].key
        answers = self._exchange.ask([(s, "cache_stats", (key,), ()) for s in self._all])
        return reduce(sum_of, (CacheStats(**answer.value) for answer in answers))

    def placed_rows(self, table: TrainerTable) -> list[TableRows]:
        """The rows that this trainer saves or loads."""
        return [FarRows(self._exchange, server, table) for server in self._saved]

    def saved_to(self, table: str, checkpoint: str) -> None:
        """``EmbeddingShard.saved_to`` of those servers."""
        key = self._tables[table].key
        self._exchange.ask([(s, "saved_to", (key, checkpoint), ()) for s in self._saved])


class PlacedShard(SharedShard):
    """A table with a placement as a trainer has it: the optimizer's clocks, and no row."""

    in_memory = False

    def __init__(self, spec: TableSpec, client: PlacedClient) -> None:
        super().__init__(spec, 0, torch.empty((0, spec.dim), dtype=spec.dtype))
        self._client = client

    def hold_ids(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._client.hold(self.spec.name, ranges)

    def saved_to(self, checkpoint: str) -> None:
        self._client.saved_to(self.spec.name, checkpoint)

    def cache_stats(self) -> CacheStats:
        return self._client.cache_stats(self.spec.name)

    def _elsewhere(self, *_: Any, **__: Any) -> NoReturn:
        raise ModeError(
            f"table {self.spec.name!r}: no row of placement={self.spec.placement} lies in this process; servers have "
            "them: emb(ids), emb.weight[ids], save_checkpoint() and load_checkpoint() reach them, state_dict() does not"
        )

    read: Any = _elsewhere
    read_into: Any = _elsewhere
    copy_of: Any = _elsewhere
    column: Any = _elsewhere
    held_rows: Any = _elsewhere
    state_rows: Any = _elsewhere
    updating: Any = _elsewhere
    write: Any = _elsewhere
    write_column: Any = _elsewhere
    saved_state: Any = _elsewhere
