"""What ``ge.init()`` chooses, in real jobs: however processes are started, none trains a copy of its own in silence.

Before, only a named mode found the others: a program of four processes that named none trained four tables.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import graph_emb as ge
from graph_emb.run.launch.job import run_local
from graph_emb.transport import job, runtime
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("warm_starts")

CLEAN = (*job.WORDS, "LOCAL_RANK", job.HOSTS_VARIABLE, job.DGL_MODE, *job.OTHER_LAUNCHERS)

# Every process adds 1 to each row: a table of its own shows 1, a shared one the number of processes.
TRAIN = """
import logging, os, pathlib, sys
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)
import torch
import graph_emb as ge
if len(sys.argv) > 2:
    torch.distributed.init_process_group("gloo")
emb = ge.DistEmbedding(6, 2, "node")
opt = ge.SparseSGD([emb], lr=1.0)
(-emb(torch.arange(6))).sum().backward()
opt.step()
transport = emb.transport
transport.flush()
transport.barrier()
rows = set(emb.weight[:].flatten().tolist())
transport.barrier()
pathlib.Path(sys.argv[1], f"{os.environ.get('RANK', 0)}").write_text(f"{transport.mode} {rows}")
ge.shutdown()
if len(sys.argv) > 2:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that tells of no job."""
    for name in CLEAN:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def environment(**words: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in CLEAN}, **words}


def told(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir()) if path.is_file()]


# Jobs of launchers


@pytest.mark.dist
@pytest.mark.parametrize(("size", "program_group"), [(1, []), (2, []), (2, ["group"])])
def test_torchrun(tmp_path: Path, size: int, program_group: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command += [str(script), str(out), *program_group]
    done = subprocess.run(
        command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert told(out) == [f"{'collective' if size > 1 else 'local'} {{{size}.0}}"] * size
    why = "torch.distributed has 2 processes" if program_group else "WORLD_SIZE=2"
    line = f"mode 'collective': {why}" if size > 1 else "mode 'local': nothing tells of another process"
    assert done.stdout.count(f"graph_emb.init: {line}") == size


@pytest.mark.dist
@pytest.mark.parametrize(("trainers", "servers", "mode"), [(1, 0, "local"), (2, 0, "collective")])
def test_our_launcher(tmp_path: Path, alone: Any, trainers: int, servers: int, mode: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    run_local([sys.executable, "-c", TRAIN, str(out)], trainers, tmp_path / "logs", threads=1, servers=servers)
    assert told(out) == [f"{mode} {{{trainers}.0}}"] * trainers


@pytest.mark.dist
@pytest.mark.parametrize("trainers", [1, 2])
def test_our_launcher_with_servers(tmp_path: Path, alone: Any, trainers: int) -> None:
    test_our_launcher(tmp_path, alone, trainers, 1, "kvstore")


# Processes that found one another


def trained(prepare: Callable[[], Any] | None = None) -> str:
    """One step in a mode that nobody named; returns the mode and the rows."""
    made = prepare() if prepare is not None else None
    emb = ge.DistEmbedding(6, 2, "node")
    opt = ge.SparseSGD([emb], lr=1.0)
    (-emb(torch.arange(6))).sum().backward()
    opt.step()
    rows = set(emb.weight[:].flatten().tolist())
    found = f"{emb.transport.mode} {rows}"
    ge.shutdown()
    if made is not None:
        dist.destroy_process_group()
    return found


def group_of_the_program() -> dist.TCPStore:
    """The process group as ``torch.multiprocessing.spawn`` programs make it: nothing in the environment."""
    size, rank, port = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    for name in CLEAN:
        os.environ.pop(name, None)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return store


@pytest.mark.dist
@pytest.mark.parametrize("prepare", [None, group_of_the_program, ge.init])
def test_processes_that_set_their_own_rank(ranks: Ranks, prepare: Any) -> None:
    if prepare is ge.init:
        prepare = begun
    assert ranks.run(trained, 2, prepare) == ["collective {2.0}"] * 2


def begun() -> None:
    ge.init(timeout=60)


def on_one_rank(prepare: Callable[[], Any] | None = None) -> str:
    """The first rank begins a mode, the other one does not; returns the error."""
    rank, made = os.environ["RANK"], prepare() if prepare is not None else None
    try:
        if rank == "0":
            ge.init(timeout=2)
        return "no mode"
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
        if made is not None:
            # The other rank may still be making the group of the program: torch fails where one leaves it meanwhile.
            made.set("over", "") if rank == "0" else made.wait(["over"])
            dist.destroy_process_group()


@pytest.mark.dist
@pytest.mark.parametrize("prepare", [None, group_of_the_program])
def test_a_mode_that_only_one_rank_reaches_is_an_error_that_says_so(ranks: Ranks, prepare: Any) -> None:
    first, second = ranks.run(on_one_rank, 2, prepare)
    ranks.close()  # torch numbers its groups: the rank that tried one more would never meet the other again
    assert second == "no mode"
    assert "every process of the job must come to its first table or graph_emb.init()" in first


# Processes that cannot find the others


def refusals() -> list[str]:
    """The errors of the ways to begin a mode without naming local; empty where one began."""
    found = []
    for begin in (
        runtime.current,
        ge.init,
        functools.partial(ge.init, "collective"),
        functools.partial(ge.init, "kvstore"),
    ):
        try:
            begin()
            found.append("")
        except ge.ModeError as error:
            found.append(str(error))
        ge.shutdown()
    return found


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"WORLD_SIZE": "4"}, "RANK, MASTER_ADDR, MASTER_PORT not set"),
        ({"WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT not set"),
        ({"WORLD_SIZE": "4", "RANK": "4"}, "RANK='4' and WORLD_SIZE=4 in the environment"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE='four' must be a number from 1"),
        ({"RANK": "1"}, "RANK='1' and no WORLD_SIZE in the environment"),
        ({"DGL_DIST_MODE": "distributed"}, "dgl.distributed is not initialised"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "mpirun's OMPI_COMM_WORLD_SIZE=2"),
        ({"PMI_SIZE": "3"}, "mpiexec's PMI_SIZE=3"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "srun's SLURM_STEP_NUM_TASKS=2"),
    ],
)
def test_half_a_job_is_no_job_of_one(
    alone: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, words: dict[str, str], why: str
) -> None:
    for name, value in words.items():
        alone.setenv(name, value)
    implicit, auto, collective, kvstore = refusals()
    assert implicit == auto
    assert why in auto
    assert collective  # ProcessGroup names what is not set, or what contradicts itself
    assert "this process would train a copy" in kvstore
    with caplog.at_level(logging.WARNING, "graph_emb.init"):
        assert ge.init(mode="local").world_size == 1  # by name
    assert "mode 'local' by name in" in caplog.text


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our lines; what a thread of an earlier test logs is not of the test."""
    return [record.getMessage() for record in caplog.records if record.name == "graph_emb.init"]


