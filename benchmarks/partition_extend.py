"""A graph that grows in steps: ``partition.extend``'s placement beside partitioning each step's graph anew.

    python benchmarks/partition_extend.py --root ../shared/data --json extend.json

Nodes come in a random order; a step has the edges between the nodes that are there. ``--first`` is the share of the
nodes that is partitioned at the beginning. Times are those of the assignments alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import graph_emb as ge
from graph_emb.graph.typed import HeteroGraph
from partition.extending import cut_share, extended
from partition.methods.base import assign


def measure(graph: HeteroGraph, num_parts: int, first: float, steps: int, seed: int) -> list[dict[str, Any]]:
    """A row for each step."""
    ((etype, ends),) = graph.edges.items()
    place = np.random.default_rng(seed).permutation(graph.total_nodes)
    src, dst = (place[side] for side in ends)

    def until(num: int) -> HeteroGraph:
        here = (src < num) & (dst < num)
        return HeteroGraph({etype[0]: num}, {etype: (src[here], dst[here])})

    def nodes_at(step: int) -> int:
        return int(graph.total_nodes * (first + (1 - first) * step / steps))

    found, rows = assign(until(nodes_at(0)), num_parts, seed=seed), []
    extended(until(nodes_at(0) + 1), found)  # compile
    for step in range(1, steps + 1):
        now = until(nodes_at(step))
        found, anew = extended(now, found), assign(now, num_parts, seed=seed)
        cut, other = cut_share(now, found), cut_share(now, anew)
        rows.append(
            {
                "nodes": now.total_nodes,
                "cut": cut,
                "anew": other,
                "/ anew (aim 1.15)": cut / other,
                "balance": max(found.balance.values()),
                "ms": found.seconds * 1e3,
                "anew, ms": anew.seconds * 1e3,
                "time / anew (aim 0.1)": found.seconds / anew.seconds,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ogbn-arxiv")
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--first", type=float, nargs="+", default=[0.5, 0.1])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    graph = ge.load_dataset(args.dataset, root=args.root).graph
    found = {}
    for first in args.first:
        found[f"{first:g} at first"] = rows = measure(graph, args.parts, first, args.steps, args.seed)
        print(f"\n{first:g} of the nodes at first")
        print(tabulate(rows, headers="keys", floatfmt=".4g"))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
