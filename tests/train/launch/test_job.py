"""Jobs on one machine, and on several that are this one under other addresses."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from graph_emb.errors import ConfigError, PeerError
from graph_emb.train.launch.hosts import Host
from graph_emb.train.launch.job import run_host, run_local
from graph_emb.train.launch.watch import ProcessFailure

pytestmark = pytest.mark.dist

MEET = """
import os, pathlib, sys
import graph_emb as ge
transport = ge.init(mode="collective", timeout=60)
total = transport.votes(True)
pathlib.Path(sys.argv[1], f"rank-{transport.rank}").write_text(f"{total} {os.environ['OMP_NUM_THREADS']}")
ge.shutdown()
"""
DIE = """
import os, sys
import graph_emb as ge
transport = ge.init(mode="collective", timeout=60)
if transport.rank == int(sys.argv[1]):
    print("no more", flush=True)
    os.kill(os.getpid(), 9)
transport.votes(True)
transport.votes(True)
"""


def test_the_trainers_of_one_machine_find_each_other(tmp_path: Path) -> None:
    run_local([sys.executable, "-c", MEET, str(tmp_path)], 3, tmp_path / "logs", threads=1)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == ["3 1"] * 3


def test_a_killed_trainer_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match=r"trainer 1 .* was killed by SIGKILL; its last line: no more"):
        run_local([sys.executable, "-c", DIE, "1"], 2, tmp_path / "logs")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def on_two_hosts(tmp_path: Path, command: list[str]) -> list[BaseException | None]:
    """Two launchers of this machine, as 127.0.0.1 and 127.0.0.2."""
    hosts = [Host("127.0.0.1", 1), Host("127.0.0.2", 2)]
    port, ended = free_port(), [None, None]  # type: ignore[var-annotated]

    def launch(index: int) -> None:
        try:
            run_host(command, hosts, index, logs=tmp_path / f"logs-{index}", port=port, threads=1)
        except BaseException as error:
            ended[index] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=launch, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    return ended


def test_two_launchers_make_one_job(tmp_path: Path) -> None:
    assert on_two_hosts(tmp_path, [sys.executable, "-c", MEET, str(tmp_path)]) == [None, None]
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == ["3 1"] * 3


def test_a_failure_on_one_host_ends_the_other(tmp_path: Path) -> None:
    first, second = on_two_hosts(tmp_path, [sys.executable, "-c", DIE, "2"])
    assert "trainer 2" in str(second)
    assert "killed by SIGKILL" in str(second)
    assert isinstance(first, PeerError)


def test_several_hosts_need_a_port(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--port"):
        run_host(["true"], [Host("127.0.0.1", 1), Host("127.0.0.2", 1)], 0, logs=tmp_path, port=0)
