"""Deltas: the chain from a full checkpoint to the last delta, its rows as one table, and one full checkpoint of it.

Legend: R rows of the whole table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.manifest import (
    NAME,
    CheckpointManifest,
    Retention,
    RowsEntry,
    TableEntry,
    digest_of,
    pending_checkpoint,
)
from graph_emb.checkpoint.reader import Checkpoint, TableReader
from graph_emb.checkpoint.row_files import (
    GROWTH,
    IDS,
    PIECE_BYTES,
    STATE,
    WEIGHT,
    ChosenRows,
    PieceReader,
    TableShare,
    row_pieces,
    write_shares,
)
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.core.paths import user_path
from graph_emb.core.storage import OutputFile, write_file, write_text
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.table.spec import StateSpec
from graph_emb.transport.base import TableRows


def chain_of(place: Path) -> list[Path]:
    """The folders from the full checkpoint that a delta begins with up to ``place``; of a full one itself alone.

    Raises:
        DataError: one is missing, or no longer the one that was followed.
    """
    found = [place]
    while (parent := CheckpointManifest.read(found[0]).parent) is not None:
        before = found[0].with_name(parent.name)
        if not (before / NAME).is_file():
            raise DataError(f"{found[0]} is a delta that follows {before}, which is missing; it cannot be read without")
        found.insert(0, before)
        if digest_of(before) != parent.digest:
            raise DataError(f"{found[1]} is a delta that follows another checkpoint {parent.name!r} than {before}")
    check_chain(found[0], found[1:])
    return found


def check_chain(base: Path, deltas: Sequence[Path]) -> None:
    """Raise a DataError that names the first folder which is not what has to come at its place."""
    if (parent := CheckpointManifest.read(base).parent) is not None:
        raise DataError(f"{base} is itself a delta, number {parent.sequence}; begin with the full checkpoint")
    first = last = digest_of(base)
    for number, place in enumerate(deltas, 1):
        parent = CheckpointManifest.read(place).parent
        if parent is None:
            raise DataError(f"{place} is a full checkpoint and no delta; it needs no base")
        if parent.base != first:
            raise DataError(f"{place} is a delta of another base than {base}")
        if parent.sequence != number:
            how = "it was given already, or comes too late" if parent.sequence < number else "one before it is missing"
            raise DataError(f"{place} is delta {parent.sequence} of {base}, and number {number} has to come: {how}")
        if parent.digest != last:
            raise DataError(f"{place} follows another checkpoint {parent.name!r} than the one given before it")
        last = digest_of(place)


class ChainRows:
    """The rows of a table from a base and its deltas, each as the last one has it, ascending by id: a ``TableRows``
    that is read alone.

    Args:
        readers: Of the table in the base and each delta, in their order.
    Raises:
        DataError: ids of a file do not ascend, or the rows are not as many as the last delta says.
        PartitionError: an id is in two files of one checkpoint.
    """

    first_id = 0

    def __init__(self, readers: Sequence[TableReader]) -> None:
        self._files = [(reader, file) for reader in readers for file in reader.entry.files]
        ids = np.empty(0, np.int64)
        source = np.empty((0, 2), np.int64)  # the file of each row, and its row there
        halved: list[int] = []  # how often the counts of a file's rows were halved since
        for reader in readers:
            delta = None if reader.entry.growth is None else reader.entry.growth.delta
            halved = [count + (delta.halvings if delta else 0) for count in halved] + [0] * len(reader.entry.files)
            found = [np.empty(0, np.int64), *(_ids_of(reader, file) for file in reader.entry.files)]
            fresh = np.concatenate(found)
            first = len(halved) - len(reader.entry.files)
            of_file = np.repeat(np.arange(first - 1, len(halved)), [len(one) for one in found])
            of_row = np.concatenate([np.arange(len(one)) for one in found])
            order = np.argsort(fresh, kind="stable")
            fresh = fresh[order]
            if len(twice := np.flatnonzero(fresh[1:] == fresh[:-1])):
                raise PartitionError(f"{reader.folder}: table {reader.name!r}: id {fresh[twice[0]]} is in two files")
            left = np.concatenate(
                [fresh, *(_gone(reader.folder / file.name) for file in (delta.gone if delta else ()))]
            )
            kept = ~np.isin(ids, left)
            ids = np.concatenate([ids[kept], fresh])
            source = np.concatenate([source[kept], np.stack([of_file, of_row], 1)[order]])
        order = np.argsort(ids, kind="stable")
        self.ids, self._source, self._halved = ids[order], source[order], np.array(halved, np.int64)
        self.num_rows, total = len(self.ids), readers[-1].entry.total
        if self.num_rows != total:
            raise DataError(
                f"{readers[-1].folder}: table {readers[-1].name!r} has {total} rows, its base and deltas together "
                f"{self.num_rows}"
            )

    def read(self, column: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of ``weight``, ``growth.<name>``, or a piece of state with or without ``state.``."""
        name = column if column == WEIGHT or column.startswith((GROWTH, STATE)) else STATE + column
        file_of, row_of = self._source[start:stop].T
        parts, places = [], []
        for k in np.unique(file_of).tolist():
            reader, file = self._files[k]
            here = np.flatnonzero(file_of == k)
            low, high = int(row_of[here[0]]), int(row_of[here[-1]]) + 1  # ids ascend in each file
            with reader.open(file) as opened:
                found = opened.read(name, low, high)[torch.from_numpy(row_of[here] - low)]
            parts.append(found >> int(self._halved[k]) if name == GROWTH + "uses" else found)
            places.append(here)
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(places)))]

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        raise AssertionError("checkpoints are read")

    def memory(self, column: str) -> Tensor | None:
        """None: the rows lie in files."""
        return None


