"""Composed tables in a checkpoint: what their rows are sums of, and these rows, read without the tables in memory.

Legend: N nodes, B rows of a piece, D width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.manifest import NAME, ComposedEntry, FileEntry
from graph_emb.checkpoint.reader import Checkpoint, TableReader
from graph_emb.checkpoint.row_files import IDS, WEIGHT, PieceReader, folder_of, write_tensors
from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.table.composition import Composition, hash_factors

FINEST, ABOVE = "finest", "above"
WIDTHS = (torch.int8, torch.int16, torch.int32)
"""Integers that parts are written as, where they hold them."""

Described = tuple[ComposedEntry, dict[str, Tensor]]


def describe_composed(tables: Sequence[ComposedEmbedding]) -> dict[str, Described]:
    """The manifest's entry of each composed table, and the tensors of its file."""
    found = {}
    for table in tables:
        made = table.composition.by_original(table.original_ids.of(0, table.num_embeddings))
        tensors = {} if made.original is None else {IDS: torch.from_numpy(made.original)}
        if made.finest.shape[1]:
            tensors |= {FINEST: _narrow(made.finest[:, 0]), ABOVE: _narrow(made.above)}
        shared = table.shared_tables or table.tables[:1]  # each node has its row in the one of "full"
        entry = ComposedEntry(
            kind=made.kind,
            num_rows=table.num_embeddings,
            num_hashes=made.num_hashes,
            num_buckets=made.num_buckets,
            seed=made.seed,
            scope=made.scope,
            num_coarsest=made.num_coarsest,
            shared=[one.name for one in shared],
            weights=table.own_table.name if made.hashed and table.own_table is not None else None,
            own=table.tables[-1].name if len(table.own_rows) else None,
        )
        found[table.name] = entry, tensors
    return found


def _narrow(numbers: np.ndarray) -> Tensor:
    found = torch.from_numpy(numbers)
    most = int(found.max()) if found.numel() else 0
    return found.to(next((dtype for dtype in WIDTHS if most <= torch.iinfo(dtype).max), torch.int64))


def match_composed(
    chain: Sequence[Checkpoint],
    composed: Sequence[ComposedEmbedding],
    only: Collection[str] | None,
    allow_new_rows: bool,
) -> None:
    """Check how composed tables here were made, and call the saved level tables of fewer nodes as theirs are called.

    Args:
        chain: A full checkpoint and the deltas that follow it.
        only, allow_new_rows: As of ``load_checkpoint``.
    Raises:
        ConfigError: a table was made in another way, or of other levels.
        PartitionError: it has more nodes than the checkpoint, and they are not allowed.
    """
    saved = {name: entry.total for name, entry in chain[-1].manifest.tables.items()}
    for table in composed:
        if only is None or {one.name for one in table.tables} & {*only}:
            check_made_alike(chain[0], table)
        names = table.names_in(saved)
        if names and not allow_new_rows:
            raise PartitionError(
                f"{chain[-1].path / NAME}: table {table.name!r} has fewer nodes than the {table.num_embeddings} here; "
                "pass allow_new_rows=True if the graph grew"
            )
        for one in chain if names else ():
            one.manifest = one.manifest.renamed({old: new for new, old in names.items()})


def check_made_alike(checkpoint: Checkpoint, table: ComposedEmbedding) -> None:
    """Raise a ConfigError where the saved rows of a table are sums by other hashes than those of the one here.

    Their tables are of one name and, for another seed or scope, of one shape.

    Args:
        checkpoint: A full one; earlier versions did not write how tables were made.
    """
    entry, made = (checkpoint.manifest.composed or {}).get(table.name), table.composition
    if entry is None:
        return
    names = ["kind"]
    if made.hashed:
        names += [
            "num_hashes",
            "num_buckets",
            "seed",
            "scope",
            *(["num_coarsest"] if made.scope == "part" and not made.placed else []),
        ]
    elif made.kind == "quotient-remainder":
        names += ["num_buckets"]
    for name in names:
        saved, here = getattr(entry, name), getattr(made, name)
        if saved != here:
            raise ConfigError(
                f"checkpoint {checkpoint.path}: table {table.name!r} was made with {name}={saved!r}, the one here with "
                f"{here!r}, so that its rows would be sums of others; make it as that one"
            )


def write_composed(folder: Path, tables: Mapping[str, Described]) -> dict[str, dict[str, Any]]:
    """Write the files of composed tables; their entries as JSON."""
    found = {}
    for name, (entry, tensors) in tables.items():
        file = None
        if tensors:
            at = f"{folder_of(name)}/composed.safetensors"
            (folder / at).parent.mkdir(parents=True, exist_ok=True)
            num_bytes, checksum = write_tensors(folder / at, tensors)
            file = FileEntry(name=at, bytes=num_bytes, xxh64=checksum)
        found[name] = entry.model_copy(update={"file": file}).model_dump()
    return found


