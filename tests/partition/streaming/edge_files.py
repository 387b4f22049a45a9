"""Edge files and commands for the tests of builds beyond memory."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np

MEMORY = "16GB"  # more than a process has grown to that ran thousands of tests before
"""Plenty: what pytest holds already counts."""
LIMIT_SECONDS = 400
"""A child that hangs fails its test; one that imports and compiles on a busy machine does not."""


def made_edges(num_nodes: int, num_edges: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(sources, destinations) that touch every node; self loops and parallel edges among them."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, num_edges), (rng.random(num_edges) ** 2 * num_nodes).astype(np.int64)
    src[:num_nodes] = np.arange(num_nodes)
    return src, dst


def write_parquet(path: Path, columns: dict[str, object], group_rows: int) -> Path:
    """A Parquet file with row groups of so many rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def small_file(folder: Path, num_nodes: int = 300, num_edges: int = 4000) -> Path:
    """A Parquet file of some hundreds of nodes in several slices."""
    src, dst = made_edges(num_nodes, num_edges)
    return write_parquet(folder / "edges.parquet", {"src": src, "dst": dst}, 250)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file by name."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def started(code: str, *words: str, rank: int = 0, world_size: int = 1) -> subprocess.Popen[str]:
    """A child process that runs code, one of several workers."""
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )


def finished(child: subprocess.Popen[str]) -> str:
    """What a child printed, when it ended well."""
    return all_finished([child])[0]


def all_finished(children: list[subprocess.Popen[str]]) -> list[str]:
    """What each child printed, when all ended well; one that hangs is ended, and so are the others."""
    with ExitStack() as stack:
        for child in children:
            stack.enter_context(child)
            stack.callback(child.kill)
        printed = [child.communicate(timeout=LIMIT_SECONDS) for child in children]
    for child, (_, err) in zip(children, printed, strict=True):
        assert child.returncode == 0, err
    return [out for out, _ in printed]
