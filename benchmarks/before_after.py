"""One benchmark on two checkouts in turn: the median of every number in its JSON, and how far apart the two are.

    git worktree add ../before REVISION
    python benchmarks/before_after.py ../before . --runs 9 --show 'rules.*.ratio.*' -- update.py --sizes --no-dgl

The checkouts take turns, so that noise of the machine meets both, and each runs its own copy of the benchmark. A
difference counts only where the interval of the ratio leaves 1 out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

RESAMPLES = 10_000


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON document by its dotted path; an item of a list goes by its position."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in items:
            yield from numbers(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def run(tree: Path, words: list[str], out: Path) -> dict[str, float]:
    """The numbers that a checkout's benchmark writes."""
    script, *arguments = words
    command = [sys.executable, str(tree / "benchmarks" / script), *arguments, "--json", str(out)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{tree}: {script} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return dict(numbers(json.loads(out.read_text(encoding="utf-8"))))


def interval(before: list[float], after: list[float]) -> tuple[float, float]:
    """The 90 % bootstrap interval of the ratio of the medians, after / before."""
    draw = np.random.default_rng(0)
    medians = [
        np.median(draw.choice(np.asarray(values), (RESAMPLES, len(values))), axis=1) for values in (after, before)
    ]
    low, high = np.quantile(medians[0] / medians[1], [0.05, 0.95])
    return float(low), float(high)


def main() -> None:
    """Run both checkouts in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--runs", type=int, default=9, help="of each checkout; default: %(default)s")
    parser.add_argument(
        "--show", nargs="+", default=["*"], metavar="PATTERN", help="paths of numbers, such as '*.ms.*'"
    )
    parser.add_argument("command", nargs="+", help="after --: the benchmark's file name and its arguments")
    args = parser.parse_args()
    trees = {"before": args.before.resolve(), "after": args.after.resolve()}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "after": []})
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.runs + 1):  # the first turn compiles and fills caches; it is not counted
            for side, tree in trees.items():
                for path, value in run(tree, args.command, Path(folder, "numbers.json")).items():
                    if turn and any(fnmatch(path, pattern) for pattern in args.show):
                        found[path][side].append(value)
    rows = []
    for path, sides in found.items():
        before, after = sides["before"], sides["after"]
        if before and after and min(before + after) > 0:
            low, high = interval(before, after)
            middle = np.median(before), np.median(after)
            spread = [f"{min(values):.4g} to {max(values):.4g}" for values in (before, after)]
            rows.append(
                [path, middle[0], spread[0], middle[1], spread[1], middle[1] / middle[0], f"{low:.2f} to {high:.2f}"]
            )
    headers = ["number", "before", "range", "after", "range", "after / before", "90 % interval"]
    print(tabulate(rows, headers=headers, floatfmt=("", ".4g", "", ".4g", "", ".3f", "")))


if __name__ == "__main__":
    main()
