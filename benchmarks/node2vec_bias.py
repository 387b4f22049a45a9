"""p and q of node2vec on several data sets: what each would choose, and what the others would choose for it.

    python benchmarks/node2vec_bias.py --datasets cora blogcatalog ogbn-arxiv --walks 10 10 1 --seeds 0 1 2

A cell is the mean over seeds of the validation value by which ``graph-emb tune`` compares trials: test labels are
never read. Beside the grid of each set stands p = q = 1, DeepWalk's walks, and its spread over seeds. Then each set is
left out in turn: the cell with the best mean of gains on the others, a gain being counted in standard deviations of
that set's p = q = 1, and what it is worth on the set that was left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from tabulate import tabulate

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.run.inputs import read_dataset
from graph_emb.tuning.validation import valid_values, without_test

Cell = tuple[float, float]


def values_of(name: str, walks: int, args: argparse.Namespace) -> dict[Cell, list[float]]:
    """The validation value, in percent, of each p and q, by seed."""
    section = config_from({"model": {"name": "node2vec"}, "dataset": {"name": name, "root": args.root}}).dataset
    blind = without_test(read_dataset(section), networks=False)
    found: dict[Cell, list[float]] = {}
    for seed, (p, q) in itertools.product(args.seeds, itertools.product(args.grid, args.grid)):
        result = ge.pipeline("node2vec", blind, seed=seed, p=p, q=q, num_walks=walks, threads=args.threads)
        value = 100 * next(iter(valid_values(result).values()))
        found.setdefault((p, q), []).append(value)
        line = {"dataset": name, "walks": walks, "seed": seed, "p": p, "q": q, "valid": value}
        print(json.dumps(line), flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return found


def main() -> None:
    """Try every cell of the grid on every set, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--datasets", nargs="+", default=["cora", "blogcatalog", "ogbn-arxiv"])
    parser.add_argument("--walks", nargs="+", type=int, default=[10, 10, 1], help="a node, by set")
    parser.add_argument("--grid", nargs="+", type=float, default=[0.25, 1.0, 4.0], help="of p and of q, with 1")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="two or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="lines are added to this file")
    args = parser.parse_args()
    if 1.0 not in args.grid or len(args.seeds) < 2 or len(args.walks) != len(args.datasets):
        parser.error("--grid needs 1, --seeds two, and --walks a number for each of --datasets")
    values = {name: values_of(name, walks, args) for name, walks in zip(args.datasets, args.walks, strict=True)}
    gains: dict[str, dict[Cell, float]] = {}
    for name, cells in values.items():
        plain, spread = np.mean(cells[1.0, 1.0]), max(float(np.std(cells[1.0, 1.0], ddof=1)), 1e-9)
        gains[name] = {cell: float(np.mean(own) - plain) / spread for cell, own in cells.items()}
        best = max(cells, key=lambda cell, own=gains[name]: own[cell])
        rows = [[f"p = {p:g}", *(np.mean(cells[p, q]) for q in args.grid)] for p in args.grid]
        print(f"\n{name}: best p = {best[0]:g}, q = {best[1]:g}; p = q = 1 {plain:.2f} +- {spread:.2f}")
        print(tabulate(rows, ["valid, %", *(f"q = {q:g}" for q in args.grid)], floatfmt=".2f"))
    for left in args.datasets if len(args.datasets) > 1 else []:
        others = [name for name in args.datasets if name != left]
        chosen = max(gains[left], key=lambda cell, others=others: np.mean([gains[name][cell] for name in others]))
        print(
            f"\n{left} left out: the others choose p = {chosen[0]:g}, q = {chosen[1]:g}, which is worth "
            f"{gains[left][chosen]:+.1f} standard deviations there ({np.mean(values[left][chosen]):.2f})"
        )


if __name__ == "__main__":
    main()
