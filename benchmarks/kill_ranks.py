"""SIGKILL or SIGSTOP to a random trainer or server at a random step, many times: every job must end and say who it was.

    python benchmarks/kill_ranks.py --kills 50 --json kills.json
    python benchmarks/kill_ranks.py --mode kvstore --servers 2 --kills 50
    python benchmarks/kill_ranks.py --signal SIGSTOP --timeout 5 --kills 20

A clean end: the launcher raises within 30 s (and the timeout, where a process is stopped), names the process, leaves no
process and no file in shared memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from graph_emb.core.left_behind import left_in_shared_memory
from graph_emb.run.launch.job import run_host
from graph_emb.run.launch.plan import LOOPBACK, Host
from graph_emb.run.launch.watch import ProcessFailure

LIMIT = 30.0
SCRIPT = """
import pathlib, sys
import torch
import graph_emb as ge
options = {"answer_timeout": float(sys.argv[3])} if sys.argv[2] == "kvstore" else {}
transport = ge.init(mode=sys.argv[2], timeout=float(sys.argv[3]), **options)
place = pathlib.Path(sys.argv[1])
(place / f"pid-{transport.rank}").write_text(str(__import__("os").getpid()))
emb = ge.DistEmbedding(10_000, 32, "t", ge.initializers.Uniform(seed=1))
opt = ge.SparseAdam([emb], lr=0.1)
steps = (place / f"steps-{transport.rank}").open("w")
for step in range(10**9):
    ids = torch.randint(0, 10_000, (500,))
    emb(ids).square().sum().backward()
    opt.step()
    steps.write("x")
    steps.flush()
"""


def one(args: argparse.Namespace, victim: str, after: int, folder: Path) -> dict[str, object]:
    """Start a job, kill a process after the first trainer's steps, and see how it ends."""
    killed_at: list[float] = []

    def kill() -> None:
        steps = folder / "steps-0"
        while not (steps.exists() and steps.stat().st_size >= after and found(victim, folder)):
            time.sleep(0.001)
        pid = pid_of(victim, folder)
        killed_at.append(time.monotonic())
        os.kill(pid, signal.Signals[args.signal])

    threading.Thread(target=kill, daemon=True).start()
    message = ""
    try:
        hosts = [Host(LOOPBACK, args.trainers, args.servers)]
        command = [sys.executable, "-c", SCRIPT, str(folder), args.mode, str(args.timeout)]
        run_host(command, hosts, 0, logs=folder / "logs", port=0, threads=1)
    except ProcessFailure as failure:
        message = str(failure)
    seconds = time.monotonic() - killed_at[0] if killed_at else float("inf")  # it ended before it was killed
    left = [str(process.pid) for process in psutil.Process().children(recursive=True)]
    shared = [str(path) for path in left_in_shared_memory(remove=False)]
    named = message.startswith(f"{victim} (process ") and args.signal in message.partition(";")[0].partition(" held")[0]
    limit = LIMIT + (args.timeout if args.signal == "SIGSTOP" else 0.0)
    clean = named and seconds <= limit and not left and not shared
    return {
        "victim": victim,
        "step": after,
        "seconds": seconds,
        "clean": clean,
        "message": message,
        "left": left + shared,
    }


def found(name: str, folder: Path) -> bool:
    """Whether the process has told its number."""
    return name.startswith("server") or (folder / f"pid-{name.partition(' ')[2]}").exists()


def pid_of(name: str, folder: Path) -> int:
    """The process of ``trainer 1`` or ``server 0``."""
    role, _, number = name.partition(" ")
    if role == "trainer":
        return int((folder / f"pid-{number}").read_text())
    for process in psutil.Process().children():
        words = process.cmdline()
        if "graph_emb.run.launch.serve" in words and words[words.index("graph_emb.run.launch.serve") + 1] == number:
            return process.pid
    raise RuntimeError(f"no {name}")


def main() -> None:
    """Run and print; exit code 1 when an end was not clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signal", choices=["SIGKILL", "SIGSTOP"], default="SIGKILL")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds until a silent process is an error")
    parser.add_argument("--mode", choices=["collective", "kvstore"], default="collective")
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=0, help="of kvstore mode")
    parser.add_argument("--most-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    choice = random.Random(args.seed)
    names = [f"trainer {n}" for n in range(args.trainers)] + [f"server {n}" for n in range(args.servers)]
    found = []
    for number in range(args.kills):
        with tempfile.TemporaryDirectory() as folder:
            found.append(one(args, choice.choice(names), choice.randrange(1, args.most_steps), Path(folder)))
        last = found[-1]
        if not last["clean"]:
            print(f"kill {number}: {last}")
    clean = sum(bool(one_["clean"]) for one_ in found)
    times = [float(str(one_["seconds"])) for one_ in found]
    print(
        f"{clean} of {len(found)} ends were clean; {statistics.median(times):.2f} s median, {max(times):.2f} s at most"
    )
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "kills": found}, default=str, indent=2))
    sys.exit(clean < len(found))


if __name__ == "__main__":
    main()
