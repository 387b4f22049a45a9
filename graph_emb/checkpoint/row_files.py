"""Safetensors files written and read in pieces, and a rank's rows of every table laid into them, in bounded memory.

Format: https://huggingface.co/docs/safetensors (8 bytes length, JSON header, data). ``safetensors.safe_open`` reads
what is written here; the library itself writes and reads whole tensors only. Legend: R rows of a file, D width.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast
from urllib.parse import quote

import numpy as np
import torch
import xxhash
from torch import Tensor

from graph_emb.checkpoint.manifest import RowsEntry
from graph_emb.core.errors import DataError
from graph_emb.core.json_codec import CODES
from graph_emb.core.storage import OutputFile
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import ArrayIds, OriginalIds
from graph_emb.table.growing_rows import COUNTS, GrowingRows
from graph_emb.table.lazy_decay import DECAY
from graph_emb.table.spec import StateSpec
from graph_emb.table.tier.kept import KeptRows
from graph_emb.table.tier.shard import TieredShard
from graph_emb.transport.base import ShardRows, TableRows

P = ParamSpec("P")
T = TypeVar("T")

THREADS = max(1, min(4, os.cpu_count() or 1))
WEIGHT, IDS, STATE, GROWTH = "weight", "ids", "state.", "growth."
FILE_BYTES = 256 << 20
"""Bytes of a file: many enough for several threads, few enough to look for rows in."""
FILE_ROWS = 1 << 20
"""Most rows of a file: bounds the memory for their ids."""
PIECE_BYTES = 16 << 20
"""Bytes that are read or written at a time."""
SCATTERED_BYTES = 2 << 20
"""Of rows that are gathered or scattered: they should be in the processor's cache when they are used again."""
MOST_HEADER = 100 << 20
ALIGN = 64

DTYPES = {code: dtype for dtype, code in CODES.items()}


