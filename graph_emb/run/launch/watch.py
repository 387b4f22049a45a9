"""Starts the processes of a machine, watches them all, and ends all when one fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graph_emb.core.command_line import INTERRUPTED
from graph_emb.core.errors import PeerError
from graph_emb.core.interrupts import raising
from graph_emb.run.launch.output import Copier
from graph_emb.run.launch.plan import Process

GRACE = 10.0
"""Seconds that a process gets to end after SIGTERM, before it is killed."""
POLL = 0.05
LATE = 2.0
"""Seconds that a trainer may take to end after the server that noticed it."""
TAIL = 16_384
SHARED_MEMORY = Path("/dev/shm")
"""Names there tell which process made them (graph_emb.transport.kvstore.shared)."""


class ProcessFailure(PeerError):
    """A process of the job failed; the others were ended.

    Attributes:
        exit_code: Its exit code; 128 + the signal where one killed it.
        process: Its name, such as ``"trainer 1"``; empty where another machine failed.
    """

    def __init__(self, message: str, exit_code: int, process: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.process = process


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
                    running.append(_start(process))
                _wait(running, stop)
            except KeyboardInterrupt as interrupt:
                _let_trainers_stop(running, interrupt)
                raise
    finally:
        end(running)


def _start(process: Process) -> _Running:
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
    running = _Running(process, popen)
    for pipe, terminal in ((popen.stdout, sys.stdout), (popen.stderr, sys.stderr)):
        if pipe is not None:
            running.copiers.append(Copier(pipe, process.log, terminal if process.shown else None))
    return running


def _wait(running: list[_Running], stop: Callable[[], str | None]) -> None:
    left = list(running)
    while left:
        failed = [one for one in left if one.popen.poll() not in (None, 0)]
        if any(one.plan.role == "trainer" and one.popen.returncode == INTERRUPTED for one in failed):
            raise KeyboardInterrupt  # it was told to stop by itself, not through this launcher
        if failed:
            raise _failure(_first(_with_late_trainers(failed, left)))
        left = [one for one in left if one.popen.poll() is None]
        reason = stop()
        if reason is not None:
            raise ProcessFailure(reason, 1)
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


def _with_late_trainers(failed: list[_Running], left: list[_Running]) -> list[_Running]:
    """A server ends with an error because another process went, often a trainer that is still on its way out."""
    deadline = time.monotonic() + LATE
    while all(one.plan.role == "server" and one.popen.returncode > 0 for one in failed):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL)
        failed = [one for one in left if one.popen.poll() not in (None, 0)]
    return failed


def _first(failed: list[_Running]) -> _Running:
    """The one to blame: what a signal killed before what ended with an error because its peer was gone."""
    return min(failed, key=lambda one: (one.popen.returncode > 0, one.plan.role == "server", one.plan.rank))


def _failure(one: _Running) -> ProcessFailure:
    code = one.popen.returncode
    _signal(one, signal.SIGKILL)  # a loader's worker that outlives its trainer holds the pipe open
    for copier in one.copiers:
        copier.join(GRACE)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    line = last_line(one.plan.log)
    said = f"; its last line: {line}" if line else "; it wrote nothing"
    return ProcessFailure(
        f"{one.plan.name} (process {one.popen.pid}) {how}{said}; log: {one.plan.log}",
        128 - code if code < 0 else code,
        one.plan.name,
    )


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
    deadline = time.monotonic() + GRACE
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.popen.wait(max(0.0, deadline - time.monotonic()))
        _signal(one, signal.SIGKILL)  # the session: a loader's worker may outlive its trainer
        one.popen.wait()
        for left in SHARED_MEMORY.glob(f"graph_emb_{one.popen.pid}_*"):  # a killed kvstore server could not
            left.unlink(missing_ok=True)
        for copier in one.copiers:
            copier.join(GRACE)


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
