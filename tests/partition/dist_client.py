"""A DGL program in a process of its own: opens a partition through its servers and saves all that it sees."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLONE_NEWNS, CLONE_NEWIPC = 0x0002_0000, 0x0800_0000  # linux/sched.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h


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


def run(ip_config: str, config: str, num_parts: int, out: str) -> bool:
    """A server for each part and a client, forked from this process, which imports DGL once for all of them.

    DGL's servers of different parts on one host write to the same names in shared memory, so each gets a /dev/shm of
    its own. The client shares that of part 0, which DGL takes for its machine's.

    Returns:
        Whether all of them ended well; the others are ended when one did not.
    """
    _dgl()

    def first() -> None:
        _own_shared_memory(num_parts)
        server, client = _forked(serve, ip_config, config, 0), _forked(look, ip_config, Path(config).stem, out)
        if not _ended_well([server, client]):
            raise RuntimeError("the server of part 0 or the client failed")

    def other(part: int) -> None:
        _own_shared_memory(num_parts)
        serve(ip_config, config, part)

    return _ended_well([_forked(first), *(_forked(other, part) for part in range(1, num_parts))])


def _own_shared_memory(num_parts: int) -> None:
    if num_parts == 1:
        return
    _unshare(CLONE_NEWNS | CLONE_NEWIPC)
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "none", "/dev/shm"]):
        subprocess.run(["mount", *words], check=True)


def _unshare(flags: int) -> None:
    """``os.unshare`` of Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _forked(function: Callable[..., None], *args: Any) -> int:
    child = os.fork()
    if child:
        return child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        function(*args)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def _ended_well(children: list[int]) -> bool:
    """Wait for processes; when one ends badly, end the others."""
    left, good = set(children), True
    while left:
        child, status = os.wait()
        left.discard(child)
        if status and good:
            good = False
            for other in left:
                os.kill(other, signal.SIGKILL)
    return good


def _dgl() -> Any:
    import importlib

    os.environ["DGL_DIST_MODE"] = "distributed"
    warnings.simplefilter("ignore")
    from graph_emb.compat import dgl as compat_dgl

    dgl = compat_dgl.load()
    importlib.import_module("dgl.distributed")
    return dgl


if __name__ == "__main__":
    sys.exit(not run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
