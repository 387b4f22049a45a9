"""Kvstore mode: steps of tables in files beside one in memory, all at one server.

    python benchmarks/tiers_kvstore.py --folder /fast/disk --json tiers_kvstore.json

One server owns the rows; its trainers, on the same host, pull, push and flush (Adagrad). ``shared``: the table that
kvstore mode makes without a placement, whose rows trainers of the server's machine reach in shared memory. ``asked``:
the same, but trainers ask the server, as those of other machines do and as every trainer does of a table in a file.
``hits``: a file all of whose rows are in memory. ``misses``: a file behind an eighth of its rows. ``announced``: the
same, and the trainer tells after each step which batch comes. All take turns on the same ids; ratios are medians of
pairs with ``asked``, over all trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from kvstore import add_flags, run_job
from tabulate import tabulate

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.rules import Adagrad
from graph_emb.table.spec import TableSpec
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import connect

TABLES = ("shared", "asked", "hits", "misses", "announced")


def trainer(rank: int, hosts: list[str], token: str, args: argparse.Namespace, queue: Any) -> None:
    """Time a step of each table; all trainers work at once."""
    torch.set_num_threads(args.threads)
    transport: Any = connect(hosts=hosts, rank=rank, token=token)
    first, rule, whole = ge.initializers.Uniform(seed=0), Adagrad(0.01), args.rows * args.dim * 8
    shares = {"hits": 2 * whole, "misses": whole // 8, "announced": whole // 8}
    for name in TABLES:
        file = ge.File(args.folder, shares[name]) if name in shares else None
        transport.create(TableSpec(name, args.rows, args.dim, RangeBook.even(args.rows), first, placement=file))
        transport.attach(name, rule)
    ours = transport._tables["asked"]
    ours.low = ours.high = -1  # as if the rows were another machine's
    here, servers = transport._servers, {"asked": range(0)}

    def step(name: str, ids: torch.Tensor, grads: torch.Tensor) -> None:
        transport._servers = servers.get(name, here)
        transport.pull(name, ids)
        transport.push([Push(name, ids, grads, rule, "sum")])
        transport.flush()
        transport._servers = here

    if rank == 0:  # each row once: fresh memory is slow, and a page that was never written is not read
        for start in range(0, args.rows, 1 << 16):
            ids = torch.arange(start, min(args.rows, start + (1 << 16)))
            for name in TABLES:
                step(name, ids, torch.ones(len(ids), args.dim))
    transport.barrier()
    generator = torch.Generator().manual_seed(rank)
    times: dict[str, list[float]] = {name: [] for name in TABLES}
    batches = [torch.randint(args.rows, (args.batch,), generator=generator) for _ in range(args.repeats + 4)]
    transport.prefetch("announced", batches[0])
    for repeat, (ids, following) in enumerate(pairwise(batches)):
        grads = torch.randn(args.batch, args.dim, generator=generator)
        for name in TABLES:
            transport.barrier()
            began = time.perf_counter()
            step(name, ids, grads)
            seconds = time.perf_counter() - began
            if name == "announced":
                transport.prefetch(name, following)
            if repeat >= 3:  # the first ones compile
                times[name].append(seconds * 1e3)
    queue.put((rank, times))
    transport.close()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="on the disk that is measured; default: a folder for temporary files")
    add_flags(parser, trainers=1, repeats=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        args.folder = folder
        found = run_job(trainer, args.trainers, None, args)
    rows = []
    for name in TABLES:
        own, asked = ([ms for one in found for ms in one[table]] for table in (name, "asked"))
        ratio = statistics.median(a / b for a, b in zip(own, asked, strict=True))
        rows.append([name, statistics.median(own), ratio, args.batch / statistics.median(own) * 1e3])
    print(tabulate(rows, ["", "ms", "/ asked", "rows/s of a trainer"], floatfmt=(".2f", ".2f", ".2f", ",.0f")))
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "ms": found}, default=str, indent=2))


if __name__ == "__main__":
    main()
