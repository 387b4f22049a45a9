"""ogbl-ddi: DeepWalk, node2vec and matrix factorisation, judged by OGB's link predictor and protocol.

    python examples/ogb/ddi.py --model deepwalk --root ../shared/data --seeds 0 1 2 --out runs/ogbl-ddi

Finished seeds stay under --out and are not run again. README.md tells the recipes and how they differ from the
published ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numba
import torch
from report import as_text, finished_or_run, mean_std, peak_memory_mib, positive, write_json
from tabulate import tabulate

from graph_emb import GraphEmbError
from graph_emb.data.datasets import Dataset, load
from graph_emb.data.walks import WalkSampler
from graph_emb.models.link_predictor import (
    FrozenRows,
    LinkPredictorResult,
    train_link_predictor,
)
from graph_emb.models.link_predictor_config import LinkPredictorConfig
from graph_emb.models.matrix_factorization import MatrixFactorizationConfig, train_matrix_factorization
from graph_emb.models.skipgram import SkipGramConfig, train_skipgram

HITS = (10, 20, 30, 50, 100)


@dataclass(frozen=True)
class WalkRecipe:
    """How the embeddings of a walk model are trained."""

    num_walks: int
    walk_length: int
    p: float
    q: float
    skipgram: SkipGramConfig
    context: str = "none"  # whether the predictor sees the context rows as well: none, add, concat


RECIPES = {
    "deepwalk": WalkRecipe(
        num_walks=50,
        walk_length=80,
        p=1.0,
        q=1.0,
        skipgram=SkipGramConfig(window=2, num_negatives=1, negative_power=0.0, tables=2, lr=0.05),
        context="add",  # (u + v)_i * (u + v)_j holds u_i * v_j, which is what skip-gram trained for an edge
    ),
    "node2vec": WalkRecipe(
        num_walks=10,
        walk_length=40,
        p=1.0,
        q=1.0,
        # PyG's context of 20 nodes: the start and the 19 after it, all alike, both ways as the table is one.
        skipgram=SkipGramConfig(
            window=19,
            window_weighting="uniform",
            num_negatives=1,
            negative_power=0.0,
            tables=1,
            lr=0.025,
            epochs=30,
        ),
    ),
}
PREDICTOR_EPOCHS = {"deepwalk": 100, "node2vec": 200, "mf": 200}  # as published


@dataclass(frozen=True)
class Published:
    """A row of OGB's leaderboard: mean and std over 10 runs."""

    source: str
    parameters: int
    valid: tuple[float, float]
    test: tuple[float, float]