@pytest.mark.parametrize(
    "words", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1"}, {"MASTER_ADDR": "127.0.0.1"}, {"SLURM_NTASKS": "8"}]
)
def test_one_process_is_local(
    alone: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, words: dict[str, str]
) -> None:
    for name, value in words.items():
        alone.setenv(name, value)
    with caplog.at_level(logging.INFO, "graph_emb.init"):
        assert trained() == "local {1.0}"
    assert said(caplog) == ["mode 'local': nothing tells of another process"]


def group_of_one() -> bool:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return True


def test_a_process_group_of_one_is_local(alone: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "graph_emb.init"):
        assert trained(group_of_one) == "local {1.0}"
    assert said(caplog) == ["mode 'local': torch.distributed has one process"]
    alone.setenv("WORLD_SIZE", "2")
    alone.setenv("RANK", "1")
    group_of_one()
    try:
        with pytest.raises(ge.ModeError, match=r"WORLD_SIZE=2, but torch\.distributed has one process"):
            ge.init()
    finally:
        dist.destroy_process_group()


def test_options_belong_to_the_mode_that_was_chosen(alone: pytest.MonkeyPatch) -> None:
    with pytest.raises(ge.ConfigError, match="unknown option of mode 'local' 'timeout'"):
        ge.init(timeout=3)


