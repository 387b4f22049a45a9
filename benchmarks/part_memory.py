"""Memory of trainers that read their own parts of a partition, and what travels for a batch of neighbourhoods.

    python benchmarks/part_memory.py memory --edges 20000000 --parts 4 --trainers 4 --json memory.json
    python benchmarks/part_memory.py traffic --root ../shared/data --parts 4 --json traffic.json

``memory`` writes a typed graph of papers, authors and topics, three quarters of whose edges stay within a part; papers
and authors have features, topics learn. Each trainer's peak resident memory, less that of the same job on a graph
of 20,000 edges (imports, compiled kernels), stands beside its part and rows: the files of its parts (edges,
halo, features) and the rows of tables that it stores, with the rule's state. The trainers' peak is taken before the
first one gathers the rows that are saved.

``traffic`` samples neighbourhoods of each trainer's own nodes of ogbn-arxiv with rows of 128 numbers, on as many
trainers as parts, and counts the bytes that leave a process, by method of partitioning.
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
from graph_emb.run.own_parts import message_edges
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.partitioned_neighbors import PartitionedNeighborSampling
from graph_emb.transport.process_group import SHARED_VARIABLE

MIB = 2**20
FANOUTS, WIDTH = (15, 10), 128


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


def traffic(folder: str, batches: int, batch_size: int) -> dict[str, float]:
    """Bytes that leave a rank for a batch: requests, edges and rows."""
    os.environ[SHARED_VARIABLE] = "0"  # so that torch carries all
    transport: Any = ge.init(mode="collective")
    torchs: Any = torch.distributed
    sent, one_tensor, pieces = [0], torchs.all_to_all_single, torchs.all_to_all

    def count_one(out: Any, send: Any, to_receive: Any, to_send: Any, **options: Any) -> Any:
        row = send[0].nbytes if len(send) else 0
        sent[0] += row * sum(rows for rank, rows in enumerate(to_send) if rank != transport.rank)
        return one_tensor(out, send, to_receive, to_send, **options)

    def count_pieces(out: Any, send: Any, **options: Any) -> Any:
        sent[0] += sum(piece.nbytes for rank, piece in enumerate(send) if rank != transport.rank)
        return pieces(out, send, **options)

    torchs.all_to_all_single, torchs.all_to_all = count_one, count_pieces
    parts = partition.load(folder)
    own = message_edges(parts, Trainers(transport.group, transport))
    ((low, high),) = own.ranges.values()
    table = ge.DistEmbedding(parts.num_nodes(), WIDTH, init_func=None, part_policy=parts.policy())
    sampling = PartitionedNeighborSampling(own, FANOUTS)
    order = torch.randperm(high - low, generator=torch.Generator().manual_seed(transport.rank)) + low
    sent[0] = 0
    with torch.no_grad():
        for start in range(0, batches * batch_size, batch_size):
            found = sampling.sample(dict.fromkeys(own.ntypes, order[start : start + batch_size]))
            table(next(iter(found.inputs.values())))
    total = sent[0] / batches
    ge.shutdown()
    return {"bytes": total}


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


def measure_traffic(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A line for each method."""
    lines: list[dict[str, Any]] = []
    for method in args.methods:
        reader = {"root": args.root}
        made = partition.build(
            "ogbn-arxiv", args.parts, method, out=folder / method, report=False, reader_options=reader
        )
        found = on_ranks(traffic, args.parts, str(made.path), args.batches, 1024)
        mean = float(np.mean([line["bytes"] for line in found]))
        lines.append({"method": method, "KiB a batch": round(mean / 1024)})
        lines[-1]["of random"] = round(lines[-1]["KiB a batch"] / lines[0]["KiB a batch"], 2)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="memory", choices=("memory", "traffic"))
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=64, help="width of papers' and authors' rows")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024, help="of all trainers")
    parser.add_argument("--read-all", action="store_true", help="the first trainer reads all, as another data set")
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["random", "multilevel", "metis"])
    parser.add_argument("--folder", type=Path, help="keep the partitions here, and take those that are there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lines = (measure_memory if args.what == "memory" else measure_traffic)(args, folder)
    print(tabulate(lines, headers="keys"))
    if args.json:
        args.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
