"""Embeddings on the disk, each row under the id that its node has in the user's files."""

# N rows, D width.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.core.storage import PendingFiles
from graph_emb.formats.row_readers import Ids, RowFile
from graph_emb.formats.row_writers import FORMATS, Format
from graph_emb.graph.csr import Graph
from graph_emb.graph.ids import as_ids, find_ids

# Bytes of float32 rows in memory at once.
BYTES_AT_ONCE = 1 << 24
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Rows with the ids they belong to.

    Attributes:
        weights: Shape (N, D), float32; float64 if a foreign .npy file holds that.
        node_ids: Shape (N,), int64 or numpy strings, distinct.
    Raises:
        ShapeError: the shapes or dtypes do not fit.
        DataError: an id stands twice.
    """

    weights: NDArray[np.floating]
    node_ids: Ids

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.weights.dtype.kind != "f" or not self.weights.size:
            raise ShapeError(f"weights have dtype {self.weights.dtype}, shape {self.weights.shape}; give floats (N, D)")
        object.__setattr__(self, "node_ids", checked_ids(self.node_ids, len(self.weights)))


def save_embeddings(
    folder: str | Path,
    weights: Any,
    node_ids: ArrayLike | None = None,
    formats: Sequence[str] = ("npy",),
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write embeddings under their original ids; all files appear complete, or none does.

    Rows are fetched once, in pieces of ``BYTES_AT_ONCE``, so a table may be larger than the memory.

    Args:
        folder: Made when it is absent.
        weights: Shape (N, D), float32; 16-bit rows become the float32 of the same value. Anything with a shape, a dtype
            and slices of rows: a tensor, an array, a memory map, ``DistEmbedding.weight``.
        node_ids: Shape (N,), distinct integers or strings; None: 0 .. N-1.
        formats: Of "npy" (``embeddings.npy``, ``ids.npy``), "parquet" (``embeddings.parquet``, columns id and
            embedding) and "word2vec" (``embeddings.w2v.txt``).
        overwrite: Replace files of these names.
    Returns:
        The files written.
    Raises:
        ConfigError: an unknown format, none, or one twice; a file is there already.
        ShapeError: weights are no rows of these dtypes, or not as many as ids.
        DataError: an id stands twice, or a format cannot hold it.
        OSError: the disk is full or cannot be written; nothing is left.
    """
    shape, dtype = tuple(weights.shape), str(weights.dtype).removeprefix("torch.")
    if len(shape) != 2 or 0 in shape or dtype not in _EXACT_IN_FLOAT32:
        known = ", ".join(_EXACT_IN_FLOAT32)
        raise ShapeError(f"weights have dtype {dtype}, shape {shape}; give rows (N, D) of {known}")
    num_rows, dim = shape
    ids = np.arange(num_rows) if node_ids is None else checked_ids(node_ids, num_rows)
    step = max(1, BYTES_AT_ONCE // (4 * dim))
    pieces = (weights[begin : begin + step] for begin in range(0, num_rows, step))
    return write_rows(folder, pieces, dim, ids, formats, overwrite=overwrite)


def copy_embeddings(
    source: str | Path, folder: str | Path, formats: Sequence[str], *, overwrite: bool = False
) -> list[Path]:
    """``save_embeddings`` of what ``load_embeddings`` reads, piece by piece; arguments and errors as theirs.

    float64 rows of a foreign file become the nearest float32.
    """
    file = open_embeddings(source)
    found = file.ids()
    try:
        ids = np.arange(file.num_rows) if found is None else checked_ids(found, file.num_rows)
    except (ShapeError, DataError) as error:
        raise DataError(f"{file.path}: {error}") from error
    return write_rows(folder, file.pieces(), file.dim, ids, formats, overwrite=overwrite)


def write_rows(
    folder: str | Path, pieces: Iterable[Any], dim: int, ids: Ids, formats: Sequence[str], *, overwrite: bool = False
) -> list[Path]:
    """Rows that come in order, (B, D) at a time, with their checked ids (N,), into all formats at once.

    Returns and raises as ``save_embeddings``.
    """
    if not formats or len(set(formats)) < len(formats):
        raise ConfigError(f"formats are {list(formats)}; give one or more of {', '.join(FORMATS)}, each once")
    kinds = [FORMATS[name] for name in formats]
    names = [name for kind in kinds for name in kind.files]
    with PendingFiles(folder, names, overwrite=overwrite) as pending:
        with ExitStack() as stack:
            writers = [_opened(stack, kind, pending, ids, dim) for kind in kinds]
            begin = 0
            for piece in pieces:
                rows = _as_float32(piece)
                for writer in writers:
                    writer.append(ids[begin : begin + len(rows)], rows)
                begin += len(rows)
            for writer in writers:
                writer.close()
        return pending.publish()


def load_embeddings(path: str | Path) -> Embeddings:
    """Read what ``save_embeddings`` wrote.

    Args:
        path: A file of one of the formats, recognised by its ending, or a folder with ``embeddings.npy``,
            ``embeddings.parquet`` or ``embeddings.w2v.txt``, looked for in this order.
    Returns:
        The weights and ids; 0 .. N-1 for a .npy file without ids.
    Raises:
        DataError: nothing there, an unknown ending, or a damaged file.
        OSError: the file cannot be read.
    """
    file = open_embeddings(path)
    weights, ids = file.read()
    if weights.dtype == np.float16:
        weights = weights.astype(np.float32)
    try:
        return Embeddings(weights, np.arange(len(weights)) if ids is None else ids)
    except (ShapeError, DataError) as error:
        raise DataError(f"{file.path}: {error}") from error


def open_embeddings(path: str | Path) -> RowFile:
    """A file of embeddings, found as ``load_embeddings`` finds it, to be read piece by piece.

    Raises:
        DataError: nothing there, an unknown ending, or a damaged file.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        for kind in FORMATS.values():
            file = path / kind.files[-1]
            if file.is_file():
                return kind.reader(file)
        names = ", ".join(kind.files[-1] for kind in FORMATS.values())
        raise DataError(f"{path} holds no embeddings; looked for {names}")
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder that an export or a run wrote")
    for kind in FORMATS.values():
        if path.name.endswith(kind.suffixes):
            return kind.reader(path)
    endings = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
    raise DataError(f"{path} has no ending of embeddings; known: {endings}")


def align(embeddings: Embeddings, nodes: Graph | ArrayLike) -> NDArray[np.floating]:
    """The rows of some nodes in their order.

    Where one side holds integers and the other strings, ids are compared as text.

    Args:
        embeddings: Of these nodes and perhaps of others.
        nodes: Ids (B,), or a graph whose N nodes are meant.
    Returns:
        Shape (B, D).
    Raises:
        DataError: a node has no row.
        ShapeError: nodes are no one-dimensional integers or strings.
    """
    if isinstance(nodes, Graph):
        asked = np.arange(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids
    else:
        asked = exact_ids(nodes, "nodes")
    known = embeddings.node_ids
    if (known.dtype.kind == "U") != (asked.dtype.kind == "U"):
        known, asked = known.astype(str), asked.astype(str)
    if np.array_equal(known, asked):
        return embeddings.weights
    rows = find_ids(known, len(known), asked)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise DataError(
            f"{len(missing)} of {len(asked)} nodes have no embedding, the first is id {asked[missing[0]].item()!r}; "
            "are the embeddings of this graph?"
        )
    return embeddings.weights[rows]


def _opened(stack: ExitStack, kind: type[Format], pending: PendingFiles, ids: Ids, dim: int) -> Format:
    """A writer that is closed whatever happens; after a failure, what its end would raise says nothing new."""
    writer = kind({name: pending.open(name) for name in kind.files}, ids, dim)

    def abandon(error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            with suppress(Exception):
                writer.close()

    stack.push(abandon)
    return writer


def exact_ids(values: object, name: str) -> Ids:
    """``as_ids`` as int64 or strings: unsigned ones are compared with int64 as floats, which are equal above 2**53.

    Raises:
        ShapeError, DataError: as ``as_ids``.
    """
    ids = as_ids(values, name)
    return ids if ids.dtype.kind == "U" else ids.astype(np.int64, copy=False)


def checked_ids(node_ids: object, num_rows: int) -> Ids:
    """Ids as int64 or strings.

    Raises:
        ShapeError: they are not num_rows one-dimensional integers or strings.
        DataError: an id stands twice.
    """
    ids = exact_ids(node_ids, "node_ids")
    if len(ids) != num_rows:
        raise ShapeError(f"{len(ids)} node_ids for {num_rows} rows of weights; give one for each")
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise DataError(
            f"node id {distinct[np.argmax(counts > 1)].item()!r} stands for {counts.max()} rows; ids must differ"
        )
    return ids


def _as_float32(rows: Any) -> NDArray[np.float32]:
    if isinstance(rows, Tensor):
        rows = (rows.float() if rows.dtype == torch.bfloat16 else rows).detach().cpu().numpy()  # numpy has no bfloat16
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.dtype.itemsize > 4 and (np.isinf(narrow) & np.isfinite(rows)).any():
        raise DataError(f"a number of {np.abs(rows).max():g} is beyond float32, which the formats hold")
    return narrow
