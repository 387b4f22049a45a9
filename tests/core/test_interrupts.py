"""The first signal waits, the second one raises, and the handlers from before come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_emb.core.terminal import deferred_interrupts, held_interrupts
from tests.conftest import CHECKOUT


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_raises(number: signal.Signals) -> None:
    with deferred_interrupts() as pressed:
        assert not pressed()
        signal.raise_signal(number)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is signal.default_int_handler


def test_a_signal_that_nobody_handles_keeps_its_effect() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with deferred_interrupts():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_what_a_training_begins_is_held_until_its_rows_are_saved() -> None:
    """A trainer heard of the others' Ctrl-C before its own came, which then broke into the gathering of the rows."""
    with held_interrupts() as noted:
        with deferred_interrupts():
            pass
        signal.raise_signal(signal.SIGINT)
        assert noted()
        with deferred_interrupts() as pressed:  # a second training of the run hears of it
            assert pressed()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_held_before_a_training_begins() -> None:
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        signal.raise_signal(signal.SIGINT)


SPAWNED = """
import multiprocessing, os, signal, sys
from graph_emb.core.terminal import started, starting_processes
if __name__ != "__main__":  # while the spawned process imports
    open("imports", "w").close()
    with open("go", "rb") as go:
        go.read(1)
def work():
    try:
        started()
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(7)
if __name__ == "__main__":
    os.mkfifo("imports")
    os.mkfifo("go")
    go = os.open("go", os.O_RDWR)
    process = multiprocessing.get_context("spawn").Process(target=work)
    number = getattr(signal, sys.argv[1])
    signal.signal(number, signal.default_int_handler)
    try:
        with starting_processes():
            process.start()
            os.kill(os.getpid(), number)
            print("held")
    except KeyboardInterrupt:
        print("raised")
    open("imports").close()
    os.kill(process.pid, signal.SIGINT)
    os.write(go, b"x")
    process.join()
    print(process.exitcode, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_spawned_process_gets_ctrl_c_when_it_has_started_and_not_while_it_imports(
    number: str, tmp_path: Path
) -> None:
    """It ended with a traceback of the import that it was in."""
    (tmp_path / "spawned.py").write_text(SPAWNED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "spawned.py", number],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("held\nraised\n7 set()\n", "")
