"""A build beyond memory: time for an edge beside the build in memory, and whether the limit on memory is kept.

    python benchmarks/partition_streaming.py --edges 200000000 --memory 2GB --json runs/partition_streaming.json

A planted partition (communities of random sizes; a stated share of the edges stays inside) is generated straight to
Parquet, block by block. Each build runs in a child process of its own, from the file to the partition; memory is the
child's peak (VmHWM), Python and its libraries included. The build in memory runs on a graph of ``--reference-edges``
with the same method and no report; the build beyond memory runs there as well, so that both ratios are seen.
``verify`` checks every result; its own memory is not limited.

    python benchmarks/partition_streaming.py --cuts ../shared/data --memory 600MB

compares the share of edges that ``ldg`` and ``multilevel`` cut within the limit with that of ``multilevel`` in memory,
on ogbn-arxiv, web_notredame, BlogCatalog and a planted graph of two million edges.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

BLOCK = 1 << 20
SHARED = ("ogbn_arxiv", "web_notredame", "blogcatalog")
CUT_LIMIT = 1.5
"""Share of edges cut within a limit on memory over that in memory."""
LIMIT = 2.0
"""Time for an edge beyond memory over that in memory."""


def generate(path: Path, num_nodes: int, num_edges: int, communities: int, inside: float, seed: int = 0) -> None:
    """Write the edges in row groups of a million; every node is the source of one at least."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    shares = rng.pareto(2.0, communities) + 0.2
    bounds = np.concatenate([[0], np.cumsum(shares / shares.sum())]) * num_nodes
    bounds = bounds.astype(np.int64)
    bounds[-1] = num_nodes
    names = rng.permutation(num_nodes)
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_edges, BLOCK):
            src = np.arange(start, min(start + BLOCK, num_edges)) % num_nodes
            home = np.searchsorted(bounds, src, side="right") - 1
            near = bounds[home] + (rng.random(len(src)) * (bounds[home + 1] - bounds[home])).astype(np.int64)
            dst = np.where(rng.random(len(src)) < inside, near, rng.integers(0, num_nodes, len(src)))
            order = rng.permutation(len(src))
            writer.write_table(pa.table([names[src[order]], names[dst[order]]], schema=schema))


def run_child(args: argparse.Namespace) -> dict[str, float]:
    """One build in this process."""
    import partition

    # Compiled loops are loaded before the clock starts, in both ways.
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder) / "g.parquet", 100, 1000, 3, 0.8)
        limit = {"report": False} if args.memory is None else {"memory": args.memory}
        options = {**limit, "progress": False}
        partition.build(Path(folder) / "g.parquet", 2, args.method, out=Path(folder) / "out", tolerance=1.0, **options)
    began = time.perf_counter()
    options["progress"] = None
    if args.nodes is not None:
        options["reader_options"] = {"num_nodes": args.nodes}
    partition.build(args.file, args.parts, args.method, out=args.out, **options)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return {"seconds": time.perf_counter() - began, "peak": peak}


