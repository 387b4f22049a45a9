"""Memory of trainers that read their own parts of a partition.

    python benchmarks/part_memory.py --edges 20000000 --parts 4 --trainers 4 --json memory.json

It writes a typed graph of papers, authors and topics, three quarters of whose edges stay within a part; papers
and authors have features, topics learn. Each trainer's peak resident memory, less that of the same job on a graph
of 20,000 edges (imports, compiled kernels), stands beside its part and rows: the files of its parts (edges,
halo, features) and the rows of tables that it stores, with the rule's state. The trainers' peak is taken before the
first one gathers the rows that are saved.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
import partition
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.machine import peak_memory_mib

MIB = 2**20


def generated(edges: int, width: int, parts: int, seed: int = 0) -> HeteroGraph:
    """A graph of ``edges`` directed edges, half of them the reverse types of the others, one part after the other."""
    rng = np.random.default_rng(seed)
    papers, authors, topics = max(8, edges // 20), max(8, edges // 40), max(8, edges // 2000)

    def ends(source: int, target: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        src = rng.integers(0, source, count)
        block = src * parts // source
        low, high = block * target // parts, (block + 1) * target // parts
        near = low + (rng.random(count) * (high - low)).astype(np.int64)
        return src, np.where(rng.random(count) < 0.75, near, rng.integers(0, target, count))

    third = edges // 6
    types = {
        ("paper", "cites", "paper"): ends(papers, papers, third),
        ("author", "writes", "paper"): ends(authors, papers, third),
        ("paper", "has", "topic"): ends(papers, topics, third),
    }
    turned = {(t, f"rev_{name}", s): (dst, src) for (s, name, t), (src, dst) in types.items()}
    split = np.zeros((3, papers), dtype=bool)
    split[rng.integers(0, 3, papers), np.arange(papers)] = rng.random(papers) < 0.05
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), split, strict=True))
    data: dict[str, dict[str, np.ndarray]] = {
        "paper": {"feat": rng.random((papers, width), np.float32), "label": np.arange(papers) * 7 % 16, **masks},
        "author": {"feat": rng.random((authors, width), np.float32)},
    }
    counts = {"paper": papers, "author": authors, "topic": topics}
    return HeteroGraph(counts, types | turned, data, name="generated")


def build(edges: int, width: int, parts: int, out: str) -> None:
    """In a process of its own, whose memory is not the trainers'."""
    partition.build(generated(edges, width, parts), parts, "range", out=out, report=False)


def train(folder: str, options: dict[str, Any], read_all: bool) -> dict[str, float]:
    """A rank's part of an epoch of R-GCN: MiB at the peak before the rows are gathered, and of its rows."""
    from graph_emb.run.families import gnn

    peaks, gathered = [], gnn._tables

    def at_the_end(dataset: Any, result: Any) -> Any:
        peaks.append(peak_memory_mib())
        shards = [table.shard for table in result.tables.values()]
        learned = sum(shard.weight.nbytes + sum(state.nbytes for state in shard.state.values()) for shard in shards)
        peaks.append(learned / MIB)
        return gathered(dataset, result)

    gnn._tables = at_the_end
    if read_all:
        gnn.own_partition = lambda config: None
    size = int(os.environ["WORLD_SIZE"])
    parallel = {"mode": "collective", "trainers": size}
    ge.pipeline("rgcn", folder, parallel=parallel, threads=1, evaluate=False, **options)
    return {"peak": peaks[0], "rows": peaks[1]}


def on_ranks(function: Callable[..., dict[str, float]], size: int, *args: Any) -> list[dict[str, float]]:
    """The function's result on each rank of a job of fresh processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        found = manager.dict()
        ranks = [context.Process(target=_rank, args=(function, rank, size, port, found, args)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed")
        return [found[rank] for rank in range(size)]


def _rank(function: Callable[..., Any], rank: int, size: int, port: int, found: Any, args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    torch.set_num_threads(1)
    found[rank] = function(*args)


def measure_memory(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A line for each trainer."""
    options = {
        "dim": args.features, "hidden_dim": 32, "epochs": 1, "num_seeds": 1, "fanouts": (10, 10),
        "batch_size": args.batch_size,
    }  # fmt: skip
    context, found = multiprocessing.get_context("spawn"), {}
    for name, edges in (("small", 20_000), ("full", args.edges)):
        out = str(folder / name)
        if not Path(out).is_dir():
            process = context.Process(target=build, args=(edges, args.features, args.parts, out))
            process.start()
            process.join()
        found[name] = on_ranks(train, args.trainers, out, options, args.read_all)
    files = [sum(f.stat().st_size for f in (folder / "full" / f"part{p}").iterdir()) for p in range(args.parts)]
    lines = []
    for rank, (small, full) in enumerate(zip(found["small"], found["full"], strict=True)):
        mine = sum(files[p] for p in range(args.parts) if p * args.trainers // args.parts == rank) / MIB
        grown, due = full["peak"] - small["peak"], mine + full["rows"]
        lines.append(
            {
                "trainer": rank,
                "peak MiB": round(full["peak"]),
                "small graph": round(small["peak"]),
                "part and halo": round(mine),
                "rows": round(full["rows"]),
                "(peak - small) / (part + rows)": round(grown / due, 2),
                "all parts": round(sum(files) / MIB),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=64, help="width of papers' and authors' rows")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024, help="of all trainers")
    parser.add_argument("--read-all", action="store_true", help="the first trainer reads all, as another data set")
    parser.add_argument("--folder", type=Path, help="keep the partitions here, and take those that are there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lines = measure_memory(args, folder)
    print(tabulate(lines, headers="keys"))
    if args.json:
        args.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
