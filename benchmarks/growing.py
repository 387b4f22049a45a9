"""Growing tables beside tables of a fixed size: the map of ids, steps, pauses while a table grows, memory.

    python benchmarks/growing.py --json growing.json

The map is measured beside a floor of as many random loads of 16 bytes, asked for ahead; steps of both tables take turns
on the same ids. Ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.core.compiled import mix64, njit
from graph_emb.table.id_map import AHEAD, IdMap
from graph_emb.table.row_memory import prefetch_to_read


@njit(nogil=True)
def loads(ids: np.ndarray, memory: np.ndarray) -> int:
    """The floor of a look-up: a load at a hashed place of each id."""
    total, mask = 0, len(memory) - 1
    for i in range(len(ids) + AHEAD):
        if i < len(ids):
            prefetch_to_read(memory, np.int64(mix64(np.uint64(ids[i])) & np.uint64(mask)))
        if i >= AHEAD:
            total += memory[np.int64(mix64(np.uint64(ids[i - AHEAD])) & np.uint64(mask)), 1]
    return total


def nanoseconds(call: Callable[..., Any], ids: np.ndarray, *others: np.ndarray) -> float:
    """Of each id."""
    start = time.perf_counter()
    call(ids, *others)
    return (time.perf_counter() - start) / len(ids) * 1e9


def measure_map(sizes: list[int], batch: int, repeats: int) -> list[dict[str, Any]]:
    """Look-ups and insertions of ids anywhere in int64, one thread."""
    rng = np.random.default_rng(0)
    found = []
    for size in sizes:
        ids = rng.integers(-(2**63), 2**63 - 1, size)
        made, inserted = IdMap(size, "map"), []
        for start in range(0, size, batch):
            piece = ids[start : start + batch]
            inserted.append(nanoseconds(made.add, piece, np.arange(start, start + len(piece))))
        memory = np.zeros((1 << int(2 * size - 1).bit_length(), 2), np.int64)  # about as much as the map has
        memory[:, 1] = 1
        rounds = []
        for _ in range(repeats):
            asked = ids[rng.integers(0, size, batch)]
            rounds.append((nanoseconds(made.find, asked), nanoseconds(loads, asked, memory)))
        steps = np.array(inserted[len(inserted) // 16 :]) * batch / 1e6
        found.append(
            {
                "ids": size,
                "look-up, ns": statistics.median(ours for ours, _ in rounds),
                "/ floor": statistics.median(ours / floor for ours, floor in rounds),
                "insertion, ns": statistics.mean(inserted),
                "longest call, ms": float(steps.max()),
                "median call, ms": float(np.median(steps)),
                "bytes an id": made.num_bytes() / size,
            }
        )
    return found


def step_of(emb: ge.DistEmbedding, opt: ge.SparseOptimizer, ids: torch.Tensor) -> float:
    start = time.perf_counter()
    rows = emb(ids)
    rows.backward(torch.ones_like(rows))
    opt.step()
    return (time.perf_counter() - start) * 1e3


def measure_steps(rows: int, dim: int, batch: int, repeats: int) -> dict[str, Any]:
    """Adagrad steps of both tables, without new ids and with a tenth of them new."""
    rng, init = np.random.default_rng(0), ge.initializers.Uniform(seed=0)
    fixed = ge.DistEmbedding(rows, dim, "fixed", init)
    growing = ge.DistEmbedding(ge.growing(2 * rows), dim, "growing", init)
    both = [(table, ge.SparseAdagrad([table], lr=0.01)) for table in (fixed, growing)]
    for table, opt in both:
        for start in range(0, rows, 1 << 17):  # every row is there, and visited
            ids = torch.arange(start, min(rows, start + (1 << 17)))
            opt.update(ids, torch.ones(len(ids), dim), table)
    rounds: list[list[float]] = []
    fresh = rows
    for _ in range(repeats + 3):
        ids = torch.from_numpy(rng.integers(0, rows, batch))
        some = ids.clone()
        some[: batch // 10] = torch.arange(fresh, fresh + batch // 10)
        fresh += batch // 10
        rounds.append([step_of(*both[0], ids), step_of(*both[1], ids), step_of(*both[1], some)])
    rounds = rounds[3:]
    return {
        "rows": rows,
        "fixed, ms": statistics.median(r[0] for r in rounds),
        "growing, ms": statistics.median(r[1] for r in rounds),
        "/ fixed (aim 1.20)": statistics.median(r[1] / r[0] for r in rounds),
        "a tenth new, ms": statistics.median(r[2] for r in rounds),
        "/ fixed (aim 1.5)": statistics.median(r[2] / r[0] for r in rounds),
    }


def measure_growth(first: int, last: int, dim: int, batch: int) -> dict[str, Any]:
    """Steps of new ids alone while a table grows: pauses and memory."""
    before = psutil.Process().memory_info().rss
    emb = ge.DistEmbedding(ge.growing(last), dim, "grown")
    opt = ge.SparseRowAdagrad([emb], lr=0.01)
    ids = np.random.default_rng(1).permutation(last) * 7919
    grads = torch.ones(batch, dim)
    times, made = [], 0
    while made + batch <= last:
        start = time.perf_counter()
        opt.update(ids[made : made + batch], grads, emb)
        times.append((time.perf_counter() - start) * 1e3)
        made += batch
    kept = np.array(times[first // batch :])
    size = emb.shard.num_bytes()
    return {
        "rows": f"{first:,} to {made:,} x {dim}",
        "median step, ms": float(np.median(kept)),
        "p99.9 / median (aim 2)": float(np.percentile(kept, 99.9) / np.median(kept)),
        "map and numbers, bytes a row (aim 48)": (size - made * (4 * dim + 4)) / made,
        "memory / (rows + map) (aim 1.05)": (psutil.Process().memory_info().rss - before) / size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["map", "steps", "growth"], choices=["map", "steps", "growth"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100_000, 10_000_000], help="ids of the map")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=40_960)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--growth", nargs=2, type=int, default=[1_000_000, 16_000_000], help="rows of 16 numbers")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ge.init(mode="local")
    measure_map([1000], 100, 1)  # compile
    found: dict[str, Any] = {}
    if "map" in args.parts:
        found["map"] = measure_map(args.sizes, args.batch, args.repeats)
        print(tabulate(found["map"], headers="keys", floatfmt=".3g"))
    if "steps" in args.parts:
        found["steps"] = measure_steps(args.rows, args.dim, args.batch, args.repeats)
        print(tabulate([found["steps"]], headers="keys", floatfmt=".3g"))
    if "growth" in args.parts:
        found["growth"] = measure_growth(*args.growth, 16, args.batch)
        print(tabulate([found["growth"]], headers="keys", floatfmt=".3g"))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
