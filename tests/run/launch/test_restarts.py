"""Jobs that heal. Two machines are this one, under other addresses."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graph_emb.config import RunConfig
from graph_emb.core.errors import PeerError
from graph_emb.run.launch import meeting, watch
from graph_emb.run.launch.command import Start
from graph_emb.run.launch.meeting import met
from graph_emb.run.launch.plan import LOOPBACK, Host, Machines, Restarts
from graph_emb.run.launch.restarts import run_healing
from graph_emb.run.launch.watch import ProcessFailure
from graph_emb.transport.guard import new_token
from graph_emb.transport.kvstore.layout import free_ports

HOSTS = [Host("127.0.0.1", 1), Host("127.0.0.2", 2)]
FAILS = """
import os, pathlib, signal, sys, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(sys.argv[1], f"{restart}-{rank}").write_text(f"{os.environ['WORLD_SIZE']} {sys.argv[2:]}")
if restart in ("0", "1"):
    if rank == "1":
        if sys.argv[2] == "first":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit({"refuses": 2, "loses": 3}[sys.argv[2]])
    time.sleep(1000)  # the others wait for it
"""


@pytest.fixture(autouse=True)
def _common_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_EMB_TOKEN", new_token())


def heal(tmp_path: Path, most: int, word: str, machines: Machines | None = None) -> None:
    command = [sys.executable, "-c", FAILS, str(tmp_path), word]
    machines = machines or Machines([Host(LOOPBACK, 2)])
    logs = tmp_path / f"logs-{machines.index}"
    run_healing(
        command, machines, Restarts(most, 60.0), lambda _: [*command, "resumed"], logs=logs, threads=1
    )  # fmt: skip


def test_a_job_starts_again_with_the_other_command_until_it_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heal(tmp_path, 3, "first")
    assert (tmp_path / "0-1").read_text() == "2 ['first']"
    for rank in range(2):
        assert (tmp_path / f"2-{rank}").read_text() == "2 ['first', 'resumed']"
    assert not (tmp_path / "3-0").exists()
    said = capsys.readouterr().err
    assert "trainer 1 (process" in said
    assert "restart 2 of 3 from the last checkpoint" in said
    assert (tmp_path / "logs-0" / "restart-2" / "trainer-0.log").exists()


def test_the_last_failure_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match=r"trainer 1 .* was killed by SIGKILL"):
        heal(tmp_path, 1, "first")
    assert (tmp_path / "1-1").exists()
    assert not (tmp_path / "2-1").exists()


DONE = """
import os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    with run.with_name("starts").open("a") as file:
        file.write("x")
    run.mkdir() if sys.argv[2] == "writes" else None
    sys.exit(0)
while not run.with_name("starts").exists() or (sys.argv[2] == "writes" and not run.exists()):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


WRITTEN = """
import os, pathlib, signal, sys, time
if os.environ["RANK"] == "0":
    pathlib.Path(sys.argv[1]).mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""


@pytest.mark.parametrize("word", ["writes", "leaves"])
def test_a_failure_after_the_run_is_written_starts_nothing_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    """A trainer that the other host had lost while the run was being written: the restart refused its folder."""
    config = RunConfig.model_validate({"dataset": {"name": "karate"}, "model": {"name": "deepwalk"}})
    start = Start(Machines([Host(LOOPBACK, 2)]), False, restarts=Restarts(1, 60.0))
    command = [sys.executable, "-c", DONE, str(tmp_path / "run"), word]
    if word == "writes":
        assert start.run(command, config, tmp_path / "run", overwrite=False) == 0
        assert "was killed by SIGKILL" in capsys.readouterr().err
    else:
        with pytest.raises(ProcessFailure, match="was killed by SIGKILL"):
            start.run(command, config, tmp_path / "run", overwrite=False)
    assert (tmp_path / "starts").read_text() == ("x" if word == "writes" else "xx")


def test_an_input_that_was_refused_starts_nothing_again(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match="ended with exit code 2"):
        heal(tmp_path, 3, "refuses")
    assert not (tmp_path / "1-1").exists()


def on_two_hosts(act: Callable[[Machines], Any]) -> list[Any]:
    """What each of two launchers returns or raises."""
    port, ended = free_ports(1), [None, None]  # type: ignore[var-annotated]

    def launch(index: int) -> None:
        try:
            ended[index] = act(Machines(HOSTS, index, port))
        except BaseException as error:
            ended[index] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=launch, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return ended


def test_two_machines_meet_again(tmp_path: Path) -> None:
    assert on_two_hosts(lambda machines: heal(tmp_path, 2, "first", machines)) == [None, None]
    assert (tmp_path / "2-0").read_text() == (tmp_path / "2-2").read_text() == "3 ['first', 'resumed']"


LAUNCHER = """
import sys
from pathlib import Path
from graph_emb.run.launch.plan import Host, Machines, Restarts
from graph_emb.run.launch.restarts import run_healing