def changed_since(share: TableShare, before: ChainRows) -> TableShare:
    """The rows of a table of a fixed size that differ in a bit from those of a checkpoint, or that it has not.

    They are found by comparing, so that it does not matter what changed them. Rows that are not in this process's
    memory (of a file tier, a device or far servers) are all taken as changed.
    """
    columns = [name.removeprefix(STATE) for name in share.columns(0)]
    chosen: list[TableRows] = []
    ids, first = [np.empty(0, np.int64)], 0
    for rows in share.rows:
        own = share.ids.of(rows.first_id, rows.first_id + rows.num_rows)
        held = {name: rows.memory(name) for name in columns}
        here = {name: memory for name, memory in held.items() if memory is not None}
        if len(here) < len(held):
            return share
        which = np.flatnonzero(~_unchanged(own, here, before))
        chosen.append(ChosenRows(rows, which, first))
        ids.append(own[which])
        first += len(which)
    joined = np.concatenate(ids)
    return replace(share, ids=ArrayIds(joined, len(joined)), rows=chosen, changed=True)


def _unchanged(ids: np.ndarray, here: Mapping[str, Tensor], before: ChainRows) -> np.ndarray:
    """Which rows, of original ids (R,), are bit for bit those of a checkpoint, (R,) bool."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    same = np.zeros(len(ids), bool)
    row_bytes = sum(memory[:1].nbytes for memory in here.values())
    for start, stop in row_pieces(before.num_rows, row_bytes):
        low, high = np.searchsorted(sorted_ids, before.ids[[start, stop - 1]] + np.array([0, 1]))
        common, mine, theirs = np.intersect1d(
            sorted_ids[low:high], before.ids[start:stop], assume_unique=True, return_indices=True
        )
        if not len(common):
            continue
        rows = torch.from_numpy(order[low:high][mine])
        equal = np.ones(len(rows), bool)
        for name, memory in here.items():
            column = name if name == WEIGHT else STATE + name
            saved = before.read(column, start, stop)[torch.from_numpy(theirs)]
            bits = [_bits(one) for one in (memory.index_select(0, rows), saved)]
            equal &= (bits[0] == bits[1]).all(axis=1)
        same[rows.numpy()] = equal
    return same


def _bits(rows: Tensor) -> np.ndarray:
    """The bytes of rows, (R, bytes)."""
    found: np.ndarray = rows.contiguous().reshape(len(rows), -1).view(torch.uint8).numpy()
    return found


def _ids_of(reader: TableReader, file: RowsEntry) -> np.ndarray:
    with reader.open(file) as opened:
        ids = reader.ids(opened, file, 0, file.rows)
    if not (ids[1:] > ids[:-1]).all():
        raise DataError(f"{reader.folder}: table {reader.name!r}: the ids of {file.name} do not ascend; it is damaged")
    return ids


def _gone(path: Path) -> np.ndarray:
    with PieceReader(path) as reader:
        found: np.ndarray = reader.read(IDS).numpy()
    return found


def merge_checkpoints(base: str | Path, deltas: Sequence[str | Path], out: str | Path) -> Path:
    """Write the full checkpoint that a base and its deltas are together; one process, in bounded memory but for ids.

    Rows, state, counts, candidates and everything else are, bit for bit, those of a full save in the place of the last
    delta.

    Args:
        base: A full checkpoint.
        deltas: What follows it, in order, at least one.
        out: The new folder; a checkpoint of that name is replaced.
    Raises:
        DataError: one is damaged, missing, given twice, out of order, or of another chain; it is named.
        ConfigError: no delta, or out is one of the folders.
    """
    if isinstance(deltas, str | os.PathLike):
        raise ConfigError(f"deltas is one path; give a list, such as [{os.fspath(deltas)!r}]")
    places = [Path(os.path.abspath(user_path(place))) for place in (base, *deltas)]
    target = Path(os.path.abspath(user_path(out)))
    if len(places) < 2:
        raise ConfigError(f"{places[0]}: no delta is given to merge")
    if target in places:
        raise ConfigError(f"{target} is one of the checkpoints that are merged; choose another folder")
    check_chain(places[0], places[1:])
    chain = [Checkpoint(place) for place in places]
    for checkpoint in chain:
        checkpoint.verify()
    last = chain[-1]
    with ExitStack() as held:
        folder = held.enter_context(pending_checkpoint(target, Retention(None, None, None)))
        merged = [name for name, entry in last.manifest.tables.items() if entry.is_delta]
        shares = [_share([checkpoint.part(name) for checkpoint in chain]) for name in merged]
        files = write_shares(folder.path, shares, 0)
        tables = {}
        for name, entry in last.manifest.tables.items():
            changed = {"num_rows": entry.total, "files": files[name]} if name in files else {}
            growth = entry.growth.model_copy(update={"delta": None}) if entry.growth else None
            tables[name] = entry.model_copy(update={**changed, "growth": growth, "changed_of": None})
        composed = chain[0].manifest.composed  # deltas leave out what does not change
        manifest = last.manifest.model_copy(update={"tables": tables, "composed": composed, "parent": None})
        written = {file.name for of in files.values() for file in of}
        of_base = {entry.file.name for entry in (composed or {}).values() if entry.file}
        for file in manifest.files():
            if file.name not in written:
                (folder.path / file.name).parent.mkdir(parents=True, exist_ok=True)
                with ((chain[0] if file.name in of_base else last).path / file.name).open("rb") as source:
                    write_file(folder.path / file.name, partial(_copy, source))
        write_text(folder.path / NAME, manifest.to_json())
        return folder.publish()


def _copy(source: BinaryIO, out: OutputFile) -> None:
    while block := source.read(PIECE_BYTES):
        out.write(block)


def _share(readers: Sequence[TableReader]) -> TableShare:
    """The rows of a chain as one rank writes them."""
    entry: TableEntry = readers[-1].entry
    rows = ChainRows(readers)
    specs = {
        name: StateSpec(name, state.kind, getattr(torch, state.dtype))
        for name, state in entry.state.items()
        if state.kind != "table"
    }
    dtype = getattr(torch, entry.dtype)
    ids, step = ArrayIds(rows.ids, rows.num_rows), None if entry.growth is None else 0
    return TableShare(readers[-1].name, entry.dim, dtype, specs, ids, [rows], step=step)
