"""Sampled neighbourhoods: batches per second, ours beside DGL's NeighborSampler, from one run.

    python benchmarks/neighbors.py --root ../shared/data --json neighbors.json

Both take turns within a repeat, on the same targets and with the same threads; the median counts. What each gives its
network is built: blocks of positions and input ids.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from tabulate import tabulate

from graph_emb.compat import dgl as compat_dgl
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import typed_nodes
from graph_emb.sampling.neighbors import NeighborSampling


def measured(graph: HeteroGraph, target: str, fanouts: list[int], args: argparse.Namespace) -> dict[str, list[float]]:
    """Batches per second of each sampler, by repeat."""
    dgl = compat_dgl.load()
    ends = {etype: (torch.from_numpy(s).long(), torch.from_numpy(d).long()) for etype, (s, d) in graph.edges.items()}
    theirs = dgl.heterograph(ends, num_nodes_dict=dict(graph.num_nodes)).formats(["csc"])
    sampler, ours = dgl.dataloading.NeighborSampler(fanouts), NeighborSampling(graph, fanouts)
    order = torch.randperm(graph.num_nodes[target], generator=torch.Generator().manual_seed(0))
    batches = order[: args.batches * args.batch_size].split(args.batch_size)
    calls = {
        "graph_emb": lambda targets: ours.sample({target: targets}),
        "dgl": lambda targets: sampler.sample(theirs, {target: targets}),
    }
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(-1, args.repeats):
        for name, sample in calls.items():
            ours.start_epoch(repeat + 1)
            begun = time.perf_counter()
            for targets in batches:
                sample(targets)
            if repeat >= 0:  # the first one compiles
                rates[name].append(len(batches) / (time.perf_counter() - begun))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, found = [], {}
    for name, fanouts in (("ogbn-arxiv", [15, 10, 5]), ("aifb", [10, 10])):
        nodes = typed_nodes(load_dataset(name, args.root))
        rates = measured(nodes.graph, nodes.ntype, fanouts, args)
        found[name] = rates
        ratios = sorted(a / b for a, b in zip(rates["graph_emb"], rates["dgl"], strict=True))
        medians = [statistics.median(rates[system]) for system in ("graph_emb", "dgl")]
        rows.append([name, fanouts, *medians, statistics.median(ratios), f"{ratios[0]:.2f} to {ratios[-1]:.2f}"])
    print(tabulate(rows, ["graph", "fanouts", "graph_emb, batches/s", "dgl", "ratio", "over repeats"], floatfmt=".2f"))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"threads": args.threads, "batches_per_second": found}, indent=1))


if __name__ == "__main__":
    main()
