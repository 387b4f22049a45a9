"""``ge.lookup`` of several tables beside a call for each, on ranks of this machine: forward, and a whole step.

    python benchmarks/lookup.py --json lookup.json

Both do the same in turn on the same ids in each round; a rank's time is that of the slowest rank. Many small tables are
where one exchange instead of many counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate


def rank_main(args: argparse.Namespace, rank: int, size: int, port: int, batch: int, pipe: Connection) -> None:
    """One rank: sends the milliseconds of each round of both ways."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import torch

    import graph_emb as ge

    torch.set_num_threads(1)
    transport: Any = ge.init(mode="collective", shared_memory=not args.sockets)
    tables = [
        ge.DistEmbedding(args.rows, args.dim, f"t{k}", ge.initializers.Uniform(seed=k)) for k in range(args.tables)
    ]
    opt = ge.SparseRowAdagrad(tables, lr=0.01)
    ways = {"lookup": ge.lookup, "calls": lambda asked: [emb(ids) for emb, ids in asked]}
    times: dict[str, list[float]] = {f"{way} {part}": [] for way in ways for part in ("forward", "step")}
    for round_ in range(args.warmup + args.repeats):
        drawn = np.random.default_rng([rank, round_]).integers(0, args.rows, (args.tables, batch))
        asked = list(zip(tables, torch.from_numpy(drawn), strict=True))
        for way, call in ways.items():
            transport.barrier()
            start = time.perf_counter()
            rows = call(asked)
            transport.barrier()
            middle = time.perf_counter()
            torch.autograd.backward(rows, [torch.ones_like(one) for one in rows])
            opt.step()
            transport.barrier()
            if round_ >= args.warmup:
                times[f"{way} forward"].append((middle - start) * 1e3)
                times[f"{way} step"].append((time.perf_counter() - start) * 1e3)
    pipe.send(times)
    ge.shutdown()


def measure(args: argparse.Namespace, size: int, batch: int) -> dict[str, float]:
    """Medians over the rounds of the slowest rank's times, and of their ratios."""
    from torch.distributed import TCPStore

    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        mine, theirs = context.Pipe()
        process = context.Process(target=rank_main, args=(args, rank, size, store.port, batch, theirs))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    slowest = {name: np.max([times[name] for times in found], axis=0) for name in found[0]}
    result = {name: float(statistics.median(times)) for name, times in slowest.items()}
    for part in ("forward", "step"):
        result[f"calls / lookup {part}"] = float(np.median(slowest[f"calls {part}"] / slowest[f"lookup {part}"]))
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="*", default=[200, 2_000, 20_000], help="ids of a table and rank")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--sockets", action="store_true", help="exchange through sockets, as between machines")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {
        f"{size} ranks, {batch} ids": measure(args, size, batch) for size in args.ranks for batch in args.batches
    }
    names = list(next(iter(results.values())))
    print(tabulate([[case, *found.values()] for case, found in results.items()], headers=["", *names], floatfmt=".2f"))
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "results": results}, default=str, indent=2))


if __name__ == "__main__":
    main()
