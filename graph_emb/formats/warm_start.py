"""Tables that begin with rows of a file, by original id."""

# N ids of the table, M rows of the file, R rows of one owner, D width, B rows of a piece.

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.formats.embedding_files import exact_ids, open_embeddings
from graph_emb.formats.row_readers import Ids, RowFile, Rows
from graph_emb.graph.ids import find_ids, first_repeated
from graph_emb.graph.original_ids import ArrayIds, OriginalIds, SameIds
from graph_emb.table.initializers import CHUNK_ELEMENTS, Initializer, TableInitializer, as_initializer, fill_rows_

UNKNOWN = ("error", "ignore")


class FromFile:
    """First rows from a file of embeddings, each under its id: ``DistEmbedding(n, d, init_func=FromFile("old.npy"))``.

    The ids are matched in the process that makes the table. The rows are read by the process that stores them (in
    kvstore mode the server, which must see the same path), once, in pieces, never the whole file at a time; ``.npy``
    and ``.pt`` files are memory-mapped.

    Args:
        path: ``.npy``, ``.pt``, parquet or word2vec text, or a folder of an export or a run, as ``load_embeddings``
            takes it. A file without ids has the row of id i at place i.
        ids: The id, as the file spells it, of each original id of the table, (N,) distinct integers or strings: of a
            graph, ``graph.ids_of(np.arange(graph.num_nodes))``. None: the file's ids are the original ids 0 .. N-1.
            Where one side holds integers and the other strings, they are compared as text.
        missing: Fills the rows whose id the file lacks, as any ``init_func``; None: a missing id is an error.
        unknown: What an id of the file means that the table does not have: ``"error"``, or ``"ignore"`` its row.
    Raises:
        ShapeError: ids are no one-dimensional integers or strings.
        DataError: an id stands twice in ids.
        ConfigError: another word for unknown, or a missing that is no initializer.
    """

    def __init__(
        self,
        path: str | Path,
        ids: ArrayLike | None = None,
        *,
        missing: object = None,
        unknown: Literal["error", "ignore"] = "error",
    ) -> None:
        if unknown not in UNKNOWN:
            raise unknown_name("unknown", unknown, UNKNOWN)
        self.path = user_path(path).absolute()
        self.ids = None if ids is None else exact_ids(ids, "ids")
        filler = None if missing is None else as_initializer(missing)
        if isinstance(filler, TableInitializer):
            raise ConfigError("FromFile missing: give an initializer that reads no file, such as Uniform(seed=0)")
        self.missing: Initializer | None = filler
        self.unknown = unknown
        twice = None if self.ids is None else first_repeated(self.ids)
        if twice is not None:
            raise DataError(f"FromFile ids: {twice!r} stands for several rows")

    def for_table(self, num_rows: int, dim: int, table: str, original_ids: OriginalIds | None) -> FileRows:
        """The rows of the file as first values of a table of shape (num_rows, dim).

        Raises:
            DataError: the file is missing or damaged, it has more or fewer ids than rows, an id stands twice in it, the
                table lacks one of its ids, or it lacks one of the table's.
            ShapeError: it has another width, or ``ids`` do not fit the table's.
        """
        file = open_embeddings(self.path)
        if file.dim != dim:
            raise ShapeError(
                f"table {table!r}: embedding_dim is {dim}, the rows of {file.path} have {file.dim} numbers"
            )
        found = file.ids()
        if found is not None:
            found = exact_ids(found, str(file.path))
            if len(found) != file.num_rows:
                raise DataError(f"{file.path} has {file.num_rows} rows and {len(found)} ids; give one for each")
        if found is None and self.ids is None and original_ids is None and file.num_rows == num_rows:
            return FileRows(str(file.path), file.num_rows, dim, None, self.missing)
        known = self._known(num_rows, table, original_ids)
        found = np.arange(file.num_rows) if found is None else found
        places = self._places(file, known, found)
        lacking = np.flatnonzero(places < 0)
        if len(lacking) and self.missing is None:
            raise DataError(
                f"{file.path} has no row for {len(lacking)} of {num_rows} ids of table {table!r}, the first is id "
                f"{known[lacking[0]].item()!r}; pass missing=graph_emb.initializers.Uniform(seed=0) to fill them"
            )
        in_order = original_ids is None and np.array_equal(places, np.arange(num_rows))
        return FileRows(str(file.path), file.num_rows, dim, None if in_order else places, self.missing)

    def _known(self, num_rows: int, table: str, original_ids: OriginalIds | None) -> Ids:
        """The id of each row of the table as the file spells it, (N,)."""
        own = np.arange(num_rows) if original_ids is None else original_ids.of(0, num_rows)
        if self.ids is None:
            return own
        if len(self.ids) != num_rows or (num_rows and int(own.max()) >= num_rows):
            raise ShapeError(
                f"table {table!r}: FromFile has {len(self.ids)} ids, the table has {num_rows} original ids up to "
                f"{int(own.max(initial=-1))}; give one for each of 0 .. {num_rows - 1}"
            )
        return self.ids[own]

    def _places(self, file: RowFile, known: Ids, found: Ids) -> NDArray[np.int64]:
        """The file's row of each row of the table, -1 where it has none, (N,)."""
        if (known.dtype.kind == "U") != (found.dtype.kind == "U"):
            known, found = known.astype(str), found.astype(str)
        rows = find_ids(known, len(known), found) if len(known) else np.full(len(found), -1)
        stray = np.flatnonzero(rows < 0)
        if len(stray) and self.unknown == "error":
            raise DataError(
                f"{file.path} has rows for {len(stray)} ids that the table does not have, the first is id "
                f"{found[stray[0]].item()!r}; is it of this graph? unknown='ignore' leaves such rows out"
            )
        places = np.full(len(known), -1, dtype=np.int64)
        used = np.flatnonzero(rows >= 0)
        places[rows[used]] = used
        twice = used[places[rows[used]] != used]
        if len(twice):
            raise DataError(f"{file.path}: id {found[twice[0]].item()!r} stands for several rows; ids must differ")
        return places


