"""Exchanges of two hosts on a shaped link: one way, and both ways by the same connections and by two sets of them; and
the rate that ranks measure when a run starts.

    sudo python benchmarks/links.py
    sudo python benchmarks/links.py --links 1gbit 10gbit --megabytes 1 64

Two network namespaces whose cables pass as much as told; medians of ``--repeats`` exchanges of ``ProcessGroup``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from tabulate import tabulate

from graph_emb.transport.link import Link
from graph_emb.transport.process_group import SHARED_VARIABLE, ProcessGroup

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.netns import network

WAYS = ("one way", "both, one set", "both, two sets")


def rank_main(megabytes: list[int], repeats: int) -> None:
    """One rank; the first prints the seconds of each size and way."""
    torch.set_num_threads(1)
    group, found = ProcessGroup(timeout=60), []
    other = 1 - group.rank
    for size in megabytes:
        for way in WAYS:
            sends, comes = (1, 1) if way != WAYS[0] else (other, group.rank)  # the first rank sends alone
            send, out = (torch.zeros(num * size << 20, dtype=torch.uint8) for num in (sends, comes))
            to_send, to_receive = [0, 0], [0, 0]
            to_send[other], to_receive[other] = len(send), len(out)
            exchange = group.exchange_large if way == WAYS[2] else group.exchange_into
            took = []
            for _ in range(repeats):
                group.barrier()
                begun = time.perf_counter()
                exchange(out, send, to_send, to_receive, "an exchange")
                group.barrier()
                took.append(time.perf_counter() - begun)
            found.append((size, way, statistics.median(took), max(took)))
    links = [Link.measure(group, group.rank) for _ in range(repeats)]
    if group.rank == 0:
        print(json.dumps((found, [link.gbit for link in links if link is not None])))
    group.close()


def main() -> None:
    """Run both ranks on each link and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=["1gbit", "10gbit"])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 16, 64], help="from each host")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.megabytes, args.repeats)
        return
    rows, measured = [], []
    for link in args.links:
        with network(2) as net:
            started = []
            for host in range(2):
                net.throttle(host, round(Link.parse(link).gbit * 1_000))
                words = ["--rank", "--repeats", str(args.repeats), "--megabytes", *map(str, args.megabytes)]
                told = {"RANK": host, "WORLD_SIZE": 2, "MASTER_ADDR": net.addresses[0], "MASTER_PORT": 29_500}
                environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
                environment |= {SHARED_VARIABLE: "0", "PYTHONPATH": sys.path[0]}
                command = net.on(host, [sys.executable, __file__, *words])
                started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            said = [process.communicate()[0] for process in started]
        if any(process.wait() for process in started):
            sys.exit(f"{link}: a rank failed")
        took, rates = json.loads(said[0])
        rows += [[link, *row] for row in took]
        measured.append([link, statistics.median(rates), min(rates), max(rates)])
    print(tabulate(rows, headers=["link", "MB", "", "median s", "longest"], floatfmt=".3f"))
    print(tabulate(measured, headers=["link", "measured Gb/s", "least", "most"], floatfmt=".3g"))


if __name__ == "__main__":
    main()
