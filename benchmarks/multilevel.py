"""DeepWalk from the rows of parts beside a cold start, and first rates: quality and time of one run a line.

    python benchmarks/multilevel.py --dataset ogbn-arxiv --levels none true --walks 3 10 --seeds 0 1 2
    python benchmarks/multilevel.py --dataset web_notredame --hold-out 0.1 --levels none true --gosh 100
    python benchmarks/multilevel.py --model complex --dataset codex_s --levels none true --epochs 2 5
    python benchmarks/multilevel.py --generated hyperbolic --nodes 5000000 --hold-out 0.01 --walks 1 10

Each line is a run of its own, its evaluation untimed: the levels that it begins with, walks a node, the first rate of
the graph's own walks, seconds of the start (partition and coarse training) and of these walks, seconds of the
processor of both (of all threads: what counts on a loaded machine), and micro-F1 at 50 % of the labels, accuracy on the
data set's test nodes, ROC-AUC of held-out edges, or MRR of test triples. ``--gosh`` adds lines of GOSH's way with as
many epochs (``benchmarks/gosh.py``), judged as the others are. ``--share`` and ``--rates`` try others than the
defaults. ``--generated`` takes a graph of ten edges a node in place of a data set. Kernels are compiled before the
clock starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numba
from gosh import embed
from graphs import hyperbolic, planted, write

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.core.threads import torch_threads
from graph_emb.graph.csr import Graph
from graph_emb.run import multilevel
from graph_emb.run.evaluation import Finding, evaluate
from graph_emb.run.family import TrainingJob, family_of
from graph_emb.run.inputs import edge_policy, read_plain_dataset
from graph_emb.run.scores import scores_of


def levels_from(text: str) -> Any:
    """``none``, ``true`` or numbers of parts."""
    return {"none": False, "true": True}.get(text) if text in ("none", "true") else [int(n) for n in text.split(",")]


NAMES = ("test accuracy", "micro-F1 at 50%", "test auc", "test mrr")
"""Of the scores that a run is told by, the first that it has."""
GENERATED = {"planted": lambda nodes: planted(nodes, 10 * nodes), "hyperbolic": hyperbolic}


def score_of(findings: Sequence[Finding]) -> float:
    """The score of a run, in percent."""
    scores = scores_of({finding.name: finding.scores.as_dict() for finding in findings})
    return 100 * next(scores[name] for name in NAMES if name in scores)


def section_of(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The configuration of every line."""
    judged = {} if args.shuffles is None else {"ratios": [0.5], "shuffles": args.shuffles}
    dataset: dict[str, Any] = {"name": args.dataset, "root": args.root}
    if args.hold_out:
        dataset["hold_out"] = args.hold_out
    section = {"model": {"name": args.model}, "dataset": dataset, "evaluate": judged, "seed": seed}
    return {**section, "train": {"threads": args.threads}}


def run_of(args: argparse.Namespace, levels: Any, work: int, rate: float | None, seed: int) -> dict[str, Any]:
    """One run's settings, seconds and score."""
    section = section_of(args, seed)
    section["model"]["multilevel"] = levels
    if args.epochs is None:
        section["model"]["num_walks"] = work
    else:
        section["train"]["epochs"] = work
    section["train"]["lr"] = rate
    family = family_of(config_from(section))
    dataset = family.load()
    begin = time.process_time()
    trained = family.train(dataset, TrainingJob())
    processor = time.process_time() - begin
    findings = family.judge(trained, dataset, progress=False)
    return {
        "levels": levels, "share": args.share, "work": work, "seed": seed, "lr": family.model.lr,
        "start_seconds": trained.metrics.get("multilevel_seconds", 0.0), "seconds": trained.metrics["seconds"],
        "processor_seconds": processor, "score": score_of(findings),
    }  # fmt: skip


def gosh_of(args: argparse.Namespace, epochs: int, seed: int) -> dict[str, Any]:
    """A line of GOSH: its rows are judged as those of a run; seconds of coarsening and training."""
    config = config_from(section_of(args, seed))
    dataset = read_plain_dataset(config.dataset, seed, **edge_policy(config.model))
    begin, processor = time.perf_counter(), time.process_time()
    rows, levels = embed(dataset.graph, config.model.dim, epochs, lr=args.gosh_lr, smoothing=args.smoothing, seed=seed)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    with torch_threads(args.threads):
        findings = evaluate(rows, dataset, config.evaluate, seed, threads=args.threads)
    return {
        "levels": f"gosh {len(levels)}", "share": args.smoothing, "work": epochs, "seed": seed, "lr": args.gosh_lr,
        "start_seconds": 0.0, "seconds": seconds, "processor_seconds": processor, "score": score_of(findings),
    }  # fmt: skip


def main() -> None:
    """Run all combinations and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--model", default="deepwalk")
    parser.add_argument("--dataset", default="blogcatalog")
    parser.add_argument("--generated", choices=GENERATED)
    parser.add_argument("--nodes", type=int, default=5_000_000, help="of the generated graph")
    parser.add_argument("--hold-out", type=float, default=0.0, help="share of the edges to judge by")
    parser.add_argument("--levels", nargs="*", type=levels_from, default=[False, True])
    parser.add_argument("--walks", nargs="+", type=int, default=[10])
    parser.add_argument("--epochs", nargs="+", type=int, help="of knowledge graphs, in place of walks")
    parser.add_argument("--gosh", nargs="+", type=int, default=[], help="epochs of GOSH's lines")
    parser.add_argument("--gosh-lr", type=float, default=0.035)
    parser.add_argument("--smoothing", type=float, default=0.3, help="GOSH's share of epochs that levels have alike")
    parser.add_argument("--rates", nargs="+", type=float, default=[None], help="default: train.lr auto")
    parser.add_argument("--share", type=float, help="work of the finest level beside the graph's own")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--shuffles", type=int, help="of the labels, where the data set has no split")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="lines are added to this file")
    args = parser.parse_args()
    if args.share is not None:
        multilevel.SHARE, multilevel.LEVEL_WALKS = dict.fromkeys(multilevel.SHARE, args.share), math.inf
    with tempfile.TemporaryDirectory() as folder:
        if args.generated:
            args.dataset = str(Path(folder, f"{args.generated}.npz"))
            write(Path(args.dataset), GENERATED[args.generated](args.nodes))
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """A line for each combination."""
    ring = Graph.from_edges(range(200), [*range(1, 200), 0])
    ge.pipeline("deepwalk", ring, num_walks=1, threads=args.threads, evaluate=False, **{"model.multilevel": True})
    numba.set_num_threads(args.threads)
    if args.gosh:
        embed(ring, 8, 4, lr=0.1, smoothing=0.3)
    work = args.walks if args.epochs is None else args.epochs
    runs: list[Any] = [
        partial(run_of, args, *own) for own in itertools.product(args.levels, work, args.rates, args.seeds)
    ]
    runs += [partial(gosh_of, args, *own) for own in itertools.product(args.gosh, args.seeds)]
    for run in runs:
        found = run()
        name = args.generated or args.dataset
        how = f"{name} {found['levels']!s:14s} share {found['share'] or 'default'} work {found['work']:4d}"
        print(
            f"{how} lr {found['lr']:.4f} seed {found['seed']}: {found['start_seconds']:5.1f} + "
            f"{found['seconds']:5.1f} s, processor {found['processor_seconds']:5.1f} s  {found['score']:.2f}",
            flush=True,
        )
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"dataset": name, "model": args.model, **found}) + "\n")


if __name__ == "__main__":
    main()
