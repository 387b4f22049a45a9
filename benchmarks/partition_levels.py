"""Partitions into many parts: the levels of a nested partition beside DGL's METIS, from one run.

    python benchmarks/partition_levels.py --parts 1024 4096 16384

For each number of parts: seconds and CPU seconds (user and system, of all threads), the share of edges between parts,
the largest part over the mean and the parts without a node; of one level (``nested``), of all levels at once, and of
METIS without balanced edges, which is what it is fastest and cuts least with. METIS runs on one thread; the adjacency
is made inside the clock of ours, and METIS gets its graph made. Ours is warmed up on a small graph.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tabulate import tabulate

from graph_emb.compat import dgl as compat_dgl
from graph_emb.graph import read_graph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import compressed
from graph_emb.run.parallel import of_one_type
from partition.nesting import nested


def metis(graph: HeteroGraph, num_parts: int) -> tuple[float, float, np.ndarray]:
    """Seconds, CPU seconds and the part of each node, (N,), of DGL's METIS."""
    import torch

    dgl = compat_dgl.load()
    from dgl.partition import metis_partition_assignment

    ((src, dst),) = graph.edges.values()
    made = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.total_nodes)
    with contextlib.redirect_stdout(io.StringIO()):
        return timed(lambda: metis_partition_assignment(made, num_parts).numpy())


def timed(run: Callable[[], np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Seconds, CPU seconds and the result."""
    started, worked = time.perf_counter(), time.process_time()
    found = run()
    return time.perf_counter() - started, time.process_time() - worked, found


def row(name: str, graph: HeteroGraph, num_parts: int, seconds: float, cpu: float, parts: np.ndarray) -> list[object]:
    """A line of the table."""
    ((src, dst),) = graph.edges.values()
    sizes = np.bincount(parts, minlength=num_parts)
    cut = float((parts[src] != parts[dst]).mean())
    return [name, num_parts, seconds, cpu, cut, sizes.max() * num_parts / len(parts), int((sizes == 0).sum())]


def main() -> None:
    """Partition and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, default=Path("../shared/data/ogbn_arxiv/graph.npz"))
    parser.add_argument("--parts", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-metis", action="store_true")
    args = parser.parse_args()
    options = {"seed": args.seed, "num_threads": args.threads}
    small = HeteroGraph({"node": 300}, {("node", "to", "node"): (np.arange(299), np.arange(1, 300))})
    nested(small, [2, 8], **options)
    graph = of_one_type(compressed(read_graph(args.graph), symmetrize=True)[0])
    rows = []
    for count in args.parts:
        rows.append(row("one level", graph, count, *timed(lambda n=count: nested(graph, [n], **options)[0][:, 0])))
        if not args.skip_metis:
            rows.append(row("METIS", graph, count, *metis(graph, count)))
    seconds, cpu, found = timed(lambda: nested(graph, args.parts, **options)[0])
    rows += [row("all levels", graph, n, seconds, cpu, found[:, place]) for place, n in enumerate(args.parts)]
    heads = ["", "parts", "seconds", "CPU seconds", "cut", "largest", "empty"]
    print(tabulate(rows, heads, floatfmt=("", "", ".2f", ".2f", ".4f", ".2f", "")))


if __name__ == "__main__":
    main()
