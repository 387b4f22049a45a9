"""Specifications of tables and of optimizer state, before any memory is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.graph.original_ids import OriginalIds
from graph_emb.graph.partition_book import PartitionBook
from graph_emb.table.initializers import Initializer, fill_rows_

CPU = torch.device("cpu")
FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TableSpec:
    """A table's name, shape, storage and first values.

    Args:
        name: Unique among the live tables of a transport.
        num_rows: Ids in the whole table, over all parts.
        dim: Width of a row.
        book: Who owns which id.
        initializer: First values, a function of (seed, original id) alone.
        dtype: A floating dtype.
        device: Where the rows lie.
        original_ids: The original id of each row; None: the table's ids are original.
    """

    name: str
    num_rows: int
    dim: int
    book: PartitionBook
    initializer: Initializer
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    original_ids: OriginalIds | None = None

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or "\0" in self.name:
            raise ConfigError(f"table name {self.name!r} must be non-empty and without '/'")
        if self.num_rows < 0:
            raise ConfigError(f"table {self.name!r}: num_embeddings {self.num_rows} must not be negative")
        if self.dim < 1:
            raise ConfigError(f"table {self.name!r}: embedding_dim {self.dim} must be at least 1")
        if self.dtype not in FLOAT_DTYPES:
            known = ", ".join(str(dtype) for dtype in FLOAT_DTYPES)
            raise ConfigError(f"table {self.name!r}: dtype {self.dtype} is not one of {known}")

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """Write the first values of the rows first_id, first_id + 1, ... into weight, shape (R, D)."""
        fill_rows_(self.initializer, weight, first_id, self.original_ids)


@dataclass(frozen=True)
class StateSpec:
    """One named piece of optimizer state.

    Args:
        name: The field's word for it (``sum``, ``exp_avg``, ``step``), as torch.optim spells it.
        kind: ``element`` (one value per weight), ``row`` (one per row) or ``table`` (one per shard, a clock).
        dtype: None follows the accumulation dtype of the table (float32 for 16-bit weights).
        initial: The value of a row that was never touched.
    """

    name: str
    kind: Literal["element", "row", "table"]
    dtype: torch.dtype | None = None
    initial: float = 0.0


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients and state of a table are kept: float32 for 16-bit tables, else the table's."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
