"""Reading a checkpoint by rows: verification, and ranges of original ids of a table, in bounded memory.

Legend: N ids of a range, D width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.manifest import CheckpointManifest, FileEntry, RowsEntry, TableEntry
from graph_emb.checkpoint.row_files import (
    GROWTH,
    IDS,
    PIECE_BYTES,
    STATE,
    THREADS,
    WEIGHT,
    PieceReader,
    dtype_name,
    row_pieces,
)
from graph_emb.core.errors import ConfigError, DataError, PartitionError, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.core.storage import xxh64_of
from graph_emb.table.growing_rows import COUNTS


class Checkpoint:
    """A checkpoint on disk, opened for reading.

    Args:
        path: Its folder.
    Attributes:
        manifest: What it holds.
    Raises:
        DataError: there is no complete checkpoint, or its manifest is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = user_path(path)
        self.manifest = CheckpointManifest.read(self.path)

    def verify(self, files: Sequence[FileEntry] | None = None) -> None:
        """Check sizes first, then checksums, of all files by default.

        Raises:
            DataError: a file is missing, too long, too short or changed; the first one found is named.
        """
        files = self.manifest.files() if files is None else files
        for entry in files:
            path = self.path / entry.name
            if not path.is_file():
                raise DataError(f"{path}: no such file, the manifest lists it; the checkpoint is not complete")
            if (size := path.stat().st_size) != entry.bytes:
                raise DataError(f"{path}: has {size} bytes, the manifest says {entry.bytes}; the file is damaged")
        with ThreadPoolExecutor(THREADS) as pool:
            for entry, found in zip(files, pool.map(lambda e: xxh64_of(self.path / e.name), files), strict=True):
                if found != entry.xxh64:
                    path = self.path / entry.name
                    raise DataError(f"{path}: checksum {found}, the manifest says {entry.xxh64}; the file is damaged")

    def table(self, name: str) -> TableReader:
        """The rows of a table.

        Raises:
            ConfigError: the checkpoint has no such table, or, as a delta, a part of its rows.
        """
        found = self.part(name)
        if found.entry.is_delta:
            raise ConfigError(
                f"checkpoint {self.path} is a delta and has those rows of table {name!r} alone that changed; "
                "graph-emb checkpoint merge makes a full one"
            )
        return found

    def part(self, name: str) -> TableReader:
        """As ``table``; of a delta the rows that changed."""
        if name not in self.manifest.tables:
            raise unknown_name(f"table of checkpoint {self.path}", name, self.manifest.tables)
        return TableReader(self.path, name, self.manifest.tables[name])


