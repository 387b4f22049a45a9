"""A step of a composed table beside one of a plain table of the same batch, width and rule, from one run.

    python benchmarks/composed_steps.py --json composed_steps.json
    python benchmarks/composed_steps.py --threads 1 --processor-time  # beside other work
    python benchmarks/composed_steps.py --walks --dataset blogcatalog

The first one: ``emb(ids)``, backward and the optimizer's step of 40,960 ids at width 128, 3 levels and 2 hashes beside
one row a node; tables take turns within a repeat, and the median of the ratios of the repeats counts. The second one:
tokens/s of a DeepWalk whose rows are composed beside one of full tables, both on the path of the optimizers and, for
the full tables, in place too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.graph.views import plain_dataset
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.sampling.walks import WalkSampler

AIM = 1.3


def levels_of(num_nodes: int, sizes: list[int]) -> np.ndarray:
    """Equal parts of parts, scattered over the ids as those of a graph are, (N, L)."""
    finest = np.random.default_rng(0).permutation(num_nodes) * sizes[-1] // num_nodes
    return np.stack([finest * size // sizes[-1] for size in sizes], axis=1)


def stepper(table: Any, rule: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    opt = OPTIMIZERS[rule]([table], lr=0.01)

    def step(ids: torch.Tensor, grad: torch.Tensor) -> None:
        table(ids).backward(grad)
        opt.step()
        opt.zero_grad()

    return step


def steps(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step by rule, of a composed and of a plain table."""
    levels = levels_of(args.nodes, args.levels)
    gen = torch.Generator().manual_seed(0)
    batches = [torch.randint(args.nodes, (args.batch,), generator=gen) for _ in range(args.steps)]
    grad = torch.randn(args.batch, args.dim, generator=gen)
    rows = []
    for rule in args.rules:
        made = {
            "plain": ge.DistEmbedding(args.nodes, args.dim, init_func=ge.initializers.Uniform(seed=0)),
            "composed": ge.ComposedEmbedding(levels, args.dim, num_hashes=args.hashes, num_buckets=args.buckets),
        }
        of = {name: stepper(table, rule) for name, table in made.items()}
        times: dict[str, list[float]] = {name: [] for name in of}
        for repeat in range(args.repeats + 1):
            for name, step in of.items():
                start = args.clock()
                for ids in batches:
                    step(ids, grad)
                if repeat:  # the first one compiles
                    times[name].append((args.clock() - start) / args.steps * 1000)
        ratios = [composed / plain for composed, plain in zip(times["composed"], times["plain"], strict=True)]
        best = {f"{name} ms": statistics.median(own) for name, own in times.items()}
        spread = {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "aim": AIM}
        rows.append({"rule": rule, **best, **spread})
    return rows


def walks(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens/s of a DeepWalk by table."""
    graph = plain_dataset(ge.load_dataset(args.dataset, args.root)).graph
    rows = []
    for kind, path, rule in (
        ("full", "auto", "sgd"),
        ("full", "auto", "adagrad"),
        ("position-hash", "auto", "adagrad"),
    ):
        config = SkipGramConfig(dim=args.dim, table=kind, path=path, rule=rule)
        levels = levels_of(graph.num_nodes, args.levels) if config.takes_levels else None
        sampler = WalkSampler(graph, num_walks=args.num_walks, walk_length=40, seed=0)
        own = []
        for repeat in range(args.repeats + 1):
            start = args.clock()
            train_skipgram(sampler, config, num_threads=args.threads, progress=False, levels=levels)
            if repeat:
                own.append(args.clock() - start)
        tokens = sampler.num_walks_per_epoch * sampler.walk_length
        rows.append({"table": kind, "rule": rule, "s": statistics.median(own), "tokens/s": tokens / min(own)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", action="store_true", help="DeepWalk in the place of single steps")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=40_960)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--levels", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--hashes", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=4096)
    parser.add_argument("--rules", nargs="+", default=["sgd", "adagrad", "row_adagrad", "adam"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dataset", default="blogcatalog")
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--num-walks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="of this process, in the place of the clock's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.clock = time.process_time if args.processor_time else time.perf_counter
    torch.set_num_threads(args.threads)
    rows = walks(args) if args.walks else steps(args)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
