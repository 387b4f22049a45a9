"""Random kills, stops and resumes for half an hour, and what long-lived processes gain meanwhile.

    python benchmarks/soak.py --minutes 30 --json soak.json

Two things run beside each other. **Steady jobs**, one in each distributed mode, make, train, save, load and drop tables
in rounds until the end; now and then one of their processes is stopped for a moment. Their open descriptors, threads,
private memory and shared memory are sampled; the last quarter must not have more than the second one.
**Runs** of ``graph-emb train`` with checkpoints, in three modes, collective mode with an exchange and with rows that
trainers share in place, meet random events: SIGKILL of one process or of all, SIGINT, SIGTERM, stops that end and stops
that do not. After each the run must go on or end in time and name the process, leave nothing that ``graph-emb doctor
--clean`` does not remove, and go on by ``--resume``. The rows of a run that has come to its end are those of an
undisturbed one, byte for byte (kvstore mode, whose pushes race, and shared rows: as many, and finite).

A driver that was itself suspended for longer than two seconds does not judge what happened meanwhile.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tabulate import tabulate

from graph_emb.core.left_behind import SHARED_MEMORY, left_in, shared_names_of

GRACE = 150.0
"""Seconds above parallel.timeout in which a broken run must end: roll call, grace after SIGTERM, a busy machine."""
MODES = {
    "local": [],
    "collective": ["--trainers", "2", "--mode", "collective", "parallel.hogwild=false"],
    "sharing": ["--trainers", "2", "--mode", "collective", "parallel.hogwild=true"],
    "kvstore": ["--trainers", "2", "--mode", "kvstore"],
}
UNORDERED = ("sharing", "kvstore")
"""Modes in which the order of updates, and so the bits of rows, differs from run to run."""
SLACK_BYTES = 8 << 20
"""Private memory that a process may gain between the second and the last quarter: pools and caches that fill late."""
ROUNDS = """
import gc, pathlib, sys, time
import torch
import graph_emb as ge
place, mode, pause = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
transport = ge.init(mode=mode, timeout=600.0, **({"answer_timeout": 600.0} if mode == "kvstore" else {}))
(place / f"ready-{transport.rank}").touch()
last, number = None, 0
while last is None or number <= last:
    if transport.rank == 0 and (place / "stop").exists() and not (place / "last").exists():
        (place / "last.new").write_text(str(number + 1))
        (place / "last.new").rename(place / "last")
    emb = ge.DistEmbedding(2_000, 16, f"t{number}", ge.initializers.Uniform(seed=1))
    opt = ge.SparseAdam([emb], lr=0.1)
    for step in range(20):
        emb(torch.randint(0, 2_000, (200,))).square().sum().backward()
        opt.step()
        opt.zero_grad()
    ge.save_checkpoint(place / "checkpoint", tables=[emb], optimizers=[opt], step=number)
    ge.load_checkpoint(place / "checkpoint", tables=[emb], optimizers=[opt])
    opt.close()
    del emb, opt
    gc.collect()
    transport.barrier()
    (place / f"rounds-{transport.rank}").write_text(str(number))
    last = int((place / "last").read_text()) if (place / "last").exists() else None
    number += 1
    time.sleep(pause)
ge.shutdown()
"""


class Clock:
    """Sleeps, and notices when this process itself was suspended."""

    def __init__(self) -> None:
        self.suspended = 0.0
        """Seconds."""

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            time.sleep(min(0.02, until - now))
            gap = time.monotonic() - now
            if gap > 2.0:
                self.suspended += gap

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition for so many seconds without suspensions; whether it came true."""
        deadline, before = time.monotonic() + seconds, self.suspended
        while not condition():
            if time.monotonic() > deadline + self.suspended - before:
                return False
            self.sleep(0.02)
        return True


def children(launcher: int) -> dict[str, psutil.Process]:
    """The processes of a job by role."""
    found = {"launcher": psutil.Process(launcher)}
    for process in found["launcher"].children():
        with contextlib.suppress(psutil.Error, KeyError):
            words = process.cmdline()
            if "graph_emb.run.launch.serve" in words:
                found[f"server {words[words.index('graph_emb.run.launch.serve') + 1]}"] = process
            else:
                found[f"trainer {process.environ()['RANK']}"] = process
    return found