class TableReader:
    """The rows of one table of a checkpoint, by original id."""

    def __init__(self, folder: Path, name: str, entry: TableEntry) -> None:
        self.folder, self.name, self.entry = folder, name, entry

    @property
    def columns(self) -> list[str]:
        """The tensors that each file has: ``weight``, ``state.<name>``, and ``growth.<name>`` of a growing table."""
        return list(self._shapes(0))

    def _shapes(self, num_rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of the columns of ``num_rows`` rows."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {WEIGHT: (self.entry.dtype, (num_rows, self.entry.dim))}
        for name, state in self.entry.state.items():
            if state.kind != "table":
                shape = (num_rows, self.entry.dim) if state.kind == "element" else (num_rows,)
                found[STATE + name] = (state.dtype, shape)
        if self.entry.growth is not None:
            found.update({GROWTH + name: ("int64", (num_rows,)) for name in COUNTS})
        return found

    def open(self, file: RowsEntry) -> PieceReader:
        """A file of the table, its header checked against the manifest.

        Raises:
            DataError: it is missing or holds other tensors.
        """
        wanted = {**self._shapes(file.rows), **({IDS: ("int64", (file.rows,))} if file.ids else {})}
        reader = PieceReader(self.folder / file.name)
        found = {name: (dtype_name(column.dtype), column.shape) for name, column in reader.columns.items()}
        if found != wanted:
            reader.__exit__()
            raise DataError(f"{reader.path}: holds {found}, the manifest says {wanted}; the file is damaged")
        return reader

    def ids(self, reader: PieceReader, file: RowsEntry, start: int, stop: int) -> np.ndarray:
        """The original ids of rows [start, stop) of a file, ascending, int64."""
        if file.ids:
            return reader.read(IDS, start, stop).numpy()
        assert file.start is not None
        return np.arange(file.start + start, file.start + stop)

    def span(self, reader: PieceReader, file: RowsEntry, low: int, high: int) -> tuple[int, int]:
        """The rows [start, stop) of a file whose original ids lie in [low, high)."""
        if not file.ids:
            assert file.start is not None
            start = min(max(low - file.start, 0), file.rows)
            return start, max(start, min(high - file.start, file.rows))
        # A search that reads a few ids.
        first = partial(bisect_left, range(file.rows), key=lambda row: int(reader.read(IDS, row, row + 1)[0]))
        return first(low), first(high)

    def rows(self, low: int, high: int, columns: Iterable[str] = (WEIGHT,)) -> dict[str, Tensor]:
        """Rows of the original ids [low, high) in ascending order, with their ids.

        Args:
            low, high: Ids that no file has are left out.
            columns: Names of ``self.columns``.
        Returns:
            ``{"ids": (N,) int64, "weight": (N, D), "state.<name>": (N, D) or (N,)}``, the columns asked for.
        Raises:
            DataError: a file is missing or damaged.
            PartitionError: low is above high.
        """
        if low > high:
            raise PartitionError(f"table {self.name!r}: rows [{low}, {high}) end before they begin")
        names = list(columns)
        found: list[dict[str, Tensor]] = []
        for file in self.entry.files:
            with self.open(file) as reader:
                start, stop = self.span(reader, file, low, high)
                if start < stop or not found:
                    piece = {name: reader.read(name, start, stop) for name in names}
                    found.append({IDS: torch.from_numpy(self.ids(reader, file, start, stop)), **piece})
        if not found:  # a table without rows has no file
            return {IDS: torch.empty(0, dtype=torch.int64), **{name: self._empty(name) for name in names}}
        if len(found) == 1:
            return found[0]
        merged = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
        order = torch.argsort(merged[IDS])
        return {name: tensor[order] for name, tensor in merged.items()}

    def pieces(self, columns: Iterable[str] = (WEIGHT,), most: int = PIECE_BYTES) -> Iterator[dict[str, Tensor]]:
        """All rows in ascending order of their original ids, as ``rows`` returns them, about ``most`` bytes at a time.

        Ids that are sparse (a user's own, far apart) come in smaller pieces.
        """
        names = list(columns)
        for low, high in self._ranges(max(1, most // (8 + self.row_bytes(names)))):
            rows = self.rows(low, high, names)
            if len(rows[IDS]):
                yield rows

    def _ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """Ranges of ids [low, high) with at most about ``most`` rows each, which cover all."""
        first, end = self.bounds()
        if end - first <= 4 * self.entry.num_rows:
            yield from ((first + start, first + stop) for start, stop in row_pieces(end - first, 1, most))
            return
        # Every k-th id of each file: between two neighbours a file has at most k rows.
        k = max(1, most // len(self.entry.files))
        found = {first, end}
        for file in self.entry.files:
            with self.open(file) as reader:
                found.update(int(self.ids(reader, file, row, row + 1)[0]) for row in range(0, file.rows, k))
        yield from pairwise(sorted(found))

    def _empty(self, column: str, num_rows: int = 0) -> Tensor:
        """Memory for rows of a column."""
        dtype, shape = self._shapes(num_rows)[column]
        return torch.empty(shape, dtype=getattr(torch, dtype))

    def row_bytes(self, columns: Iterable[str]) -> int:
        """Bytes of a row of columns."""
        return sum(self._empty(name, 1).nbytes for name in columns)

    def bounds(self) -> tuple[int, int]:
        """The smallest original id, and the largest plus one; (0, 0) of an empty table."""
        low: list[int] = []
        high: list[int] = []
        for file in self.entry.files:
            if file.rows:
                with self.open(file) as reader:
                    low.append(int(self.ids(reader, file, 0, 1)[0]))
                    high.append(int(self.ids(reader, file, file.rows - 1, file.rows)[0]) + 1)
        return min(low, default=0), max(high, default=0)
