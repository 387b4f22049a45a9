"""Kvstore mode: a growing table beside one of a fixed size, on the machine of its server.

    python benchmarks/growing_kvstore.py --json growing_kvstore.json
    python benchmarks/growing_kvstore.py --memory

One server, trainers on the same host. Pulls and Adagrad steps (pull, push, flush) of both tables take turns on the same
ids, all of which have rows. A trainer asks the server once where the row of an id lies: ``first pull`` is of ids that
were never asked for, ``pull`` and ``step`` of those that were. Ratios are medians over rounds, of all trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import psutil
import torch
from kvstore import add_flags, run_job
from tabulate import tabulate

import graph_emb as ge
from graph_emb.graph.hash_book import HashPolicy, key_of
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.rules import Adagrad
from graph_emb.table.spec import TableSpec
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import connect

AIM = 1.3
"""Of a read: a growing table's time beside a fixed one's."""
WHAT = ("first pull", "pull", "step")


def trainer(rank: int, hosts: list[str], token: str, args: argparse.Namespace, queue: Any) -> None:
    """Time both tables; all trainers work at once."""
    torch.set_num_threads(args.threads)
    transport: Any = connect(hosts=hosts, rank=rank, token=token)
    first, rule = ge.initializers.Uniform(seed=0), Adagrad(0.01)
    growth = ge.growing(2 * args.rows)
    transport.create(TableSpec("fixed", args.rows, args.dim, RangeBook.even(args.rows), first))
    transport.create(TableSpec("growing", growth.max_rows, args.dim, HashPolicy(), first, growth=growth))
    for table in ("fixed", "growing"):
        transport.attach(table, rule)

    def named(table: str, ids: torch.Tensor) -> torch.Tensor:
        return ids if table == "fixed" else key_of(ids)

    def step(table: str, ids: torch.Tensor, grads: torch.Tensor) -> None:
        transport.pull(table, named(table, ids))
        transport.push([Push(table, named(table, ids), grads, rule, "sum")])
        transport.flush()

    if args.rows < (args.repeats + 3) * args.batch:
        raise SystemExit(f"--rows {args.rows} are fewer than {args.repeats + 3} batches of {args.batch}")
    if rank == 0:  # every row is there
        for start in range(0, args.rows, 1 << 17):
            ids = torch.arange(start, min(args.rows, start + (1 << 17)))
            for table in ("fixed", "growing"):
                step(table, ids, torch.ones(len(ids), args.dim))
    transport.barrier()
    generator = torch.Generator().manual_seed(rank)
    times: dict[str, list[float]] = {f"{what}/{table}": [] for what in WHAT for table in ("fixed", "growing")}
    order = torch.randperm(args.rows, generator=generator)
    for repeat in range(args.repeats + 3):
        end = (repeat + 1) * args.batch
        fresh, ids = order[end - args.batch : end], order[torch.randint(end, (args.batch,), generator=generator)]
        grads = torch.randn(args.batch, args.dim, generator=generator)
        for name in times:
            what, table = name.split("/")
            transport.barrier()
            start_at = time.perf_counter()
            if what == "step":
                step(table, ids, grads)
            else:
                transport.pull(table, named(table, ids if what == "pull" else fresh))
            if repeat >= 3:  # the first ones compile and touch fresh memory
                times[name].append((time.perf_counter() - start_at) * 1e3)
    queue.put((rank, times))
    transport.close()


def taken() -> int:
    """Bytes of all processes of the job; a page of several counts once."""
    job = psutil.Process().parent()
    assert job is not None
    return sum(process.memory_full_info().pss for process in job.children())


def measured(rank: int, hosts: list[str], token: str, args: argparse.Namespace, queue: Any) -> None:
    """Bytes that a growing table takes when it is made and its first batch has rows, and when all ids have theirs."""
    torch.set_num_threads(args.threads)
    transport: Any = connect(hosts=hosts, rank=rank, token=token)
    first, rule, found = ge.initializers.Uniform(seed=0), Adagrad(0.01), []

    def made(name: str, max_rows: int) -> None:
        growth = ge.growing(max_rows)
        transport.create(TableSpec(name, max_rows, args.dim, HashPolicy(), first, growth=growth))
        transport.attach(name, rule)

    def fill(name: str, low: int, high: int) -> None:
        for start in range(low, high, args.batch) if rank == 0 else ():
            ids = key_of(torch.arange(start, min(high, start + args.batch)))
            transport.push([Push(name, ids, torch.ones(len(ids), args.dim), rule, "sum")])
        transport.flush()
        transport.barrier()

    made("warm", args.batch)  # what the first table of a job takes
    fill("warm", 0, args.batch)
    before = taken()
    made("growing", args.max_rows)
    for low, high in ((0, args.batch), (args.batch, args.rows)):
        fill("growing", low, high)
        found.append(taken() - before if rank == 0 else 0)
        transport.barrier()
    queue.put((rank, found))
    transport.close()


def compare_memory(args: argparse.Namespace) -> None:
    """Print what tables of as many rows take with two limits."""
    rows = []
    for factor in (1, 10):
        args.max_rows = factor * args.rows
        first, last = run_job(measured, args.trainers, None, args)[0]
        rows.append([f"{args.max_rows:,}", first / 2**20, last / 2**20])
    ratios = [rows[1][k] / rows[0][k] for k in (1, 2)]
    heads = ["max_rows", f"MiB with {args.batch:,} rows", f"with {args.rows:,}"]
    print(tabulate([*rows, ["ratio (aim 1.02)", *ratios]], heads, floatfmt=".3f"))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, trainers=1, repeats=15)
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    args = parser.parse_args()
    if args.memory:
        return compare_memory(args)
    found = run_job(trainer, args.trainers, None, args)
    rows = []
    for what in WHAT:
        fixed, growing = ([ms for one in found for ms in one[f"{what}/{table}"]] for table in ("fixed", "growing"))
        ratio = statistics.median(b / a for a, b in zip(fixed, growing, strict=True))
        rows.append([what, statistics.median(fixed), statistics.median(growing), ratio])
    print(tabulate(rows, ["", "fixed, ms", "growing, ms", f"/ fixed (aim of a pull {AIM})"], floatfmt=".2f"))
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "ms": found}, default=str, indent=2))


if __name__ == "__main__":
    main()