def alive(process: psutil.Process) -> bool:
    """Whether it runs or is stopped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Steady:
    """A job that goes through rounds until it is told to end."""

    def __init__(self, mode: str, folder: Path, pause: float) -> None:
        self.mode, self.folder = mode, folder
        folder.mkdir()
        (folder / "rounds.py").write_text(ROUNDS)
        servers = ["--servers", "1"] if mode == "kvstore" else []
        words = ["launch", "--trainers", "2", *servers, "--logs", str(folder / "logs"), "--threads", "1"]
        self.said = folder / "said"
        with self.said.open("wb") as stream:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "graph_emb", *words, str(folder / "rounds.py"), str(folder), mode, str(pause)],
                stdout=stream,
                stderr=stream,
            )
        self.samples: dict[str, list[tuple[float, ...]]] = collections.defaultdict(list)
        self.stops = 0

    def ready(self) -> bool:
        return self.launcher.poll() is not None or self.rounds() >= 2

    def rounds(self) -> int:
        try:
            return int((self.folder / "rounds-0").read_text() or 0)
        except OSError:
            return 0

    def sample(self) -> None:
        """Descriptors, threads, private memory and bytes in shared memory of each process."""
        for role, process in children(self.launcher.pid).items():
            with contextlib.suppress(psutil.Error, OSError):
                shared = sum(path.stat().st_blocks * 512 for path in shared_names_of(process.pid))
                memory = process.memory_full_info().uss
                self.samples[role].append((process.num_fds(), process.num_threads(), memory, shared))

    def stop_a_moment(self, chance: random.Random, clock: Clock) -> None:
        process = chance.choice(list(children(self.launcher.pid).values()))
        process.suspend()
        clock.sleep(chance.uniform(0.1, 2.0))
        process.resume()
        self.stops += 1

    def end(self, clock: Clock) -> int | None:
        """Its exit code; None: it did not end, after four times what a broken run may take."""
        (self.folder / "stop").touch()
        clock.until(lambda: self.launcher.poll() is not None, 4 * GRACE)
        return self.launcher.poll()

    def growth(self) -> list[list[Any]]:
        """A row for each process: medians of the second and of the last quarter of its samples."""
        rows = []
        for role, samples in self.samples.items():
            quarter = max(1, len(samples) // 4)
            early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
            pairs = [
                (statistics.median(one[k] for one in early), statistics.median(one[k] for one in late))
                for k in range(4)
            ]
            fine = all(b <= a for a, b in (pairs[0], pairs[1])) and pairs[2][1] <= pairs[2][0] + SLACK_BYTES
            fine = fine and pairs[3][1] <= pairs[3][0]
            told = [f"{a:.0f} to {b:.0f}" for a, b in pairs[:2]]
            told += [f"{a / 2**20:.1f} to {b / 2**20:.1f}" for a, b in pairs[2:]]
            rows.append([self.mode, role, *told, "" if fine else "GROWS"])
        return rows


class Run:
    """One ``graph-emb train`` that is disturbed and resumed until it is whole."""

    def __init__(self, mode: str, folder: Path, timeout: float) -> None:
        self.mode, self.folder, self.limit = mode, folder, timeout + GRACE
        self._options = [*MODES[mode], *([] if mode == "local" else [f"parallel.timeout={timeout}"])]
        folder.mkdir()
        (folder / "tmp").mkdir()
        self.out, self.saves, self.said = folder / "run", folder / "run-checkpoints", folder / "said"
        self.processes: dict[str, psutil.Process] = {}

    def start(self, *more: str) -> None:
        words = f"{sys.executable} -m graph_emb train deepwalk --dataset digits --threads 1 --no-eval --quiet --dim 16"
        words += " --rule sgd model.num_walks=10 train.epochs=12 --checkpoint-every 1"
        with self.said.open("wb") as stream:
            self.launcher = subprocess.Popen(
                [*words.split(), *self._options, *more, "--out", str(self.out)],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
            )

    def saved(self) -> int:
        """The newest complete checkpoint's step."""
        return max((int(path.parent.name) for path in self.saves.glob("[0-9]*/manifest.json")), default=0)

    def at(self, step: int | None) -> Callable[[], bool]:
        """Whether it has saved a step, or ended. Before its first step a job has other timeouts, of its start."""
        return lambda: self.launcher.poll() is not None or (step is not None and self.saved() >= step)

    def look(self) -> None:
        """Find the processes, which are all there once the job has saved."""
        with contextlib.suppress(psutil.Error):
            self.processes = children(self.launcher.pid)

    def ended(self) -> bool:
        return self.launcher.poll() is not None and not any(alive(one) for one in self.processes.values())

    def cleaned(self) -> bool:
        """After ``doctor --clean``: nothing hidden and no name in shared memory is left."""
        list(left_in([self.folder, self.folder / "tmp"], remove=True))
        hidden = [path for place in (self.folder, self.folder / "tmp") for path in place.glob(".*")]
        shared = [path for one in self.processes.values() for path in shared_names_of(one.pid)]
        return not hidden and not shared

    def kill(self) -> None:
        for one in self.processes.values():
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.launcher.kill()
        self.launcher.wait()


