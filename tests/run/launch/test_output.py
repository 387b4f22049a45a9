"""Output that cannot be written anywhere never stops the process that made it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph_emb.run.launch import watch
from graph_emb.run.launch.watch import CHUNK, WAITING, Copier, log_folder

MUCH = "import sys\nfor _ in range(40): sys.stdout.write('x' * 65535 + chr(10))\n"
LAUNCH = """
import pathlib, sys
from graph_emb.run.launch.plan import Process
from graph_emb.run.launch.watch import run
logs = pathlib.Path(sys.argv[1])
codes = sys.argv[2:]
run([
    Process("trainer", rank, (sys.executable, "-c", code), {}, logs / f"trainer-{rank}.log", shown=rank == 0)
    for rank, code in enumerate(codes)
])
"""


def launch(logs: Path, *codes: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    command = [sys.executable, "-c", LAUNCH, str(logs), *codes]
    return subprocess.run(command, env=kept | environment, timeout=120, check=False, capture_output=True)


@pytest.mark.dist
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "C.UTF-8"},
    ],
)
def test_a_letter_that_the_terminal_lacks_does_not_hang_the_job(environment: dict[str, str], tmp_path: Path) -> None:
    """The copier decoded the trainer's bytes as UTF-8 and encoded them for the terminal. A Latin-1 "e" with an accent
    became U+FFFD, which Latin-1 lacks: the thread died of it, the pipe filled and the trainer's next line waited."""
    said = b"caf\xe9 \xc3\xa9 \xff\n"
    ended = launch(tmp_path, f"import os; os.write(1, {said!r})\n{MUCH}", **environment)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.startswith(said)
    assert ended.stdout == (tmp_path / "trainer-0.log").read_bytes()


@pytest.mark.dist
def test_a_full_log_disk_does_not_stop_the_job(tmp_path: Path) -> None:
    """``log.write`` raised ENOSPC in the copier of the first trainer, and in ``print`` of the others, which wrote to
    their logs themselves."""
    for rank in range(2):
        (tmp_path / f"trainer-{rank}.log").symlink_to("/dev/full")
    done = tmp_path / "done"
    ended = launch(tmp_path, MUCH, f"{MUCH}open({str(done)!r}, 'w')")
    assert ended.returncode == 0, ended.stderr.decode()
    assert len(ended.stdout) == 40 * 65536
    assert done.exists()
    told = ended.stderr.decode().splitlines()
    assert len(told) == 2
    assert "trainer-0.log is incomplete: No space left on device" in ended.stderr.decode()


@pytest.mark.dist
def test_a_closed_terminal_does_not_stop_the_job(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCH, str(tmp_path), MUCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.close()
        assert started.wait(120) == 0
    assert (tmp_path / "trainer-0.log").stat().st_size == 40 * 65536


def test_two_jobs_do_not_write_over_each_others_logs(tmp_path: Path) -> None:
    """A second job with the same folder truncated ``trainer-0.log`` and ``servers.txt`` of the one that was running."""
    wanted = tmp_path / "logs"
    with log_folder(wanted) as first:
        with log_folder(wanted) as second, log_folder(wanted, first_trainer=4) as of_the_same_job:
            assert (first.path, first.is_new) == (wanted, True)
            assert (second.path, second.is_new) == (tmp_path / "logs-2", True)
            assert (of_the_same_job.path, of_the_same_job.is_new) == (wanted, False)
        with log_folder(wanted) as third:
            assert (third.path, third.is_new) == (tmp_path / "logs-2", False)
    with log_folder(wanted) as later:
        assert later.path == wanted


@pytest.mark.dist
def test_a_killed_launcher_gives_its_folder_back(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from graph_emb.run.launch.watch import log_folder
with log_folder(pathlib.Path({str(tmp_path / "logs")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -9
    with log_folder(tmp_path / "logs") as logs:
        assert (logs.path, logs.is_new) == (tmp_path / "logs", False)


class Stopped:
    """A terminal under Ctrl-S: a write does not return until it goes on."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.text = ""

    def write(self, text: str) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)
        self.text += text


def copier_to(log: Path, terminal: Any) -> tuple[Any, Copier]:
    log.touch()
    read, write = os.pipe()
    return os.fdopen(write, "wb", buffering=0), Copier(os.fdopen(read, "rb", buffering=0), log, terminal)


def test_a_stopped_terminal_stops_neither_process_nor_log(tmp_path: Path) -> None:
    """A terminal that took nothing held up the thread that emptied the pipe, and so the training."""
    terminal, log = Stopped(), tmp_path / "log"
    pipe, copier = copier_to(log, terminal)
    pipe.write(b"first\n")
    assert terminal.begun.wait(60)
    size = CHUNK * (WAITING + 8)
    for _ in range(WAITING + 8):
        left = memoryview(b"x" * CHUNK)
        while left:
            left = left[pipe.write(left) :]
    pipe.close()
    until(lambda: log.stat().st_size == size + len(b"first\n"))  # the log waits for no terminal
    terminal.goes_on.set()
    copier.join(60)
    assert terminal.text.startswith("first\n")
    assert len(terminal.text) < size
    assert "bytes are left out here" in terminal.text


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_a_terminal_that_goes_on_hears_how_much_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WAITING", 1)
    terminal, log = Stopped(), tmp_path / "log"
    pipe, copier = copier_to(log, terminal)
    pipe.write(b"first\n")
    assert terminal.begun.wait(60)
    pipe.write(b"second\n")  # waits for the terminal, and what follows finds no room
    until(lambda: log.read_bytes() == b"first\nsecond\n")
    pipe.write(b"x" * 77)
    until(lambda: copier._left_out == 77)
    terminal.goes_on.set()
    until(lambda: terminal.text == "first\nsecond\n")
    pipe.write(b"last\n")
    pipe.close()
    copier.join(60)
    assert terminal.text == f"first\nsecond\n\n[graph-emb: 77 bytes are left out here; log: {log}]\nlast\n"
