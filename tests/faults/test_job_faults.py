"""SIGKILL and SIGSTOP of each process of a job: it ends in time, names the culprit, and leaves nothing for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import partition
from graph_emb.core.left_behind import SHARED_MEMORY, left_in
from graph_emb.transport.process_group import SHARED_VARIABLE
from tests import warm

pytestmark = pytest.mark.dist

ALL = os.environ.get("FAULTS_STEP") == "1"
"""``make faults`` takes every case, ``make test`` five of them."""
TIMEOUT = 30.0
"""Seconds. A trainer may come up so much later than the other one: with 12, fewer jobs began on a busy machine."""
LIMIT = TIMEOUT + 120.0
"""Seconds: parallel.timeout, the roll call, the grace of ten seconds after SIGTERM, and a busy machine."""
QUICK = [
    ("collective", "launcher", "SIGKILL"),
    ("collective", "trainer 0", "SIGSTOP"),
    ("kvstore", "server 0", "SIGSTOP"),
    ("triples", "trainer 1", "SIGKILL"),
    ("buckets", "trainer 1", "SIGKILL"),
]
QUICK_HEALED = [("collective", "trainer 1", "SIGKILL"), ("buckets", "trainer 1", "SIGKILL")]
ROLES = {"collective": ["launcher", "trainer 0", "trainer 1"]}
ROLES["kvstore"] = [*ROLES["collective"], "server 0"]
ROLES["triples"] = ROLES["buckets"] = ["trainer 0", "trainer 1"]
"""Of a mode; ``triples`` are trained in collective mode, by steps in place that meet now and then, and by ``buckets``,
of which each trainer has another one."""
BY_TRIPLES = {
    "triples": "train.batch_size=8 model.chunk_size=4",
    "buckets": "train.batch_size=1 model.chunk_size=1 train.buckets=4",  # several steps a round
}
CASES = [(mode, role, sign) for mode, roles in ROLES.items() for role in roles for sign in ("SIGKILL", "SIGSTOP")]


def write_ring(file: Path, between: str = ",") -> None:
    file.write_text("".join(f"{node}{between}{(node + 1) % 40}\n" for node in range(40)))


class Job:
    """``graph-emb train`` with two trainers, which train until they are ended; all it may leave lies in a folder.

    Its processes are new interpreters, children of its launcher; those of a job that is not hit, and in ``make test``
    of one whose launcher is not, start ``warm``. With ``sockets`` they share no memory.
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        *words: str,
        start: type[subprocess.Popen] = subprocess.Popen,
        sockets: bool = False,
    ) -> None:
        self.folder, self.mode, self.start = folder, mode, start
        self.variables = {SHARED_VARIABLE: "0"} if sockets else {}
        (folder / "tmp").mkdir(parents=True)
        write_ring(folder / "ring.csv")
        write_ring(folder / "ring.tsv", "\tfollows\t")
        self.errors = folder / "errors"
        self.launcher = self._start(*(words or ["train.epochs=1000000"]))
        self.processes: dict[str, psutil.Process] = {}

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        if self.mode in BY_TRIPLES:
            what = f"transe --dataset {self.folder / 'ring.tsv'} --mode collective {BY_TRIPLES[self.mode]}"
        else:
            what = f"deepwalk --dataset {self.folder / 'ring.csv'} --mode {self.mode} model.num_walks=1"
            what += " train.log_interval=0.01"
        options = f"{what} --trainers 2 --threads 1 --dim 4 --no-eval parallel.timeout={TIMEOUT}"
        command = [sys.executable, "-m", "graph_emb", "train", *options.split(), *words]
        with self.errors.open("wb") as stream:
            return self.start(
                [*command, "--out", str(self.folder / "run")],
                stdout=stream,
                stderr=stream,
                env={**os.environ, **self.variables, "TMPDIR": str(self.folder / "tmp")},
            )

    def wait_until_it_trains(self) -> None:
        until(lambda: self.steps() > 0 or self.launcher.poll() is not None, 300, self)
        assert self.launcher.poll() is None, self.said()
        self.processes = {"launcher": psutil.Process(self.launcher.pid)}
        for pid, (words, variables) in self._started().items():
            name = f"server {words[3]}" if "graph_emb.run.launch.serve" in words else f"trainer {variables['RANK']}"
            self.processes[name] = psutil.Process(pid)

    def _started(self) -> dict[int, tuple[list[str], dict[str, str]]]:
        """Words and variables of the launcher's processes; not of their children, which may end meanwhile."""
        if self.start is warm.Popen:
            return warm.started_by(self.launcher.pid)
        children = self.processes["launcher"].children()
        return {process.pid: (process.cmdline(), process.environ()) for process in children}

    def steps(self) -> int:
        """Bytes of the training log."""
        return sum(file.stat().st_size for file in self.folder.glob(".run.partial-*/metrics.jsonl"))

    def again(self) -> None:
        """The next run of the same name, to its end."""
        assert self._start("train.epochs=1").wait(300) == 0, self.said()

    def clean(self) -> bool:
        """``graph-emb doctor --clean``; the last threads of a killed process may still hold what it leaves at first."""
        list(left_in([self.folder, self.folder / "tmp"], remove=True))
        return not self.left()

    def said(self) -> str:
        return self.errors.read_text(errors="replace")

    def shares_rows(self) -> bool:
        return "parallel.hogwild=auto: trainers change the same rows in place" in self.said()

    def rows(self) -> list[Path]:
        """Files of the run whose bits follow from its seed."""
        names = {"collective": ["embeddings"], "buckets": ["embeddings", "relation/embeddings"]}.get(self.mode, [])
        return [self.folder / "run" / f"{name}.npy" for name in names]

    def left(self) -> list[str]:
        """What lies about that is no result of a run."""
        hidden = [path.name for folder in (self.folder, self.folder / "tmp") for path in folder.glob(".*")]
        pids = [process.pid for process in self.processes.values()]
        return hidden + [path.name for pid in pids for path in SHARED_MEMORY.glob(f"graph_emb_{pid}_*")]

    def end(self) -> None:
        """Leave no process, whatever the test found; trainers and servers end with their launcher."""
        self.launcher.kill()
        self.launcher.wait()
        for process in self.processes.values():
            if alive(process.pid):
                process.kill()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool], seconds: float, job: Job) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it never happened; {job.said()}"
        time.sleep(0.02)


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a fresh clone the first trainer compiles while it cuts the graph, and the other one waits TIMEOUT at most."""
    place = tmp_path_factory.mktemp("compiled")
    write_ring(place / "ring.csv")
    partition.build(place / "ring.csv", num_parts=2, out=place / "parts", progress=False)


def start_of(role: str) -> type[subprocess.Popen]:
    """How the processes of a job start, one of which is hit."""
    return subprocess.Popen if ALL or role == "launcher" else warm.Popen


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path, role: str) -> Iterator[Job]:
    made = Job(tmp_path, request.param, start=start_of(role))
    try:
        made.wait_until_it_trains()
        yield made
    finally:
        made.end()


@pytest.mark.parametrize(("job", "role", "sign"), CASES if ALL else QUICK, indirect=["job"])
def test_the_job_ends_and_names_the_process(job: Job, role: str, sign: str) -> None:
    victim = job.processes[role]
    assert job.shares_rows() or job.mode in ("kvstore", "buckets")
    victim.send_signal(signal.Signals[sign])
    if (role, sign) == ("launcher", "SIGSTOP"):  # Ctrl-Z: the trainers go on without it
        before = job.steps()
        until(lambda: job.steps() > before, LIMIT, job)
        victim.send_signal(signal.SIGCONT)
        victim.send_signal(signal.SIGINT)
        assert job.launcher.wait(LIMIT) == 130, job.said()
    else:
        code = job.launcher.wait(LIMIT)
        assert code != 0
    until(lambda: not any(alive(process.pid) for process in job.processes.values()), LIMIT, job)
    if role != "launcher":
        how = "was killed by SIGKILL" if sign == "SIGKILL" else "was stopped (SIGSTOP) and held up the others"
        assert f"error: {role} (process {victim.pid}) {how}" in job.said()
    if not ALL:
        until(job.clean, LIMIT, job)
    elif not (job.folder / "run").exists():
        job.again()
    assert job.left() == []


HEALING = ["--checkpoint-every", "20", "--restarts", "1", "parallel.hogwild=false"]


@pytest.mark.parametrize(
    ("mode", "role", "sign"),
    [case for case in CASES if case[0] != "triples" and case[1] != "launcher"] if ALL else QUICK_HEALED,
)
def test_a_job_heals_and_ends_as_one_that_was_never_hit(tmp_path: Path, mode: str, role: str, sign: str) -> None:
    words = [f"train.epochs={30 if mode == 'buckets' else 120}", *HEALING]
    # Parts of buckets move between trainers that share no memory; the rows are those of parts that stay.
    hit = Job(tmp_path / "hit", mode, *words, start=start_of(role), sockets=mode == "buckets")
    spared = Job(tmp_path / "spared", mode, *words, start=warm.Popen)
    try:
        hit.wait_until_it_trains()
        until(lambda: any(hit.folder.glob("run-checkpoints/*/manifest.json")), 300, hit)
        hit.processes[role].send_signal(signal.Signals[sign])
        assert hit.launcher.wait(LIMIT + 300) == 0, hit.said()
        assert spared.launcher.wait(LIMIT + 300) == 0, spared.said()
        assert f"{role} (process" in hit.said()
        assert "restart 1 of 1 from the last checkpoint" in hit.said()
        assert "restart" not in spared.said()
        lines = [(job.folder / "run" / "metrics.jsonl").read_text().splitlines() for job in (hit, spared)]
        told = "triples" if mode in BY_TRIPLES else "tokens"
        assert [json.loads(one[-1])[told] for one in lines] == [json.loads(lines[1][-1])[told]] * 2
        for saved in hit.rows():  # servers apply pushes as they come
            np.testing.assert_array_equal(np.load(saved), np.load(spared.folder / saved.relative_to(hit.folder)))
        until(hit.clean, LIMIT, hit)
    finally:
        hit.end()
        spared.end()
