"""Rows from a checkpoint's files back into a table, wherever its rows lie now.

Legend: N rows of a share, B rows of a piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.manifest import RowsEntry
from graph_emb.checkpoint.reader import STATE, THREADS, WEIGHT, TableReader
from graph_emb.checkpoint.safetensors_file import SCATTERED_BYTES, PieceReader, row_pieces
from graph_emb.core.errors import DataError, PartitionError
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.table.initializers import FromFunction, OwnerInitializer
from graph_emb.transport.base import TableRows

IDS_AT_A_TIME = 1 << 17


class TableRestorer:
    """Brings one table's rows back; ``check`` first, then ``load``.

    Args:
        table: The table; its ids decide which rows of the checkpoint belong where.
        reader: Its rows in the checkpoint.
        with_state: Load optimizer state too.
    Attributes:
        covered: For each share of this process which of its rows the checkpoint has, (N,) bool; after ``check``.
    """

    def __init__(self, table: DistEmbedding, reader: TableReader, with_state: bool) -> None:
        self._table, self._reader = table, reader
        self._columns = reader.columns if with_state else [WEIGHT]
        self._shares: Sequence[TableRows] = table.transport.rows(table.name)
        self._ids: OriginalIds = table.original_ids
        self.covered = [np.zeros(rows.num_rows, bool) for rows in self._shares]
        self._first_values: list[Tensor | None] = []

    def check(self, allow_new_rows: bool) -> None:
        """Compare ids, and get first values that come all at once; reads no row and changes none.

        Raises:
            DataError: the ids of a file are damaged, or new rows begin with those of a file that is gone.
            ShapeError: new rows begin with what a function returns, and it is no tensor of their shape.
            PartitionError: the checkpoint has an id that the table has not, has one twice, or, unless new rows are
                allowed, lacks one.
        """
        where = f"{self._reader.folder}: table {self._reader.name!r}"
        for file in self._reader.entry.files:
            with self._reader.open(file) as reader:
                for start, stop in row_pieces(file.rows, 1, IDS_AT_A_TIME):
                    original = self._reader.ids(reader, file, start, stop)
                    if not (original[1:] > original[:-1]).all():
                        raise DataError(f"{where}: the ids of {file.name} do not ascend; the file is damaged")
                    places = self._ids.find(original)
                    if len(strange := np.flatnonzero(places < 0)):
                        raise PartitionError(
                            f"{where}: {file.name} has original id {original[strange[0]]}, which is not among the "
                            f"{self._table.num_embeddings} ids of the table here; is it another graph?"
                        )
                    for rows, covered in zip(self._shares, self.covered, strict=True):
                        own = places[(places >= rows.first_id) & (places < rows.first_id + rows.num_rows)]
                        if covered[own - rows.first_id].any():
                            raise PartitionError(f"{where}: {file.name} repeats an id of another file")
                        covered[own - rows.first_id] = True
        for rows, covered in zip(self._shares, self.covered, strict=True):
            if not allow_new_rows and not covered.all():
                row = int(np.flatnonzero(~covered)[0])
                lacking = int(self._ids.of(rows.first_id + row, rows.first_id + row + 1)[0])
                raise PartitionError(
                    f"{where}: {int((~covered).sum())} ids of the table are not in the checkpoint, such as {lacking}; "
                    "pass allow_new_rows=True if the graph has grown"
                )
            self._first_values.append(self._at_once(rows, ~covered))

    def load(self) -> None:
        """Overwrite the rows that the checkpoint has, and give the others their first values.

        Raises:
            DataError: a file cannot be read any more; rows may be changed.
        """
        self._table.transport.rows(self._table.name, overwrite=True)
        for rows, covered, first in zip(self._shares, self.covered, self._first_values, strict=True):
            files = self._reader.entry.files
            if rows.memory(WEIGHT) is not None:
                with ThreadPoolExecutor(THREADS) as pool:
                    for _ in pool.map(lambda file, rows=rows: self._load_file(file, rows), files):
                        pass
            else:
                for file in files:
                    self._load_file(file, rows)
            if not covered.all():
                self._begin(rows, ~covered, first)

    def _load_file(self, file: RowsEntry, rows: TableRows) -> None:
        with self._reader.open(file) as reader:
            for start, places in self._wanted(reader, file, rows):
                self._load_rows(reader, rows, start, places)

    def _wanted(self, reader: PieceReader, file: RowsEntry, rows: TableRows) -> Iterator[tuple[int, np.ndarray]]:
        """(first row in the file, place in ``rows`` of it and of the rows after it; -1: not ours), piece by piece."""
        first, end = 0, file.rows
        if isinstance(self._ids, SameIds):
            first, end = self._reader.span(reader, file, rows.first_id, rows.first_id + rows.num_rows)
        for start, stop in row_pieces(end - first, 1, IDS_AT_A_TIME):
            original = self._reader.ids(reader, file, first + start, first + stop)
            places = self._ids.find(original) - rows.first_id
            ours = np.flatnonzero((places >= 0) & (places < rows.num_rows))
            if len(ours):
                low, high = ours[0], ours[-1] + 1
                places = places[low:high]
                yield first + start + int(low), np.where((places >= 0) & (places < rows.num_rows), places, -1)

    def _load_rows(self, reader: PieceReader, rows: TableRows, start: int, places: np.ndarray) -> None:
        in_a_row = places[0] >= 0 and bool((np.diff(places) == 1).all())
        for name in self._columns:
            column = name.removeprefix(STATE)
            memory = rows.memory(column)
            if in_a_row and memory is not None:  # straight from the file to where the rows lie
                reader.read_into(name, start, memory[int(places[0]) : int(places[0]) + len(places)])
                continue
            for low, high in row_pieces(len(places), reader.columns[name].row_bytes, SCATTERED_BYTES):
                ours = np.flatnonzero(places[low:high] >= 0)
                if not len(ours):
                    continue
                values = reader.read(name, start + low, start + high)
                if len(ours) < high - low:
                    values = values.index_select(0, torch.from_numpy(ours))
                rows.write(column, torch.from_numpy(places[low:high][ours]), values)

    def _at_once(self, rows: TableRows, new: np.ndarray) -> Tensor | None:
        """First values of the new rows where the initializer is called once for all rows, new or not; else None."""
        spec = self._table.spec
        if not new.any() or not isinstance(spec.initializer, (FromFunction, OwnerInitializer)):
            return None
        values = torch.empty((rows.num_rows, spec.dim), dtype=spec.dtype)
        spec.fill_(values, rows.first_id)
        return values[torch.from_numpy(new)]

    def _begin(self, rows: TableRows, new: np.ndarray, first: Tensor | None) -> None:
        """Give new rows their first values and their state its initial ones."""
        spec, shard = self._table.spec, self._table.shard
        states = shard.state_specs if len(self._columns) > 1 else {}
        done = 0
        for start, stop in row_pieces(len(new), spec.dim * spec.dtype.itemsize):
            fresh = torch.from_numpy(np.flatnonzero(new[start:stop]))
            if not len(fresh):
                continue
            if first is None:
                values = torch.empty((stop - start, spec.dim), dtype=spec.dtype)
                spec.fill_(values, rows.first_id + start)
                values = values[fresh]
            else:
                values = first[done : done + len(fresh)]
                done += len(fresh)
            rows.write(WEIGHT, fresh + start, values)
            for name, state in states.items():
                if state.kind != "table":
                    like = rows.read(name, 0, 0)
                    rows.write(name, fresh + start, like.new_full((len(fresh), *like.shape[1:]), state.initial))


def restore_clocks(table: DistEmbedding, reader: TableReader, rank: int, ranks: int) -> None:
    """Set each per-table clock: this rank's own where as many ranks saved it, else the highest."""
    for name, state in reader.entry.state.items():
        if state.values:
            values: Sequence[Any] = state.values
            table.shard.state[name].fill_(values[rank] if len(values) == ranks else max(values))