EVENTS = ("SIGKILL of one", "SIGKILL of all", "SIGINT", "SIGTERM", "stop that ends", "stop for good")


def disturb(run: Run, event: str, chance: random.Random, clock: Clock) -> str:
    """Do it to a run that trains; the complaint, or nothing."""
    workers = {role: one for role, one in run.processes.items() if role != "launcher"}
    role = chance.choice(sorted(run.processes)) if event in ("SIGKILL of one", "stop that ends") else "launcher"
    if event == "stop for good":
        if not workers:
            return ""
        role = chance.choice(sorted(workers))
    victim = run.processes[role]
    if event == "SIGKILL of all":
        for one in run.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    elif event.startswith("stop"):
        victim.suspend()
        if event == "stop that ends":
            clock.sleep(chance.uniform(0.1, 3.0))
            victim.resume()
            before = run.saved()
            going = clock.until(lambda: run.saved() > before or run.launcher.poll() is not None, run.limit)
            broken = run.launcher.poll() not in (None, 0)
            return f"{role} was stopped for a moment and the run broke" if broken or not going else ""
    elif event == "SIGKILL of one":
        victim.kill()
    else:
        victim.send_signal(signal.Signals[event])
    if not clock.until(run.ended, run.limit):
        return f"{event}, {role}: it did not end"
    finished = run.launcher.returncode == 0 and run.out.exists()
    if role != "launcher" and not finished:
        sign = "was killed by SIGKILL" if event == "SIGKILL of one" else "was stopped (SIGSTOP)"
        if not re.search(
            rf"error: {role} \(process {victim.pid}\) {re.escape(sign)}", run.said.read_text(errors="replace")
        ):
            return f"{event}, {role} (process {victim.pid}): not named"
    return "" if clock.until(run.cleaned, 60.0) else f"{event}, {role}: something is left"


def whole(run: Run, wanted: bytes | None) -> str:
    """Compare a run that has come to its end."""
    found = (run.out / "embeddings.npy").read_bytes()
    if wanted is None or found == wanted:
        return ""
    if run.mode in UNORDERED:
        rows = np.load(run.out / "embeddings.npy")
        return "" if len(found) == len(wanted) and np.isfinite(rows).all() else "its rows are not finite or not as many"
    return "its rows are not those of an undisturbed run"


