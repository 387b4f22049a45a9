"""Sampled neighbourhoods of a graph on two machines: batches per second, ours beside DGL's DistNodeDataLoader.

    sudo python benchmarks/neighbors_on_parts.py --root ../shared/data --json neighbors_on_parts.json

The machines are network namespaces of this one, each with a shared memory of its own, a part of ogbn-arxiv and one
trainer of one thread; DGL has its server beside the trainer, as it asks for. Trainers take batches of their own
training nodes at the same time; the sum of their rates counts. Jobs of both systems take turns; the ratio's range is
over these turns, each of which is the median of its repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import partition

HOSTS, FANOUTS = 2, [15, 10, 5]
SERVER_PORT, GROUP_PORT = 30_050, 29_600
ADDRESSES = [f"10.0.0.{number + 1}" for number in range(HOSTS)]
ON_A_HOST = 'mount -t tmpfs -o size=8g tmpfs /dev/shm && exec "$@"'


def rates(batches: Callable[[], Iterable[Any]], meet: Callable[[], None], repeats: int) -> list[float]:
    """Batches per second of this trainer, by repeat; one more comes first, for what compiles and connects."""
    found = []
    for _ in range(repeats + 1):
        meet()
        begun, count = time.perf_counter(), 0
        for _ in batches():
            count += 1
        found.append(count / (time.perf_counter() - begun))
    return found[1:]


def dgl_trainer(args: argparse.Namespace) -> list[float]:
    """DGL's own client; in the server's process this does not return."""
    from graph_emb.compat import dgl as compat_dgl

    dgl: Any = compat_dgl.load()
    dgl.distributed.initialize(str(args.folder / "ip_config.txt"))
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{ADDRESSES[0]}:{GROUP_PORT}", world_size=HOSTS,
                                         rank=args.host)  # fmt: skip
    config = Path(os.environ["DGL_CONF_PATH"])
    graph = dgl.distributed.DistGraph(json.loads(config.read_text())["graph_name"], part_config=str(config))
    nodes = dgl.distributed.node_split(torch.ones(graph.num_nodes(), dtype=torch.bool), graph.get_partition_book())
    nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))]
    sampler = dgl.dataloading.NeighborSampler(FANOUTS)
    loader = dgl.dataloading.DistNodeDataLoader(
        graph, nodes[: args.batches * args.batch_size], sampler, batch_size=args.batch_size, shuffle=False
    )
    return rates(lambda: loader, torch.distributed.barrier, args.repeats)


def own_trainer(args: argparse.Namespace) -> list[float]:
    """A rank that holds the edges into its part's nodes."""
    import graph_emb as ge
    from graph_emb.run.own_parts import own_edges
    from graph_emb.run.parallel import Trainers
    from graph_emb.sampling.partitioned_neighbors import PartitionedNeighborSampling

    transport: Any = ge.init(mode="collective")
    own = own_edges(partition.load(args.folder / "parts"), Trainers(transport.group, transport))
    ((ntype, (low, high)),) = own.ranges.items()
    nodes = torch.randperm(high - low, generator=torch.Generator().manual_seed(0)) + low
    sampling = PartitionedNeighborSampling(own, FANOUTS)
    targets = nodes[: args.batches * args.batch_size].split(args.batch_size)
    return rates(lambda: (sampling.sample({ntype: some}) for some in targets), transport.barrier, args.repeats)


def run_host(args: argparse.Namespace) -> None:
    """What runs on a machine: the trainer, and for DGL a server beside it."""
    torch.set_num_threads(1)
    server = None
    if args.system == "dgl":
        config = str(partition.load(args.folder / "parts").config_path.absolute())
        os.environ |= {
            "DGL_DIST_MODE": "distributed",
            "DGL_IP_CONFIG": str(args.folder / "ip_config.txt"),
            "DGL_NUM_SERVER": "1",
            "DGL_NUM_CLIENT": str(HOSTS),
            "DGL_CONF_PATH": config,
            "DGL_GRAPH_FORMAT": "csc",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        role = {"DGL_ROLE": "server", "DGL_SERVER_ID": str(args.host)}
        if "DGL_ROLE" not in os.environ:
            server = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **role})
            os.environ["DGL_ROLE"] = "client"
        found = dgl_trainer(args)
    else:
        os.environ |= {
            "RANK": str(args.host), "LOCAL_RANK": "0", "WORLD_SIZE": str(HOSTS), "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(GROUP_PORT),
        }  # fmt: skip
        found = own_trainer(args)
    (args.folder / f"{args.system}-{args.host}.json").write_text(json.dumps(found))
    if server is not None:
        from dgl.distributed import exit_client

        exit_client()  # the servers end with the last one
        server.wait()


def job(system: str, args: argparse.Namespace, folder: Path, on: Callable[[int, list[str]], list[str]]) -> float:
    """Batches per second of all trainers: the median over the repeats."""
    words = ["--batch-size", args.batch_size, "--batches", args.batches, "--repeats", args.repeats, "--folder", folder]
    hosts = []
    for host in range(HOSTS):
        own = [sys.executable, __file__, "--system", system, "--host", str(host), *map(str, words)]
        hosts.append(subprocess.Popen(on(host, ["sh", "-c", ON_A_HOST, "sh", *own])))
    if any([host.wait() for host in hosts]):
        raise SystemExit(f"{system}: a host failed")
    found = [json.loads((folder / f"{system}-{host}.json").read_text()) for host in range(HOSTS)]
    return statistics.median(map(sum, zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--method", default="multilevel", help="of partitioning")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20, help="of a trainer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    for hidden, kind in (("--system", str), ("--host", int), ("--folder", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.system is not None:
        run_host(args)
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.netns import network

    with tempfile.TemporaryDirectory() as place, network(HOSTS) as net:
        folder = Path(place)
        (folder / "ip_config.txt").write_text("".join(f"{address} {SERVER_PORT}\n" for address in ADDRESSES))
        reader = {"root": args.root}
        partition.build("ogbn-arxiv", HOSTS, args.method, out=folder / "parts", report=False, reader_options=reader)
        found: dict[str, list[float]] = {"graph_emb": [], "dgl": []}
        for _ in range(args.turns):
            for system, own in found.items():
                own.append(job(system, args, folder, net.on))
    ratios = sorted(a / b for a, b in zip(found["graph_emb"], found["dgl"], strict=True))
    medians = [statistics.median(own) for own in found.values()]
    row = [args.method, *medians, statistics.median(ratios), f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
    print(tabulate([row], ["parts", "graph_emb, batches/s", "dgl", "ratio", "over turns"], floatfmt=".2f"))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"method": args.method, "batches_per_second": found}, indent=1))


if __name__ == "__main__":
    main()
