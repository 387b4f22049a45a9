"""A checkpoint that a thread writes while training goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from graph_emb.checkpoint.all_or_none import agree
from graph_emb.checkpoint.snapshot import Snapshot
from graph_emb.checkpoint.writing import finish, part_file, write_part
from graph_emb.core.errors import DataError
from graph_emb.core.log import get_logger
from graph_emb.core.storage import PendingFolder
from graph_emb.transport.base import Transport

log = get_logger("checkpoint")

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

    def __init__(self, snapshot: Snapshot, transport: Transport, folder: PendingFolder | None) -> None:
        self.path: Path = snapshot.place
        self._transport, self._folder, self._ranks = transport, folder, snapshot.ranks
        self._written, self._cancelled = threading.Event(), threading.Event()
        self._write_error: Exception | None = None
        self._finish_error: Exception | None = None
        self._error: Exception | None = None  # what a wait ended with
        self.waited = False
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
        self._raise(self._error)
        return self.path

    def _agree(self) -> None:
        what = f"checkpoint {self.path}"
        self._written.wait()
        try:
            agree(self._transport, lambda: self._raise(self._write_error), what)
        except Exception:
            self._cancelled.set()
            self._thread.join()
            raise
        self._thread.join()
        agree(self._transport, lambda: self._raise(self._finish_error), what)

    @staticmethod
    def _raise(error: Exception | None) -> None:
        if error is not None:
            raise error

    def _run(self, snapshot: Snapshot) -> None:
        try:
            write_part(snapshot)
        except Exception as error:
            self._write_error = error
            self._log(error)
        snapshot.shares.clear()  # the copies; what follows needs none of them
        self._written.set()
        if self._folder is None:
            return
        try:
            if self._write_error is None and self._all_parts():
                finish(snapshot, self._folder)
        except Exception as error:
            self._finish_error = error
            self._log(error)
        finally:
            self._folder.close()

    def _log(self, error: Exception) -> None:
        """No caller has waited yet, so an error must also reach the log."""
        log.error("checkpoint %s was not written: %s: %s", self.path, type(error).__name__, error)

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
