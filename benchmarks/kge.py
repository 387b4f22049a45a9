"""Training speed on a knowledge graph, ours beside PyKEEN's, in turns and from one run.

    python benchmarks/kge.py --root ../shared/data --threads 2 --json kge.json

Same on both sides: model, width of a row (PyKEEN counts complex numbers, we count real ones), batch, negatives of a
triple, loss (self-adversarial), rule (Adagrad, dense in PyKEEN), threads, triples, no filtering of negatives and no
validation. What differs is the design: PyKEEN draws negatives for each triple, here a chunk shares them. Each side
trains a part of the triples; what comes before the first step is not timed (of PyKEEN the second of two epochs is).
``--rounds`` turns, medians are shown.

PyKEEN runs in a process of its own (``benchmarks/kge_pykeen.py``). ``--peer-python`` names the interpreter of another
environment that has it; by default it is this one (``pip install .[bench]``). ``--skip-peer`` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import psutil
import torch
from tabulate import tabulate

from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge

TARGET_RATIO = 3.0
MODELS = ("transe", "distmult", "complex", "rotate")
PEER = Path(__file__).with_name("kge_pykeen.py")


def part_of(graph: KnowledgeGraph, num_triples: int) -> KnowledgeGraph:
    """The same graph with some of its training triples, drawn once."""
    order = np.random.default_rng(0).permutation(len(graph.train))[:num_triples]
    return KnowledgeGraph(graph.name, graph.num_entities, graph.num_relations, {"train": graph.train[order]})


def time_ours(graph: KnowledgeGraph, config: KGEConfig, args: argparse.Namespace) -> float:
    """Triples per second."""
    train_kge(part_of(graph, 2 * args.batch_size), config, num_threads=args.threads)
    timed = part_of(graph, args.batches * args.batch_size)
    (line,) = train_kge(timed, config, num_threads=args.threads).history
    return line.triples / line.seconds


def time_peer(graph: KnowledgeGraph, config: KGEConfig, args: argparse.Namespace) -> float:
    """PyKEEN's triples per second."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "triples.npy"
        np.save(file, part_of(graph, args.peer_batches * args.batch_size).train)
        options = {
            "model": config.name,
            "triples": str(file),
            "num_entities": graph.num_entities,
            "num_relations": graph.num_relations,
            "dim": config.dim,
            "margin": config.margin,
            "batch_size": args.batch_size,
            "num_negatives": args.negatives,
            "threads": args.threads,
        }
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        done = subprocess.run(
            [args.peer_python, str(PEER)], input=json.dumps(options), text=True, capture_output=True, env=environment
        )
    if done.returncode != 0:
        raise SystemExit(f"{PEER.name} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["triples"] / found["seconds"]


def measure(model: str, graph: KnowledgeGraph, args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one model, ours and theirs in turn."""
    config = KGEConfig(
        model=model,
        dim=args.dim,
        loss="self_adversarial",
        margin=9.0,
        n3=0.0,
        num_negatives=args.negatives,
        chunk_size=args.chunk_size,
        batch_size=args.batch_size,
        filter_negatives=False,
        rule="adagrad",
        epochs=1,
        valid_every=0,
    )
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(time_ours(graph, config, args))
        if not args.skip_peer:
            theirs.append(time_peer(graph, config, args))
    row: dict[str, Any] = {"model": model, "ours": ours, "pykeen": theirs}
    if theirs:
        row["ratio"] = statistics.median(ours) / statistics.median(theirs)
    return row


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--dataset", default="fb15k237")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=[*MODELS, "simple"])
    parser.add_argument("--dim", type=int, default=256, help="numbers in an entity's row")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--chunk-size", type=int, default=256, help="triples that share negatives; ours only")
    parser.add_argument("--negatives", type=int, default=256, help="of each triple")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batches", type=int, default=100, help="of our timed part")
    parser.add_argument("--peer-batches", type=int, default=5, help="of PyKEEN's timed part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has pykeen")
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    graph = knowledge_graph(load_dataset(args.dataset, args.root))
    rows = [measure(model, graph, args) for model in args.models]
    table = [
        [r["model"], *(statistics.median(r[side]) if r[side] else None for side in ("ours", "pykeen")), r.get("ratio")]
        for r in rows
    ]
    print(
        tabulate(
            table, ["model", "ours, triples/s", "PyKEEN, triples/s", "ratio"], floatfmt=(None, ",.0f", ",.0f", ".1f")
        )
    )
    print(
        f"width {args.dim}, batches of {args.batch_size}, {args.negatives} negatives, {args.threads} threads; "
        f"target: ratio >= {TARGET_RATIO}"
    )
    if args.json is not None:
        settings = {key: value for key, value in vars(args).items() if key not in ("json", "root", "peer_python")}
        versions = {"torch": torch.__version__, "numba": numba.__version__, "cores": psutil.cpu_count()}
        args.json.write_text(json.dumps({"settings": settings, "versions": versions, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