# Children of multiprocessing and of fork


def child(pipe: Any, call: Callable[[], Any]) -> None:
    for name in CLEAN:
        if name != "RANK" and name != "WORLD_SIZE":
            os.environ.pop(name, None)
    pipe.send(call())


def in_child(method: str, call: Callable[[], Any]) -> Any:
    """What a call returns in a process that multiprocessing starts."""
    context = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, call))
    process.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        process.join(60)
        assert process.exitcode == 0


def refusals_and_local() -> tuple[list[str], str]:
    """The errors of a process, and the mode that it then names itself."""
    return refusals(), ge.init(mode="local").mode


def test_a_rank_is_named_with_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(job.MACHINES, raising=False)
    assert job.named(2) == "2"
    monkeypatch.setenv(job.MACHINES, "10.0.0.1*2 node-b*1")
    assert [job.named(rank) for rank in range(4)] == ["0 (host 10.0.0.1)", "1 (host 10.0.0.1)", "2 (host node-b)", "3"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_says_what_it_is(alone: pytest.MonkeyPatch, method: str) -> None:
    errors, named = in_child(method, refusals_and_local)
    for error in errors:
        assert "a process that multiprocessing started and told nothing of the others" in error
    assert named == "local"


@pytest.mark.parametrize("prepare", [None, group_of_one])
def test_a_process_of_multiprocessing_may_be_told_that_it_is_alone(ranks: Ranks, prepare: Any) -> None:
    assert ranks.run(trained, 1, prepare) == ["local {1.0}"]


def test_a_fork_does_not_change_its_copy_of_a_table(alone: pytest.MonkeyPatch) -> None:
    ge.init(mode="local")
    emb = ge.DistEmbedding(3, 1, "node")
    opt = ge.SparseSGD([emb], lr=1.0)

    def push() -> list[str]:
        assert emb(torch.tensor([1])).shape == (1, 1)  # reading is fine
        emb(torch.tensor([1])).sum().backward()
        return [refused(opt.step), refused(lambda: emb.weight.__setitem__(0, 1.0)), *refusals()]

    def refused(call: Callable[[], Any]) -> str:
        try:
            call()
        except ge.ModeError as error:
            return str(error)
        return ""

    step, write, *modes = in_child("fork", push)
    assert "this process is a fork of the one that made the table" in step
    assert step == write
    assert all("a process that multiprocessing started" in error for error in modes)
    assert ge.init is not None
    push_here = emb(torch.tensor([1])).sum()
    push_here.backward()
    opt.step()
    assert emb.weight[1].item() == -1.0


class Rows(torch.utils.data.Dataset[str]):
    """Makes a table in the loader's process."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        try:
            ge.DistEmbedding(3, 1)
        except ge.ModeError as error:
            return str(error)
        return "a table of its own"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_make_no_tables(alone: pytest.MonkeyPatch, method: str) -> None:
    loader = DataLoader(Rows(), batch_size=None, num_workers=1, multiprocessing_context=method)
    for said in loader:
        assert "a worker of a torch DataLoader" in said


CHILDREN = """
import multiprocessing, os, pathlib, sys
import graph_emb as ge

def child(folder):
    try:
        ge.DistEmbedding(6, 2, "node")
    except ge.ModeError as error:
        pathlib.Path(folder, os.environ["RANK"]).write_text(str(error))

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=child, args=(sys.argv[1],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.cold  # reads the environment that a process was started with
@pytest.mark.dist
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_child_of_a_rank_does_not_take_its_place(tmp_path: Path, alone: Any, method: str) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(CHILDREN)
    out.mkdir()
    run_local([sys.executable, str(script), str(out), method], 2, tmp_path / "logs", threads=1)
    answers = told(out)
    assert len(answers) == 2
    for rank, said in enumerate(answers):
        assert f"started by rank {rank} of the job and is none of its ranks" in said
