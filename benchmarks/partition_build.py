"""The whole job beside ``dgl.distributed.partition_graph``: from a graph in memory to a partition on disk.

    python benchmarks/partition_build.py --json runs/partition_build.json

A planted partition (communities of random sizes; a stated share of the edges stays inside; both directions) is handed
to each system in a child process of its own, with and without features. Time is from the graph in memory to the files;
memory is the child's peak (VmHWM) above what it held when the job began. DGL runs METIS with ``balance_edges=True``, as
our default balances nodes and edges. Systems take turns within a repeat; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

SYSTEMS = ("dgl", "ours")
LIMITS = {"seconds": 0.5, "peak": 0.4}


def planted(nodes: int, edges: int, communities: int, inside: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(sources, destinations) of ``edges`` directed edges, both directions of each; node ids are shuffled."""
    rng = np.random.default_rng(seed)
    shares = rng.pareto(2.0, communities) + 0.2
    bounds = np.concatenate([[0], np.cumsum(shares / shares.sum())]) * nodes
    bounds = bounds.astype(np.int64)
    bounds[-1] = nodes  # whatever the sum was rounded to
    src = rng.integers(0, nodes, edges // 2)
    home = np.searchsorted(bounds, src, side="right") - 1
    near = bounds[home] + (rng.random(len(src)) * (bounds[home + 1] - bounds[home])).astype(np.int64)
    dst = np.where(rng.random(len(src)) < inside, near, rng.integers(0, nodes, len(src)))
    names = rng.permutation(nodes)
    src, dst = names[src], names[dst]
    return np.concatenate([src, dst]), np.concatenate([dst, src])


def peak_bytes() -> int:
    """The most memory this process has held."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Let the peak start again from what is held now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def run_child(system: str, folder: Path, parts: int, report: bool) -> dict[str, float]:
    """Load the graph, warm the system up on a small one, do the job and measure it."""
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("src", "dst")}
    num_nodes = int((folder / "nodes").read_text())
    feat = np.load(folder / "feat.npy") if (folder / "feat.npy").exists() else None
    job = {"dgl": dgl_job, "ours": our_job}[system]
    small = np.arange(2000) % 997, (np.arange(2000) * 7 + 1) % 997
    with tempfile.TemporaryDirectory() as warm:
        job(*small, 1000, None, 2, Path(warm) / "out", report)()
    out = folder / f"out-{system}"
    run = job(arrays["src"], arrays["dst"], num_nodes, feat, parts, out, report)
    forget_peak()
    held, began, worked = peak_bytes(), time.perf_counter(), time.process_time()
    run()
    seconds, cpu, peak = time.perf_counter() - began, time.process_time() - worked, peak_bytes() - held
    written = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    shutil.rmtree(out)
    return {"seconds": seconds, "cpu": cpu, "peak": peak, "written": written, "held": held}


def our_job(
    src: np.ndarray, dst: np.ndarray, nodes: int, feat: np.ndarray | None, parts: int, out: Path, report: bool
) -> Any:
    """``partition.build`` of a graph in memory."""
    import partition

    data = {} if feat is None else {"_N": {"feat": feat}}
    graph = partition.HeteroGraph({"_N": nodes}, {("_N", "_E", "_N"): (src, dst)}, data, name="planted")
    return lambda: partition.build(graph, parts, out=out, report=report)


def dgl_job(
    src: np.ndarray, dst: np.ndarray, nodes: int, feat: np.ndarray | None, parts: int, out: Path, report: bool
) -> Any:
    """``partition_graph`` with METIS, balanced by nodes and edges; DGL has no report to ask for."""
    import importlib

    import torch

    from graph_emb.compat import dgl as compat_dgl

    dgl = compat_dgl.load()
    importlib.import_module("dgl.distributed")
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=nodes)
    if feat is not None:
        graph.ndata["feat"] = torch.from_numpy(feat)
    return lambda: dgl.distributed.partition_graph(
        graph, "planted", parts, str(out), part_method="metis", balance_edges=True
    )


def measured(system: str, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """One job in a child process."""
    words = ["--child", system, "--folder", str(folder), "--parts", str(args.parts)]
    words += ["--report"] if args.report else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "NUMBA_NUM_THREADS": str(args.threads)}
    done = subprocess.run(
        [sys.executable, __file__, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{system} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(args: argparse.Namespace, folder: Path, dim: int) -> dict[str, Any]:
    """Medians of every system, and ours over DGL's."""
    path = folder / "feat.npy"
    path.unlink(missing_ok=True)
    if dim:
        np.save(path, np.random.default_rng(1).random((args.nodes, dim), np.float32))
    runs: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for _ in range(args.repeats):
        for system in SYSTEMS:
            runs[system].append(measured(system, folder, args))
    medians = {
        system: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for system, found in runs.items()
    }
    ratios = {key: medians["ours"][key] / medians["dgl"][key] for key in LIMITS}
    return {"features": dim, "runs": runs, "medians": medians, "ratios": ratios}


def main() -> int:
    """Print the table; 1 when a ratio is above its limit and ``--check`` asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=38_000_000, help="directed")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--communities", type=int, default=400)
    parser.add_argument("--inside", type=float, default=0.8, help="share of edges inside a community")
    parser.add_argument("--features", type=int, nargs="+", default=[0, 64], help="widths; 0: none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="ours writes its report as well; DGL has none")
    parser.add_argument("--json", help="write every number there")
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print("\n" + json.dumps(run_child(args.child, Path(args.folder), args.parts, args.report)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        src, dst = planted(args.nodes, args.edges, args.communities, args.inside)
        np.save(folder / "src.npy", src)
        np.save(folder / "dst.npy", dst)
        (folder / "nodes").write_text(str(args.nodes))
        del src, dst
        found = [compare(args, folder, dim) for dim in args.features]
    rows = [
        [
            each["features"],
            system,
            f"{numbers['seconds']:.1f}",
            f"{numbers['cpu']:.1f}",
            f"{numbers['peak'] / 2**20:,.0f}",
            f"{numbers['peak'] / args.edges:.0f}",
            f"{numbers['written'] / 2**20:,.0f}",
            *(
                (f"{each['ratios']['seconds']:.2f}x", f"{each['ratios']['peak']:.2f}x")
                if system == "ours"
                else ("", "")
            ),
        ]
        for each in found
        for system, numbers in each["medians"].items()
    ]
    headers = ["features", "system", "seconds", "CPU s", "extra MiB", "B per edge", "written MiB", "time", "memory"]
    print(tabulate(rows, headers, disable_numparse=True, stralign="right"))
    print(f"limits: {LIMITS['seconds']}x the time, {LIMITS['peak']}x the extra peak memory")
    if args.json:
        Path(args.json).write_text(json.dumps({**vars(args), "found": found}, indent=2) + "\n", encoding="utf-8")
    above = any(each["ratios"][key] > limit for each in found for key, limit in LIMITS.items())
    return 1 if args.check and above else 0


if __name__ == "__main__":
    sys.exit(main())
