"""A DGL program in a process of its own: opens a partition through its servers and saves all that it sees."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def serve(ip_config: str, config: str, part: int) -> None:
    """One server of one part, until the client leaves."""
    server = _dgl().distributed.DistGraphServer(part, ip_config, 1, 1, config)
    server.start()


def look(ip_config: str, name: str, out: str) -> None:
    """Edges, columns and in-neighbours of every type, by partition-order id."""
    import torch

    dgl = _dgl()
    dgl.distributed.initialize(ip_config)
    graph = dgl.distributed.DistGraph(name)
    book, seen = graph.get_partition_book(), {}
    for ntype in graph.ntypes:
        ids = torch.arange(graph.num_nodes(ntype))
        for column, values in graph.nodes[ntype].data.items():
            seen[f"node|{ntype}|{column}"] = values[ids]
    for etype in graph.canonical_etypes:
        ids = torch.arange(graph.num_edges(etype))
        for side, ends in zip(("src", "dst"), graph.find_edges(ids, etype), strict=True):
            seen[f"{side}|{':'.join(etype)}"] = ends
        for column, values in graph.edges[etype].data.items():
            seen[f"edge|{':'.join(etype)}|{column}"] = values[ids]
        nodes = torch.arange(graph.num_nodes(etype[2]))
        typed = len(graph.canonical_etypes) > 1
        frontier = dgl.distributed.sample_neighbors(graph, {etype[2]: nodes} if typed else nodes, -1)
        seen[f"sampled|{':'.join(etype)}"] = torch.sort(frontier.edges[etype].data[dgl.EID]).values
    seen["parts"] = torch.tensor([book.num_partitions()])
    np.savez(out, **{key: values.numpy() for key, values in seen.items()})
    dgl.distributed.exit_client()


def _dgl() -> Any:
    import importlib
    import os

    os.environ["DGL_DIST_MODE"] = "distributed"
    warnings.simplefilter("ignore")
    from graph_emb.compat import dgl as compat_dgl

    dgl = compat_dgl.load()
    importlib.import_module("dgl.distributed")
    return dgl


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        look(sys.argv[2], Path(sys.argv[3]).stem, sys.argv[4])
