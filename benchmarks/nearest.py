"""Exact nearest neighbours and approximate indexes over one table: seconds of 100 questions, recall, size.

python benchmarks/nearest.py                      # exact alone, 1,000,000 x 128
python benchmarks/nearest.py --index hnswlib      # with the index, which takes minutes to build
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import graph_emb as ge

INNER = 16
"""Dimensions of the plane near which rows lie, as learned ones do; those of noise have no near neighbours."""
NOISE = 0.1


def rows_of(count: int, width: int, seed: int) -> np.ndarray:
    """Rows in clusters near a plane, (count, width), float32."""
    rng = np.random.default_rng(seed)
    plane = rng.standard_normal((INNER, width), np.float32) / np.float32(INNER**0.5)
    centres = rng.standard_normal((max(1, count // 1_000), INNER), np.float32)
    rows = np.empty((count, width), np.float32)
    for low in range(0, count, 1 << 16):
        stop = min(low + (1 << 16), count)
        inner = centres[rng.integers(len(centres), size=stop - low)]
        inner = inner + np.float32(0.5) * rng.standard_normal(inner.shape, np.float32)
        rows[low:stop] = inner @ plane + np.float32(NOISE) * rng.standard_normal((stop - low, width), np.float32)
    return rows


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """The result and the seconds of each of some repeats."""
    seconds, found = [], None
    for _ in range(repeats):
        begin = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - begin)
    return found, seconds


def spread(seconds: list[float]) -> str:
    """The lowest and the highest."""
    return f"{min(seconds):.3f} to {max(seconds):.3f}"


def main() -> None:
    """Print a row for the exact search, and one for each effort of an index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--index", choices=["hnswlib", "faiss"])
    parser.add_argument("--effort", type=int, action="append", help="of the index; default: 50, 200 and 800")
    args = parser.parse_args()
    rows = rows_of(args.rows, args.width, seed=0)
    asked = np.random.default_rng(1).permutation(args.rows)[: args.asked]
    table, begun = timed(lambda: ge.NearestNeighbors(rows), 1)
    exact, seconds = timed(lambda: table.nearest_rows(asked, args.k), args.repeats)
    found: list[tuple[Any, ...]] = [("exact", "", begun[0], spread(seconds), 1.0)]
    if args.index is not None:
        with tempfile.TemporaryDirectory() as folder:
            made, built = timed(lambda: ge.NearestNeighbors(rows, index=args.index), 1)
            file = made.save_index(Path(folder, "index"))
            size = file.stat().st_size / 2**20
            for effort in args.effort or (50, 200, 800):
                near = ge.NearestNeighbors(rows, index=args.index, effort=effort, saved=file)
                answer, seconds = timed(lambda near=near: near.nearest_rows(asked, args.k), args.repeats)
                both = zip(answer.ids, exact.ids, strict=True)
                recall = float(np.mean([len(np.intersect1d(*pair)) / args.k for pair in both]))
                found.append((args.index, effort, built[0], spread(seconds), recall))
        print(f"{args.index}: a file of {size:,.0f} MiB, the rows {rows.nbytes / 2**20:,.0f} MiB")
    print(f"{args.rows:,} x {args.width} float32, {args.k} neighbours of {args.asked} rows, {args.repeats} repeats")
    print(tabulate(found, ["search", "effort", "built in s", "s", "recall"], floatfmt=("", "", ".1f", "", ".3f")))


if __name__ == "__main__":
    main()
