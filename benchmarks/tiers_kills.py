"""SIGKILL of a training whose rows lie in files: are the rows at the end those of a run that was never stopped?

    python benchmarks/tiers_kills.py --kills 100

A process trains ComplEx on random triples with the table in a ``ge.File`` or by ``ge.Buckets``, or DeepWalk on random
edges by buckets of pairs (``pairs``), in turn, with two to four times the memory in rows, and saves a checkpoint at
intervals. It is killed at a random moment, and another one goes on from the newest checkpoint, up to ``--again`` times
before a run may end. Every file of rows that a killed process left must be refused without ``leftover="remove"``.
Compared are the bytes of all rows of both tables.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import Graph
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import SkipGram, train_skipgram
from graph_emb.sampling.walks import WalkSampler

KINDS = ["file", "buckets", "pairs"]
ENTITIES, DIM, PARTS = 4_000, 32, 8
MEMORY = ENTITIES * DIM * 8 // 4 + ENTITIES


def placement(kind: str, folder: Path, leftover: Any) -> Any:
    rows = str(folder / "rows")
    if kind == "file":
        return ge.File(rows, MEMORY, "lookahead", leftover=leftover)
    if kind == "pairs":  # without state: half as many bytes
        return ge.Buckets(rows, MEMORY, leftover=leftover, parts=PARTS)
    return ge.Buckets(rows, 2 * MEMORY, leftover=leftover, parts=PARTS)


def train(kind: str, folder: Path, every: int, resume: bool, leftover: str) -> None:
    """Train, or go on, and write the digest of the rows at the end."""
    ge.init(mode="local")
    found = (train_walks if kind == "pairs" else train_triples)(kind, folder, every, resume, leftover)
    digest = hashlib.sha256(b"".join(rows.numpy().tobytes() for rows in found)).hexdigest()
    (folder / "digest").write_text(digest)
    ge.shutdown()


def train_walks(kind: str, folder: Path, every: int, resume: bool, leftover: str) -> list[torch.Tensor]:
    """Token and context rows of walks on random edges."""
    ends = np.random.default_rng(0).integers(0, ENTITIES, (2, 5 * ENTITIES))
    walks = WalkSampler(Graph.from_edges(*ends, num_nodes=ENTITIES), num_walks=4, walk_length=20, seed=0)
    config = SkipGramConfig(dim=DIM, buckets=PARTS, episode_walks=200)
    model = SkipGram(ENTITIES, config, name="node", placement=placement(kind, folder, leftover))
    checkpoints = PeriodicCheckpoints(folder / "checkpoints", every, resume=resume)
    train_skipgram(walks, model=model, checkpoints=checkpoints, num_threads=1, progress=False)
    return [model.embeddings(side) for side in ("none", "only")]


def train_triples(kind: str, folder: Path, every: int, resume: bool, leftover: str) -> list[torch.Tensor]:
    """Rows of entities and relations of random triples."""
    rng = np.random.default_rng(0)
    triples = np.stack([rng.integers(0, num, 20_000) for num in (ENTITIES, 5, ENTITIES)], axis=1)
    graph = KnowledgeGraph("random", ENTITIES, 5, {"train": triples})
    buckets = {"buckets": PARTS, "resident": 2} if kind == "buckets" else {}
    config = KGEConfig(
        model="complex", dim=DIM, num_negatives=16, chunk_size=64, batch_size=256, epochs=2, valid_every=0,
        filter_negatives=False, **buckets,
    )  # fmt: skip
    checkpoints = PeriodicCheckpoints(folder / "checkpoints", every, resume=resume)
    place = placement(kind, folder, leftover)
    found = train_kge(graph, config, placement=place, checkpoints=checkpoints, num_threads=1)
    assert found.entities is not None
    assert found.relations is not None
    return [found.entities, found.relations]


def refused(kind: str, folder: Path) -> bool:
    """Whether a run is refused for the files that a killed one left; True where none is left."""
    if not any((folder / "rows").glob("*.rows")):
        return True
    try:
        table = "node" if kind == "pairs" else "entity"
        ge.DistEmbedding(ENTITIES, DIM, table, placement=placement(kind, folder, "refuse"))
    except ConfigError as error:
        return "run that did not end" in str(error)
    return False


def run(start: Any, kind: str, folder: Path, every: int) -> Any:
    """A started process that trains; it goes on where there is something to go on from."""
    folder.mkdir(exist_ok=True)
    process = start.Process(target=train, args=(kind, folder, every, True, "remove"))
    process.start()
    return process


def main() -> None:
    """Kill until there were as many kills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--again", type=int, default=10, help="kills of a run")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is killed, in turn")
    args = parser.parse_args()
    start = multiprocessing.get_context("forkserver")
    preloaded = ["graph_emb.models.kge.training", "graph_emb.models.skipgram.training", "torch._dynamo", "numba"]
    start.set_forkserver_preload(preloaded)
    ge.init(mode="local")
    chance, counts = random.Random(args.seed), {"during the start": 0, "while it trained": 0}
    wrong = kills = runs = unrefused = 0
    with tempfile.TemporaryDirectory() as place:
        wanted, seconds = {}, {}
        for kind in args.kinds:
            whole = Path(place, kind)
            for _ in range(2):  # the second one finds its kernels compiled
                shutil.rmtree(whole, ignore_errors=True)
                began = time.perf_counter()
                process = run(start, kind, whole, args.every)
                process.join()
                seconds[kind] = time.perf_counter() - began
            wanted[kind] = (whole / "digest").read_text()
        while kills < args.kills:
            kind = args.kinds[runs % len(args.kinds)]
            folder = Path(place, f"run{runs}")
            for _ in range(min(args.again, args.kills - kills)):
                process = run(start, kind, folder, args.every)
                process.join(chance.uniform(0.0, seconds[kind]))
                if process.exitcode is None:
                    process.kill()
                    process.join()
                    kills += 1
                    began = (folder / "checkpoints").exists()
                    counts["while it trained" if began else "during the start"] += 1
                    unrefused += not refused(kind, folder)
                if (folder / "digest").exists():
                    break
            if not (folder / "digest").exists():
                run(start, kind, folder, args.every).join()
            wrong += (folder / "digest").read_text() != wanted[kind]
            runs += 1
            shutil.rmtree(folder)
    ge.shutdown()
    print(f"{kills} kills of {runs} runs, {counts}: {wrong} runs with other bytes, {unrefused} torn files not refused")
    if wrong or unrefused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
