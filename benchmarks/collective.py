"""Collective tables: pull + backward + step on 2 and 4 ranks of this machine, beside DGL's own and the raw exchange.

    python benchmarks/collective.py --json collective.json

Each round every system does the same step in turn on the same ids and gradients; a rank's time is that of the slowest
rank. The floor is what no implementation can leave out: ``all_to_all_single`` of the same ids, rows and gradients, and
the update of the owned rows. DGL's tables need its server, which this script starts (one machine, one part).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

TARGETS = {"adagrad": 3.5, "adam": 4.0}
Step = Callable[[Any, Any], None]


def ids_of(args: argparse.Namespace, rank: int, round_: int) -> Any:
    """A rank's ids of one round: uniform, or by a power law where ``--skew`` is given."""
    import torch

    generator = np.random.default_rng([args.seed, rank, round_])
    if not args.skew:
        return torch.from_numpy(generator.integers(0, args.rows, args.batch))
    drawn = generator.zipf(args.skew, args.batch) - 1
    return torch.from_numpy(drawn * 2_654_435_761 % args.rows)  # popular rows lie on every rank


def ours(rule: str, args: argparse.Namespace) -> Step:
    """Our table and optimizer in collective mode."""
    import graph_emb as ge

    emb = ge.DistEmbedding(args.rows, args.dim, f"ours_{rule}", ge.initializers.Uniform(seed=0))
    opt = {"adagrad": ge.SparseAdagrad, "adam": ge.SparseAdam}[rule]([emb], lr=0.01)

    def step(ids: Any, grad: Any) -> None:
        emb(ids).backward(grad)
        opt.step()
        opt.zero_grad()

    return step


def raw(rule: str, args: argparse.Namespace, transport: Any) -> Step:
    """The exchanges of a step and the local update, with everything else left out."""
    import torch

    import graph_emb as ge
    from graph_emb.optim.apply import apply_update
    from graph_emb.optim.rules import Adagrad, Adam

    emb = ge.DistEmbedding(args.rows, args.dim, f"raw_{rule}", ge.initializers.Uniform(seed=0))
    numbers: Any = {"adagrad": Adagrad(0.01), "adam": Adam(0.01)}[rule]
    transport.attach(emb.name, numbers)
    group, size = transport.group, transport.world_size
    share = args.batch // size
    even = [share] * size
    generator = torch.Generator().manual_seed(transport.rank)
    mine = torch.randint(0, emb.shard.num_rows, (share * size,), generator=generator)

    def step(ids: Any, grad: Any) -> None:
        asked = group.exchange(ids[: share * size], even, even, "raw")
        rows = group.exchange(emb.shard.read(mine), even, even, "raw")
        group.exchange(asked, even, even, "raw")
        grads = group.exchange(grad[: len(rows)], even, even, "raw")
        apply_update(numbers, emb.shard, mine, grads)

    return step


def dgl_own(rule: str, args: argparse.Namespace, graph: Any) -> Step:
    """DGL's own distributed table and optimizer."""
    import dgl.distributed as dist

    policy = graph.get_node_partition_policy("_N")
    emb = dist.DistEmbedding(args.rows, args.dim, f"dgl_{rule}", None, policy)
    opt = {"adagrad": dist.optim.SparseAdagrad, "adam": dist.optim.SparseAdam}[rule]([emb], lr=0.01)

    def step(ids: Any, grad: Any) -> None:
        opt.zero_grad()
        emb(ids).backward(grad)
        opt.step()

    return step


