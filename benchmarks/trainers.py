"""Several trainers of one thread against one, as a user types it: rates of ``graph-emb train``, in turns.

    python benchmarks/trainers.py --cases arxiv blogcatalog --modes collective kvstore
    python benchmarks/trainers.py --cases complex transe sage rgcn
    python benchmarks/trainers.py --cases planted --nodes 5000000 --edges 46000000 --repeats 1

Every run is a command of its own, with its defaults and without judging. The rate counts what training counts (tokens
of walks, triples), else epochs, by the time that the run itself tells: without reading, cutting and saving. One trainer
and several take turns; the median of the ratios of neighbouring runs counts. ``planted`` is a graph that is generated.
Run on as many idle cores as trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import graphs as generated
import numpy as np
from tabulate import tabulate

from graph_emb.graph.typed import EDGE_TYPE

CASES = {
    "arxiv": "deepwalk --dataset ogbn-arxiv model.num_walks=3",
    "blogcatalog": "deepwalk --dataset blogcatalog model.num_walks=8",
    "planted": "deepwalk --dataset {planted} model.num_walks=1",
    "complex": "complex --dataset fb15k237 train.epochs=2 model.valid_every=0",
    "transe": "transe --dataset fb15k237 train.epochs=2 model.valid_every=0",
    "sage": "sage --dataset ogbn-arxiv train.epochs=3 model.eval_every=3",
    "rgcn": "rgcn --dataset aifb",
}
MODES = {"collective": ["--mode", "collective"], "kvstore": ["--mode", "kvstore", "--servers", "1"]}
COMMON = ["--threads", "1", "--seed", "0", "--no-eval", "--quiet", "output.report=none"]


def rate_of(words: list[str], out: Path) -> float:
    """Tokens, triples or epochs a second of one run; ends the benchmark where it fails."""
    command = [sys.executable, "-m", "graph_emb", "train", *words, *COMMON, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"graph-emb {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    train = json.loads((out / "metrics.json").read_text())["train"]
    rates = [value for name, value in train.items() if name.endswith("_per_second") and value]
    return float(rates[0] if rates else 1 / train["seconds_per_epoch"])


def write_planted(file: Path, num_nodes: int, num_edges: int) -> None:
    """A degree-corrected block model as ``train`` reads it, ``num_edges`` undirected edges before duplicates go."""
    src, dst = generated.planted(num_nodes, num_edges).edges[EDGE_TYPE]
    order = np.argsort(src, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=num_nodes))])
    np.savez(file, indptr=indptr, indices=dst[order].astype(np.int32), directed=False)


def measure(case: str, modes: list[str], args: argparse.Namespace, folder: Path) -> list[list[object]]:
    """A row of the table for each mode."""
    words = [*CASES[case].format(planted=folder / "planted.npz").split(), "--root", args.root]
    rates: dict[str, list[float]] = {mode: [] for mode in ("one", *modes)}
    for repeat in range(args.repeats):
        for mode, found in rates.items():
            more = [] if mode == "one" else ["--trainers", str(args.trainers), *MODES[mode], *args.more]
            found.append(rate_of([*words, *more], folder / f"{case}-{mode}-{repeat}"))
            print(case, mode, repeat, f"{found[-1]:,.1f}", flush=True)
    medians = {mode: statistics.median(found) for mode, found in rates.items()}
    gains = {mode: float(np.median(np.divide(rates[mode], rates["one"]))) for mode in modes}
    return [[case, mode, medians["one"], medians[mode], gains[mode]] for mode in modes]


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["arxiv", "blogcatalog"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["collective"])
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the generated graph")
    parser.add_argument("--edges", type=int, default=9_200_000, help="of the generated graph")
    parser.add_argument("--more", nargs="*", default=[], help="key=value of several trainers")
    args = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        if "planted" in args.cases:
            write_planted(Path(name, "planted.npz"), args.nodes, args.edges)
        for case in args.cases:
            rows += measure(case, args.modes, args, Path(name))
    print(tabulate(rows, ["case", "mode", "one, a second", f"{args.trainers}, a second", "gain"], floatfmt=",.2f"))


if __name__ == "__main__":
    main()
