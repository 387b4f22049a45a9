"""Starts the processes of a machine, watches them all, and ends all when one fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

import psutil

from graph_emb.core.errors import PeerError
from graph_emb.core.left_behind import shared_names_of
from graph_emb.core.terminal import BAD_INPUT, INTERRUPTED, PEER_LOST, postponed_interrupts, raising
from graph_emb.run.launch.plan import Process

GRACE = 10.0
"""Seconds that a process gets to end after SIGTERM, before it is killed."""
POLL = 0.05
LATE, WORD = 10.0, 2.0
"""Seconds that the one to blame may take to end after those that noticed it, and other machines to tell of theirs."""
TAIL = 16_384
CRASHES = (signal.SIGABRT, signal.SIGSEGV)


class ProcessFailure(PeerError):
    """A process of the job failed; the others were ended.

    Attributes:
        exit_code: Its exit code; 128 + the signal where one killed or stopped it.
        process: Its name, such as ``"trainer 1"``; empty where another machine failed.
        final: Whether nothing should start again: its input was refused, here or on the other machine, or all was done.
        complete: Whether the work was done before, as the first machine says.
    """

    def __init__(self, message: str, exit_code: int, process: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.process = process
        self.final, self.complete = exit_code == BAD_INPUT, False


class _Terminated(KeyboardInterrupt):
    """SIGTERM, where Ctrl-C is a plain KeyboardInterrupt."""


@dataclass
class _Running:
    plan: Process
    popen: subprocess.Popen[bytes]
    copiers: list[Copier] = field(default_factory=list)


def run(processes: Sequence[Process], *, stop: Callable[[], str | None] = lambda: None) -> None:
    """Start processes and return when all have ended with exit code 0.

    When one fails all the others get SIGTERM and, ten seconds later, SIGKILL. Ctrl-C and SIGTERM go on to the trainers,
    which may take their time to keep what was trained; the second one ends all as a failure does. Processes also end
    when this one is killed.

    Args:
        processes: Commands to start; ``shown`` ones also write to this terminal.
        stop: Asked while waiting; a text ends everything with it as the reason (another machine failed).
    Raises:
        ProcessFailure: one failed; the message names it, its exit and its last line.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, here or at a trainer, when everything has ended.
    """
    running: list[_Running] = []
    try:
        with raising(lambda _: _Terminated(), signal.SIGTERM):
            try:
                for process in processes:
                    with postponed_interrupts():
                        _start(process, running)
                _wait(running, stop)
            except KeyboardInterrupt as interrupt:
                _let_trainers_stop(running, interrupt)
                raise
    finally:
        end(running)


def _start(process: Process, running: list[_Running]) -> None:
    process.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **process.environment, "PYTHONUNBUFFERED": "1"}
    process.log.write_bytes(b"")
    popen = subprocess.Popen(
        process.command,
        bufsize=0,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if process.shown else subprocess.STDOUT,
        preexec_fn=_end_with(os.getpid()),
        start_new_session=True,  # Ctrl-C reaches the launcher alone, which ends the others in order
    )
    running.append(_Running(process, popen))
    for pipe, terminal in zip(_pipes(popen), (sys.stdout, sys.stderr), strict=False):
        running[-1].copiers.append(Copier(pipe, process.log, terminal if process.shown else None))


def _pipes(popen: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (popen.stdout, popen.stderr) if pipe is not None]


def _wait(running: list[_Running], stop: Callable[[], str | None]) -> None:
    left = list(running)
    while left:
        reason = stop()  # before the look: a process of ours that the other machine only missed is seen ended by now
        failed = [one for one in left if one.popen.poll() not in (None, 0)]
        if any(one.plan.role == "trainer" and one.popen.returncode == INTERRUPTED for one in failed):
            raise KeyboardInterrupt  # it was told to stop by itself, not through this launcher
        if failed:
            failed = _with_late_ones(failed, left, stop)
            raise _failure(_first(failed), [one for one in left if _is_stopped(one)])
        left = [one for one in left if one.popen.poll() is None]
        if reason is not None:
            stopped = [one for one in left if _is_stopped(one)]
            raise _held_up(stopped, reason) if stopped else ProcessFailure(reason, 1)
        if left:
            time.sleep(POLL)


def _let_trainers_stop(running: list[_Running], interrupt: KeyboardInterrupt) -> None:
    """Hand an interrupt on to the trainers and return when all have ended, or ten seconds after one ended badly.

    Servers get none: they end when their trainers have said goodbye.
    """
    number = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
    trainers = [one for one in running if one.plan.role == "trainer"]
    for one in trainers:
        if one.popen.poll() is None:
            one.popen.send_signal(number)  # to it alone: a loader's workers are its own to end
    deadline = None
    while any(one.popen.poll() is None for one in trainers):
        if deadline is None and any(one.popen.returncode not in (None, 0, INTERRUPTED) for one in trainers):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(POLL)


def _with_late_ones(failed: list[_Running], left: list[_Running], stop: Callable[[], str | None]) -> list[_Running]:
    """Those that failed, with the one to blame: it may still be on its way out, here or on another machine.

    Raises:
        ProcessFailure: another machine has told of it.
    """
    begun = time.monotonic()
    while all(_noticed(one) for one in failed) and not any(_is_stopped(one) for one in left):
        here = any(one.popen.returncode is None for one in left)
        if time.monotonic() > begun + (LATE if here else WORD):
            break
        time.sleep(POLL)
        reason = stop()
        failed = [one for one in left if one.popen.poll() not in (None, 0)]
        if reason is not None and all(_noticed(one) for one in failed):
            raise ProcessFailure(reason, 1)
    return failed


def _noticed(one: _Running) -> bool:
    """Whether a process ended because another one went: no server ends with an error of its own."""
    code: int = one.popen.returncode
    return code == PEER_LOST or (one.plan.role == "server" and code > 0)


def _first(failed: list[_Running]) -> _Running:
    """The one to blame: what a signal killed, then what ended with an error, then what had lost its peer.

    Signals of a crash come last among the signals: libraries crash where a peer is gone.
    """

    def order(one: _Running) -> tuple[bool, bool, bool, bool, int]:
        code = one.popen.returncode
        return code > 0, code == PEER_LOST, -code in CRASHES, one.plan.role == "server", one.plan.rank

    return min(failed, key=order)


def _is_stopped(one: _Running) -> bool:
    try:
        return psutil.Process(one.popen.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _failure(one: _Running, stopped: Sequence[_Running]) -> ProcessFailure:
    """The error for a process that ended badly; where others are stopped, it ended because it waited for them."""
    code = one.popen.returncode
    _signal(one, signal.SIGKILL)  # a loader's worker that outlives its trainer holds the pipe open
    for copier in one.copiers:
        copier.join(GRACE)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    line = last_line(one.plan.log)
    said = f"; its last line: {line}" if line else "; it wrote nothing"
    text = f"{one.plan.name} (process {one.popen.pid}) {how}{said}; log: {one.plan.log}"
    if not stopped or (code < 0 and -code not in CRASHES):
        return ProcessFailure(text, 128 - code if code < 0 else code, one.plan.name)
    return _held_up(stopped, text)


def _held_up(stopped: Sequence[_Running], text: str) -> ProcessFailure:
    """The error for stopped processes, whose peers say ``text``, here or on another machine."""
    names = ", ".join(f"{other.plan.name} (process {other.popen.pid})" for other in stopped)
    text = f"{names} was stopped (SIGSTOP) and held up the others: {text}"
    return ProcessFailure(text, 128 + signal.SIGSTOP, stopped[0].plan.name)


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, at most 300 characters; progress bars count as lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    return next((line for line in reversed(lines) if line), "")[:300]


def end(running: Sequence[_Running]) -> None:
    """End what still runs: SIGTERM, ten seconds, SIGKILL. Every process is reaped, with the children it left."""
    for one in running:
        _signal(one, signal.SIGTERM)
        _signal(one, signal.SIGCONT)  # a stopped process hears of nothing, and leaves its folders behind
    deadline = time.monotonic() + GRACE
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.popen.wait(max(0.0, deadline - time.monotonic()))
        _signal(one, signal.SIGKILL)  # the session: a loader's worker may outlive its trainer
        one.popen.wait()
        for left in shared_names_of(one.popen.pid):  # a killed kvstore server could not
            left.unlink(missing_ok=True)
        for copier in one.copiers:
            copier.join(GRACE)
        for pipe in _pipes(one.popen)[len(one.copiers) :]:  # a log could not be opened
            pipe.close()


def _signal(one: _Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(one.popen.pid, number)


def _end_with(launcher: int) -> Callable[[], None]:
    """For a fresh child: the kernel kills it when its launcher dies, however that happens. Linux only."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # found before the fork: afterwards only simple calls are safe
    set_parent_death_signal = 1

    def ask() -> None:
        prctl(set_parent_death_signal, int(signal.SIGKILL))
        if os.getppid() != launcher:  # it died before the call
            os._exit(1)

    return ask


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
