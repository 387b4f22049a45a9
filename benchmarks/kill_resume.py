"""SIGKILL of a whole job at a random moment, resumed: are the final bytes those of a run that was never stopped?

    python benchmarks/kill_resume.py --kills 30 --trainers 1
    python benchmarks/kill_resume.py --kills 30 --trainers 2

Each trial starts ``graph-emb train --checkpoint-every 1``, kills all its processes at a random moment after a random
one of its checkpoints (or before the first), and gives the same command with ``--resume`` until it ends; with
``--again`` it is killed so many times on the way. Compared are the bytes of ``embeddings.npy``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tabulate import tabulate


def command(args: argparse.Namespace, out: Path, *more: str) -> list[str]:
    """The run; ``digits`` needs no file."""
    parallel = [] if args.trainers == 1 else ["--trainers", str(args.trainers)]
    return [
        sys.executable, "-m", "graph_emb", "train", "deepwalk", "--dataset", "digits", "--threads", "1", "--no-eval",
        "--quiet", "--dim", "32", "--rule", args.rule, f"model.num_walks={args.walks}", *parallel, "--out", str(out),
        *more,
    ]  # fmt: skip


def killed(words: list[str], folder: Path, step: int, seconds: float) -> bool:
    """Start a job; kill all its processes so long after it saved a step; whether it was still running."""
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while job.poll() is None and saved(folder) < step:
        time.sleep(0.005)
    try:
        job.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        pass
    processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    job.wait()
    psutil.wait_procs(processes[1:])
    return True


def saved(folder: Path) -> int:
    """The newest complete checkpoint's step; 0 where there is none."""
    return max((int(path.parent.name) for path in folder.glob("[0-9]*/manifest.json")), default=0)


def state_of(folder: Path) -> str:
    """What the kill left: how many steps were saved, and whether a save was under way."""
    if not folder.is_dir():
        return "before the first save"
    names = os.listdir(folder)
    steps = [int(name) for name in names if name.isdigit()]
    torn = any(not name.isdigit() and not name.endswith(".jsonl") for name in names)
    return ("during a save" if torn else "between saves") if steps or torn else "before the first save"


def trial(args: argparse.Namespace, folder: Path, wanted: bytes, steps: int, chance: random.Random) -> str:
    """One run that is killed and resumed; where it was killed last."""
    out, place = folder / "run", "after the end"
    saves = folder / "run-checkpoints"
    words = command(args, out, "--checkpoint-every", "1")
    for turn in range(args.again):
        step = chance.randint(saved(saves), steps - 1)
        wait = chance.uniform(0.0, args.wait if step > saved(saves) else 10 * args.wait)
        if not killed([*words, "--resume"] if turn else words, saves, step, wait):
            break
        place = state_of(saves)
    if not out.exists():
        subprocess.run([*words, "--resume"], check=True, stdout=subprocess.DEVNULL)
    found = (out / "embeddings.npy").read_bytes()
    if found != wanted:
        raise SystemExit(f"killed {place}: the bytes differ; see {folder}")
    return place


def main() -> None:
    """Run the trials and count where the kills fell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--again", type=int, default=1, help="kills of one run; it is resumed after each")
    parser.add_argument("--wait", type=float, default=0.3, help="seconds at most between a checkpoint and the kill")
    parser.add_argument("--trainers", type=int, default=1, help="1: local mode; more: collective mode")
    parser.add_argument("--rule", default="sgd")
    parser.add_argument("--walks", type=int, default=60, help="from each node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chance, counts = random.Random(args.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        subprocess.run(command(args, whole), check=True, stdout=subprocess.DEVNULL)
        wanted = (whole / "embeddings.npy").read_bytes()
        shutil.rmtree(whole)
        subprocess.run(command(args, whole, "--checkpoint-every", "1"), check=True, stdout=subprocess.DEVNULL)
        steps = saved(Path(place) / "whole-checkpoints")
        for number in range(args.kills):
            folder = Path(place) / str(number)
            folder.mkdir()
            counts[trial(args, folder, wanted, steps, chance)] += 1
            shutil.rmtree(folder)
    rows = [[name, count] for name, count in counts.most_common()]
    print(f"{args.kills} runs, {args.trainers} trainer(s), {args.rule}, {steps} checkpoints each: all bytes equal")
    print(tabulate(rows, headers=["last kill", "runs"]))
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "kills": counts}, default=str, indent=2))


if __name__ == "__main__":
    main()
