"""``save_checkpoint``: one consistent snapshot of a training, complete under its name or absent."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn, optim

from graph_emb.checkpoint.manifest import Best, Retention, digest_of, pending_checkpoint
from graph_emb.checkpoint.snapshot import DenseObjects, Snapshot, finish, part_file, take, write_part
from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError, DataError, check_flags
from graph_emb.core.paths import user_path
from graph_emb.core.storage import PendingFolder
from graph_emb.embedding import DistEmbedding
from graph_emb.sparse_optimizer import SparseOptimizer, transport_of
from graph_emb.table.growing_rows import GrowingRows
from graph_emb.transport import runtime
from graph_emb.transport.agreement import agree
from graph_emb.transport.base import Transport

T = TypeVar("T")


def common_transport(tables: Sequence[DistEmbedding]) -> Transport:
    """The transport of the tables; the active one where there are none.

    Raises:
        ConfigError: two tables have one name.
        ModeError: the tables were made in different modes.
    """
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"table {twice[0]!r} is given twice")
    return transport_of(tables) if tables else runtime.current()


log = logging.getLogger("graph_emb.checkpoint")

POLL, GRACE = 0.02, 60.0
"""Seconds between looks for the other ranks' parts, and that they get after the program's end."""


class PendingCheckpoint:
    """A checkpoint on its way to the disk.

    It takes its name when all ranks' rows are on the disk, with or without a ``wait()``. Its error is logged, and
    raised by ``wait()``, or by the next save or load. A program calls ``wait()`` before it ends the mode.

    Attributes:
        path: The checkpoint's folder.
        waited: Whether ``wait`` came to its end; a call that Ctrl-C ended is made again.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        transport: Transport,
        folder: PendingFolder | None,
        tables: Sequence[DistEmbedding],
    ) -> None:
        self.path: Path = snapshot.place
        self._transport, self._folder, self._ranks = transport, folder, snapshot.ranks
        self._hurry = snapshot.hurry
        self._written, self._cancelled = threading.Event(), threading.Event()
        self._write_error: Exception | None = None
        self._finish_error: Exception | None = None
        self._error: Exception | None = None  # what a wait ended with
        self.waited = False
        self._shards = [weakref.ref(table.shard) for table in tables]
        self._thread = threading.Thread(target=self._run, args=(snapshot,), name=f"checkpoint {self.path.name}")
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether this rank has nothing more to do for it; on the first rank: it has its name, or failed."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """Return when the checkpoint has its name; every rank calls it. May be repeated.

        Raises:
            OSError: this rank could not write; nothing has the name.
            DataError: another rank could not.
        """
        if not self.waited:
            try:
                self._agree()
            except Exception as error:
                self._error = error
            self.waited = True
        _raise(self._error)
        return self.path

    def _agree(self) -> None:
        what = f"checkpoint {self.path}"
        self._hurry()
        self._written.wait()
        try:
            agree(self._transport, lambda: _raise(self._write_error), what)
        except Exception:
            self._cancelled.set()
            self._thread.join()
            raise
        self._thread.join()
        agree(self._transport, lambda: _raise(self._finish_error), what)
        self._note()

    def _note(self) -> None:
        """Have files of rows name this checkpoint as the one that stands for them."""
        for shard in filter(None, (one() for one in self._shards)):
            shard.saved_to(str(self.path))

    def _run(self, snapshot: Snapshot) -> None:
        said = f"checkpoint {self.path} was not written: %s: %s"  # no caller may have waited when an error comes
        try:
            write_part(snapshot)
        except Exception as error:
            self._write_error = error
            log.error(said, type(error).__name__, error)
        snapshot.release()  # what follows needs no rows
        self._written.set()
        if self._folder is None:
            return
        try:
            if self._write_error is None and self._all_parts():
                finish(snapshot, self._folder)
                self._note()
        except Exception as error:
            self._finish_error = error
            log.error(said, type(error).__name__, error)
        finally:
            self._folder.close()

    def _all_parts(self) -> bool:
        """Wait until every rank has written its part; False where ``wait`` learned that one failed."""
        missing = [part_file(self.path, rank) for rank in range(self._ranks)]
        ended: float | None = None
        while missing := [file for file in missing if not file.is_file()]:
            if self._cancelled.wait(POLL):
                return False
            if not threading.main_thread().is_alive():
                ended = ended or time.monotonic()
                if time.monotonic() - ended > GRACE:
                    raise DataError(f"checkpoint {self.path}: {len(missing)} of {self._ranks} ranks wrote no part")
        return True


_running: PendingCheckpoint | None = None
"""The one that this process writes in the background."""


def save_checkpoint(
    path: str | Path,
    *,
    tables: Sequence[DistEmbedding | ComposedEmbedding],
    optimizers: Sequence[SparseOptimizer] = (),
    step: int = 0,
    model: nn.Module | None = None,
    torch_optimizers: Sequence[optim.Optimizer] = (),
    schedulers: Sequence[Any] = (),
    generators: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    keep_last: int | None = None,
    metric: float | None = None,
    keep_best: Best | None = None,
    background: bool = False,
    base: str | Path | None = None,
) -> Path | PendingCheckpoint:
    """Write a checkpoint that ``load_checkpoint`` reads at any number of parts, ranks and servers, in any mode.

    Every rank calls it after the same step with equal arguments, and sees the same folder. What the ranks pushed is
    applied first (``flush``, ``barrier``). The folder takes its name when everything is on the disk; a checkpoint of
    that name is replaced in the same moment. No pickle is written.

    Args:
        path: The checkpoint's folder, such as ``ckpt/100``; older ones lie beside it.
        tables: Their rows, keyed by original ids; of composed ones also what these are sums of.
        optimizers: Sparse optimizers of these tables: state, numbers, options, groups. A table that none of them trains
            is saved without state.
        step: Kept as ``LoadedCheckpoint.step``; tells which checkpoints are older.
        model: Its ``state_dict``, the first rank's; DistributedDataParallel is looked through.
        torch_optimizers: Their state dicts, the first rank's.
        schedulers: Learning-rate schedulers (anything with ``state_dict`` and ``load_state_dict``), the first rank's.
        generators: ``torch.Generator`` and ``numpy.random.Generator`` by name, each rank's own.
        extra: Numbers, texts, lists and dicts, such as the position in the data; each rank's own.
        keep_last: How many of the newest checkpoints in path's parent folder stay, this one included; None keeps all.
        metric: Of this checkpoint, for ``keep_best``.
        keep_best: ``"max"`` or ``"min"``: the one with the best metric stays as well.
        background: Return when this rank's rows are copied (memory: once more the rows and state that it stores; of
            rows in files none, what differs in memory is written to the disk); the files are written meanwhile. See
            ``PendingCheckpoint``.
        base: The last checkpoint of these tables, in the same folder: the new one, a delta, holds the rows that changed
            since, and of growing tables the ids that left. ``load_checkpoint`` reads it with all that it follows,
            which ``keep_last`` keeps; ``graph-emb checkpoint merge`` makes a full one. Rows of tables of a fixed size
            are compared with the base, which is read for it; where they are not in memory they are saved whole.
    Returns:
        The folder; in the background a ``PendingCheckpoint``.
    Raises:
        ConfigError: an argument cannot be saved; path is no checkpoint; one that would be replaced or removed holds a
            file that is not its own.
        DataError: another rank failed.
        OSError: the disk is full, and what was under the name before is still there; or an older checkpoint could not
            be removed, and the message says that the new one is in place.

    Example:
        >>> import os, tempfile
        >>> emb = ge.DistEmbedding(3, 2, "node", ge.initializers.Uniform(seed=0))
        >>> opt = ge.SparseAdagrad([emb], lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (10, 20, 30):
        ...         at = ge.save_checkpoint(f"{folder}/{step}", tables=[emb], optimizers=[opt], step=step, keep_last=2)
        ...     sorted(os.listdir(folder))
        ['20', '30']
    """
    global _running
    place = Path(os.path.abspath(user_path(path)))
    composed = [table for table in tables if isinstance(table, ComposedEmbedding)]
    tables = expanded(tables)
    transport = common_transport(tables)
    wait_for_running()
    transport.flush()
    transport.barrier()

    before = None if base is None else Path(os.path.abspath(user_path(base)))

    def prepare() -> tuple[Snapshot, PendingFolder | None]:
        check_flags(background=background)
        if background and before is not None:
            raise ConfigError("background=True with base: the next delta needs this one whole; leave one of them out")
        for table in tables if background else ():
            if table.spec.growth is not None and table.spec.placement is not None:
                raise ConfigError(
                    f"background=True: the rows of table {table.name!r} would be copied into memory, those in its file "
                    "too; save it with background=False"
                )
        retention = Retention(keep_last, metric, keep_best, None if before is None else before.name)
        dense = DenseObjects(model, torch_optimizers, schedulers, generators or {})
        made = take(place, transport, tables, optimizers, dense, step, dict(extra or {}), retention, before, composed)
        return made, pending_checkpoint(place, retention) if transport.rank == 0 else None

    what = f"checkpoint {place}"
    snapshot, folder = agree(transport, prepare, what, undo=lambda made: _close(made[1]))
    if background:
        try:
            snapshot = agree(transport, snapshot.kept, what, undo=Snapshot.release)
            _running = PendingCheckpoint(snapshot, transport, folder, tables)
        except BaseException:
            snapshot.release()
            _close(folder)
            raise
        return _running
    try:
        agree(transport, lambda: write_part(snapshot), what)
        agree(transport, lambda: None if folder is None else finish(snapshot, folder), what)
    finally:
        _close(folder)
    for table in tables:
        table.shard.saved_to(str(place))
    _track(growing(tables), place)
    return place


def growing(tables: Sequence[DistEmbedding]) -> list[GrowingRows]:
    """The rows that this process has of the tables that grow."""
    return [table.shard for table in tables if isinstance(table.shard, GrowingRows)]


def _track(shards: Sequence[GrowingRows], place: Path) -> None:
    """Have growing tables know what changes since a checkpoint that was just written.

    Where it cannot be read they do not, and refuse a delta of it: the checkpoint itself is in place.
    """
    digest = None
    with contextlib.suppress(OSError, DataError):
        digest = digest_of(place) if shards else None
    for shard in shards:
        shard.track(digest)


def wait_for_running() -> None:
    """Wait for the checkpoint that this process writes in the background, if there is one; its error is raised."""
    global _running
    if _running is not None and not _running.waited:
        _running.wait()
    _running = None


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _close(folder: PendingFolder | None) -> None:
    if folder is not None:
        folder.close()
