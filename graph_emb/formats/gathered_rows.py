"""All rows of a table on one rank: in memory, or of a table in a file in another file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graph_emb.composed import ComposedEmbedding
from graph_emb.core.page_cache import Drain
from graph_emb.table.placement import File

if TYPE_CHECKING:
    from graph_emb.embedding import DistEmbedding

CHUNK_ROWS = 1 << 16  # that travel at a time
FILE_BYTES = 2 << 20  # of rows that do, of a table in a file


@torch.no_grad()
def all_rows(table: DistEmbedding | ComposedEmbedding, wanted: bool) -> Tensor | None:
    """The rows of a table in the order of its ids, on the rank that wants them; every rank calls it, the others answer.

    Returns:
        Shape (num_embeddings, embedding_dim), float32; None where they are not wanted. Those of a table in a file are
        mapped from a file without a name beside it: memory holds what is read of them.
    """
    placement = table.placement if isinstance(table, ComposedEmbedding) else table.spec.placement
    shape = table.num_embeddings, table.embedding_dim
    if not isinstance(placement, File):
        out = torch.empty(shape) if wanted else None
        for low, high in _pieces(shape[0], CHUNK_ROWS):
            rows = table(torch.arange(low, high if wanted else low))
            if out is not None:
                out[low:high] = rows
        return out
    step = max(1, FILE_BYTES // (4 * shape[1]))
    if not wanted:
        for low, _ in _pieces(shape[0], step):
            table(torch.arange(low, low))
        return None
    pieces = (table(torch.arange(low, high)).float() for low, high in _pieces(shape[0], step))
    return _in_a_file(placement.path, shape, pieces)


def joined_rows(join: Callable[..., Tensor], tables: Sequence[Tensor], folder: Path | None) -> Tensor:
    """One table of several, each row of theirs alone.

    Args:
        join: Takes the same rows of all tables, (B, D_i) each, and gives as many, (B, D).
        tables: Shape (N, D_i) each, float32.
        folder: Where the tables lie in files, in one of which the rows come piece by piece; None: in memory.
    Returns:
        Shape (N, D), float32; from a file as of ``all_rows``.
    """
    if folder is None:
        return join(*tables)
    num, width = len(tables[0]), join(*(one[:0] for one in tables)).shape[1]
    step = max(1, FILE_BYTES // (4 * width))
    pieces = (join(*(one[low:high] for one in tables)) for low, high in _pieces(num, step))
    return _in_a_file(folder, (num, width), pieces)


def _in_a_file(folder: Path, shape: tuple[int, int], pieces: Iterable[Tensor]) -> Tensor:
    """Rows that come in pieces (B, D), float32, mapped from a file without a name."""
    with TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, 4 * shape[0] * shape[1]))  # a full disk is an error, not SIGBUS
        drain = Drain(file.fileno())
        for rows in pieces:
            drain.wrote(file.write(rows.contiguous().numpy().data.cast("B")))
        file.flush()
        drain.finish()
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))


def _pieces(num: int, step: int) -> list[tuple[int, int]]:
    return [(low, min(low + step, num)) for low in range(0, num, step)]
