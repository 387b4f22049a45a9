"""SIGKILL to a random trainer at a random step, many times: every job must end by itself, soon, and say who died.

    python benchmarks/kill_ranks.py --kills 50 --json kills.json

A clean end: the launcher raises within 30 s, names the killed trainer, leaves no process and no file in shared memory.
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

from graph_emb.train.launch.job import run_local
from graph_emb.train.launch.watch import ProcessFailure

LIMIT = 30.0
SCRIPT = """
import pathlib, sys
import torch
import graph_emb as ge
transport = ge.init(mode="collective", timeout=20)
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


def one(trainers: int, victim: int, after: int, folder: Path) -> dict[str, object]:
    """Start a job, kill a trainer after some steps, and see how it ends."""
    killed_at: list[float] = []

    def kill() -> None:
        steps, pid = folder / f"steps-{victim}", folder / f"pid-{victim}"
        while not (steps.exists() and steps.stat().st_size >= after):
            time.sleep(0.001)
        killed_at.append(time.monotonic())
        os.kill(int(pid.read_text()), signal.SIGKILL)

    before = set(os.listdir("/dev/shm"))
    threading.Thread(target=kill, daemon=True).start()
    message = ""
    try:
        run_local([sys.executable, "-c", SCRIPT, str(folder)], trainers, folder / "logs", threads=1)
    except ProcessFailure as failure:
        message = str(failure)
    seconds = time.monotonic() - killed_at[0]
    left = [process.pid for process in psutil.Process().children(recursive=True)]
    shared = sorted(set(os.listdir("/dev/shm")) - before)
    named = f"trainer {victim} " in message and "SIGKILL" in message
    clean = named and seconds <= LIMIT and not left and not shared
    return {"victim": victim, "step": after, "seconds": seconds, "clean": clean, "message": message, "left": left}


def main() -> None:
    """Run and print; exit code 1 when an end was not clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--most-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    choice = random.Random(args.seed)
    found = []
    for number in range(args.kills):
        with tempfile.TemporaryDirectory() as folder:
            found.append(
                one(args.trainers, choice.randrange(args.trainers), choice.randrange(args.most_steps), Path(folder))
            )
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
