"""A graph that grows in steps: ``partition.extend``'s placement beside partitioning each step's graph anew.

    python benchmarks/partition_extend.py --root ../shared/data --json extend.json
    python benchmarks/partition_extend.py --root ../shared/data --bound
    python benchmarks/partition_extend.py --root ../shared/data --order year

Nodes come in a random order, or by their year; a step has the edges between the nodes that are there. ``--first`` is
the share of the nodes that is partitioned at the beginning. Times are those of the assignments alone. ``--bound``
prints the least cut of the whole graph that was found where only the first nodes keep their parts and all others come
at once: several runs of the multilevel method, for which the first nodes of a part are one node that cannot move.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import graph_emb as ge
from graph_emb.core.threads import ThreadPool, thread_count
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment
from partition.extending import cut_share, extended, pinned
from partition.methods.base import assign
from partition.methods.effort import MultilevelSettings
from partition.methods.multilevel import best_parts
from partition.problem import constraints

ORDERS = ("random", "year")


class Growth:
    """A graph whose nodes come one after the other."""

    def __init__(self, graph: HeteroGraph, order: str, seed: int) -> None:
        ((self.etype, ends),) = graph.edges.items()
        self.total, place = graph.total_nodes, np.random.default_rng(seed).permutation(graph.total_nodes)
        if order == "year":  # those of a year at random
            coming = np.lexsort((place, graph.node_data[self.etype[0]]["year"]))
            place[coming] = np.arange(self.total)
        self.src, self.dst = (place[side] for side in ends)

    def until(self, num: int) -> HeteroGraph:
        """The first nodes and the edges between them."""
        here = (self.src < num) & (self.dst < num)
        return HeteroGraph({self.etype[0]: num}, {self.etype: (self.src[here], self.dst[here])})


def measure(growth: Growth, num_parts: int, first: float, steps: int, seed: int) -> list[dict[str, Any]]:
    """A row for each step."""

    def nodes_at(step: int) -> int:
        return int(growth.total * (first + (1 - first) * step / steps))

    found, rows = assign(growth.until(nodes_at(0)), num_parts, seed=seed), []
    extended(growth.until(nodes_at(0) + 1), found)  # compile
    for step in range(1, steps + 1):
        now = growth.until(nodes_at(step))
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


def bound(growth: Growth, num_parts: int, first: float, seed: int) -> dict[str, float]:
    """The least cut that was found of the whole graph whose first nodes keep their parts, see the module."""
    whole, num = growth.until(growth.total), int(growth.total * first)
    before = assign(growth.until(num), num_parts, seed=seed)
    parts = np.full(growth.total, -1, np.int32)
    parts[:num] = before.homogeneous()
    new, wanted = np.arange(num, growth.total), constraints(whole)
    level, limits = pinned(whole, parts, new, wanted, num_parts, 1), np.append(wanted.limits(num_parts), 1)
    with ThreadPool(thread_count(None)) as threads:
        rng, settings = np.random.default_rng(seed), MultilevelSettings.of("high")
        found = best_parts(level, num_parts, limits, settings, rng, threads)
    pins = found[len(new) :]
    if len(np.unique(pins)) < num_parts:
        return {"cut": float("nan"), "anew": float("nan"), "balance": float("nan")}
    parts[new] = np.argsort(pins)[found[: len(new)]]
    balance = max(wanted.balance(parts, num_parts).values())
    cut, anew = (
        cut_share(whole, Assignment.of_homogeneous(whole, parts, num_parts)),
        assign(whole, num_parts, seed=seed),
    )
    return {"cut": cut, "anew": cut_share(whole, anew), "balance": balance}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ogbn-arxiv")
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--first", type=float, nargs="+", default=[0.5, 0.1])
    parser.add_argument("--order", choices=ORDERS, default="random")
    parser.add_argument("--bound", action="store_true", help="of the whole graph, instead of the steps")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    growth = Growth(ge.load_dataset(args.dataset, root=args.root).graph, args.order, args.seed)
    found: dict[str, Any] = {}
    for first in args.first:
        if args.bound:
            found[f"bound of {first:g}"] = own = bound(growth, args.parts, first, args.seed)
            said = f"cut {own['cut']:.4f}, balance {own['balance']:.4f}; anew {own['anew']:.4f}"
            print(f"{first:g} of the nodes stay: {said}, {own['cut'] / own['anew']:.3f} times as much", flush=True)
            continue
        found[f"{first:g} at first"] = rows = measure(growth, args.parts, first, args.steps, args.seed)
        print(f"\n{first:g} of the nodes at first")
        print(tabulate(rows, headers="keys", floatfmt=".4g"), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
