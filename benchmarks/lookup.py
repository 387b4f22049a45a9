"""``ge.lookup`` of several tables beside a call for each, on ranks of this machine: forward, and a whole step.

    python benchmarks/lookup.py --json lookup.json
    python benchmarks/lookup.py --ranks --tables 20     # the way back alone, in one process

Both do the same in turn on the same ids in each round; a rank's time is that of the slowest rank. Many small tables are
where one exchange instead of many counts. The way back in one process is the step of an optimizer of all tables, which
takes one kernel call, beside those of an optimizer of each table.
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


def way_back(args: argparse.Namespace, rule: str, batch: int) -> tuple[float, float, float]:
    """Milliseconds of the steps of an optimizer of all tables and of one each; the median of their ratios."""
    import torch

    import graph_emb as ge

    tables = [
        ge.DistEmbedding(args.rows, args.dim, init_func=ge.initializers.Uniform(seed=k)) for k in range(args.tables)
    ]
    others = [
        ge.DistEmbedding(args.rows, args.dim, init_func=ge.initializers.Uniform(seed=k)) for k in range(args.tables)
    ]
    kind = getattr(ge, rule)
    ways = {"all": (tables, [kind(tables, lr=0.01)]), "each": (others, [kind([emb], lr=0.01) for emb in others])}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(args.warmup + args.repeats):
        drawn = torch.from_numpy(np.random.default_rng(round_).integers(0, args.rows, (args.tables, batch)))
        for way, (of_way, opts) in ways.items():
            rows = ge.lookup(list(zip(of_way, drawn, strict=True)))
            torch.autograd.backward(rows, [torch.ones_like(one) for one in rows])
            start = time.perf_counter()
            for opt in opts:
                opt.step()
            if round_ >= args.warmup:
                times[way].append((time.perf_counter() - start) * 1e3)
    equal = all(torch.equal(one.weight[:], two.weight[:]) for one, two in zip(tables, others, strict=True))
    if not equal:
        raise SystemExit("the tables differ")
    joint, apart = np.array(times["all"]), np.array(times["each"])
    return float(np.median(joint)), float(np.median(apart)), float(np.median(apart / joint))


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
    back = [
        [rule, batch, *way_back(args, rule, batch)]
        for rule in ("SparseRowAdagrad", "SparseAdam")
        for batch in args.batches
    ]
    heads = ["way back, one process", "ids of a table", "one call, ms", "a call each, ms", "ratio"]
    print(tabulate(back, headers=heads, floatfmt=".2f"))
    if not args.ranks:
        return
    results = {
        f"{size} ranks, {batch} ids": measure(args, size, batch) for size in args.ranks for batch in args.batches
    }
    names = list(next(iter(results.values())))
    print(tabulate([[case, *found.values()] for case, found in results.items()], headers=["", *names], floatfmt=".2f"))
    if args.json:
        args.json.write_text(
            json.dumps({"args": vars(args), "way back": back, "results": results}, default=str, indent=2)
        )


if __name__ == "__main__":
    main()
