"""``emb.weight``: the rows of a table, to be read and overwritten by id.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.graph.partition_book import Ids, as_ids, check_ids
from graph_emb.table.initializers import CHUNK_ELEMENTS
from graph_emb.table.spec import TableSpec
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


class Weight:
    """Rows of a table by id, outside autograd; keeps the table alive."""

    def __init__(self, table: Table) -> None:
        self._table, self._spec, self._transport = table, table.spec, table.transport

    @property
    def shape(self) -> tuple[int, int]:
        """(num_embeddings, embedding_dim)."""
        return self._spec.num_rows, self._spec.dim

    @property
    def dtype(self) -> torch.dtype:
        return self._spec.dtype

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def part_policy(self) -> Any:
        return self._table.part_policy

    tensor_name = name  # DGL's names for it
    data_name = name
    kvstore_key = name

    @property
    def kvstore(self) -> Any:
        """As ``emb.kvstore``."""
        return self._table.kvstore

    @property
    def local_partition(self) -> Tensor:
        """The rows of this process, in kvstore mode of its machine, not copied: for reading."""
        return self._transport.local_partition(self.name)

    def count_nonzero(self) -> int:
        """The numbers of the whole table that are not 0. In collective mode every rank calls it."""
        pieces = range(0, len(self), max(1, CHUNK_ELEMENTS // self._spec.dim))
        return sum(int(self[start : start + pieces.step].count_nonzero()) for start in pieces)

    def __or__(self, other: Weight) -> Weight:
        """DGL's union of masks: refused, as torch refuses it, because rows are floating."""
        raise ShapeError(
            f"table {self.name!r}: | is for masks, these rows are {self.dtype}; write "
            "(emb.weight[ids] != 0) | (other.weight[ids] != 0) for the ids in question"
        )

    def __len__(self) -> int:
        return self._spec.num_rows

    def __getitem__(self, key: Ids | slice | int) -> Tensor:
        """Copies of rows, shape (B, D); an integer gives shape (D,)."""
        with self._transport.joint(f"pull of table {self.name!r}"):
            rows = self._transport.pull(self.name, self._ids(key))
        one = isinstance(key, int) or getattr(key, "ndim", 1) == 0  # numpy's integers and scalar tensors too
        return rows[0] if one else rows

    def __setitem__(self, key: Ids | slice | int, values: Any) -> None:
        """Overwrite rows of distinct ids with values that broadcast to (B, D)."""
        with self._transport.joint(f"write of table {self.name!r}"):
            self._transport.write(self.name, *self._ids_and_rows(key, values))

    def _ids_and_rows(self, key: Ids | slice | int, values: Any) -> tuple[Tensor, Tensor]:
        ids = self._ids(key)
        if ids.unique().numel() != ids.numel():
            raise ShapeError(f"table {self.name!r}: an id is assigned twice; pass distinct ids")
        rows = torch.as_tensor(values, dtype=self.dtype).detach()  # the table would keep the graph of all values alive
        try:
            return ids, rows.broadcast_to(ids.numel(), self._spec.dim)
        except RuntimeError:
            raise ShapeError(
                f"table {self.name!r}: values have shape {tuple(rows.shape)}; "
                f"expected ({ids.numel()}, {self._spec.dim})"
            ) from None

    def _ids(self, key: Ids | slice | int) -> Tensor:
        if isinstance(key, tuple):
            raise ShapeError(
                f"table {self.name!r}: weight[...] takes the ids of whole rows, got {len(key)} indices; read columns "
                "by weight[ids][:, columns], and assign whole rows"
            )
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
        return check_ids(ids, len(self), self.name).flatten()
