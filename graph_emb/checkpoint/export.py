"""A table of a checkpoint as files of embeddings, by the ids of the user's data, in bounded memory."""

# N rows of the table, B rows of a piece.

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from graph_emb.checkpoint.composed import ComposedReader
from graph_emb.checkpoint.reader import Checkpoint, TableReader
from graph_emb.checkpoint.row_files import IDS, WEIGHT
from graph_emb.core.errors import ConfigError, DataError, check_flags
from graph_emb.core.storage import PendingFiles
from graph_emb.formats.embedding_files import checked_ids, open_embeddings, write_rows
from graph_emb.formats.row_readers import Ids, read_array
from graph_emb.graph.ids import as_ids

IDS_FOLDER = "ids"
"""Beside the checkpoints of a run: ``ids/<table>.npy``, what stands for each original id in the user's data."""
# Of rows in memory at once; reading from several files holds a few times as much.
BYTES_AT_ONCE = 1 << 22


def export_checkpoint(
    checkpoint: str | Path,
    folder: str | Path,
    formats: Sequence[str] = ("npy",),
    *,
    table: str | None = None,
    ids: str | Path | ArrayLike | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write the rows of a table as embedding files, each under its original id, in ascending order of them.

    The table's files are verified first. Rows of a composed table are the sums that training sees. Memory holds a few
    megabytes of rows and the ids of all rows; of a composed table also the parts of all nodes and what they share.
    Formats hold float32: 16-bit rows keep their value, float64 rows become the nearest float32.

    Args:
        checkpoint: Its folder.
        folder: Made when it is absent.
        formats: As ``save_embeddings``.
        table: Its name, of a composed table too, or of one that its rows are sums of; None: the only one.
        ids: What stands for each original id 0 .. M-1 in the user's data, (M,) integers or strings: an array, a .npy
            file, or the folder or file of an export or a run on the same graph. None: what ``save_ids`` left beside the
            checkpoint, as ``graph-emb train`` does, else the original ids themselves.
        overwrite: Replace files of these names.
    Returns:
        The files written.
    Raises:
        ConfigError: the checkpoint has no such table, or several and none is named; an unknown format; a file is there.
        DataError: the checkpoint or the ids are damaged, or do not fit each other.
        OSError: the disk is full or cannot be written; nothing is left.

    Example:
        >>> import tempfile
        >>> emb = ge.DistEmbedding(3, 2, "node", ge.initializers.FromArray(torch.ones(3, 2)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = ge.save_checkpoint(f"{folder}/10", tables=[emb])
        ...     [path.name for path in ge.export_checkpoint(place, f"{folder}/rows", ids=["a", "b", "c"])]
        ['ids.npy', 'embeddings.npy']
    """
    check_flags(overwrite=overwrite)
    found = Checkpoint(checkpoint)
    composed = found.manifest.composed or {}
    parts = {own for entry in composed.values() for own in (*entry.shared, entry.weights, entry.own)}
    known = [*composed, *(name for name in found.manifest.tables if name not in parts)]
    if table is None and len(known) != 1:
        raise ConfigError(f"checkpoint {found.path} has the tables {', '.join(known) or 'none'}; name one")
    name = known[0] if table is None else table
    if name in composed and composed[name].kind == "full":
        (name,) = composed[name].shared
    rows: Callable[[int, int], Tensor]
    if name in composed and name not in found.manifest.tables:
        made = ComposedReader(found, name)
        rows, original, dim = made.rows, made.ids, made.dim
    else:
        reader = found.table(name)
        found.verify(reader.entry.files)
        original, dim = original_ids(reader), reader.entry.dim
        rows = _of_table(reader, original)
    names = _names(found, name, ids)
    if not len(original):
        raise DataError(f"checkpoint {found.path}: table {name!r} has no row")
    if names is not None and int(original[-1]) >= len(names):
        raise DataError(
            f"checkpoint {found.path}: table {name!r} has original id {original[-1]}, but there are "
            f"{len(names)} ids; are they of the same graph?"
        )
    spelled = original if names is None else checked_ids(names[original], len(original))
    step = max(1, BYTES_AT_ONCE // (4 * dim))
    pieces = (rows(start, min(start + step, len(original))) for start in range(0, len(original), step))
    return write_rows(folder, pieces, dim, spelled, formats, overwrite=overwrite)


def save_ids(checkpoints: str | Path, table: str, ids: ArrayLike) -> Path:
    """Leave the user's ids of a table beside its checkpoints, for ``export_checkpoint``.

    Args:
        checkpoints: The folder in which the checkpoints lie; made when it is absent.
        table: The table's name. One named ``<table>.<more>`` has the same ids.
        ids: What stands for each original id 0 .. M-1, (M,) distinct integers or strings.
    """
    known = as_ids(ids, "ids")
    with PendingFiles(Path(checkpoints) / IDS_FOLDER, [f"{table}.npy"], overwrite=True) as pending:
        np.save(pending.open(f"{table}.npy"), checked_ids(known, len(known)), allow_pickle=False)
        return pending.publish()[0]


def original_ids(reader: TableReader) -> Ids:
    """All original ids of a table in ascending order, (N,), int64.

    Raises:
        DataError: an id is in two files.
    """
    found = []
    for file in reader.entry.files:
        with reader.open(file) as opened:
            found.append(reader.ids(opened, file, 0, file.rows))
    ids = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    if (ids[1:] == ids[:-1]).any():
        twice = int(ids[np.argmax(ids[1:] == ids[:-1])])
        raise DataError(f"checkpoint {reader.folder}: table {reader.name!r} has original id {twice} in two places")
    return ids


def _names(checkpoint: Checkpoint, table: str, ids: str | Path | ArrayLike | None) -> Ids | None:
    if ids is None:
        folder = checkpoint.path.absolute().parent / IDS_FOLDER
        places = (folder / f"{name}.npy" for name in (table, table.partition(".")[0]))  # node.context: nodes too
        ids = next((place for place in places if place.is_file()), None)
    if ids is None:
        return None
    if not isinstance(ids, (str, Path)):
        return as_ids(ids, "ids")
    path = Path(ids)
    if path.suffix == ".npy" and path.name != "embeddings.npy":
        return as_ids(read_array(path), str(path))
    file = open_embeddings(path)
    found = file.ids()
    return np.arange(file.num_rows) if found is None else found


def _of_table(reader: TableReader, original: Ids) -> Callable[[int, int], Tensor]:
    """The weights at places [start, stop) of the original ids, (B, D)."""

    def rows(start: int, stop: int) -> Tensor:
        piece = original[start:stop]
        found = reader.rows(int(piece[0]), int(piece[-1]) + 1, [WEIGHT])
        if not np.array_equal(found[IDS].numpy(), piece):
            raise DataError(f"checkpoint {reader.folder}: table {reader.name!r} changed while it was read")
        return found[WEIGHT]

    return rows
