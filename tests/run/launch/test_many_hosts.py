"""Jobs across hosts with their own addresses: they train right, and when something breaks they end with an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import graph_emb as ge
from graph_emb.transport.guard import new_token
from tests import warm
from tests.netns import Network, network

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("warm_starts")]

PORT = 29_500
TIMEOUT = 30
"""Of a job in which something breaks: ranks may begin, and take a step, so much later than the others."""
PATIENCE = 300
"""Of whatever ends by itself, on a machine that is busy with other things."""
STATED = TIMEOUT + 10 + 10
"""Seconds until an error: the timeout, a roll call of 5 s for each other rank, 10 s for what does not end by itself."""
SCRIPT = f"""
import os, pathlib, sys, time
import torch
import graph_emb as ge
place, steps, mode = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def table():
    emb = ge.DistEmbedding(30, 4, "t", ge.initializers.Zeros(), ge.RangeBook([0, 4, 20, 30]), dtype=torch.float64)
    return emb, (ge.SparseAdagrad if mode == "collective" else ge.SparseSGD)([emb], lr=0.5)

# A rank that still imports or compiles is silent for more than the timeout: all do that first, and begin together.
ge.init(mode="local")
emb, opt = table()
emb(torch.arange(20)).sum().backward()
opt.step()
ge.shutdown()
(place / f"ready-{{os.environ['RANK']}}").touch()
while not all((place / f"ready-{{rank}}").exists() for rank in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)

transport = ge.init(mode=mode, timeout={TIMEOUT} if steps > 100 else {PATIENCE})
emb, opt = table()
for step in range(steps):
    ids = (torch.arange(20) * (transport.rank + 2) + step) % 30
    (emb(ids) * (step % 7 + 1)).sum().backward()
    opt.step()
    if step == 3:
        (place / f"going-{{transport.rank}}").touch()
transport.flush()
transport.barrier()
torch.save(emb.weight[:], place / f"rank-{{transport.rank}}.pt")
transport.barrier()
ge.shutdown()
"""


class Job:
    """A launcher on each host; that of the host ``cold``, and its processes, are new interpreters."""

    def __init__(self, net: Network, place: Path, steps: int, mode: str, cold: int | None) -> None:
        (place / "script.py").write_text(SCRIPT)
        (place / "hosts.txt").write_text("\n".join(net.addresses))
        self.place = place
        self.launchers = []
        environment = {**os.environ, "GRAPH_EMB_TOKEN": new_token()}
        for number in range(len(net.hosts)):
            words = [sys.executable, "-m", "graph_emb", "launch", "--hosts", str(place / "hosts.txt")]
            words += ["--port", str(PORT), "--threads", "1", "--logs", str(place / f"logs-{number}")]
            words += ["--servers", str(int(mode == "kvstore")), "--"]
            words += [str(place / "script.py"), str(place), str(steps), mode]
            start = warm.Cold if number == cold else subprocess.Popen
            with (place / f"launcher-{number}").open("wb") as log:
                self.launchers.append(start(net.on(number, words), stderr=log, stdout=log, env=environment))

    def wait_until_it_goes(self, ranks: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all((self.place / f"going-{rank}").exists() for rank in range(ranks)):
            assert time.monotonic() < deadline, [self.said(number) for number in range(ranks)]
            assert all(one.poll() is None for one in self.launchers), [self.said(n) for n in range(ranks)]
            time.sleep(0.02)

    def said(self, number: int) -> str:
        return (self.place / f"launcher-{number}").read_text(errors="replace")

    def ends(self, number: int, seconds: float) -> int:
        return self.launchers[number].wait(seconds)

    def close(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGKILL)
            launcher.wait()


@pytest.fixture
def job(tmp_path: Path):
    made = []

    def start(net: Network, steps: int, mode: str, cold: int | None = None) -> Job:
        made.append(Job(net, tmp_path, steps, mode, cold))
        return made[-1]

    yield start
    for one in made:
        one.close()


def expected(steps: int, ranks: int, mode: str) -> torch.Tensor:
    emb = ge.DistEmbedding(30, 4, "t", ge.initializers.Zeros(), dtype=torch.float64)
    opt = (ge.SparseAdagrad if mode == "collective" else ge.SparseSGD)([emb], lr=0.5)
    for step in range(steps):
        for rank in range(ranks):
            (emb((torch.arange(20) * (rank + 2) + step) % 30) * (step % 7 + 1)).sum().backward()
        opt.step()
    weight = emb.shard.weight.clone()
    ge.shutdown()
    return weight


MODES = pytest.mark.parametrize("mode", ["collective", "kvstore"])
"""In kvstore mode rows of several trainers meet the rule one by one: SGD of whole numbers adds up all the same."""


@pytest.mark.parametrize(("mode", "slow"), [("collective", False), ("collective", True), ("kvstore", True)])
def test_three_hosts_train_as_one_process_also_over_a_slow_link(tmp_path: Path, job, mode: str, slow: bool) -> None:
    steps = 8
    with network(3) as net:
        if slow and not net.slow(1, 40):
            net.throttle(1, 1)
        running = job(net, steps, mode)
        assert [running.ends(number, PATIENCE) for number in range(3)] == [0, 0, 0], [running.said(n) for n in range(3)]
    for rank in range(3):
        assert torch.equal(torch.load(tmp_path / f"rank-{rank}.pt"), expected(steps, 3, mode))


@MODES
def test_a_cut_cable_becomes_an_error_on_every_host(job, mode: str) -> None:
    with network(3) as net:
        running = job(net, 10**9, mode)
        running.wait_until_it_goes(3)
        net.cut(2)
        codes = [running.ends(number, STATED + 120) for number in range(3)]
    assert all(code != 0 for code in codes)
    texts = [running.said(number) for number in range(3)]
    named = "rank 2 (host 10.0.0.3) no longer answers" if mode == "collective" else "10.0.0.3"
    assert any(named in text for text in texts[:2]), texts


@MODES
def test_a_killed_host_becomes_an_error_on_the_others(job, mode: str) -> None:
    with network(3) as net:
        running = job(net, 10**9, mode, cold=1)  # the kernel ends trainers with their launcher
        running.wait_until_it_goes(3)
        running.launchers[1].kill()  # its trainers die with it
        codes = [running.ends(number, STATED + 120) for number in (0, 2)]
    assert all(code != 0 for code in codes)
    named = "rank 1 (host 10.0.0.2) no longer answers" if mode == "collective" else "ended without a goodbye"
    assert any(named in running.said(number) for number in (0, 2)), running.said(0)
