"""Processor time of exchanges of copied rows: two ranks of one thread that train nothing, through sockets of loopback.

    python benchmarks/exchange.py --turns 20
    python benchmarks/exchange.py --turns 20 --wire-dtype bfloat16

A turn is what an interval of walks exchanges (``LocalSGDRows``): each rank pulls rows of two tables of the other one,
fewer of the first, both change, and the changes go back. Seconds are those that the processor worked for a rank, the
threads of its sockets included, by ``getrusage``; what other processes do beside does not add to them, but for caches.
``digest`` is of all rows at the end: with equal settings it is that of any other commit whose rows have the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

from tabulate import tabulate

NAMES = ("tokens", "contexts")


def spent() -> tuple[float, float, float]:
    """Seconds of this process in user mode and in the kernel, and of them those of this thread."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime, found.ru_stime, time.thread_time()


def rank_main(args: argparse.Namespace, rank: int, port: int, pipe: Connection) -> None:
    """One rank: all turns; sends its seconds and the digest of its rows."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import numpy as np
    import torch

    import graph_emb as ge
    from graph_emb.transport.local_sgd_rows import LocalSGDRows

    torch.set_num_threads(1)
    wire = None if args.wire_dtype == "float32" else args.wire_dtype
    transport: Any = ge.init(mode="collective", shared_memory=args.shared_memory, wire_dtype=wire)
    first = ge.initializers.Uniform(seed=0)
    tables = [ge.DistEmbedding(2 * args.rows, args.dim, name, first) for name in NAMES]
    shards = [table.shard for table in tables]
    rows = LocalSGDRows(transport, NAMES, adaptive=args.reduction == "adasum")
    rng, other = np.random.default_rng(rank), (1 - rank) * args.rows
    step, total = torch.from_numpy(rng.standard_normal(args.dim).astype(np.float32)) * 0.01, np.zeros((2, 3))
    for turn in range(args.warm_up + args.turns):
        asked = torch.from_numpy(rng.permutation(args.rows)[: int(args.share * args.rows)] + other)
        transport.barrier()
        begun = spent()
        num = int(args.tokens * len(asked))
        copies = rows.pull([asked[:num], asked[num:]])
        pulled = spent()
        for memory, places, shard in zip(copies.rows, (copies.places[:num], copies.places), shards, strict=True):
            memory[places] = memory[places].addcmul_(memory[places], step)
            shard.weight.addcmul_(shard.weight, step, value=-1.0)
        transport.barrier()
        trained = spent()
        rows.give_back()
        returned = spent()
        if turn >= args.warm_up:
            total += np.subtract([pulled, returned], [begun, trained])
    digest = hashlib.sha256(b"".join(shard.weight.numpy().tobytes() for shard in shards)).hexdigest()
    pipe.send((total / args.turns, transport.traffic.bytes_sent / (args.warm_up + args.turns), digest))
    ge.shutdown()


def main() -> None:
    """Run both ranks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=84_671, help="of a table that a rank stores; half of ogbn-arxiv")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.9, help="of the other's rows that a rank copies")
    parser.add_argument("--tokens", type=float, default=0.7, help="of these, the share that the first table has, too")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3, help="turns before those that count")
    parser.add_argument("--wire-dtype", choices=["float32", "bfloat16", "float16", "int8"], default="float32")
    parser.add_argument("--reduction", choices=["adasum", "sum"], default="adasum")
    parser.add_argument("--shared-memory", action="store_true", help="exchange through memory instead of sockets")
    args = parser.parse_args()
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    for rank in range(2):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=rank_main, args=(args, rank, store.port, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a rank ended with exit code {process.exitcode}")
    mean, sent = sum(one[0] for one in found) / 2, found[0][1]
    table = [
        [name, 1e3 * (user + kernel), 1e3 * user, 1e3 * kernel, 1e3 * thread, 1e9 * (user + kernel) / sent]
        for name, (user, kernel, thread) in [("pull", mean[0]), ("give back", mean[1]), ("both", mean.sum(axis=0))]
    ]
    headers = ["a turn of a rank", "processor ms", "user", "kernel", "the caller's thread", "ns a byte sent"]
    print(tabulate(table, headers, floatfmt=".1f"))
    print(
        f"{sent / 1e6:.1f} MB sent, digest {hashlib.sha256(''.join(one[2] for one in found).encode()).hexdigest()[:16]}"
    )


if __name__ == "__main__":
    main()