def built(
    args: argparse.Namespace, file: Path, out: Path, method: str, memory: str | None, *more: str
) -> dict[str, Any]:
    """Seconds and peak of one build in a child process."""
    words = ["--child", "--file", str(file), "--out", str(out), "--parts", str(args.parts), "--method", method, *more]
    words += [] if memory is None else ["--memory", memory]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the build of {file.name} ended with code {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(args: argparse.Namespace, folder: Path, num_edges: int, memory: str | None) -> dict[str, Any]:
    """One build in a child process, then verified."""
    import partition

    file, out = folder / f"{num_edges}.parquet", folder / "out"
    if not file.exists():
        generate(file, max(1, num_edges // args.degree), num_edges, args.communities, args.inside)
    found = built(args, file, out, args.method, memory)
    began = time.perf_counter()
    partition.verify(out).raise_problems()
    found |= {"edges": num_edges, "memory": memory, "verified": time.perf_counter() - began}
    found["balance"] = partition.load(out).manifest.made["balance"]
    shutil.rmtree(out)
    return found


def compare_cuts(args: argparse.Namespace, memory: str) -> int:
    """Print the cut of each method on each graph; 1 when a limit is broken and ``--check`` asks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import partition
    from graph_emb.graph import read_graph
    from partition.streaming.source import memory_bytes

    rows: list[list[str]] = []
    found: list[dict[str, Any]] = []
    kept = True
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        generate(folder / "planted.parquet", 100_000, 2_000_000, args.communities, args.inside)
        for graph in (*SHARED, "planted"):
            file = folder / f"{graph}.parquet"
            if not file.exists():
                (edges,) = read_graph(Path(args.cuts) / graph / "graph.npz").edges.values()
                pq.write_table(pa.table(list(edges), names=["src", "dst"]), file, row_group_size=BLOCK)
            src, dst = (column.to_numpy() for column in pq.read_table(file).columns)
            num_nodes = 1 + int(max(src.max(), dst.max()))
            whole = 0.0
            for method, limit in (("multilevel", None), ("ldg", memory), ("multilevel", memory)):
                each = built(args, file, folder / "out", method, limit, "--nodes", str(num_nodes))
                made = partition.load(folder / "out")
                assert made.manifest is not None
                parts, facts = made.assignment().parts["_N"], made.manifest.made
                each |= {"graph": graph, "method": method, "memory": limit, **facts}
                each["cut"] = float((parts[src] != parts[dst]).sum() / (src != dst).sum())
                whole = whole or each["cut"]
                if limit is not None:
                    kept &= each["peak"] <= memory_bytes(memory)
                    kept &= method == "ldg" or each["cut"] <= CUT_LIMIT * whole
                found.append(each)
                share, balance = f"{100 * each['cut']:.1f} %", f"{max(facts['balance'].values()):.3f}"
                cost = f"{each['seconds']:.1f}", f"{each['peak'] / 1e6:,.0f}"
                rows.append([graph, method, limit or "in memory", share, f"{each['cut'] / whole:.2f}x", balance, *cost])
                shutil.rmtree(folder / "out")
    headers = ["graph", "method", "limit", "edges cut", "of in memory", "balance", "seconds", "peak MB"]
    print(tabulate(rows, headers, disable_numparse=True, stralign="right"))
    if args.json:
        Path(args.json).write_text(json.dumps({**vars(args), "found": found}, indent=2) + "\n", encoding="utf-8")
    print(f"limits: peak within {memory}, cut {CUT_LIMIT}x of in memory: {'kept' if kept else 'BROKEN'}")
    return 1 if args.check and not kept else 0


def main() -> int:
    """Print the table; 1 when a limit is broken and ``--check`` asks."""
    from partition.streaming.source import memory_bytes

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=200_000_000, help="directed")
    parser.add_argument("--memory", default=None, help="limit of the build; default: 2GB")
    parser.add_argument("--reference-edges", type=int, default=10_000_000, help="of the graph that fits in memory")
    parser.add_argument("--degree", type=int, default=20, help="edges for each node")
    parser.add_argument("--communities", type=int, default=400)
    parser.add_argument("--inside", type=float, default=0.8, help="share of edges inside a community")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--method", default="ldg", help="one that works in memory and beyond")
    parser.add_argument("--cuts", metavar="DATA", help="compare cuts on the shared graphs instead")
    parser.add_argument("--folder", help="where graphs and partitions go; default: a temporary folder")
    parser.add_argument("--json", help="write every number there")
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print("\n" + json.dumps(run_child(args)))
        return 0
    memory = args.memory or "2GB"
    if args.cuts:
        return compare_cuts(args, memory)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        cells = [(args.reference_edges, None), (args.reference_edges, memory), (args.edges, memory)]
        found = [measured(args, Path(name), *cell) for cell in dict.fromkeys(cells)]
    per_edge = [each["seconds"] / each["edges"] for each in found]
    rows = [
        [
            f"{each['edges']:,}",
            each["memory"] or "in memory",
            f"{each['seconds']:.1f}",
            f"{1e9 * cost:.0f}",
            f"{cost / per_edge[0]:.2f}x",
            f"{each['peak'] / 1e6:,.0f}",
            f"{each['verified']:.1f}",
            " ".join(f"{name} {value:.3f}" for name, value in each["balance"].items()),
        ]
        for each, cost in zip(found, per_edge, strict=True)
    ]
    headers = ["edges", "limit", "seconds", "ns per edge", "of in memory", "peak MB", "verified s", "balance"]
    print(tabulate(rows, headers, disable_numparse=True, stralign="right"))
    if args.json:
        Path(args.json).write_text(json.dumps({**vars(args), "found": found}, indent=2) + "\n", encoding="utf-8")
    kept = all(each["peak"] <= memory_bytes(memory) for each in found[1:])
    fast = all(cost <= LIMIT * per_edge[0] for cost in per_edge[1:])
    words = {True: "kept", False: "BROKEN"}
    print(f"limits: peak within {memory}: {words[kept]}; {LIMIT}x the time of an edge: {words[fast]}")
    return 1 if args.check and not (kept and fast) else 0


if __name__ == "__main__":
    sys.exit(main())