def disturbed_runs(
    folder: Path, timeout: float, chance: random.Random, clock: Clock, turn: Callable[[], bool]
) -> Iterator[list[str]]:
    """Runs in turn in each mode; [mode, event, complaint] for each event and each end, until ``turn`` says no."""
    wanted: dict[str, bytes] = {}
    number = 0
    while turn():
        for mode in MODES:
            run = Run(mode, folder / str(number), timeout)
            number += 1
            run.start()
            events = 0 if mode not in wanted else chance.randint(1, 4)
            while turn() or mode not in wanted:
                before = clock.suspended
                step = run.saved() + chance.randint(1, 6)
                clock.until(run.at(step if events else None), 4 * run.limit)
                event, complaint = "end", ""
                if run.launcher.poll() is None and events and run.saved() >= step:
                    events -= 1
                    run.look()
                    event = chance.choice(EVENTS)
                    complaint = disturb(run, event, chance, clock)
                elif run.launcher.poll() is None:
                    complaint = "it did not come so far"
                elif run.launcher.returncode or not run.out.exists():
                    complaint = f"it broke by itself ({run.launcher.returncode})"
                if complaint:
                    complaint += ": " + " | ".join(run.said.read_text(errors="replace").split("\n")[-6:])
                if event == "end" and not complaint:
                    complaint = whole(run, wanted.get(mode))
                    wanted.setdefault(mode, (run.out / "embeddings.npy").read_bytes())
                if clock.suspended > before and complaint:
                    event, complaint = "not judged: the driver was suspended", ""
                yield [mode, event, complaint]
                if event == "end":
                    break
                if event != "stop that ends" or run.launcher.poll() is not None:
                    if run.launcher.poll() is None:
                        run.kill()
                    if run.out.exists() and event in ("SIGINT", "SIGTERM"):  # it kept what it had and marked the run
                        shutil.rmtree(run.out)
                    if not run.out.exists():
                        run.start("--resume")
            run.kill()
            shutil.rmtree(run.folder)


def main() -> None:
    """Run, print and compare; exit code 1 where something broke or grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="parallel.timeout of the runs; more on a busy machine"
    )
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two rounds of the steady jobs")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chance, clock = random.Random(args.seed), Clock()
    begun, sampled, complaints = time.monotonic(), 0.0, []
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    shared_before = {path.name for path in SHARED_MEMORY.glob("graph_emb_*")}
    with tempfile.TemporaryDirectory() as place:
        steady = [Steady(mode, Path(place, f"steady-{mode}"), args.pause) for mode in ("collective", "kvstore")]

        def turn() -> bool:
            return time.monotonic() - begun - clock.suspended < 60 * args.minutes

        plain_sleep = clock.sleep

        def sleep(seconds: float) -> None:
            nonlocal sampled
            plain_sleep(seconds)
            if time.monotonic() - sampled > args.every:
                sampled = time.monotonic()
                for one in steady:
                    if one.launcher.poll() is None and one.rounds() > 5:
                        one.sample()

        clock.sleep = sleep  # type: ignore[method-assign]
        for mode, event, complaint in disturbed_runs(Path(place), args.timeout, chance, clock, turn):
            counts[mode, event] += 1
            print(f"{time.monotonic() - begun:6.0f} s  {mode}: {event} {complaint}", flush=True)
            if complaint:
                complaints.append(f"{mode}: {event}: {complaint}")
            running = [one for one in steady if one.launcher.poll() is None and one.rounds() > 1]
            if running and chance.random() < 0.5:
                chance.choice(running).stop_a_moment(chance, clock)
        for one in steady:
            code = one.end(clock)
            if code != 0:
                complaints.append(f"steady {one.mode}: exit code {code}: {one.said.read_text(errors='replace')[-600:]}")
                one.launcher.terminate()
        rows = [row for one in steady for row in one.growth()]
        rounds = {one.mode: (one.rounds(), one.stops) for one in steady}
    left = {path.name for path in SHARED_MEMORY.glob("graph_emb_*")} - shared_before
    complaints += [f"{row[0]} {row[1]} grows: {row[2:6]}" for row in rows if row[-1]]
    table = [[mode, event, count] for (mode, event), count in sorted(counts.items())]
    print(tabulate(table, headers=["mode", "event", "times"]))
    print(tabulate(rows, headers=["mode", "process", "descriptors", "threads", "private MiB", "shared MiB", ""]))
    for mode, (count, stops) in rounds.items():
        print(f"steady {mode}: {count} rounds, {stops} stops of a moment")
    minutes = (time.monotonic() - begun - clock.suspended) / 60
    print(
        f"{minutes:.1f} minutes ({clock.suspended / 60:.1f} more suspended), {sum(counts.values())} events, "
        f"{len(complaints)} complaints; names of other jobs and of this one in shared memory now: {len(left)}"
    )
    for complaint in complaints:
        print(complaint)
    if args.json:
        told = {"args": vars(args), "events": table, "growth": rows, "rounds": rounds, "complaints": complaints}
        args.json.write_text(json.dumps(told, default=str, indent=2))
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
