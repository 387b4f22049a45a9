"""Rows of growing tables in a checkpoint: keyed by their ids, with counts and steps, and the ids that wait for a row.

Legend: R live rows of a rank, N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.deltas import ChainRows
from graph_emb.checkpoint.manifest import FileEntry
from graph_emb.checkpoint.reader import TableReader
from graph_emb.checkpoint.row_files import GROWTH, IDS, STATE, WEIGHT, PieceReader, row_pieces
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.growing_embedding import GrowingEmbedding
from graph_emb.table.growing_rows import COUNTS, GrowingRows

IDS_AT_A_TIME = 1 << 17


class GrowingRestorer:
    """Brings a growing table back to its rows, counts and candidates, from any number of ranks; ``check`` first.

    Args:
        table: Its owners decide which rows of the checkpoint belong where; what it has is given up.
        readers: Its rows in the checkpoint, of a growing or of a fixed table; of a delta those of all that it follows,
            in their order, and its own.
        with_state: Load optimizer state too.
    """

    def __init__(self, table: GrowingEmbedding, readers: Sequence[TableReader], with_state: bool) -> None:
        self._table, self._reader, self._entry = table, readers[-1], readers[-1].entry
        self._chain, reader = readers, readers[-1]
        self._merged: ChainRows | None = None
        self._states = [name for name in reader.columns if name.startswith(STATE)] if with_state else []

    def check(self, allow_new_rows: bool = True) -> None:
        """Compare ids and room; reads no row and changes none.

        Raises:
            DataError: the ids of a file are damaged.
            PartitionError: an id is in the checkpoint twice.
            ConfigError: it has more rows than the table may.
        """
        where = f"{self._reader.folder}: table {self._reader.name!r}"
        if self._entry.total > self._table.num_embeddings:
            raise ConfigError(
                f"{where}: has {self._entry.total} rows, the table here max_rows={self._table.num_embeddings}"
            )
        for candidates in self._candidates():
            if candidates.keys() != {IDS, *COUNTS} or len({len(column) for column in candidates.values()}) > 1:
                raise DataError(f"{where}: the candidates hold {sorted(candidates)}; a file of them is damaged")
        if len(self._chain) > 1:
            self._merged = ChainRows(self._chain)
            return
        mine: list[np.ndarray] = []
        for file in self._entry.files:
            with self._reader.open(file) as reader:
                for start, stop in row_pieces(file.rows, 1, IDS_AT_A_TIME):
                    ids = self._reader.ids(reader, file, start, stop)
                    if not (ids[1:] > ids[:-1]).all():
                        raise DataError(f"{where}: the ids of {file.name} do not ascend; the file is damaged")
                    mine.append(ids[self._own(ids)])
        owned = np.sort(np.concatenate([np.empty(0, np.int64), *mine]))
        if len(twice := np.flatnonzero(owned[1:] == owned[:-1])):
            raise PartitionError(f"{where}: id {owned[twice[0]]} is in two files")

    def load(self) -> None:
        """Give up what the table has, and take the rows of the checkpoint that this rank owns."""
        shard: GrowingRows = self._table.shard
        frozen = shard.frozen_ids()
        shard.clear(0 if self._entry.growth is None else self._entry.growth.step)
        for ids, read in self._pieces():
            own = np.flatnonzero(self._own(ids))
            if len(own):
                kept = torch.from_numpy(own)
                counts = [read(GROWTH + name)[kept].numpy() for name in COUNTS] if self._entry.growth else []
                state = {name.removeprefix(STATE): read(name)[kept] for name in self._states}
                shard.restore(ids[own], read(WEIGHT)[kept], state, *counts)
        for candidates in self._candidates():
            own = self._own(ids := candidates[IDS])
            shard.restore_candidates(ids[own], *(candidates[name][own] for name in COUNTS))
        keys = self._table.spec.checked_ids(frozen)
        shard.freeze(keys[shard.contains(keys)])

    def _pieces(self) -> Iterator[tuple[np.ndarray, Callable[[str], Tensor]]]:
        """The ids of some rows, ascending, and what reads a column of them."""
        width = self._reader.row_bytes(self._reader.columns)
        if self._merged is not None:
            for start, stop in row_pieces(self._merged.num_rows, width):
                yield self._merged.ids[start:stop], partial(self._merged.read, start=start, stop=stop)
            return
        for file in self._entry.files:
            with self._reader.open(file) as reader:
                for start, stop in row_pieces(file.rows, width):
                    yield self._reader.ids(reader, file, start, stop), partial(reader.read, start=start, stop=stop)

    def _own(self, ids: np.ndarray) -> np.ndarray:
        """Which ids this rank owns, (R,) bool."""
        return self._table.owned(torch.from_numpy(ids)).numpy()

    def _candidates(self) -> list[dict[str, np.ndarray]]:
        """The ids that waited for a row, of each rank that saved, with their uses and last steps."""
        files: list[FileEntry] = [] if self._entry.growth is None else self._entry.growth.candidates
        found = []
        for file in files:
            with PieceReader(Path(self._reader.folder) / file.name) as reader:
                found.append({name: reader.read(name).numpy() for name in reader.columns})
        return found
