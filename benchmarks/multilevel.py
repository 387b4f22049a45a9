"""DeepWalk from the rows of parts beside a cold start, and first rates: quality and time of one run a line.

    python benchmarks/multilevel.py --dataset ogbn-arxiv --levels none true --walks 3 10 --seeds 0 1 2

Each line is a run of its own (``graph_emb.pipeline``, its evaluation untimed): the levels that it begins with, walks a
node, the first rate of the graph's own walks, seconds of the start (partition and coarse training) and of these walks,
and micro-F1 at 50 % of the labels, or accuracy on the data set's test nodes. ``--share`` and ``--rates`` try others
than the defaults. Kernels are compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import graph_emb as ge
from graph_emb.graph.csr import Graph
from graph_emb.run import multilevel


def levels_from(text: str) -> Any:
    """``none``, ``true`` or numbers of parts."""
    return {"none": False, "true": True}.get(text) if text in ("none", "true") else [int(n) for n in text.split(",")]


def score_of(evaluation: dict[str, Any]) -> float:
    """The score of a run, in percent."""
    if "split_accuracy" in evaluation:
        return 100 * evaluation["split_accuracy"]["accuracy"]["test"]["mean"]
    ratios = evaluation["node_classification"]["ratios"]
    return 100 * next(scores["micro_mean"] for scores in ratios if scores["ratio"] == 0.5)


def run_of(args: argparse.Namespace, levels: Any, num_walks: int, rate: float | None, seed: int) -> dict[str, Any]:
    """One run's settings, seconds and score."""
    options: dict[str, Any] = {"num_walks": num_walks, "threads": args.threads, "seed": seed, "lr": rate}
    judged = True if args.shuffles is None else {"ratios": [0.5], "shuffles": args.shuffles}
    section = {"model": {"name": "deepwalk", "multilevel": levels}}
    result = ge.pipeline(dataset=args.dataset, root=args.root, config=section, evaluate=judged, **options)
    train = result.metrics["train"]
    return {
        "levels": levels, "share": multilevel.SHARE, "walks": num_walks, "seed": seed, "lr": train["first_lr"],
        "start_seconds": train.get("multilevel_seconds", 0.0), "seconds": train["seconds"],
        "score": score_of(result.metrics["evaluation"]),
    }  # fmt: skip


def main() -> None:
    """Run all combinations and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--dataset", default="blogcatalog")
    parser.add_argument("--levels", nargs="+", type=levels_from, default=[False, True])
    parser.add_argument("--walks", nargs="+", type=int, default=[10])
    parser.add_argument("--rates", nargs="+", type=float, default=[None], help="default: train.lr auto")
    parser.add_argument("--share", type=float, default=multilevel.SHARE, help="work of the finest level")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--shuffles", type=int, help="of the labels, where the data set has no split")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="lines are added to this file")
    args = parser.parse_args()
    multilevel.SHARE = args.share
    ring = Graph.from_edges(range(200), [*range(1, 200), 0])
    ge.pipeline("deepwalk", ring, num_walks=1, threads=args.threads, evaluate=False, **{"model.multilevel": True})
    for levels, walks, rate, seed in itertools.product(args.levels, args.walks, args.rates, args.seeds):
        found = run_of(args, levels, walks, rate, seed)
        how = f"{args.dataset} {levels!s:14s} share {args.share:.2f} walks {walks:3d} lr {found['lr']:.4f} seed {seed}"
        print(
            f"{how}: {found['start_seconds']:5.1f} + {found['seconds']:5.1f} s  {found['score']:.2f}",
            flush=True,
        )
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"dataset": args.dataset, **found}) + "\n")


if __name__ == "__main__":
    main()
