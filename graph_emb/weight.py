"""``emb.weight`` and ``emb.optm_state``: rows of a table and of its optimizer's state, read and overwritten by id.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ModeError, ShapeError
from graph_emb.graph.partition_book import Ids, as_ids, check_ids
from graph_emb.table.initializers import CHUNK_ELEMENTS
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.transport.base import Transport


class Table(Protocol):
    """A ``DistEmbedding`` as its weight knows it."""

    @property
    def spec(self) -> TableSpec: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def part_policy(self) -> Any: ...
    @property
    def kvstore(self) -> Any: ...


class RowsById(ABC):
    """Rows of a table, or of state beside them, by partition-order id, outside autograd; keeps the table alive.

    In collective mode every rank reads and writes together, with no ids if need be.

    Attributes:
        shape: (num_embeddings, D), or (num_embeddings,) where a row is one number.
        dtype: Of the rows.
        name: With which errors begin.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str

    def __init__(self, table: Table) -> None:
        self._table, self._spec, self._transport = table, table.spec, table.transport

    @abstractmethod
    def _read(self, ids: Tensor) -> Tensor:
        """Copies of the rows of checked ids."""

    @abstractmethod
    def _write(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite the rows of checked, distinct ids."""

    @property
    def part_policy(self) -> Any:
        return self._table.part_policy

    @property
    def kvstore(self) -> Any:
        """As ``emb.kvstore``."""
        return self._table.kvstore

    def count_nonzero(self) -> int:
        """The numbers of the whole table that are not 0. In collective mode every rank calls it."""
        pieces = range(0, len(self), max(1, CHUNK_ELEMENTS // self._spec.dim))
        return sum(int(self[start : start + pieces.step].count_nonzero()) for start in pieces)

    def __len__(self) -> int:
        return self._spec.num_rows

    def __getitem__(self, key: Ids | slice | int) -> Tensor:
        """Copies of rows, shape (B, ...); an integer gives one without B."""
        with self._transport.joint(f"pull of table {self._spec.name!r}"):
            rows = self._read(self._ids(key))
        one = isinstance(key, int) or getattr(key, "ndim", 1) == 0  # numpy's integers and scalar tensors too
        return rows[0] if one else rows

    def __setitem__(self, key: Ids | slice | int, values: Any) -> None:
        """Overwrite rows of distinct ids with values that broadcast to (B, ...)."""
        with self._transport.joint(f"write of table {self._spec.name!r}"):
            self._write(*self._ids_and_rows(key, values))

    def _ids_and_rows(self, key: Ids | slice | int, values: Any) -> tuple[Tensor, Tensor]:
        ids = self._ids(key)
        if ids.unique().numel() != ids.numel():
            raise ShapeError(f"table {self.name!r}: an id is assigned twice; pass distinct ids")
        wanted = (ids.numel(), *self.shape[1:])
        try:
            rows = torch.as_tensor(values, dtype=self.dtype).detach()  # the table would keep the graph of all values
        except (TypeError, ValueError, RuntimeError):
            raise ShapeError(
                f"table {self.name!r}: values are a {type(values).__name__}; pass numbers, {wanted}"
            ) from None
        try:
            return ids, rows.broadcast_to(wanted)
        except RuntimeError:
            raise ShapeError(f"table {self.name!r}: values have shape {tuple(rows.shape)}; expected {wanted}") from None

    def _ids(self, key: Ids | slice | int) -> Tensor:
        if isinstance(key, tuple):
            raise ShapeError(
                f"table {self.name!r}: [...] takes the ids of whole rows, got {len(key)} indices; read columns "
                "by [ids][:, columns], and assign whole rows"
            )
        if self._spec.growth and (
            isinstance(key, slice) or getattr(key, "dtype", None) in (torch.bool, np.dtype(bool))
        ):
            raise ShapeError(f"table {self.name!r} grows: its ids are no range; pass ids, such as those of emb.ids()")
        if isinstance(key, slice):
            return torch.from_numpy(np.arange(*key.indices(len(self)), dtype=np.int64))  # torch's refuses 3:2
        given = [key] if isinstance(key, int) else key
        if isinstance(given, np.ndarray) and given.dtype == bool:
            given = torch.from_numpy(given)
        ids = as_ids(given)
        if isinstance(ids, Tensor) and ids.dtype == torch.bool:
            if tuple(ids.shape) != (len(self),):
                raise ShapeError(f"table {self.name!r}: mask of shape {tuple(ids.shape)}; expected ({len(self)},)")
            return ids.nonzero().flatten()
        return (self._spec.checked_ids(ids) if self._spec.growth else check_ids(ids, len(self), self.name)).flatten()


class Weight(RowsById):
    """The rows of a table."""

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(num_embeddings, embedding_dim)."""
        return self._spec.num_rows, self._spec.dim

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._spec.dtype

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._spec.name

    tensor_name = name  # DGL's names for it
    data_name = name
    kvstore_key = name

    @property
    def local_partition(self) -> Tensor:
        """The rows of this process, in kvstore mode of its machine, not copied: for reading."""
        return self._transport.local_partition(self.name)

    def __or__(self, other: Weight) -> Weight:
        """DGL's union of masks: refused, as torch refuses it, because rows are floating."""
        raise ShapeError(
            f"table {self.name!r}: | is for masks, these rows are {self.dtype}; write "
            "(emb.weight[ids] != 0) | (other.weight[ids] != 0) for the ids in question"
        )

    def _read(self, ids: Tensor) -> Tensor:
        return self._transport.pull(self.name, ids)

    def _write(self, ids: Tensor, rows: Tensor) -> None:
        self._transport.write(self.name, ids, rows)


class StateRows(RowsById):
    """A piece of an optimizer's state with a row for each row of the table, such as Adagrad's ``sum``.

    Reads have the steps of this process that came before; writes change frozen rows too.

    Raises:
        ModeError: its optimizer was closed (read, write).
    """

    def __init__(self, table: Table, spec: StateSpec) -> None:
        super().__init__(table)
        self._state = spec
        self.shape = torch.Size(spec.shape(self._spec.num_rows, self._spec.dim))
        self.dtype = spec.dtype_beside(self._spec.dtype)
        self.name = f"{self._spec.name}_{spec.name}"

    def _check_kept(self) -> None:
        if self._transport.shard(self._spec.name).state_specs.get(self._state.name) != self._state:
            raise ModeError(
                f"table {self._spec.name!r}: its optimizer, which kept {self._state.name}, was closed; "
                "ask emb.optm_state again"
            )

    def _read(self, ids: Tensor) -> Tensor:
        self._check_kept()
        return self._transport.read_state(self._spec.name, self._state.name, ids)

    def _write(self, ids: Tensor, rows: Tensor) -> None:
        self._check_kept()
        self._transport.write_state(self._spec.name, self._state.name, ids, rows)

    def __repr__(self) -> str:
        return f"StateRows({self.name!r}, {self.shape}, dtype={self.dtype})"


def state_by_name(table: Table) -> dict[str, StateRows | Tensor]:
    """The state of the optimizer that trains a table; clocks of the whole table as this process's tensors, (1,)."""
    shard = table.transport.shard(table.spec.name)
    return {
        name: shard.state[name] if spec.kind == "table" else StateRows(table, spec)
        for name, spec in shard.state_specs.items()
    }


def as_dgl(state: Mapping[str, StateRows | Tensor]) -> StateRows | tuple[StateRows, ...]:
    """The pieces of a table's state that have rows as DGL's optimizers keep theirs: one, or several, those of one
    number a row first."""
    pieces = sorted((piece for piece in state.values() if isinstance(piece, StateRows)), key=lambda one: len(one.shape))
    return pieces[0] if len(pieces) == 1 else tuple(pieces)
