"""All rows of a table on one rank, whatever the mode."""

from __future__ import annotations

import torch
from torch import Tensor

from graph_emb.embedding import DistEmbedding

CHUNK_ROWS = 1 << 16
"""Rows that travel at a time."""


@torch.no_grad()
def all_rows(table: DistEmbedding, wanted: bool) -> Tensor | None:
    """The rows of a table in the order of its ids, on the rank that wants them; every rank calls it, the others answer.

    Returns:
        Shape (num_embeddings, embedding_dim), float32; None where they are not wanted.
    """
    out = torch.empty(table.num_embeddings, table.embedding_dim) if wanted else None
    for low in range(0, table.num_embeddings, CHUNK_ROWS):
        high = min(low + CHUNK_ROWS, table.num_embeddings)
        rows = table(torch.arange(low, high if wanted else low))
        if out is not None:
            out[low:high] = rows
    return out