def rank_main(args: argparse.Namespace, rank: int, size: int, port: int, folder: str | None, pipe: Connection) -> None:
    """One rank: times every system, sends the milliseconds of each round."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1",
    )  # fmt: skip
    import torch

    import graph_emb as ge

    torch.set_num_threads(1)
    graph = None
    if folder is not None:
        os.environ.update(client_environment(folder, size))
        from graph_emb.compat import dgl as compat_dgl

        compat_dgl.load()
        import dgl.distributed as dist

        dist.initialize(f"{folder}/ip.txt")
        graph = dist.DistGraph("bench", part_config=f"{folder}/bench.json")
    transport: Any = ge.init(mode="collective")
    grad = torch.randn(args.batch, args.dim) * 1e-2
    found: dict[str, Any] = {}
    for rule in args.rules:
        systems = {"ours": ours(rule, args), "raw": raw(rule, args, transport)}
        if graph is not None:
            systems["dgl"] = dgl_own(rule, args, graph)
        times: dict[str, list[float]] = {name: [] for name in systems}
        before = None
        for round_ in range(args.warmup + args.repeats):
            ids = ids_of(args, rank, round_)
            for name, step in systems.items():
                if round_ == args.warmup and name == "ours":
                    before = (transport.traffic.asked, transport.traffic.distinct)
                transport.barrier()
                start = time.perf_counter()
                step(ids, grad)
                transport.barrier()
                if round_ >= args.warmup:
                    times[name].append((time.perf_counter() - start) * 1e3)
        assert before is not None
        asked, distinct = transport.traffic.asked - before[0], transport.traffic.distinct - before[1]
        found[rule] = {"times": times, "asked_over_distinct": asked / distinct}
    pipe.send(found)
    transport.barrier()
    ge.shutdown()
    pipe.close()
    if graph is not None:
        dist.exit_client()
    sys.stdout.flush()
    os._exit(0)  # DGL's exit hooks call its server again


def client_environment(folder: str, size: int) -> dict[str, str]:
    """What DGL reads to be a client of the one server."""
    return {
        "DGL_ROLE": "client", "DGL_DIST_MODE": "distributed", "DGL_NUM_SERVER": "1", "DGL_NUM_CLIENT": str(size),
        "DGL_NUM_SAMPLER": "0", "DGL_IP_CONFIG": f"{folder}/ip.txt", "DGL_CONF_PATH": f"{folder}/bench.json",
    }  # fmt: skip


def serve(folder: str, size: int) -> None:
    """DGL's server of the one part."""
    os.environ.update(client_environment(folder, size) | {"DGL_ROLE": "server", "DGL_SERVER_ID": "0"})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from graph_emb.compat import dgl as compat_dgl

    torch.set_num_threads(1)
    compat_dgl.load()
    import dgl.distributed as dist

    dist.initialize(f"{folder}/ip.txt")  # serves until the clients leave, then exits


def prepare(args: argparse.Namespace, folder: str) -> None:
    """A graph of one part with a feature, as DGL's server wants it."""
    import socket

    import torch

    from graph_emb.compat import dgl as compat_dgl

    dgl = compat_dgl.load()
    from dgl.distributed import partition_graph

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        Path(folder, "ip.txt").write_text(f"127.0.0.1 {free.getsockname()[1]}\n", encoding="utf-8")
    graph = dgl.graph((torch.tensor([0]), torch.tensor([1])), num_nodes=args.rows)
    graph.ndata["x"] = torch.zeros(args.rows, 1)
    partition_graph(graph, "bench", 1, folder, part_method="random")


def measure(args: argparse.Namespace, size: int) -> dict[str, Any]:
    """Start the ranks, and DGL's server where it is wanted; collect the slowest rank's times."""
    from torch.distributed import TCPStore

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        server = None
        if not args.no_dgl:
            maker = context.Process(target=prepare, args=(args, folder))
            maker.start()
            maker.join()
            server = context.Process(target=serve, args=(folder, size))
            server.start()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pipes, processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            place = None if args.no_dgl else folder
            process = context.Process(target=rank_main, args=(args, rank, size, store.port, place, theirs))
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        found = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
        if server is not None:
            server.join(30)
            if server.is_alive():
                server.kill()
                server.join()
    result = {}
    for rule in args.rules:
        slowest = {name: np.max([f[rule]["times"][name] for f in found], axis=0) for name in found[0][rule]["times"]}
        result[rule] = {
            "ms": {name: float(statistics.median(times)) for name, times in slowest.items()},
            "ratio": {name: float(np.median(times / slowest["ours"])) for name, times in slowest.items()},
            "asked_over_distinct": float(np.mean([f[rule]["asked_over_distinct"] for f in found])),
        }
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=20_000, help="ids of each rank")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rules", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument(
        "--skew", type=float, default=0.0, help="exponent of a power law of the ids, such as 1.5; 0: uniform"
    )
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-dgl", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {size: measure(args, size) for size in args.ranks}
    rows = []
    for size, result in results.items():
        for rule, found in result.items():
            for name, value in found["ms"].items():
                ratio = None if name == "ours" else found["ratio"][name]
                target = {"dgl": f">= {TARGETS[rule]:g}", "raw": ">= 0.67 (ours at most 1.5x)"}.get(name, "")
                rows.append([size, rule, name, value, ratio, target])
            rows.append([size, rule, "ids asked / distinct", found["asked_over_distinct"], None, ""])
    print(tabulate(rows, headers=["ranks", "rule", "system", "median ms", "system / ours", "target"], floatfmt=".2f"))
    if args.json:
        args.json.write_text(json.dumps({"args": vars(args), "ranks": results}, default=str, indent=2))


if __name__ == "__main__":
    main()