class Column(NamedTuple):
    """A tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of the whole tensor
    offset: int = 0  # of its first byte in the file

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def raw(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous CPU tensor, sharing its memory, shape (num_bytes,)."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


class PieceWriter:
    """Writes one safetensors file, tensor after tensor in pieces, and hashes it on the way. A context manager.

    Args:
        path: A new file.
        columns: Shape and dtype of every tensor by name. The widest dtypes come first in the file, so that each tensor
            is aligned; ``order`` is the order in which ``write`` must bring them.
        drained: As of ``OutputFile``.
    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, Column], *, drained: bool = False) -> None:
        self.order = sorted(columns, key=lambda name: -columns[name].dtype.itemsize)
        header: dict[str, Any] = {}
        at = 0
        for name in self.order:
            column = columns[name]
            end = at + column.num_bytes
            header[name] = {"dtype": CODES[column.dtype], "shape": list(column.shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        self.expected = 8 + len(text) + at
        self._file = OutputFile(path, xxhash.xxh64(), self.expected, drained=drained)
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, rows: Tensor) -> None:
        self._file.write(raw(rows.contiguous()).data)

    def close(self) -> str:
        """Put the file on the disk; its XXH64."""
        written = self._file.num_bytes
        assert written == self.expected, f"{self._file.path}: {written} bytes written of {self.expected}"
        return self._file.close()

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._file.abandon()


class PieceReader:
    """Reads row ranges of the tensors of a safetensors file. A context manager.

    Attributes:
        columns: Every tensor by name.
    Raises:
        DataError: the file is missing or its header is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._stream = path.open("rb", buffering=0)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; the checkpoint is not complete") from None
        try:
            self.columns = _columns(path, self._stream)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows [start, stop) of a tensor; by default all of it, a scalar too."""
        column = self.columns[name]
        shape = column.shape if stop is None else (stop - start, *column.shape[1:])
        out = torch.empty(shape, dtype=column.dtype)
        self.read_into(name, start, out)
        return out

    def read_into(self, name: str, start: int, out: Tensor) -> None:
        """Rows [start, start + len(out)) of a tensor into contiguous CPU memory of its dtype.

        Raises:
            DataError: the file ends before them.
        """
        column = self.columns[name]
        view, at = raw(out).data, column.offset + start * column.row_bytes
        while len(view):
            count = os.preadv(self._stream.fileno(), [view], at)
            if not count:
                raise DataError(f"{self.path}: ends {len(view)} bytes before the rest of {name!r}; it was cut off")
            view, at = view[count:], at + count


def _columns(path: Path, stream: Any) -> dict[str, Column]:
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= min(MOST_HEADER, size - 8):
        raise DataError(f"{path}: header of {length} bytes in a file of {size}; the file is damaged")
    try:
        header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            column = Column(DTYPES[entry["dtype"]], tuple(map(int, entry["shape"])), 8 + length + int(begin))
            if begin < 0 or end - begin != column.num_bytes or 8 + length + end > size:
                raise ValueError(f"tensor {name!r} lies at bytes [{begin}, {end}) of {size - 8 - length}")
            found[name] = column
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: no safetensors header ({type(error).__name__}: {error})") from None
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write whole tensors; the size and checksum of the file."""
    held = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    columns = {name: Column(tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
    with PieceWriter(path, columns) as writer:
        for name in writer.order:
            writer.write(held[name])
    return writer.expected, writer.close()


def row_pieces(num_rows: int, row_bytes: int, most: int = PIECE_BYTES) -> Iterable[tuple[int, int]]:
    """[start, stop) of pieces of at most ``most`` bytes, at least one row each."""
    step = max(1, most // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(num_rows, start + step)


@dataclass
class TableShare:
    """A rank's rows of a table, with the table's original ids, and this rank's value of each per-table state.

    A growing table's ids are those of the rows, and it has a step and candidates (``GrowingShard.candidates``). In a
    delta the rows are those that changed, and ``gone`` are the ids that left (``GrowingShard.track``); of a table of a
    fixed size ``changed`` says so.
    """

    name: str
    dim: int
    dtype: torch.dtype
    specs: dict[str, StateSpec]
    ids: OriginalIds
    rows: Sequence[TableRows]
    clocks: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    candidates: dict[str, Tensor] = field(default_factory=dict)
    gone: Tensor | None = None
    halvings: int = 0
    total: int = 0
    changed: bool = False

    @classmethod
    def of(cls, table: DistEmbedding, with_state: bool, delta: bool = False) -> TableShare:
        """The share of this process; without state where no optimizer is saved with the table.

        Args:
            delta: Of a growing table those rows alone that changed since the last checkpoint.
        """
        transport, shard = table.transport, table.shard
        specs = dict(shard.state_specs) if with_state else {}
        clocks = {name: shard.state[name].item() for name, spec in specs.items() if spec.kind == "table"}
        clocks |= {DECAY: 0.0} if DECAY in clocks else {}  # rows are saved as they are read
        grows = isinstance(shard, GrowingRows)
        rows, ids = [] if grows and delta else transport.rows(table.name), table.original_ids
        share = cls(table.name, table.embedding_dim, table.dtype, specs, ids, rows, clocks)
        if isinstance(shard, GrowingRows):
            if delta:
                changed = transport.changed_rows(table.name)
                share.rows, share.total, share.halvings = changed.rows, changed.total, changed.halvings
                share.gone = torch.from_numpy(changed.gone)
            ids_of = np.concatenate([np.empty(0, np.int64), *(live.ids for live in cast("list[Any]", share.rows))])
            share.ids, share.step = ArrayIds(ids_of, len(ids_of)), shard.step
            share.candidates = {name: torch.from_numpy(values) for name, values in shard.candidates().items()}
        return share

    def columns(self, num_rows: int) -> dict[str, Column]:
        """The tensors of a file with ``num_rows`` rows, by their names in it."""
        found = {WEIGHT: Column(self.dtype, (num_rows, self.dim))}
        for name, spec in self.specs.items():
            if spec.kind != "table":
                found[STATE + name] = Column(spec.dtype_beside(self.dtype), spec.shape(num_rows, self.dim))
        if self.step is not None:
            found.update({GROWTH + name: Column(torch.int64, (num_rows,)) for name in COUNTS})
        return found

    def kept(self) -> TableShare:
        """The same rows for a write while training goes on: those in a file are kept there, others are copied."""
        columns = [name.removeprefix(STATE) for name in self.columns(0)]
        made: list[TableRows] = []
        for rows in self.rows:
            shard = rows.shard if isinstance(rows, ShardRows) else None
            kept = shard.kept(self.rows_of_file(near=False)) if isinstance(shard, TieredShard) else None
            made.append(kept or CopiedRows(rows, columns))
        return replace(self, rows=made)

    def hurry(self) -> None:
        """Let the writer of rows that were kept rest no more."""
        for rows in self.rows:
            if isinstance(rows, KeptRows):
                rows.hurry()

    def release(self) -> None:
        """Let go of rows that were kept. May be repeated."""
        for rows in self.rows:
            if isinstance(rows, KeptRows):
                rows.close()
        self.rows = []

    def rows_of_file(self, *, near: bool) -> int:
        """Most rows of a file of rows that are in this process's memory (near), or are not."""
        row_bytes = sum(column.row_bytes for column in self.columns(1).values())
        return min(FILE_ROWS, max(1, (FILE_BYTES if near else PIECE_BYTES) // row_bytes))


class ChosenRows:
    """Some rows of others in memory; see ``graph_emb.transport.base.TableRows``.

    Args:
        rows: All of them, in this process's memory.
        places: Which, (R,) int64.
        first_id: The place of the first one among the ids of their share.
    """

    def __init__(self, rows: TableRows, places: np.ndarray, first_id: int) -> None:
        self._rows, self._places = rows, torch.from_numpy(places)
        self.first_id, self.num_rows = first_id, len(places)

    def read(self, column: str, start: int, stop: int) -> Tensor:
        here = self._rows.memory(column)
        assert here is not None
        return here.index_select(0, self._places[start:stop])

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        raise AssertionError("chosen rows are read")

    def memory(self, column: str) -> Tensor | None:
        return None


class CopiedRows:
    """A copy of rows; see ``graph_emb.transport.base.TableRows``."""

    def __init__(self, rows: TableRows, columns: Sequence[str]) -> None:
        self.first_id, self.num_rows = rows.first_id, rows.num_rows
        self._held: dict[str, Tensor] = {}
        for column in columns:
            here = rows.memory(column)
            if here is not None:
                self._held[column] = here.clone()
                continue
            like = rows.read(column, 0, 0)
            self._held[column] = torch.empty((rows.num_rows, *like.shape[1:]), dtype=like.dtype)
            row_bytes = max(1, like[:0].new_empty((1, *like.shape[1:])).nbytes)
            for start, stop in row_pieces(rows.num_rows, row_bytes):
                self._held[column][start:stop] = rows.read(column, start, stop)

    def read(self, column: str, start: int, stop: int) -> Tensor:
        return self._held[column][start:stop]

    def write(self, column: str, rows: Tensor, values: Tensor) -> None:
        self._held[column].index_copy_(0, rows, values)

    def memory(self, column: str) -> Tensor | None:
        return self._held[column]


def folder_of(table: str) -> str:
    """The folder of a table's files; a name of dots or of other systems' separators becomes a plain one."""
    return "tables/" + quote(table, safe=" ").replace(".", "%2E")


@dataclass(frozen=True)
class _File:
    share: TableShare
    rows: TableRows
    start: int
    stop: int
    name: str


def write_shares(folder: Path, shares: Sequence[TableShare], rank: int) -> dict[str, list[RowsEntry]]:
    """Write this rank's rows of all tables; what the manifest says of the files, by table.

    Rows in this process's memory are written by several threads, others (of files, a GPU, far servers) by this one. A
    file goes to the disk while the next ones are written; of rows that are not in memory while the next one is, so that
    those of a table beyond memory do not gather there.
    """
    for share in shares:
        (folder / folder_of(share.name)).mkdir(parents=True, exist_ok=True)
    files = [file for share in shares for file in _files(share, rank)]
    here = [file.rows.memory(WEIGHT) is not None for file in files]
    found: dict[str, list[RowsEntry]] = {share.name: [] for share in shares}
    with WriterThreads(THREADS) as syncing, WriterThreads(THREADS) as pool:
        coming = [pool.submit(_write, folder, file, syncing) for file, near in zip(files, here, strict=True) if near]
        try:
            done: list[_Written] = []
            for file, near in zip(files, here, strict=True):
                if near:
                    continue
                done.append(_write(folder, file, syncing))
                for before in done[-2:-1]:
                    before.checksum.result()
            for file, facts, checksum in [*done, *(one.result() for one in coming)]:
                found[file.share.name].append(RowsEntry(name=file.name, xxh64=checksum.result(), **facts))
        except BaseException:
            for one in coming:
                one.cancel()
            raise
    return found


def _files(share: TableShare, rank: int) -> Iterator[_File]:
    number = 0
    for rows in share.rows:
        size = share.rows_of_file(near=rows.memory(WEIGHT) is not None)
        for start in range(0, rows.num_rows, size):
            name = f"{folder_of(share.name)}/{rank:05d}-{number:05d}.safetensors"
            yield _File(share, rows, start, min(rows.num_rows, start + size), name)
            number += 1


class _Written(NamedTuple):
    """A file, its entry in the manifest, and its checksum, which is there when the file is on the disk."""

    file: _File
    facts: dict[str, Any]
    checksum: Future[str]


def _write(folder: Path, file: _File, syncing: WriterThreads) -> _Written:
    """One file: its rows in ascending order of their original ids."""
    first = file.rows.first_id
    ids = file.share.ids.of(first + file.start, first + file.stop)
    order = None if bool((ids[1:] > ids[:-1]).all()) else torch.from_numpy(np.argsort(ids, kind="stable"))
    if order is not None:
        ids = ids[order.numpy()]
    num_rows = len(ids)
    is_range = int(ids[-1]) - int(ids[0]) == num_rows - 1
    columns = file.share.columns(num_rows)
    if not is_range:
        columns[IDS] = Column(torch.int64, (num_rows,))
    far = file.rows.memory(WEIGHT) is None
    most = PIECE_BYTES if far and order is not None else SCATTERED_BYTES  # far rows are fetched whole to be sorted
    with PieceWriter(folder / file.name, columns, drained=far) as writer:
        for name in writer.order:
            if name == IDS:
                writer.write(torch.from_numpy(ids))
                continue
            for start, stop in row_pieces(num_rows, columns[name].row_bytes, most):
                writer.write(_piece(file, name.removeprefix(STATE), start, stop, order))
    span = {} if not is_range else {"start": int(ids[0]), "stop": int(ids[-1]) + 1}
    facts = {"bytes": writer.expected, "rows": num_rows, "ids": not is_range, **span}
    return _Written(file, facts, syncing.submit(writer.close))


def _piece(file: _File, column: str, start: int, stop: int, order: Tensor | None) -> Tensor:
    """Rows [start, stop) of a file's order; rows that are far are few enough to be fetched whole (``_files``)."""
    if order is None:
        return file.rows.read(column, file.start + start, file.start + stop)
    here = file.rows.memory(column)
    if here is not None:
        return here.index_select(0, order[start:stop] + file.start)
    return file.rows.read(column, file.start, file.stop).index_select(0, order[start:stop])


class WriterThreads:
    """Threads that do what they are given in that order. A context manager: its end waits for all of it.

    ``ThreadPoolExecutor`` takes no work once the main thread has ended, but a checkpoint in the background is written
    to its end after the program's too.
    """

    def __init__(self, number: int) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"checkpoint files {k}") for k in range(number)]

    def __enter__(self) -> WriterThreads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this when a thread is free; the future may be cancelled until then."""
        future: Future[T] = Future()
        self._work.put((future, partial(function, *args, **kwargs)))
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
