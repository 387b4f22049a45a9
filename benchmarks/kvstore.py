"""Kvstore mode: our push and pull beside DGL's raw ``KVClient`` on the same rows, in one job.

    python benchmarks/kvstore.py --json kvstore.json

One server, two trainers on this host. DGL's handler adds what is pushed (``index_add_``), ours runs the rule; both are
timed until the rows have changed (DGL's local push returns then; a remote one is followed by its barrier, ours by
``flush``). "local" rows lie in shared memory, "remote" ones are asked for over the socket as if they were another
machine's. The systems take turns within a repeat. A last run counts lost updates: trainers push integers to the same
rows, and the sum must be exact.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.compat import dgl as compat_dgl
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim.rule import Rule
from graph_emb.optim.rules import SGD, Adagrad
from graph_emb.run.launch.plan import SERVER_SPINS
from graph_emb.table.spec import TableSpec
from graph_emb.transport import guard
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import connect, serve
from graph_emb.transport.kvstore.layout import free_ports

TARGET = 0.8
"""Ours must reach this share of DGL's speed (issue: benchmarks/kvstore.py)."""


def add_rows(target: Any, name: str, ids: torch.Tensor, data: torch.Tensor) -> None:
    """The trivial handler that DGL's client and server run."""
    target[name].index_add_(0, ids, data)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """DGL's initializer."""
    return torch.zeros(shape, dtype=dtype)


def raw_client(args: argparse.Namespace) -> Any:
    """DGL's client with one table of our shape."""
    from dgl.distributed import DistGraph, kvstore

    policy = DistGraph("bench").get_node_partition_policy("_N")
    client = kvstore.get_kvstore()
    client.init_data("node~_N~raw_0", (args.rows, args.dim), torch.float32, policy, zeros)
    client.register_push_handler("node~_N~raw_0", add_rows)
    return client