@dataclass(frozen=True, eq=False)
class FileRows:
    """``FromFile`` of one table: an initializer that knows where in the file each row is.

    Attributes:
        path, num_rows, dim: The file, and the shape that it had when the ids were matched.
        places: The file's row of the table's rows ``first_row``, ``first_row + 1``, ...; -1 where it has none. None:
            that of row i is i.
        missing: Fills the rows that the file lacks.
        first_row: Not 0 where only an owner's places are here.
    """

    path: str
    num_rows: int
    dim: int
    places: NDArray[np.int64] | None
    missing: Initializer | None
    first_row: int = 0

    def for_owner(self, low: int, high: int) -> FileRows:
        """The part of this initializer that the owner of the rows [low, high) needs; only that is sent to it."""
        if self.places is None:
            return self
        places = self.places[low - self.first_row : high - self.first_row].copy()
        return replace(self, places=places, first_row=low)

    def fill_(self, weight: Tensor, first_id: int) -> None:
        """``fill_owned_`` of a table whose ids are original."""
        self.fill_owned_(weight, first_id, None)

    def fill_owned_(self, weight: Tensor, first_id: int, original_ids: OriginalIds | None) -> None:
        """Write all rows of an owner, first_id, first_id + 1, ... of the table, into weight, shape (R, D).

        Raises:
            DataError: the file changed since, is damaged, or holds a value that the table cannot.
        """
        file = open_embeddings(self.path)
        if (file.num_rows, file.dim) != (self.num_rows, self.dim):
            raise DataError(
                f"{file.path} has shape {(file.num_rows, file.dim)}, it was {(self.num_rows, self.dim)} when the table "
                "was made; keep it as it is until then"
            )
        end = first_id + len(weight)
        places = np.arange(first_id, end)
        if self.places is not None:
            places = self.places[first_id - self.first_row : end - self.first_row]
        order = np.argsort(places, kind="stable")  # rows in the order of the file, missing rows first
        sorted_places = places[order]
        start = 0
        for piece in file.pieces():
            low, high = np.searchsorted(sorted_places, (start, start + len(piece)))
            if low < high:
                self._copy(weight, order[low:high], piece, sorted_places[low:high] - start, start)
            start += len(piece)
        lacking = order[: np.searchsorted(sorted_places, 0)]
        if len(lacking):
            assert self.missing is not None
            ids, step = (original_ids or SameIds(end)).of(first_id, end), max(1, CHUNK_ELEMENTS // max(1, self.dim))
            for begin in range(0, len(lacking), step):
                chunk = lacking[begin : begin + step]
                values = weight.new_empty((len(chunk), self.dim))
                fill_rows_(self.missing, values, 0, ArrayIds(ids[chunk], len(chunk)))
                weight.index_copy_(0, torch.from_numpy(chunk).to(weight.device), values)

    def _copy(self, weight: Tensor, rows: NDArray, piece: Rows, taken: NDArray, start: int) -> None:
        values = torch.from_numpy(np.ascontiguousarray(piece[taken], dtype=piece.dtype.newbyteorder("=")))
        values = values.to(weight.device, weight.dtype)
        bad = (~values.isfinite().all(dim=1)).nonzero().flatten()
        if len(bad):
            place = start + int(taken[int(bad[0])])
            raise DataError(
                f"{self.path}: row {place} holds NaN, an infinity or a number beyond {weight.dtype}; "
                "warm starts need finite rows"
            )
        weight.index_copy_(0, torch.from_numpy(rows).to(weight.device), values)
