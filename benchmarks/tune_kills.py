"""SIGKILL of a search at random moments, resumed: are its trials those of a search that was never stopped?

    python benchmarks/tune_kills.py --root ../shared/data --trials 30 --kills 10

``graph-emb tune deepwalk --dataset cora`` runs as a whole, then again in pieces: all processes of a piece are killed up
to 2 s after a random one of its trials, and the next one gives the same command with ``--resume``. Compared are
settings, states and values of all trials; the best three stand above trial 0, which has the defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tabulate import tabulate


def command(args: argparse.Namespace, out: Path, *more: str) -> list[str]:
    """A search that gives each trial one thread, so that a training repeats its value."""
    return [
        sys.executable, "-m", "graph_emb", "tune", "deepwalk", "--dataset", "cora", "--root", args.root, "--quiet",
        "--threads", "1", "--jobs", str(args.jobs), "--trials", str(args.trials), "--out", str(out), *args.set, *more,
    ]  # fmt: skip


def trials(out: Path) -> list[dict[str, str]]:
    """The lines of trials.tsv without the times."""
    with (out / "trials.tsv").open(newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return [{name: own for name, own in row.items() if name != "seconds"} for row in rows]


def finished(out: Path) -> int:
    """How many trials the journal has."""
    journal = out / "journal.log"
    return journal.read_text().count('"op_code":4,') if journal.exists() else 0


def killed(words: list[str], out: Path, trial: int, seconds: float | None) -> bool:
    """Start a search and kill all its processes so long after it finished a trial; whether it was still running."""
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while job.poll() is None and seconds is not None and finished(out) < trial:
        time.sleep(0.01)
    try:
        if job.wait(seconds):
            raise SystemExit(f"the search failed with {job.returncode}")
        return False
    except subprocess.TimeoutExpired:
        processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.wait()
    psutil.wait_procs(processes[1:])
    return True


def main() -> int:
    """Run both searches and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("set", nargs="*", help="key=value of the trainings")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, pieces = Path(folder, "whole"), Path(folder, "pieces")
        begin = time.perf_counter()
        subprocess.run(command(args, whole), check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        words, kills = command(args, pieces, "--resume"), 0
        for trial in sorted(draw.sample(range(args.trials - 1), args.kills)):
            kills += killed(words, pieces, trial, draw.uniform(0.0, 2.0))
        killed(words, pieces, args.trials, None)
        one, other = trials(whole), trials(pieces)
        print(f"whole: {len(one)} trials in {seconds:.0f} s; {kills} kills; the same trials: {one == other}")
        ranked = sorted(one, key=lambda row: -float(row["valid"] or 0))
        print(tabulate([*ranked[:3], one[0]], headers="keys"))
    return 0 if one == other and kills == args.kills else 1


if __name__ == "__main__":
    sys.exit(main())
