"""Output of a process on its way to a log and a terminal, neither of which can stop the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

CHUNK = 65_536
WAITING = 256
"""Chunks that wait for a terminal that takes none (a stopped pager, Ctrl-S); what follows goes to the log only."""


class Copier:
    """A thread that copies a pipe to a log file and, as it comes, to a terminal stream until the pipe ends.

    The pipe is read whatever becomes of the two: a process whose pipe is full waits for ever. A log that cannot be
    written is told of once. Bytes are not decoded: the process has encoded them for the terminal that both share.

    Args:
        source: The pipe, unbuffered; closed when it ends.
        log: The file, appended to; several copiers may share one.
        terminal: Where the output is shown too.
    """

    def __init__(self, source: IO[bytes], log: Path, terminal: TextIO | None = None) -> None:
        self._source, self._place = source, log
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._told, self._left_out = False, 0
        self._waiting: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._threads = [threading.Thread(target=self._copy, daemon=True)]
        if terminal is not None:
            self._threads.append(threading.Thread(target=self._show, args=(terminal,), daemon=True))
        self._shown = terminal is not None
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait until everything is copied, for ``seconds`` at most."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _copy(self) -> None:
        while chunk := self._source.read(CHUNK):
            try:
                write_all(self._log, chunk)
            except OSError as error:
                self._tell(error)
            if self._shown:
                self._hand_over(chunk)
        self._source.close()
        os.close(self._log)
        if self._shown:  # from here on a terminal that takes nothing holds up nobody: the process has ended
            self._waiting.put(self._note())
            self._waiting.put(None)

    def _hand_over(self, chunk: bytes) -> None:
        try:
            self._waiting.put_nowait(self._note() + chunk)
            self._left_out = 0
        except queue.Full:
            self._left_out += len(chunk)

    def _note(self) -> bytes:
        if not self._left_out:
            return b""
        text = f"\n[graph-emb: {self._left_out} bytes are left out here; log: {self._place}]\n"
        return text.encode(errors="backslashreplace")

    def _show(self, terminal: TextIO) -> None:
        while (chunk := self._waiting.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or its reader; the log has it
                _show(terminal, chunk)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            text = f"graph-emb: warning: log {self._place} is incomplete: {error.strerror}; the job goes on\n"
            with contextlib.suppress(OSError, ValueError):
                _show(sys.stderr, text.encode(errors="backslashreplace"))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _show(terminal: Any, chunk: bytes) -> None:
    """Write past the stream's buffer: its lock, held in a write that blocks, would abort the interpreter at its end."""
    try:
        descriptor = terminal.fileno()
    except (AttributeError, OSError):  # a notebook's stream, or one in memory
        terminal.write(chunk.decode("utf-8", "replace"))
        return
    write_all(descriptor, chunk)


@dataclass(frozen=True)
class LogFolder:
    """A folder for a job's logs that no other job writes to.

    Attributes:
        path: The folder.
        is_new: Whether it was made for this job.
    """

    path: Path
    is_new: bool


@contextmanager
def log_folder(wanted: Path, first_trainer: int = 0) -> Iterator[LogFolder]:
    """The folder ``wanted``, or where a living job has it, ``<wanted>-2`` and so on.

    The log of the launcher's first trainer is locked, so that the launchers of one job share a folder, whose other
    trainers have other numbers. The lock ends with the launcher, however that ends.

    Raises:
        OSError: the folder cannot be made.
    """
    number = 1
    while True:
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / f"trainer-{first_trainer}.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            os.close(lock)
            number += 1
        except OSError:  # a file system without locks
            break
    try:
        yield LogFolder(folder, is_new)
    finally:
        os.close(lock)
