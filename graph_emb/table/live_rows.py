"""Rows of a growing table as a checkpoint reads them: all, or those that changed since the last one.

Legend: R rows, N ids that left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from graph_emb.table.growing_shard import GrowingShard


class LiveRows:
    """The rows of a growing table in this process's reach, as they are at this moment, in the order of their ids.

    Args:
        shard: Of the table.
        places: Those of the rows, (R,), in that order; None: of all rows.
    """

    first_id = 0

    def __init__(self, shard: GrowingShard, places: Tensor | None = None) -> None:
        self._shard, self._places = shard, shard.in_order() if places is None else places
        self.num_rows, self.ids = len(self._places), shard.places.original_ids(self._places)

    def read(self, column: str, start: int, stop: int) -> Tensor:
        return self._shard.column_at(column, self._places[start:stop])

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        raise AssertionError("rows of growing tables are restored by id")

    def memory(self, column: str) -> Tensor | None:
        return None


class ChangedRows(NamedTuple):
    """The difference of a process's rows from those at ``GrowingRows.track``.

    Attributes:
        rows: Those that changed or are new (``TableRows`` with ``ids``).
        gone: The ids that left and have no row, (N,).
        halvings: How often all counts were halved.
        total: Rows that are there.
    """

    rows: Sequence[Any]
    gone: np.ndarray
    halvings: int
    total: int

    @classmethod
    def of(cls, shard: GrowingShard) -> ChangedRows:
        """Those of a shard."""
        return cls([LiveRows(shard, shard.touched())], shard.gone(), shard.halvings(), shard.num_rows)
