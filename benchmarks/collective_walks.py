"""DeepWalk over a METIS partition: walks and training on 1 and 2 ranks of one thread, from one run.

    python benchmarks/collective_walks.py --dataset ogbn_arxiv --root ../shared/data --json collective_walks.json

One rank walks and trains as a program without ``graph_emb.init`` does. Several ranks hold a part of the graph and of
the tables each, in collective mode on loopback. The systems take turns within a repeat, so that noise hits all of
them; the median of the ratios counts. A token is a node of a walk; the clock counts walking and training, not the
partition. Run on as many idle cores as ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

TARGET = 1.6


def partitioned(args: argparse.Namespace, num_parts: int) -> tuple[Any, list[int], float]:
    """The graph in partition order, the bounds of its parts, and the share of arcs that stay in their part."""
    import torch

    from graph_emb.compat import dgl as compat_dgl
    from graph_emb.graph.csr import Graph
    from graph_emb.graph.datasets import load_dataset
    from graph_emb.graph.views import plain_dataset

    graph = plain_dataset(load_dataset(args.dataset, args.root)).graph
    parts = np.zeros(graph.num_nodes, np.int64)
    if num_parts > 1:
        dgl = compat_dgl.load()
        arcs = (torch.from_numpy(graph.sources()).long(), torch.from_numpy(graph.indices.copy()).long())
        whole = dgl.graph(arcs, num_nodes=graph.num_nodes)
        parts = dgl.metis_partition_assignment(whole, num_parts).numpy()
    place = np.empty(graph.num_nodes, np.int64)
    place[np.argsort(parts, kind="stable")] = np.arange(graph.num_nodes)
    edges = graph.edges()
    relabelled = Graph.from_edges(
        place[edges[:, 0]], place[edges[:, 1]], num_nodes=graph.num_nodes, weights=graph.edge_weights()
    )
    inside = float((parts[edges[:, 0]] == parts[edges[:, 1]]).mean())
    return relabelled, [0, *np.cumsum(np.bincount(parts, minlength=num_parts)).tolist()], inside


def rank_main(args: argparse.Namespace, rank: int, size: int, port: int, folder: str, pipe: Connection) -> None:
    """One rank: does what it is told by the pipe, an epoch of walks or of training, until told to end."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import torch

    import graph_emb as ge
    from graph_emb.graph.csr import Graph
    from graph_emb.graph.partition_book import RangeBook
    from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, train_skipgram
    from graph_emb.sampling.part_graph import PartGraph
    from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
    from graph_emb.sampling.walks import WalkSampler

    torch.set_num_threads(1)
    arrays = np.load(f"{folder}/{size}.npz")
    weights = arrays["weights"] if len(arrays["weights"]) else None
    graph = Graph(arrays["indptr"], arrays["indices"], weights, directed=False)
    options: dict[str, Any] = {"num_walks": args.num_walks, "walk_length": args.walk_length, "p": args.p, "q": args.q}
    book = RangeBook(arrays["bounds"].tolist())
    transport: Any = ge.init(mode="collective", hogwild=args.hogwild) if size > 1 else ge.init()
    sampler: Any = WalkSampler(graph, **options)
    if size > 1:
        part = PartGraph.of_graph(graph, transport.layout(book, "walks"), rank)
        sampler = PartitionedWalkSampler(part, transport.group, **options)
    config = SkipGramConfig(
        dim=args.dim,
        window=args.window,
        exchange_walks=args.exchange_walks,
        remote_negatives=args.remote_negatives,
        negative_scope=args.negatives,
        negative_pool=args.negative_pool,
    )
    for task in iter(pipe.recv, None):
        transport.barrier()
        begin = time.perf_counter()
        if task == "walk":
            batch = size * (1 << 20) // args.walk_length
            tokens = sum(int((walks >= 0).sum()) for walks, _ in sampler.numbered_batches(batch, num_threads=1))
            transport.barrier()
            pipe.send({"tokens": tokens, "seconds": time.perf_counter() - begin})
            continue
        model = SkipGram(graph.num_nodes, config, part_policy=book)
        last = train_skipgram(sampler, model=model, num_threads=1, progress=False).history[-1]
        share = {"local": last.local_share, "sent": last.bytes_sent, "loss": last.loss}
        pipe.send({"tokens": last.tokens / size, "seconds": last.seconds, **share})
    ge.shutdown()


