"""When one process ends badly, all end, and the message says which, how and with what last words."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from graph_emb.core.terminal import PEER_LOST
from graph_emb.run.launch import watch
from graph_emb.run.launch.plan import Process
from graph_emb.run.launch.watch import ProcessFailure, _first, _Running, last_line, run

pytestmark = pytest.mark.dist

WAIT = "import time; time.sleep(600)"


def python(tmp_path: Path, rank: int, code: str, **options: bool) -> Process:
    return Process("trainer", rank, (sys.executable, "-c", code), {}, tmp_path / f"trainer-{rank}.log", **options)


@pytest.fixture(autouse=True)
def _children_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "others", {child.pid for child in psutil.Process().children(True)})


others: set[int] = set()


def no_child_is_left() -> bool:
    return all(child.pid in others for child in psutil.Process().children(recursive=True))


def test_processes_that_end_well_are_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run([python(tmp_path, 0, "print('zero')", shown=True), python(tmp_path, 1, "print('one')")])
    assert capfd.readouterr().out == "zero\n"
    assert (tmp_path / "trainer-0.log").read_text() == "zero\n"
    assert (tmp_path / "trainer-1.log").read_text() == "one\n"


def test_the_first_failure_ends_all_and_is_named(tmp_path: Path) -> None:
    failing = python(tmp_path, 1, "print('fine'); print('table 3 is on fire'); raise SystemExit(7)")
    with pytest.raises(ProcessFailure, match=r"trainer 1.*exit code 7; its last line: table 3 is on fire") as caught:
        run([python(tmp_path, 0, WAIT, shown=True), failing, python(tmp_path, 2, WAIT)])
    assert caught.value.exit_code == 7
    assert no_child_is_left()


def test_a_killed_process_is_named_by_its_signal(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match="was killed by SIGKILL; it wrote nothing") as caught:
        run([python(tmp_path, 0, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), python(tmp_path, 1, WAIT)])
    assert caught.value.exit_code == 137


def test_a_trainer_is_blamed_before_the_server_that_noticed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's file tells that it noticed; only then does the trainer end."""
    noticed = tmp_path / "noticed"
    words = f"open({str(noticed)!r}, 'w').close(); raise SystemExit('trainer 4 went without a goodbye')"
    server = Process("server", 0, (sys.executable, "-c", words), {}, tmp_path / "server-0.log")
    late = f"import os, time\nwhile not os.path.exists({str(noticed)!r}): time.sleep(0.01)\ntime.sleep(0.3)\n"
    trainer = python(tmp_path, 4, late + "raise SystemExit('10.0.0.3 no longer answers')")
    monkeypatch.setattr(watch, "LATE", 60.0)  # a trainer that is slow to start is not one that lives
    with pytest.raises(ProcessFailure, match=r"trainer 4.*10.0.0.3 no longer answers"):
        run([server, trainer])
    monkeypatch.setattr(watch, "LATE", 0.5)
    with pytest.raises(ProcessFailure, match=r"server 0.*trainer 4 went without a goodbye"):
        run([server, python(tmp_path, 0, WAIT)])
    assert no_child_is_left()


LOST = f"raise SystemExit({PEER_LOST})"
"""A trainer whose peer is gone."""


def test_a_lost_peer_is_no_refused_input(tmp_path: Path) -> None:
    """Both ended with exit code 2: a job whose cable was cut, or whose server was gone, was not started again."""
    with pytest.raises(ProcessFailure) as caught:
        run([python(tmp_path, 0, LOST)])
    assert not caught.value.final
    with pytest.raises(ProcessFailure) as caught:
        run([python(tmp_path, 0, "raise SystemExit(2)")])
    assert caught.value.final


