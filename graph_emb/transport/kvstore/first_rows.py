"""The first values of a table, as one server needs them: its own rows and no more."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from graph_emb.partition_book import RangeBook
from graph_emb.table.initializers import FromArray, Initializer
from graph_emb.table.spec import TableSpec


class ArrayRows(FromArray):
    """The rows of an array from ``first_id`` on."""

    def __init__(self, array: Tensor, first_id: int) -> None:
        super().__init__(array)
        self._first_id = first_id

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """Copy the rows of ids first_id, first_id + 1, ... into weight."""
        super().fill_(weight, first_id - self._first_id)


def for_server(spec: TableSpec, book: RangeBook, server: int) -> TableSpec:
    """The spec with ranges per server, and of an array only the server's own rows."""
    initializer: Initializer = spec.initializer
    if isinstance(initializer, FromArray):
        low, high = book.bounds[server : server + 2].tolist()
        initializer = ArrayRows(initializer.array[low:high].clone(), low)
    return replace(spec, book=book, initializer=initializer)
