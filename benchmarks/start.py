"""How long the command line takes to answer: ``--help``, and a training of 40 nodes with its kernels compiled.

python benchmarks/start.py --runs 5 --json runs/start.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

NODES, EDGES_EACH = 40, 4
LIMITS = {"--help": 0.3, "train, 40 nodes": 3.0}
"""Seconds."""
_IMPORTED = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def commands(folder: Path) -> dict[str, list[str]]:
    """The words of each measured command; the graph lies in the folder."""
    targets = np.random.default_rng(0).integers(0, NODES, (NODES, EDGES_EACH))
    lines = [f"{source},{target}" for source, row in enumerate(targets) for target in row if source != target]
    graph = folder / "graph.csv"
    graph.write_text("\n".join(["source,target", *lines]) + "\n", encoding="utf-8")
    trained = ["-q", "train", "deepwalk", "--dataset", str(graph), "--out", str(folder / "run"), "--overwrite"]
    return {"--help": ["--help"], "train, 40 nodes": trained}


def environment() -> dict[str, str]:
    """This process's, in which modules keep their bytecode, as they do by default."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def seconds(words: list[str]) -> float:
    """Wall time of a process, from its start to its end."""
    begin = time.perf_counter()
    line = [sys.executable, "-m", "graph_emb", *words]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=environment())
    return time.perf_counter() - begin


def imports(words: list[str], most: int) -> list[tuple[str, float]]:
    """The modules whose import, with all that they import, takes longest: name and seconds."""
    line = [sys.executable, "-X", "importtime", "-m", "graph_emb", *words]
    told = subprocess.run(line, check=True, capture_output=True, text=True, env=environment()).stderr
    found = [(match[4], int(match[2]) / 1e6) for match in _IMPORTED.finditer(told)]
    return sorted(found, key=lambda pair: -pair[1])[:most]


def main() -> None:
    """Print lowest, median and highest of each command, and the longest imports of the training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each command; default: %(default)s")
    parser.add_argument("--imports", type=int, default=12, help="modules to name; default: %(default)s")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = commands(Path(folder))
        for words in measured.values():
            seconds(words)  # compiles kernels and bytecode
        times = {name: [seconds(words) for _ in range(args.runs)] for name, words in measured.items()}
        longest = imports(measured["train, 40 nodes"], args.imports)
    rows = [(name, min(own), float(np.median(own)), max(own), LIMITS[name]) for name, own in times.items()]
    print(tabulate(rows, ["command", "lowest s", "median s", "highest s", "aim s"], floatfmt=".2f"))
    print()
    print(tabulate(longest, ["module, with what it imports", "s"], floatfmt=".2f"))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"seconds": times, "imports": longest}, indent=2))


if __name__ == "__main__":
    main()