PUBLISHED = {
    "deepwalk": Published("DGL deepwalk", 1_543_913, (0.4132, 0.0169), (0.2642, 0.0610)),
    "node2vec": Published("OGB node2vec", 645_249, (0.3292, 0.0121), (0.2326, 0.0209)),
    "mf": Published("OGB MF", 1_224_193, (0.3370, 0.0264), (0.1368, 0.0475)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is missing, prints the table, returns the exit code."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    try:
        dataset = load("ogbl-ddi", root=args.root)
        records = {model: [run_or_read(model, seed, dataset, args) for seed in args.seeds] for model in args.model}
        print(table(records))
        if args.json is not None:
            write_json(args.json, summary(records, args.seeds))
    except (GraphEmbError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; finished seeds are kept", file=sys.stderr)
        return 130
    return 0


def run_or_read(model: str, seed: int, dataset: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """The record of one seed of one model."""
    predictor = LinkPredictorConfig(
        epochs=args.epochs or PREDICTOR_EPOCHS[model],
        eval_every=args.eval_every,
        patience=args.patience,
        batch_size=args.batch_size,
        precision=precision(args.precision),
        metrics=tuple(f"hits@{k}" for k in HITS),
    )
    factors = MatrixFactorizationConfig(dim=args.dim or MatrixFactorizationConfig.dim)
    recipe = None if model == "mf" else with_options(RECIPES[model], args)
    embedding_seed = args.seeds[0] if args.freeze_embedding else seed
    options = {
        "model": model,
        "seed": seed,
        "embedding_seed": embedding_seed,
        "embedding": asdict(recipe or factors),
        "predictor": asdict(predictor),
    }

    def run() -> dict[str, Any]:
        begin = time.perf_counter()
        if recipe is None:
            _, result = train_matrix_factorization(
                dataset.link_split, dataset.graph.num_nodes, factors, predictor, seed=seed, progress=args.progress
            )
            return record_of(result, 0.0, begin)
        rows = embed(dataset, recipe, embedding_seed, args)
        embedded = time.perf_counter() - begin
        result = train_link_predictor(
            rows, dataset.link_split, dataset.graph.num_nodes, predictor, seed=seed, progress=args.progress
        )
        return record_of(result, embedded, begin)

    folder = args.out / (f"{model}-frozen-{embedding_seed}" if args.freeze_embedding else model)
    return finished_or_run(folder / f"seed-{seed}.json", options, run)


def embed(dataset: Dataset, recipe: WalkRecipe, seed: int, args: argparse.Namespace) -> FrozenRows:
    """Walks and skip-gram; the parameters of all tables count, whatever of them the predictor sees."""
    walks = WalkSampler(
        dataset.graph,
        num_walks=recipe.num_walks,
        walk_length=recipe.walk_length,
        p=recipe.p,
        q=recipe.q,
        seed=seed,
    )
    trained = train_skipgram(walks, recipe.skipgram, seed=seed, num_threads=args.threads, progress=args.progress)
    if trained.interrupted:
        raise KeyboardInterrupt
    return FrozenRows(trained.embeddings(recipe.context), num_parameters=trained.model.num_parameters)


def record_of(result: LinkPredictorResult, embedding_seconds: float, begin: float) -> dict[str, Any]:
    """What is kept of a finished seed."""
    return {
        **result.as_dict(),
        "embedding_seconds": embedding_seconds,
        "seconds": time.perf_counter() - begin,
        "peak_memory_mib": peak_memory_mib(),
    }


def precision(name: str) -> str:
    """``auto`` takes bfloat16 where the processor multiplies it natively, else float32."""
    if name != "auto":
        return name
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


def with_options(recipe: WalkRecipe, args: argparse.Namespace) -> WalkRecipe:
    """The recipe with what the command line changes."""
    skipgram = recipe.skipgram if args.dim is None else replace(recipe.skipgram, dim=args.dim)
    return replace(
        recipe,
        num_walks=args.num_walks or recipe.num_walks,
        skipgram=skipgram,
        context=args.context or recipe.context,
    )


def table(records: dict[str, list[dict[str, Any]]]) -> str:
    """Ours beside the published rows."""
    rows = []
    for model, runs in records.items():
        for k in HITS:
            valid, test = ([run["scores"][f"hits@{k}"][part] for run in runs] for part in ("valid", "test"))
            rows.append([model, f"Hits@{k}", len(runs), as_text(valid), as_text(test), runs[0]["num_parameters"]])
        known = PUBLISHED[model]
        valid_text, test_text = (f"{mean:.4f} ± {std:.4f}" for mean, std in (known.valid, known.test))
        rows.append([f"{known.source}, published", "Hits@20", 10, valid_text, test_text, known.parameters])
    return tabulate(rows, headers=["model", "metric", "seeds", "valid", "test", "parameters"], disable_numparse=True)


def summary(records: dict[str, list[dict[str, Any]]], seeds: Sequence[int]) -> dict[str, Any]:
    """The table as numbers, with the runs behind it."""
    out: dict[str, Any] = {"dataset": "ogbl-ddi", "seeds": list(seeds), "models": {}}
    for model, runs in records.items():
        hits = {}
        for k in HITS:
            parts = {part: mean_std([run["scores"][f"hits@{k}"][part] for run in runs]) for part in ("valid", "test")}
            hits[str(k)] = {part: {"mean": mean, "std": std} for part, (mean, std) in parts.items()}
        out["models"][model] = {"hits": hits, "published_hits_20": asdict(PUBLISHED[model]), "runs": runs}
    return out


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=tuple(PUBLISHED), default=tuple(PUBLISHED))
    parser.add_argument("--root", type=Path, help="folder that holds ogbl_ddi")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)), help="OGB asks for 0 .. 9")
    parser.add_argument("--out", type=Path, required=True, help="folder of finished seeds")
    parser.add_argument("--json", type=Path, help="write the numbers of the table there")
    parser.add_argument(
        "--freeze-embedding",
        action="store_true",
        help="OGB's own protocol: one embedding, of the first seed, under every predictor seed",
    )
    parser.add_argument("--epochs", type=positive, help="predictor epochs; default 100 (deepwalk) or 200")
    parser.add_argument("--patience", type=positive, help="stop after this many evaluations without a better valid")
    parser.add_argument("--eval-every", type=positive, default=5, help="epochs between evaluations")
    parser.add_argument("--batch-size", type=positive, default=64 * 1024, help="edges of a predictor step")
    parser.add_argument("--num-walks", type=positive, help="walks from a node; default as the recipe")
    parser.add_argument("--dim", type=positive, help="embedding width; default 128, or 256 for mf")
    parser.add_argument("--context", choices=("none", "add", "concat"), help="how context rows reach the predictor")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--progress", action="store_true", help="show bars")
    args = parser.parse_args(argv)
    if args.freeze_embedding and "mf" in args.model:
        parser.error("--freeze-embedding: mf trains its embedding with the predictor; name --model deepwalk node2vec")
    return args


if __name__ == "__main__":
    sys.exit(main())
