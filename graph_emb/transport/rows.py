"""The rows that a process saves and loads: its share of a table, weight and optimizer state, in pieces.

Legend: B rows of a piece, D width.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from graph_emb.table.shard import EmbeddingShard

WEIGHT = "weight"


class TableRows(Protocol):
    """Rows [first_id, first_id + num_rows) of a table, in partition order, with their state.

    A column is ``weight`` or the name of a piece of state that has rows. The shares of all processes together are
    the table, and no row is in two of them.
    """

    first_id: int
    num_rows: int

    def read(self, column: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a column, on the CPU; may share the table's memory."""

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows, shape (B,), of a column with values, shape (B, D) or (B,)."""

    def memory(self, column: str) -> Tensor | None:
        """The whole column where it lies in this process's reach on the CPU, contiguous; None elsewhere."""


class ShardRows:
    """Rows of a shard in this process's reach.

    Args:
        shard: Weight and state.
    """

    def __init__(self, shard: EmbeddingShard) -> None:
        self.first_id, self.num_rows = shard.first_id, shard.num_rows
        self._shard = shard

    def _column(self, column: str) -> Tensor:
        return self._shard.weight if column == WEIGHT else self._shard.state[column]

    def read(self, column: str, start: int, stop: int) -> Tensor:
        """As ``TableRows.read``."""
        return self._column(column)[start:stop].cpu()

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        """As ``TableRows.write``."""
        target = self._column(column)
        target.index_copy_(0, rows.to(target.device), values.to(target.device))

    def memory(self, column: str) -> Tensor | None:
        """As ``TableRows.memory``."""
        target = self._column(column)
        return target if target.device.type == "cpu" and target.is_contiguous() else None
