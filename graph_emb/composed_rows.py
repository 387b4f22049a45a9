"""The rows of a composed table by id, outside autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.graph.partition_book import Ids


class ComposedRows:
    """The rows of a composed table by id, as they are now.

    Args:
        table: A ``ComposedEmbedding``.
    Attributes:
        shape: (N, D).
    """

    def __init__(self, table: Any) -> None:
        self._table, self.shape = table, (table.num_embeddings, table.embedding_dim)

    @torch.no_grad()
    def __getitem__(self, key: Ids | slice | int) -> Tensor:
        """Rows of ids, of a slice, or of one id, which has shape (D,)."""
        if isinstance(key, slice):
            return self._table(torch.arange(*key.indices(len(self))))
        if isinstance(key, int):
            return self._table(torch.tensor(key))
        return self._table(key)

    def __setitem__(self, key: object, value: object) -> None:
        raise ConfigError(
            f"table {self._table.name!r}: rows are sums of shared rows and cannot be assigned; write its tables "
            f"({', '.join(table.name for table in self._table.tables)})"
        )

    def __len__(self) -> int:
        return self._table.num_embeddings