def test_the_one_to_blame_is_waited_for_by_those_that_lost_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal here or on another machine ends the job for good, however late it comes."""
    monkeypatch.setattr(watch, "LATE", 60.0)
    late = f"import os, time\nwhile os.path.getsize({str(tmp_path / 'trainer-1.log')!r}) == 0: time.sleep(0.01)\n"
    lost = python(tmp_path, 1, f"print('rank 0 is gone', flush=True); {LOST}")
    with pytest.raises(ProcessFailure, match=r"trainer 0 .* exit code 2") as caught:
        run([lost, python(tmp_path, 0, late + "time.sleep(0.3); raise SystemExit(2)")])
    assert caught.value.final
    asked: list[float] = []

    def told() -> str | None:
        asked.append(time.monotonic())
        return "host 10.0.0.2: trainer 3 was killed" if asked[-1] > asked[0] + 0.7 else None

    monkeypatch.setattr(watch, "WORD", 60.0)
    with pytest.raises(ProcessFailure, match=r"^host 10.0.0.2: trainer 3 was killed$"):
        run([python(tmp_path, 1, LOST)], stop=told)
    monkeypatch.setattr(watch, "WORD", 0.1)
    with pytest.raises(ProcessFailure, match=r"trainer 1 .* ended with exit code 3"):
        run([python(tmp_path, 1, LOST)])


def test_a_stopped_process_is_blamed_before_those_that_waited_for_it(tmp_path: Path) -> None:
    """SIGSTOP: the survivor that gave up first was named. It also never heard of SIGTERM, and left what it had."""
    stopped = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: (print("I clean up", flush=True), os._exit(3)))
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
    late = f"""
import psutil
while not [c for c in psutil.Process({os.getpid()}).children() if c.status() == psutil.STATUS_STOPPED]:
    pass