class ComposedReader:
    """The rows of a composed table of a checkpoint.

    Memory holds the rows that nodes share, the parts of all nodes, and their ids.

    Args:
        checkpoint: A full one.
        name: Of the table, one of ``CheckpointManifest.composed``.
    Attributes:
        dim: D.
        ids: Original ids, ascending, (N,), int64.
    Raises:
        DataError: a file is damaged, or the tables do not fit each other.
    """

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        assert checkpoint.manifest.composed is not None
        self.folder, self.name = checkpoint.path, name
        self._entry = entry = checkpoint.manifest.composed[name]
        names = [*entry.shared, *filter(None, (entry.weights, entry.own))]
        missing = [one for one in names if one not in checkpoint.manifest.tables]
        if missing or not entry.shared:
            raise DataError(f"checkpoint {self.folder}: table {name!r} is made of {missing}, which it does not hold")
        readers = {one: checkpoint.table(one) for one in names}
        checkpoint.verify(
            [*(file for reader in readers.values() for file in reader.entry.files), *filter(None, [entry.file])]
        )
        self.dim = readers[entry.shared[0]].entry.dim
        self._shared = [_whole(readers[one]) for one in entry.shared]
        self._weights = None if entry.weights is None else readers[entry.weights]
        self._own = None if entry.own is None else _all(readers[entry.own])
        tensors = {}
        if entry.file is not None:
            with PieceReader(self.folder / entry.file.name) as file:
                tensors = {column: file.read(column).numpy() for column in file.columns}
        self.ids: np.ndarray = tensors.get(IDS, np.arange(entry.num_rows))
        finest = tensors.get(FINEST, np.empty((entry.num_rows, 0), np.int32))
        above = tensors.get(ABOVE, np.empty((0, 0))).astype(np.int64)
        if len(finest) != entry.num_rows or len(self.ids) != entry.num_rows:
            raise DataError(
                f"checkpoint {self.folder}: table {name!r} has {entry.num_rows} rows, its file another number"
            )
        of_hashes = entry.num_hashes, entry.num_buckets, entry.seed, entry.scope
        finest = finest.reshape(entry.num_rows, -1)
        self._made = Composition(entry.kind, *of_hashes, finest, above, entry.num_coarsest, tensors.get(IDS))
        if not self._fits():
            raise DataError(f"checkpoint {self.folder}: the tables and levels of table {name!r} do not fit each other")

    def _fits(self) -> bool:
        """Whether no number leads out of the tables, in which loops look at none again."""
        made, sizes, hashed = self._made, [len(rows) for rows in self._shared], int(self._made.hashed)
        rows = [*self._shared, *([] if self._own is None else [self._own[WEIGHT]])]
        width = 0 if self._weights is None else self._weights.entry.dim
        halves, places = 2 * (made.kind == "quotient-remainder"), made.above.shape[1] + 1 if made.placed else 0
        fits = [
            len({(one.shape[1], one.dtype) for one in rows}) == 1,
            len(sizes) == hashed + halves + places,
            hashed == made.kind.endswith("hash") and width == made.num_hashes,
            self.ids[0] >= 0 and bool((self.ids[1:] > self.ids[:-1]).all()),
            made.finest.shape[1] == (made.placed or made.scope == "part"),
        ]
        if not all(fits):
            return False
        last, columns = int(self.ids[-1]), [*made.above.T, *made.finest.T] if made.finest.shape[1] else []
        if made.placed:  # coarsest first
            limits = [*sizes[hashed + 1 :], min(sizes[hashed], len(made.above))]
        else:
            limits = [np.iinfo(np.int64).max] * (len(columns) - 1) + [len(made.above)] * bool(columns)
        if made.scope == "part":
            limits[0] = min(limits[0], made.num_coarsest)
        return (
            all(column.min() >= 0 and column.max() < most for column, most in zip(columns, limits, strict=True))
            and (not hashed or sizes[0] == made.num_buckets)
            and (not halves or (last // made.num_buckets < sizes[0] and min(last, made.num_buckets - 1) < sizes[1]))
            and (made.scope == "all" or made.num_coarsest <= made.num_buckets)
        )

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the nodes at places [start, stop) of ``ids``, (B, D), in the table's dtype."""
        places, ids = torch.arange(start, stop), self.ids[start:stop]
        terms = self._made.terms(places, [len(rows) for rows in self._shared])
        factors = None
        if self._weights is not None:
            found = self._weights.rows(int(ids[0]), int(ids[-1]) + 1, [WEIGHT])
            if not np.array_equal(found[IDS].numpy(), ids):
                raise DataError(f"checkpoint {self.folder}: table {self._weights.name!r} has other nodes than its rows")
            factors = hash_factors(found[WEIGHT], self._shared[0].dtype)
        wanted = [rows[torch.from_numpy(own)] for rows, own in zip(self._shared, terms.wanted, strict=True)]
        sums = terms.sums(wanted, factors).to(self._shared[0].dtype)
        if self._own is not None:
            low, high = np.searchsorted(self._own[IDS].numpy(), (ids[0], ids[-1] + 1))
            at = torch.from_numpy(np.searchsorted(ids, self._own[IDS][low:high].numpy()))
            sums.index_add_(0, at, self._own[WEIGHT][low:high])
        return sums


def _all(reader: TableReader) -> dict[str, Tensor]:
    """All rows of a table, with their ids."""
    low, high = reader.bounds()
    return reader.rows(low, high, [WEIGHT])


def _whole(reader: TableReader) -> Tensor:
    """All rows of a table whose original ids are 0 .. N-1."""
    found = _all(reader)
    if not torch.equal(found[IDS], torch.arange(reader.entry.num_rows)):
        raise DataError(f"checkpoint {reader.folder}: table {reader.name!r} lacks rows of 0 to {reader.entry.num_rows}")
    return found[WEIGHT]