class Job:
    """The processes of one number of ranks, held for the whole run."""

    def __init__(self, args: argparse.Namespace, size: int, folder: str) -> None:
        from torch.distributed import TCPStore

        graph, bounds, self.inside = partitioned(args, size)
        weights = np.empty(0, np.float32) if graph.weights is None else graph.weights
        np.savez(f"{folder}/{size}.npz", indptr=graph.indptr, indices=graph.indices, weights=weights, bounds=bounds)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=rank_main, args=(args, rank, size, self._store.port, folder, theirs))
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, task: str) -> dict[str, Any]:
        """Tokens per second of all ranks, and what the first rank says."""
        for pipe in self._pipes:
            pipe.send(task)
        found = [pipe.recv() for pipe in self._pipes]
        rate = sum(f["tokens"] for f in found) / max(f["seconds"] for f in found)
        return {**found[0], "rate": rate}

    def end(self) -> None:
        """Let the processes leave, and check that they did so in order."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"a rank ended with exit code {process.exitcode}")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All systems in turn, ``--repeats`` times after a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {size: Job(args, size, folder) for size in (1, *args.ranks)}
        rates: dict[str, dict[int, list[float]]] = {task: {size: [] for size in jobs} for task in ("walk", "train")}
        last: dict[int, dict[str, Any]] = {}
        for repeat in range(args.repeats + 1):
            for task, found in rates.items():
                for size, job in jobs.items():
                    last[size] = job.run(task)
                    if repeat:
                        found[size].append(last[size]["rate"])
        for job in jobs.values():
            job.end()
    return {
        size: {
            "edges_inside": job.inside,
            **{f"{task}_rate": float(np.median(rates[task][size])) for task in rates},
            **{f"{task}_gain": float(np.median(np.divide(rates[task][size], rates[task][1]))) for task in rates},
            "local_share": last[size]["local"],
            "mib_sent": last[size]["sent"] / 2**20,
            "loss": last[size]["loss"],
        }
        for size, job in jobs.items()
    }


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ogbn_arxiv", help="a known data set or the path of a graph file")
    parser.add_argument("--root", type=Path, help="folder of the data sets; default $GRAPH_EMB_DATA")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--num-walks", type=int, default=10, help="per node and repeat")
    parser.add_argument("--walk-length", type=int, default=40, help="nodes of a walk")
    parser.add_argument(
        "--pq", type=float, nargs=2, default=[1.0, 1.0], metavar=("P", "Q"), help="other than 1: node2vec"
    )
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--exchange-walks", type=int, help="walks of a rank between two exchanges")
    parser.add_argument("--remote-negatives", type=int, help="of a block's, those of other ranks' nodes")
    parser.add_argument("--negative-pool", type=int, default=0, help="negatives that a rank shares between exchanges")
    parser.add_argument("--negatives", default="global", choices=["global", "local"])
    parser.add_argument("--hogwild", action="store_true", help="ranks train the same rows in place, without copies")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    args = parser.parse_args()
    args.p, args.q = args.pq
    results = measure(args)
    rows = [
        [
            size,
            found["walk_rate"] / 1e6,
            found["walk_gain"],
            found["train_rate"] / 1e6,
            found["train_gain"],
            f">= {TARGET:g}" if size == 2 else "",
            100 * found["edges_inside"],
            100 * found["local_share"],
            found["mib_sent"],
            found["loss"],
        ]
        for size, found in results.items()
    ]
    headers = [
        "ranks",
        "walks, M tok/s",
        "gain",
        "training, M tok/s",
        "gain",
        "target",
        "edges inside %",
        "local rows %",
    ]
    print(tabulate(rows, headers=[*headers, "MiB sent", "loss"], floatfmt=".2f"))
    if args.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.json.write_text(json.dumps({"options": options, "ranks": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
