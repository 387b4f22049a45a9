"""Estimates beside the runs that they foretell: peak memory and seconds of training of five models.

python benchmarks/estimate.py --root ../shared/data --json runs/estimate.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

RUNS: dict[str, list[str]] = {
    "deepwalk digits": ["deepwalk", "--dataset", "digits", "num_walks=20", "epochs=15"],
    "node2vec digits": ["node2vec", "--dataset", "digits", "num_walks=120", "p=0.5", "q=2"],
    "line digits": ["line", "--dataset", "digits", "draws_per_edge=400"],
    "rotate umls": ["rotate", "--dataset", "umls", "model.dim=64", "epochs=100", "valid_every=0", "patience=0"],
    "sage cora": ["sage", "--dataset", "cora", "epochs=60"],
}


def command(words: list[str]) -> None:
    """Run graph-emb with these words, quietly."""
    subprocess.run([sys.executable, "-m", "graph_emb", "-q", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print, for each run, the estimate, the run and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="folder of the known data sets")
    parser.add_argument("--seconds", default="8", help="of each probe; default: %(default)s")
    parser.add_argument("--only", choices=RUNS, action="append", help="one of the runs; may be given again")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in {name: RUNS[name] for name in args.only or RUNS}.items():
            root = [] if args.root is None else ["--root", args.root]
            told, run = Path(folder, "estimate.json"), Path(folder, "run")
            command(["estimate", *words, *root, "--seconds", args.seconds, "--json", str(told)])
            command(["train", *words, *root, "--no-eval", "--out", str(run), "--overwrite"])
            guess, metrics = json.loads(told.read_text()), json.loads((run / "metrics.json").read_text())
            found[name] = {
                "memory_mib": [guess["memory_mib"], metrics["train"]["peak_memory_mib"]],
                "seconds": [guess["train_seconds"], metrics["seconds"]["train"]],
                "measured": guess["measured"],
            }
    rows = [
        (name, *own["memory_mib"], own["memory_mib"][0] / own["memory_mib"][1], *own["seconds"],
         own["seconds"][0] / own["seconds"][1], f"{own['measured']:.0%}")
        for name, own in found.items()
    ]  # fmt: skip
    heads = ["run", "MiB told", "MiB taken", "ratio", "s told", "s taken", "ratio", "measured"]
    print(tabulate(rows, heads, floatfmt=("", ".0f", ".0f", ".2f", ".1f", ".1f", ".2f")))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