assert "torch" not in sys.modules
folder, code, index, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
hosts = [Host("127.0.0.1", 1), Host("127.0.0.2", 2)]
command = [sys.executable, "-c", code, folder, "first"]
options = {"logs": Path(folder, f"logs-{index}"), "threads": 1}
run_healing(command, Machines(hosts, index, port), Restarts(2, 60.0), lambda _: [*command, "resumed"], **options)
"""


EARLY = """
import os, pathlib, signal, sys, time
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
done = pathlib.Path(sys.argv[1], f"{restart}-1")
if rank == "1":
    done.with_suffix(".new").write_text(f"{os.environ['WORLD_SIZE']} {os.getpid()}")
    done.with_suffix(".new").rename(done)
elif restart == "0":
    while not done.exists():
        time.sleep(0.01)
    while pathlib.Path("/proc", done.read_text().split()[1]).exists():  # until its launcher knows it
        time.sleep(0.01)
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_machines_hear_that_the_first_one_has_the_finished_run(tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {
            "dataset": {"name": "karate"},
            "model": {"name": "deepwalk"},
            "parallel": {"mode": "collective", "trainers": 3},
        }
    )
    asked = []

    def act(machines: Machines) -> int | None:
        def finished() -> bool:
            asked.append(machines.index)
            return True

        place, command = tmp_path / str(machines.index) / "run", [sys.executable, "-c", "import sys; sys.exit(5)"]
        return Start(machines, True).run(command, config, place, overwrite=False, finished=finished)

    assert on_two_hosts(act) == [None, None]
    assert asked == [0], "the run is the first one's"
    assert list(tmp_path.glob("*/run*")) == [], "no logs of what never started"


def test_a_machine_that_is_done_stays_for_the_first_one(tmp_path: Path) -> None:
    """The first one still judges and writes the run: where it fails, the job starts again on both."""
    command = [sys.executable, "-c", EARLY, str(tmp_path), "0.5"]
    hosts = [Host("127.0.0.1", 1), Host("127.0.0.2", 1)]

    def act(machines: Machines) -> None:
        both = Machines(hosts, machines.index, machines.port)
        logs = tmp_path / f"logs-{machines.index}"
        run_healing(command, both, Restarts(1, 60.0), lambda _: command, logs=logs, threads=1)

    assert on_two_hosts(act) == [None, None]
    assert (tmp_path / "1-1").read_text().split()[0] == "2"