raise SystemExit("rank 1 no longer answers")
"""
    with pytest.raises(ProcessFailure) as caught:
        run([python(tmp_path, 0, late), python(tmp_path, 1, stopped)])
    assert caught.value.process == "trainer 1"
    assert caught.value.exit_code == 128 + signal.SIGSTOP
    held = (
        r"trainer 1 \(process \d+\) was stopped \(SIGSTOP\) and held up the others: trainer 0 .* exit code 1; its last"
    )
    assert re.match(rf"{held} line: rank 1 no longer answers", str(caught.value))
    assert (tmp_path / "trainer-1.log").read_text() == "I clean up\n"
    assert no_child_is_left()


def test_a_stopped_process_is_named_where_another_host_noticed_it(tmp_path: Path) -> None:
    """The other host's word came first: it knows the rank, and not that it was stopped."""

    def another_host_notices() -> str | None:
        children = psutil.Process().children()
        stopped = any(child.status() == psutil.STATUS_STOPPED for child in children if child.pid not in others)
        return "host 10.0.0.2: trainer 3: rank 1 no longer answers" if stopped else None

    stops = python(tmp_path, 1, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    with pytest.raises(ProcessFailure, match=r"^trainer 1 \(process \d+\) was stopped .*: host 10.0.0.2: trainer 3"):
        run([stops], stop=another_host_notices)
    assert no_child_is_left()


def test_an_abort_is_blamed_after_the_kill_that_caused_it(tmp_path: Path) -> None:
    """Libraries abort where a peer is gone, at times within one look of the launcher at its processes."""
    aborted, killed = (
        _Running(
            python(tmp_path, rank, ""),
            subprocess.Popen([sys.executable, "-c", f"import os; os.kill(os.getpid(), {n})"]),
        )
        for rank, n in enumerate((signal.SIGABRT.value, signal.SIGKILL.value))
    )
    for one in (aborted, killed):
        one.popen.wait()
    assert _first([aborted, killed]) is killed


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_emb.run.launch.watch.GRACE", 0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(600)"
    log = tmp_path / "trainer-0.log"
    waiting = f"""
import pathlib, time
while 'deaf' not in pathlib.Path({str(log)!r}).read_text():
    time.sleep(.01)
raise SystemExit(1)
"""
    with pytest.raises(ProcessFailure, match="trainer 1"):
        run([python(tmp_path, 0, stubborn), python(tmp_path, 1, waiting)])
    assert no_child_is_left()


def test_children_that_a_trainer_leaves_behind_are_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    leaving = f"""
import pathlib, subprocess, sys
left = subprocess.Popen([sys.executable, '-c', {WAIT!r}])
pathlib.Path({str(pid)!r}).write_text(str(left.pid))
"""
    run([python(tmp_path, 0, leaving)])
    until(lambda: not alive(int(pid.read_text())))


def test_shared_memory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    code = """
import os, pathlib, signal
pathlib.Path(f"/dev/shm/graph_emb_{os.getpid()}_test").touch()
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with pytest.raises(ProcessFailure, match="SIGKILL"):
        run([python(tmp_path, 0, code)])
    pid = (tmp_path / "trainer-0.log").read_text().strip()
    assert not Path(f"/dev/shm/graph_emb_{pid}_test").exists()


def test_a_reason_from_elsewhere_ends_all(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match=r"host 10\.0\.0\.2: trainer 3 was killed"):
        run([python(tmp_path, 0, WAIT)], stop=lambda: "host 10.0.0.2: trainer 3 was killed")
    assert no_child_is_left()


def test_a_local_kill_is_blamed_before_the_host_that_noticed_it(tmp_path: Path) -> None:
    """The kill and the other host's word both came after one look at the processes; the word hid the kill."""
    log = tmp_path / "trainer-1.log"

    def another_host_notices() -> str | None:
        if not log.exists() or not log.read_text().endswith("\n"):
            return None
        pid = int(log.read_text())
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return "host 10.0.0.2: trainer 3: rank 1 no longer answers"

    processes = [python(tmp_path, 0, WAIT), python(tmp_path, 1, f"import os; print(os.getpid(), flush=True); {WAIT}")]
    with pytest.raises(ProcessFailure, match=r"trainer 1 \(process \d+\) was killed by SIGKILL") as caught:
        run(processes, stop=another_host_notices)
    assert caught.value.exit_code == 137
    assert no_child_is_left()


def test_sigterm_to_the_launcher_ends_all(tmp_path: Path) -> None:
    logs = [tmp_path / f"trainer-{rank}.log" for rank in range(2)]
    waiting = f"print('here', flush=True); {WAIT}"

    def terminated_once_both_wait() -> None:
        if all(log.read_text() for log in logs):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run([python(tmp_path, rank, waiting) for rank in range(2)], stop=terminated_once_both_wait)
    assert no_child_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", [0, 1])
def test_a_signal_while_a_process_starts_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, number: signal.Signals, place: int
) -> None:
    """The signal comes when the child is there and its Popen is not yet kept."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    started: list[int] = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            if len(started) == place + 1:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([python(tmp_path, 0, WAIT), python(tmp_path, 1, WAIT)])
    assert len(started) == place + 1
    assert no_child_is_left()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_log_that_cannot_be_opened_leaves_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "Copier", lambda *_: os.open("/nowhere/log", os.O_WRONLY))
    with pytest.raises(FileNotFoundError):
        run([python(tmp_path, 0, WAIT)])
    assert no_child_is_left()


def test_processes_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"""
import os, pathlib, time
pathlib.Path({str(pid)!r}).with_suffix('.tmp').write_text(str(os.getpid()))
pathlib.Path({str(pid)!r}).with_suffix('.tmp').rename({str(pid)!r})
time.sleep(600)
"""
    launcher = f"""
import pathlib, sys
from graph_emb.run.launch.plan import Process
from graph_emb.run.launch.watch import run
run([Process('trainer', 0, (sys.executable, '-c', {child!r}), {{}}, pathlib.Path({str(tmp_path / "log")!r}))])
"""
    with subprocess.Popen([sys.executable, "-c", launcher]) as started:
        until(pid.exists)
        started.kill()
    until(lambda: not alive(int(pid.read_text())))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_the_last_line_is_found_behind_progress_bars_and_empty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n10 %\r20 %\rValueError: no\n\n \n")
    assert last_line(log) == "ValueError: no"
    log.write_bytes(b"")
    assert last_line(log) == ""
