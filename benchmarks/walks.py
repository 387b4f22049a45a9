"""Random walks: steps per second, ours beside DGL and PecanPy, from one run.

    python benchmarks/walks.py --root ../shared/data --json walks.json

Systems take turns within a repeat, so that noise hits all of them; the median counts. A step is an arc that was
followed. PecanPy's loop is timed alone, without the conversion of its walks to strings and after its compilation.
Peers that are not installed are named and skipped (``pip install .[bench]``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
import torch
from tabulate import tabulate

from graph_emb.compat import dgl as compat_dgl
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import plain_dataset
from graph_emb.sampling.walks import WalkSampler

Walk = Callable[[int], int]
"""Walks number of a repeat in, steps taken out."""
TARGETS = {("deepwalk", "dgl"): 1.0, ("node2vec", "pecanpy"): 2.0}
NUMPY_1_NAMES = {
    "bool8": np.bool_,
    "object0": np.object_,
    "int0": np.intp,
    "uint0": np.uintp,
    "void0": np.void,
    "str0": np.str_,
    "bytes0": np.bytes_,
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
    "string_": np.bytes_,
    "longfloat": np.longdouble,
    "singlecomplex": np.complex64,
    "cfloat": np.complex128,
    "clongfloat": np.clongdouble,
    "longcomplex": np.clongdouble,
}
"""nptyping 2.5, which PecanPy 2.0.9 imports, still asks NumPy 2 for these."""


def ours(graph: Graph, args: argparse.Namespace, p: float, q: float) -> Walk:
    """Our sampler, one epoch a repeat."""
    sampler = WalkSampler(graph, num_walks=args.num_walks, walk_length=args.walk_length, p=p, q=q)

    def walk(repeat: int) -> int:
        return sum(
            int(np.count_nonzero(batch[:, 1:] >= 0))
            for batch in sampler.batches(epoch=repeat, num_threads=args.threads)
        )

    return walk


def dgl_peer(graph: Graph, args: argparse.Namespace, p: float, q: float) -> Walk:
    """``dgl.sampling.random_walk``, for p and q other than 1 ``node2vec_random_walk``."""
    dgl = compat_dgl.load()
    dgl.utils.set_num_threads(args.threads)
    csr = (torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.astype(np.int64)), torch.tensor([]))
    home = dgl.graph(("csr", csr), num_nodes=graph.num_nodes)
    home.create_formats_()
    nodes = torch.arange(graph.num_nodes).repeat(args.num_walks)

    def walk(repeat: int) -> int:
        starts = nodes[torch.randperm(len(nodes))]
        if p == q == 1:
            trace = dgl.sampling.random_walk(home, starts, length=args.walk_length - 1)[0]
        else:
            trace = dgl.sampling.node2vec_random_walk(home, starts, p, q, walk_length=args.walk_length - 1)
        return int((trace[:, 1:] >= 0).sum())

    return walk


def pecanpy_peer(graph: Graph, args: argparse.Namespace, p: float, q: float) -> Walk:
    """PecanPy's SparseOTF, or its mode for unweighted DeepWalk where p = q = 1."""
    with mock.patch.multiple(np, create=True, **NUMPY_1_NAMES):
        from numba_progress import ProgressBar
        from pecanpy import pecanpy

    numba.set_num_threads(args.threads)
    mode = pecanpy.FirstOrderUnweighted if p == q == 1 else pecanpy.SparseOTF
    home = mode(p=p, q=q, workers=args.threads)
    home.indptr, home.indices = graph.indptr.astype(np.uint32), graph.indices.astype(np.uint32)
    home.data = np.ones(graph.num_arcs, np.float32) if graph.weights is None else graph.weights.copy()
    home.set_node_ids([str(node) for node in range(graph.num_nodes)])
    home._preprocess_transition_probs()
    steps, has_neighbours, move = args.walk_length - 1, home.get_has_nbrs(), home.get_move_forward()
    nodes = np.tile(np.arange(graph.num_nodes, dtype=np.uint32), args.num_walks)

    def walk(repeat: int, starts: np.ndarray | None = None) -> int:
        if starts is None:
            starts = np.random.default_rng(repeat).permutation(nodes)
        with ProgressBar(total=len(starts), disable=True) as bar:
            found = home._random_walks(len(starts), steps, repeat, starts, has_neighbours, move, bar)
        return int((found[:, -1].astype(np.int64) - 1).sum())

    walk(0, nodes[:16])
    return walk


PEERS: dict[str, Callable[..., Walk]] = {"ours": ours, "dgl": dgl_peer, "pecanpy": pecanpy_peer}


def compare(name: str, graph: Graph, p: float, q: float, args: argparse.Namespace) -> dict[str, Any]:
    """Median steps per second of every system on one graph."""
    systems: dict[str, Walk] = {}
    for system, make in PEERS.items():
        try:
            systems[system] = make(graph, args, p, q)
        except ImportError as error:
            print(f"{system}: skipped, {error}")
    rates: dict[str, list[float]] = {system: [] for system in systems}
    for repeat in range(-1, args.repeats):  # the first warms up
        for system, walk in systems.items():
            begin = time.perf_counter()
            steps = walk(repeat + 1)
            if repeat >= 0:
                rates[system].append(steps / (time.perf_counter() - begin))
    medians = {system: statistics.median(values) for system, values in rates.items()}
    return {"dataset": name, "model": "deepwalk" if p == q == 1 else "node2vec", "p": p, "q": q, "steps_per_s": medians}


def report(results: list[dict[str, Any]]) -> None:
    """Print what was measured beside the targets."""
    rows = []
    for result in results:
        mine = result["steps_per_s"]["ours"]
        for system, rate in result["steps_per_s"].items():
            target = TARGETS.get((result["model"], system))
            ratio = None if system == "ours" else mine / rate
            wanted = f">= {target:g}" if target else ""
            rows.append([result["dataset"], result["p"], result["q"], system, rate / 1e6, ratio, wanted])
    headers = ["graph", "p", "q", "system", "M steps/s", "ours / peer", "target"]
    print(tabulate(rows, headers=headers, floatfmt=".2f", missingval=""))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the data sets; default $GRAPH_EMB_DATA")
    parser.add_argument("--datasets", nargs="*", default=["ogbn_arxiv", "blogcatalog"])
    parser.add_argument("--num-walks", type=int, default=1, help="per node and repeat")
    parser.add_argument("--walk-length", type=int, default=40, help="nodes of a walk")
    parser.add_argument("--pq", type=float, nargs=2, default=[0.5, 2.0], metavar=("P", "Q"), help="of node2vec")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for name in args.datasets:
        graph = plain_dataset(load_dataset(name, args.root)).graph
        results += [compare(name, graph, p, q, args) for p, q in ((1.0, 1.0), tuple(args.pq))]
    report(results)
    if args.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.json.write_text(json.dumps({"options": options, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
