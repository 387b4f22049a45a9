"""A table as one server has to know it: its ranges, and of arrays and original ids the server's own rows alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from graph_emb.graph.original_ids import ArrayIds, FileIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.initializers import FromArray, Initializer, OwnerInitializer
from graph_emb.table.spec import TableSpec
from graph_emb.transport.kvstore.rpc import sendable


class ServerArray(FromArray):
    """The rows of an array from ``first_id`` on."""

    def __init__(self, array: Tensor, first_id: int) -> None:
        super().__init__(array)
        self._first_id = first_id

    def fill_(self, weight: Tensor, first_id: int) -> None:
        super().fill_(weight, first_id - self._first_id)

    def fill_at_(self, weight: Tensor, ids: np.ndarray) -> None:
        super().fill_at_(weight, ids - self._first_id)


def for_server(spec: TableSpec, book: RangeBook, server: int, *, send_ids: bool = False) -> TableSpec:
    """The spec with ranges per server, and of an array, a file's ids or original ids only the server's own rows.

    With ``send_ids`` the original ids that lie in files are sent too: the server cannot read those. A ConfigError
    where the initializer cannot be sent at all.
    """
    low, high = book.bounds[server : server + 2].tolist()
    ids = spec.original_ids
    if isinstance(spec.initializer, FromArray):
        first = spec.initializer
        rows = first.array[low:high].clone() if ids is None else first.rows_of(ids.of(low, high), spec.dim)
        return replace(spec, book=book, initializer=ServerArray(rows, low), original_ids=None)
    made: Initializer = spec.initializer
    if isinstance(made, OwnerInitializer):
        made = made.for_owner(low, high)
    made = sendable(made, f"table {spec.name!r}: init_func")
    if ids is not None and (send_ids or not isinstance(ids, FileIds)):
        ids = ArrayIds(ids.of(low, high), high - low, low)
    return replace(spec, book=book, initializer=made, original_ids=ids)