def jobs(
    transport: Any, client: Any, args: argparse.Namespace
) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    """What is timed, by name."""
    from dgl.distributed import rpc

    rules: dict[str, Rule] = {"ours, SGD": SGD(0.1), "ours, Adagrad": Adagrad(0.1)}
    for name, rule in rules.items():
        transport.create(TableSpec(name, args.rows, args.dim, RangeBook.even(args.rows), ge.initializers.Zeros()))
        transport.attach(name, rule)
    here, servers = client.machine_id, transport._servers
    bounds = {name: (transport._tables[name].low, transport._tables[name].high) for name in rules}
    direct = transport._session._context._fast_pull

    def placed(remote: bool, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> Any:
            client._machine_id, transport._servers = (-1, range(0)) if remote else (here, servers)
            for name, (low, high) in bounds.items():
                table = transport._tables[name]
                table.low, table.high = (-1, -1) if remote else (low, high)
            watched, rpc.fast_pull = rpc.fast_pull, direct  # DGL's own C++ code
            try:
                return function(*tensors)
            finally:
                rpc.fast_pull = watched
                client._machine_id, transport._servers = here, servers

        return run

    def raw_push(ids: torch.Tensor, grads: torch.Tensor) -> None:
        client.push("node~_N~raw_0", ids, grads)
        if client._machine_id < 0:
            client.barrier()

    def our_push(name: str) -> Callable[..., None]:
        def run(ids: torch.Tensor, grads: torch.Tensor) -> None:
            transport.push([Push(name, ids, grads, rules[name], "sum")])
            transport.flush()

        return run

    found: dict[str, Callable[..., Any]] = {}
    for place in ("local", "remote"):
        away = place == "remote"
        found[f"{place} push/DGL raw"] = placed(away, raw_push)
        found[f"{place} pull/DGL raw"] = placed(away, lambda ids, _: client.pull("node~_N~raw_0", ids))
        for name in rules:
            found[f"{place} push/{name}"] = placed(away, our_push(name))
        found[f"{place} pull/ours"] = placed(away, lambda ids, _: transport.pull("ours, SGD", ids))
    return found


def trainer(rank: int, hosts: list[str], token: str, args: argparse.Namespace, queue: Any) -> None:
    """Time every job; all trainers work at once."""
    torch.set_num_threads(args.threads)
    transport: Any = connect(hosts=hosts, rank=rank, token=token)
    client = raw_client(args)
    timed = jobs(transport, client, args)
    generator = torch.Generator().manual_seed(rank)
    times: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(args.repeats + 2):
        ids = torch.randint(args.rows, (args.batch,), generator=generator)
        grads = torch.randn(args.batch, args.dim, generator=generator)
        for name, job in timed.items():
            transport.barrier()
            start = time.perf_counter()
            job(ids, grads)
            if repeat >= 2:  # the first ones compile and touch fresh memory
                times[name].append((time.perf_counter() - start) * 1000)
    queue.put((rank, times))
    transport.close()


def counter(rank: int, hosts: list[str], token: str, args: argparse.Namespace, queue: Any) -> None:
    """Push ones to the same rows as every other trainer; the last weight must be minus the number of pushes."""
    torch.set_num_threads(args.threads)
    transport: Any = connect(hosts=hosts, rank=rank, token=token)
    transport.create(TableSpec("sum", 100, args.dim, RangeBook.even(100), ge.initializers.Zeros()))
    transport.attach("sum", SGD(1.0))
    ids, ones = torch.arange(100), torch.ones(100, args.dim)
    for _ in range(args.pushes):
        transport.push([Push("sum", ids, ones, SGD(1.0), "sum")])
    transport.flush()
    transport.barrier()
    rows = transport.pull("sum", ids)
    expected = -float(args.pushes * transport.world_size)
    queue.put((rank, int((rows != expected).sum())))
    transport.close()


def run_job(function: Callable[..., None], trainers: int, config: str | None, args: argparse.Namespace) -> list[Any]:
    """What each trainer put into the queue; one server serves them."""
    context = multiprocessing.get_context("spawn")
    hosts, token, queue = [f"127.0.0.1:{free_ports(1)}"], guard.new_token(), context.Queue()
    options = {"token": token, "part_config": config}
    os.environ["NUMBA_NUM_THREADS"], os.environ["GOMP_SPINCOUNT"] = str(args.server_threads), SERVER_SPINS
    processes = [context.Process(target=serve, args=(0, hosts, 1, trainers), kwargs=options)]
    processes[0].start()
    del os.environ["GOMP_SPINCOUNT"]
    os.environ["NUMBA_NUM_THREADS"] = str(args.threads)
    processes += [context.Process(target=function, args=(rank, hosts, token, args, queue)) for rank in range(trainers)]
    for process in processes[1:]:
        process.start()
    found = [queue.get(timeout=600) for _ in range(trainers)]
    for process in processes:
        process.join()
        assert process.exitcode == 0, f"{process.name} ended with {process.exitcode}"
    return [value for _, value in sorted(found, key=lambda pair: pair[0])]


def add_flags(parser: argparse.ArgumentParser, trainers: int, repeats: int) -> None:
    """Add the flags of a job with one server, and of what it times."""
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--trainers", type=int, default=trainers)
    parser.add_argument("--threads", type=int, default=1, help="of each trainer")
    parser.add_argument("--server-threads", type=int, default=os.cpu_count(), help="as the launcher chooses: all cores")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", type=Path, help="also write the numbers there")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, trainers=2, repeats=31)
    parser.add_argument("--pushes", type=int, default=1_000, help="of each of four trainers, for the exact sum")
    args = parser.parse_args()
    dgl = compat_dgl.load()
    with tempfile.TemporaryDirectory() as folder:
        graph = dgl.graph((torch.tensor([0]), torch.tensor([1])), num_nodes=args.rows)
        dgl.distributed.partition_graph(graph, "bench", 1, folder, part_method="random")
        times = run_job(trainer, args.trainers, f"{folder}/bench.json", args)
    wrong = run_job(counter, 4, None, args)
    medians = {name: statistics.median(ms for one in times for ms in one[name]) for name in times[0]}
    rows = []
    for name, ms in medians.items():
        what, system = name.split("/")
        share = medians[f"{what}/DGL raw"] / ms
        rows.append([what, system, ms, share, "" if system == "DGL raw" else "yes" if share >= TARGET else "no"])
    print(tabulate(rows, ["", "system", "ms", "DGL's time / ours", f">= {TARGET}"], floatfmt=".2f"))
    print(f"lost updates: {sum(wrong)} of {4 * 100 * args.dim} values wrong after 4 x {args.pushes} pushes")
    if args.json:
        args.json.write_text(
            json.dumps({"args": vars(args), "ms": medians, "all": times, "wrong": wrong}, default=str, indent=2)
        )


if __name__ == "__main__":
    main()
