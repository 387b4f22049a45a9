"""ogbn-arxiv from its citations alone: DeepWalk or node2vec, then OGB's MLP.

    python examples/ogb/arxiv.py --root ../shared/data --seeds 0 1 2 --out runs/ogbn-arxiv

Finished seeds stay under --out and are not run again. README.md tells the recipe and how it differs from the published
one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numba
import torch
from report import as_text, finished_or_run, mean_std, peak_memory_mib, positive, write_json
from tabulate import tabulate

from graph_emb import GraphEmbError
from graph_emb.data.datasets import Dataset, load
from graph_emb.data.walks import WalkSampler
from graph_emb.evaluate.mlp import MLPConfig
from graph_emb.evaluate.split_accuracy import split_accuracy
from graph_emb.models.skipgram import SkipGramConfig, train_skipgram

# (p, q): the published node2vec row of OGB walks with p = q = 1, which is DeepWalk.
WALKS = {"deepwalk": (1.0, 1.0), "node2vec": (1.0, 0.5)}
RECIPE = SkipGramConfig(dim=128, window=5, num_negatives=5, lr=0.05)
# OGB's node2vec row: the embedding beside the 128 node features, which the parameters of its MLP show.
PUBLISHED = {"parameters": 169_343 * 128 + 142_888, "valid": "0.7129", "test": "0.7007 ± 0.0013"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing, prints the table, returns the exit code."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    try:
        dataset = load("ogbn-arxiv", root=args.root, directed=False)
        records = [run_or_read(seed, dataset, args) for seed in args.seeds]
        print(table(args.model, records))
        if args.json is not None:
            write_json(args.json, summary(args.model, records, args.seeds))
    except (GraphEmbError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished seeds are kept", file=sys.stderr)
        return 130
    return 0


def run_or_read(seed: int, dataset: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """The record of one seed; embedding and MLP both start from it."""
    p, q = WALKS[args.model]
    recipe = replace(RECIPE, dim=args.dim, window=args.window)
    mlp = MLPConfig(epochs=args.epochs)
    walks = {"num_walks": args.num_walks, "walk_length": args.walk_length, "p": p, "q": q}
    options = {"model": args.model, "seed": seed, "walks": walks, "skipgram": asdict(recipe), "mlp": asdict(mlp)}

    def run() -> dict[str, Any]:
        begin = time.perf_counter()
        sampler = WalkSampler(dataset.graph, **walks, seed=seed)
        trained = train_skipgram(sampler, recipe, seed=seed, num_threads=args.threads, progress=args.progress)
        if trained.interrupted:
            raise KeyboardInterrupt
        embedded = time.perf_counter()
        assert dataset.labels is not None
        assert dataset.node_split is not None
        judged = split_accuracy(
            trained.embeddings(),
            dataset.labels,
            dataset.node_split,
            "mlp",
            seeds=[seed],
            mlp=mlp,
            progress=args.progress,
        )
        return {
            **{part: values[0] for part, values in judged.accuracy.items()},
            "epoch": judged.epochs[0] if judged.epochs else None,
            "num_parameters": trained.model.num_parameters + judged.num_parameters,
            "embedding_seconds": embedded - begin,
            "seconds": time.perf_counter() - begin,
            "peak_memory_mib": peak_memory_mib(),
        }

    return finished_or_run(args.out / args.model / f"seed-{seed}.json", options, run)


def table(model: str, records: list[dict[str, Any]]) -> str:
    """Ours beside the published row."""
    columns = [[record[part] for record in records] for part in ("valid", "test")]
    rows = [
        [f"{model}, graph only", len(records), *map(as_text, columns), records[0]["num_parameters"]],
        [
            "OGB node2vec with node features, published",
            10,
            PUBLISHED["valid"],
            PUBLISHED["test"],
            PUBLISHED["parameters"],
        ],
    ]
    headers = ["model", "seeds", "valid", "test", "parameters"]
    seconds, embedding, memory = (
        max(record[key] for record in records) for key in ("seconds", "embedding_seconds", "peak_memory_mib")
    )
    spent = f"longest seed: {seconds:.0f} s, {embedding:.0f} s of them for the embedding; peak memory {memory:.0f} MiB"
    return tabulate(rows, headers=headers, disable_numparse=True) + "\n" + spent


def summary(model: str, records: list[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The table as numbers, with the runs behind it."""
    accuracy = {}
    for part in ("train", "valid", "test"):
        mean, std = mean_std([record[part] for record in records])
        accuracy[part] = {"mean": mean, "std": std}
    return {
        "dataset": "ogbn-arxiv",
        "model": model,
        "seeds": list(seeds),
        "accuracy": accuracy,
        "published": PUBLISHED,
        "runs": records,
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(WALKS), default="deepwalk")
    parser.add_argument("--root", type=Path, help="folder that holds ogbn_arxiv")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)), help="OGB asks for 0 .. 9")
    parser.add_argument("--out", type=Path, required=True, help="folder of finished seeds")
    parser.add_argument("--json", type=Path, help="write the numbers of the table there")
    parser.add_argument("--num-walks", type=positive, default=10, help="walks from a node")
    parser.add_argument("--walk-length", type=positive, default=40, help="nodes of a walk")
    parser.add_argument("--window", type=positive, default=RECIPE.window, help="largest distance of a context")
    parser.add_argument("--dim", type=positive, default=RECIPE.dim, help="embedding width")
    parser.add_argument("--epochs", type=positive, default=MLPConfig.epochs, help="epochs of the MLP")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--progress", action="store_true", help="show bars")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
