"""What a table is: its shape, its dtype, who owns its rows, and what state its optimizer keeps."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.graph.hash_book import key_of
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.graph.partition_book import Ids, PartitionBook, check_ids
from graph_emb.table.growth import Growth
from graph_emb.table.initializers import Initializer, fill_rows_
from graph_emb.table.placement import Buckets, File, Placement

CPU = torch.device("cpu")
FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOST_BYTES = 2**63 - 1
"""Bytes of the largest table: offsets are int64."""


def checked_shape(
    table: str, num_embeddings: Any, embedding_dim: Any, dtype: Any, dtypes: Sequence[torch.dtype] = FLOAT_DTYPES
) -> tuple[int, int]:
    """Rows and width of a table as int, before any memory is taken.

    Args:
        table: The name that an error shows.
        num_embeddings, embedding_dim: Integers of Python, numpy or torch.
        dtype: Of the rows, one of ``dtypes``.
    Raises:
        ConfigError: one is no integer or outside its limits, or the table would exceed ``MOST_BYTES``.
    """
    if dtype not in dtypes:
        raise ConfigError(f"table {table!r}: dtype {dtype} is not one of {', '.join(map(str, dtypes))}")
    num_rows = _integer(table, "num_embeddings", num_embeddings)
    dim = _integer(table, "embedding_dim", embedding_dim)
    if num_rows < 0:
        raise ConfigError(f"table {table!r}: num_embeddings {num_rows} must not be negative")
    if dim < 1:
        raise ConfigError(f"table {table!r}: embedding_dim {dim} must be at least 1")
    if (num_bytes := num_rows * dim * dtype.itemsize) > MOST_BYTES:
        raise ConfigError(
            f"table {table!r}: num_embeddings {num_rows} and embedding_dim {dim} of {dtype} take {num_bytes} bytes; "
            f"at most {MOST_BYTES} are possible"
        )
    return num_rows, dim


def _integer(table: str, name: str, value: Any) -> int:
    """The value of an integer; a truth value is none, and a float is none even where it is whole."""
    try:
        if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
            raise TypeError
        return operator.index(value)
    except (TypeError, RuntimeError):
        raise ConfigError(f"table {table!r}: {name} {value!r} must be an integer, not {type(value).__name__}") from None


@dataclass(frozen=True)
class TableSpec:
    """A table's name, shape, storage and first values.

    Args:
        name: Unique among the live tables of a transport.
        num_rows: Ids in the whole table, over all parts.
        dim: Width of a row.
        book: Who owns which id.
        initializer: First values, a function of (seed, original id) alone.
        dtype: A floating dtype, or int8 for codes that are read only.
        device: Where the rows lie.
        original_ids: The original id of each row; None: the table's ids are original.
        growth: How the table grows, whose ids are any and whose num_rows is its max_rows; None: it has all its rows.
        placement: Where its owners keep the rows, of a growing table those that left memory; None: in memory.
    """

    name: str
    num_rows: int
    dim: int
    book: PartitionBook
    initializer: Initializer
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    original_ids: OriginalIds | None = None
    growth: Growth | None = None
    placement: Placement | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "/" in self.name or "\0" in self.name:
            raise ConfigError(f"table name {self.name!r} must be a text, non-empty and without '/'")
        checked_shape(self.name, self.num_rows, self.dim, self.dtype, (*FLOAT_DTYPES, torch.int8))
        if self.growth is not None:
            self._check_demotes(self.growth)

    def _check_demotes(self, growth: Growth) -> None:
        """Raise a ConfigError unless rows that leave a growing table go to a file, or there is none."""
        demotes = growth.on_evict == "demote"
        if demotes and growth.eviction is None:
            raise ConfigError(
                f"table {self.name!r}: on_evict='demote' is for rows that leave, and none does; pass an eviction, such "
                "as ge.LeastRecent(max_rows=...)"
            )
        if self.placement is not None and not demotes:
            raise ConfigError(
                f"table {self.name!r} grows, and grows in memory: leave out placement={self.placement}, or pass an "
                "eviction and on_evict='demote', which moves the rows that leave to the file"
            )
        if demotes and (not isinstance(self.placement, File) or isinstance(self.placement, Buckets)):
            raise ConfigError(
                f"table {self.name!r}: on_evict='demote' moves rows to a file, and placement={self.placement} is none; "
                "pass ge.File(folder, memory=...)"
            )

    def check_same(self, other: TableSpec, *, policy: bool, first: bool) -> None:
        """Refuse to open this live table by a spec that differs from its own.

        Args:
            other: What is asked for.
            policy, first: Whether its owners (with original ids), and its first values, were asked for at all.
        Raises:
            ConfigError: it differs; functions that make first values cannot be compared.
        """
        pairs: dict[str, tuple[Any, Any]] = {
            "shape": ((self.num_rows, self.dim), (other.num_rows, other.dim)),
            "dtype": (self.dtype, other.dtype),
            "device": (self.device, other.device),
            "growth": (self.growth, other.growth),
        }
        if other.placement is not None:
            pairs["placement"] = self.placement, other.placement
        if policy:
            pairs["part_policy"] = self.book, other.book
            if self.num_rows == other.num_rows and self.growth is None:
                ids = [(one.original_ids or SameIds(one.num_rows)).of(0, one.num_rows) for one in (self, other)]
                pairs["original_ids"] = ids[0].tobytes(), ids[1].tobytes()
        if first and is_dataclass(self.initializer) and is_dataclass(other.initializer):
            pairs["init_func"] = self.initializer, other.initializer
        for word, (have, want) in pairs.items():
            if have != want:
                told = "" if word == "original_ids" else f": it has {have}, asked for is {want}"
                raise ConfigError(
                    f"a table {self.name!r} of another {word} is alive{told}; choose another name or drop the old "
                    "DistEmbedding first"
                )

    def checked_ids(self, ids: Ids) -> Tensor:
        """Ids as transports take them, any shape, int64: as they are, or keys where the table grows.

        Raises:
            PartitionError: the table cannot have an id.
            ShapeError: ids are no integers.
        """
        if self.growth is None:
            return check_ids(ids, self.num_rows, self.name)
        return key_of(check_ids(ids, None, self.name))

    @property
    def counts_occurrences(self) -> bool:
        """Whether pushes tell how often each id stands in them: a growing table may count that."""
        return self.growth is not None and self.growth.counts_occurrences

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dim * self.dtype.itemsize

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

    def shape(self, num_rows: int, dim: int) -> tuple[int, ...]:
        """Of the state of a shard's rows."""
        return {"element": (num_rows, dim), "row": (num_rows,), "table": (1,)}[self.kind]

    def dtype_beside(self, weight: torch.dtype) -> torch.dtype:
        """Of the state of a table of this dtype."""
        return self.dtype or accumulation_dtype(weight)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients and state of a table are kept: float32 for 16-bit tables, else the table's."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
