"""DeepWalk by buckets of pairs: speed with tables in files, and quality beside a training without buckets.

    python benchmarks/tiers_pairs.py speed --folder /fast/disk --json pairs.json
    python benchmarks/tiers_pairs.py quality --root ../shared/data --seeds 5 --parts 0 4 8 16
    python benchmarks/tiers_pairs.py quality --root ../shared/data --parts 8 --episodes 200 40 10 4 1

``speed``: walks of 40 nodes on a graph of random edges, 128 numbers a row. In memory without buckets and by the parts
of which a quarter, and an eighth, of both tables holds one of each (``--held 2``: two); then with as much memory, by
buckets and, for fewer walks, without. ``quality``: micro-F1 on BlogCatalog at half of the labels, as
``graph-emb train`` evaluates it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.evaluate.node_classification import node_classification
from graph_emb.graph.csr import Graph
from graph_emb.models.skipgram.bucket_steps import episode_walks
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import SkipGram, SkipGramResult, train_skipgram
from graph_emb.run.inputs import edge_policy, read_plain_dataset
from graph_emb.sampling.walks import WalkSampler
from graph_emb.table.tier.sizes import fewest_parts

DIM, LENGTH = 128, 40


def rate(result: SkipGramResult) -> float:
    """Tokens a second after the first line of the history, in which rows of files have first values."""
    first, last = result.history[0], result.history[-1]
    return (last.tokens - first.tokens) / (last.seconds - first.seconds)


def episode_of(nodes: int, parts: int) -> int:
    """Walks of an episode of a long training."""
    return episode_walks(SkipGramConfig(dim=DIM, buckets=parts), nodes, LENGTH, 1 << 40)


def speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same walks by each placement."""
    nodes = options.nodes
    ends = np.random.default_rng(0).integers(0, nodes, (2, 5 * nodes))
    graph = Graph.from_edges(*ends, num_nodes=nodes, self_loops="drop")
    found: list[dict[str, Any]] = []

    def run(name: str, parts: int, placement: Any, walks: int) -> float:
        sampler = WalkSampler(graph, num_walks=1, walk_length=LENGTH, seed=0, starts=np.arange(walks) % nodes)
        config = SkipGramConfig(dim=DIM, buckets=parts, episode_walks=episode_of(nodes, parts) if parts else None)
        model = SkipGram(nodes, config, placement=placement)
        result = train_skipgram(
            sampler, model=model, num_threads=options.threads, progress=False, log_interval=1e-9 if parts else 0.5
        )
        line: dict[str, Any] = {"run": name, "parts": parts, "tokens/s": rate(result)}
        for side, stats in model.cache_stats().items():
            line[f"{side} GB read, written"] = f"{stats.bytes_read / 1e9:.2f}, {stats.bytes_written / 1e9:.2f}"
            line[f"{side} waited s"] = stats.seconds_waited
        found.append({**line, "s": result.history[-1].seconds})
        print(found[-1], flush=True)
        return found[-1]["tokens/s"]

    plain = run("in memory", 0, "host", options.rounds * nodes // 4)
    for share, held in [(share, held) for share in options.shares for held in options.held]:
        memory = nodes * DIM * 4 // share
        parts = fewest_parts(nodes, DIM, memory, held)
        assert parts is not None
        walks = options.rounds * episode_of(nodes, parts)
        host = run("in memory, by buckets", parts, "host", walks)
        placement = ge.Buckets(options.folder, memory, parts=parts)
        ours = run(f"1/{share} in memory, by buckets", parts, placement, walks)
        without = run(
            f"1/{share} in memory, without", 0, ge.File(options.folder, memory, "lookahead"), options.few // LENGTH
        )
        found[-2] |= {"of the schedule in memory": ours / host, "of plain": ours / plain, "of without": ours / without}
    return found


def quality(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Micro-F1 of several seeds by parts and episodes."""
    section = {"dataset": {"name": "blogcatalog", "root": options.root}, "model": {"name": "deepwalk"}}
    config = config_from(section)
    dataset = read_plain_dataset(config.dataset, 0, **edge_policy(config.model))
    assert dataset.labels is not None
    total, found = options.walks * dataset.graph.num_nodes, []
    for parts in options.parts:
        for episodes in (options.episodes or [None]) if parts else [None]:
            scores, rates = [], []
            for seed in range(options.seeds):
                sampler = WalkSampler(dataset.graph, num_walks=options.walks, walk_length=LENGTH, seed=seed)
                recipe = SkipGramConfig(
                    buckets=parts, episode_walks=None if episodes is None else -(-total // episodes)
                )
                result = train_skipgram(sampler, recipe, seed=seed, num_threads=1, progress=False)
                judged = node_classification(result.embeddings().numpy(), dataset.labels, (0.5,), options.shuffles)
                scores.append(100 * judged.micro.mean())
                rates.append(result.history[-1].tokens / result.history[-1].seconds)
            line = {
                "parts": parts, "episodes": episodes or "default", "micro-F1": np.mean(scores),
                "std": np.std(scores, ddof=1) if len(scores) > 1 else 0.0, "tokens/s": np.median(rates),
            }  # fmt: skip
            found.append(line)
            print(line, flush=True)
    return found


PARTS_OF_RUN: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {"speed": speed, "quality": quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=list(PARTS_OF_RUN))
    parser.add_argument("--folder", help="on the disk that is measured; default: the folder for temporary files")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--shares", type=int, nargs="+", default=[4, 8], help="of the tables: 4 is a quarter in memory")
    parser.add_argument("--held", type=int, nargs="+", default=[1], help="parts of each table in memory at a time")
    parser.add_argument("--rounds", type=int, default=4, help="episodes, of which the first one does not count")
    parser.add_argument("--few", type=int, default=100_000, help="tokens without buckets from files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--root", help="folder of the known data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--walks", type=int, default=10, help="of each node, for quality")
    parser.add_argument("--parts", type=int, nargs="+", default=[0, 8], help="for quality; 0: without buckets")
    parser.add_argument("--episodes", type=int, nargs="+", help="of the training, for quality; default: the recipe's")
    parser.add_argument("--shuffles", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = folder
        ge.init(mode="local")
        for what in options.what:
            results[what] = PARTS_OF_RUN[what](options)
            print(f"\n{what}\n" + tabulate(results[what], headers="keys", floatfmt=".4g"), flush=True)
        ge.shutdown()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, default=float), encoding="utf-8")


if __name__ == "__main__":
    main()
