"""Jobs on one machine, and on several that are this one under other addresses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.run.launch.job import run_host, run_local
from graph_emb.run.launch.plan import Host
from graph_emb.run.launch.watch import ProcessFailure
from graph_emb.transport.guard import new_token
from graph_emb.transport.kvstore.layout import free_ports

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("warm_starts")]

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


@pytest.fixture(autouse=True)
def _common_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_EMB_TOKEN", new_token())


def test_the_trainers_of_one_machine_find_each_other(tmp_path: Path) -> None:
    run_local([sys.executable, "-c", MEET, str(tmp_path)], 3, tmp_path / "logs", threads=1)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == ["3 1"] * 3


def test_a_killed_trainer_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match=r"trainer 1 .* was killed by SIGKILL; its last line: no more"):
        run_local([sys.executable, "-c", DIE, "1"], 2, tmp_path / "logs")


def on_two_hosts(tmp_path: Path, command: list[str]) -> list[BaseException | None]:
    """Two launchers of this machine, as 127.0.0.1 and 127.0.0.2."""
    hosts = [Host("127.0.0.1", 1), Host("127.0.0.2", 2)]
    port, ended = free_ports(1), [None, None]  # type: ignore[var-annotated]

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


PUSH = """
import pathlib, sys
import torch
import graph_emb as ge
transport = ge.init(mode="kvstore")
emb = ge.DistEmbedding(6, 1, "t")
opt = ge.SparseSGD([emb], lr=1.0)
for _ in range(5):
    emb(torch.arange(6)).sum().backward()
    opt.step()
transport.flush()
transport.barrier()
pathlib.Path(sys.argv[1], f"rank-{transport.rank}").write_text(str(emb.weight[:].flatten().tolist()))
transport.barrier()
ge.shutdown()
"""


def test_servers_and_trainers_of_one_machine_find_each_other(tmp_path: Path) -> None:
    hosts = [Host("127.0.0.1", 2, 2)]
    command = [sys.executable, "-c", PUSH, str(tmp_path)]
    run_host(command, hosts, 0, logs=tmp_path / "logs", port=0, threads=1)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == [str([-10.0] * 6)] * 2


BESIDE = """
def ten_times(data_store, name, local_offset, data):
    data_store[name][local_offset] += 10 * data
"""
OWN_FUNCTIONS = """
import pathlib, sys
import torch
import beside
import graph_emb as ge

factor = 7

def first(shape, dtype):
    return torch.full(shape, float(factor), dtype=dtype)

def many_times(data_store, name, local_offset, data):
    data_store[name][local_offset] += factor * data

ge.init(mode="kvstore")
emb = ge.DistEmbedding(4, 1, "t", first)
handlers = (beside.ten_times, many_times, lambda store, name, rows, data: store[name].index_fill_(0, rows, factor + 1))
for row, handler in enumerate(handlers):
    emb.kvstore.register_push_handler("t", handler)
    emb.kvstore.push("t", [row], torch.ones(1, 1))
    emb.kvstore.flush()
emb.kvstore.register_pull_handler("t", lambda store, name, rows: store[name][rows] * factor)
pathlib.Path(sys.argv[1]).write_text(str(emb.weight[:].flatten().tolist()))
ge.shutdown()
"""


def test_servers_run_what_the_script_and_the_modules_beside_it_define(tmp_path: Path) -> None:
    script, found = tmp_path / "place" / "script.py", tmp_path / "found"
    script.parent.mkdir()
    script.write_text(OWN_FUNCTIONS)
    script.with_name("beside.py").write_text(BESIDE)
    run_host([sys.executable, str(script), str(found)], [Host("127.0.0.1", 1, 2)], 0, logs=tmp_path / "logs", threads=1)
    assert found.read_text() == str([7.0 * number for number in (17, 14, 8, 7)])


def test_hosts_with_different_numbers_of_servers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, 2)]
    with pytest.raises(ConfigError, match="give every host the same number"):
        run_host(["true"], hosts, 0, logs=tmp_path, port=free_ports(1))


@pytest.mark.parametrize("servers", [0, 1])
def test_several_hosts_need_a_token(servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPH_EMB_TOKEN", raising=False)
    hosts = [Host("127.0.0.1", 1, servers), Host("127.0.0.2", 1, servers)]
    with pytest.raises(ConfigError, match="need a token in common"):
        run_host(["true"], hosts, 0, logs=tmp_path, port=free_ports(1))


@pytest.mark.parametrize(("trainers", "servers", "role"), [(9, 0, "trainers"), (2, 9, "servers")])
def test_more_processes_than_cores_can_serve_start_only_when_asked_for(
    trainers: int, servers: int, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--trainers 500`` on two cores started 500 processes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(ConfigError, match=rf"9 {role} on a machine of 2 cores: at most 8.*--oversubscribe"):
        run_local(["false"], trainers, tmp_path / "logs", servers=servers)
    assert not (tmp_path / "logs").exists()
    run_local(["true"], 9, tmp_path / "logs", oversubscribe=True)
    assert len(list((tmp_path / "logs").iterdir())) == 9


FAKE_SSH = """#!/bin/sh
echo "$@" >> "$FAKE_SSH_CALLS"
for last; do :; done
unset GRAPH_EMB_TOKEN
exec sh -c "$last"
"""


def test_ssh_brings_the_token_by_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hosts need a token in common, which ``--ssh`` has to bring along without showing it to ``ps``."""
    monkeypatch.delenv("GRAPH_EMB_TOKEN", raising=False)
    fake, calls = tmp_path / "bin" / "ssh", tmp_path / "calls"
    fake.parent.mkdir()
    fake.write_text(FAKE_SSH)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_CALLS", str(calls))
    (tmp_path / "hosts.txt").write_text("127.0.0.1 1\n127.0.0.2 1\n")
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['GRAPH_EMB_TOKEN'])\n"
    )
    options = ["--hosts", str(tmp_path / "hosts.txt"), "--host-index", "0", "--ssh", "--logs", str(tmp_path / "logs")]
    words = ["launch", *options, "--port", str(free_ports(1)), "--", str(script), str(tmp_path)]
    ended = subprocess.run([sys.executable, "-m", "graph_emb", *words], timeout=120, check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    tokens = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert tokens[0] == tokens[1] != ""
    assert "127.0.0.2" in calls.read_text()
    assert tokens[0] not in calls.read_text()