def test_launchers_that_import_torch_themselves_meet_again(tmp_path: Path) -> None:
    """In this process torch is there before, and launchers let go of the port: no test saw that others did not."""
    words = [sys.executable, "-c", LAUNCHER, str(tmp_path), FAILS]
    port = str(free_ports(1))
    launchers = [subprocess.Popen([*words, str(index), port], stderr=subprocess.PIPE) for index in range(2)]
    try:
        ended = [launcher.communicate(timeout=120)[1].decode() for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert [launcher.returncode for launcher in launchers] == [0, 0], ended
    assert (tmp_path / "2-0").read_text() == (tmp_path / "2-2").read_text() == "3 ['first', 'resumed']"


def test_machines_that_lost_each_other_meet_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer whose peer is gone was taken for one that refused its input."""
    monkeypatch.setattr(watch, "LATE", 0.1)
    assert on_two_hosts(lambda machines: heal(tmp_path, 2, "loses", machines)) == [None, None]
    assert (tmp_path / "2-0").exists()


def test_a_machine_hears_that_the_other_one_refuses_for_good(tmp_path: Path) -> None:
    first, second = on_two_hosts(lambda machines: heal(tmp_path, 2, "refuses", machines))
    assert "host 127.0.0.2: trainer 1" in str(first)
    assert "ended with exit code 2" in str(second)
    assert not list(tmp_path.glob("1-*"))


def test_a_machine_hears_that_the_run_was_written_before_the_first_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with the exit code of an input that was refused."""
    config = RunConfig.model_validate({"dataset": {"name": "karate"}, "model": {"name": "deepwalk"}})
    command = [sys.executable, "-c", WRITTEN, str(tmp_path / "0")]

    def run(machines: Machines) -> int:
        start = Start(machines, False, restarts=Restarts(1, 60.0))
        return start.run(command, config, tmp_path / str(machines.index), overwrite=False)

    assert on_two_hosts(run) == [0, 0]
    said = capsys.readouterr().err
    assert "the run was complete: " in said
    assert "the run was complete on 127.0.0.1: " in said


def test_a_restart_goes_on_without_a_machine_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LAST_WORD", timedelta(seconds=0.5))
    with met(Machines(HOSTS, 0, free_ports(1)), dict, within=1.0, restart=1) as found:
        assert (found.present, found.restart) == ([0], 1)
    assert Machines(HOSTS, 1).only([1]).ranks == range(2)
    with (
        pytest.raises(PeerError, match=r"host 127\.0\.0\.2 did not come"),
        met(Machines(HOSTS, 0, free_ports(1)), dict, within=1.0),
    ):
        pass


def test_the_port_is_free_again_when_a_meeting_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was held for a last word as long as the first machine waited for it to end: a restart had no port."""
    monkeypatch.setattr(meeting, "LAST_WORD", timedelta(seconds=0.5))
    port = free_ports(1)
    for _ in range(2):  # nobody hears the last word of a machine that is alone
        with pytest.raises(PeerError, match="did not come"), met(Machines(HOSTS, 0, port), dict, within=0.1):
            pass


def test_a_first_machine_that_is_replaced_learns_it_from_the_others() -> None:
    """Its replacement began anew, and refused the checkpoints; it also waited as long as a first start does."""
    port, heard = free_ports(1), {}
    hosts = [*HOSTS, Host("127.0.0.3", 1)]

    def launch(index: int, restart: int) -> None:
        options = {"within": 60.0, "restart": restart, "restart_within": 2.0}
        with met(Machines(hosts, index, port), dict, **options) as meeting:
            heard[index] = (meeting.present, meeting.restart)

    second = threading.Thread(target=launch, args=(1, 2), daemon=True)
    second.start()
    launch(0, 0)
    second.join(60)
    assert heard == {0: ([0, 1], 2), 1: ([0, 1], 2)}


def test_a_replacement_learns_that_the_job_is_a_restart() -> None:
    port, heard = free_ports(1), {}

    def launch(index: int, restart: int) -> None:
        with met(Machines(HOSTS, index, port), dict, within=60.0, restart=restart) as meeting:
            heard[index] = (meeting.present, meeting.restart)

    first = threading.Thread(target=launch, args=(0, 2), daemon=True)
    first.start()
    launch(1, 0)
    first.join(60)
    assert heard == {0: ([0, 1], 2), 1: ([0, 1], 2)}
