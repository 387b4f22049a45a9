"""A real DistGraph over DGL's servers sees the input: every edge, column and in-neighbour."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partition
from graph_emb.transport.kvstore.layout import free_ports
from tests.partition import dist_client
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("one_dgl_graph", "warm_starts")]
CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 400  # a test that hangs fails, one whose processes import DGL on a busy machine does not

OWN_SHARED_MEMORY = ["unshare", "--mount", "--ipc", "sh", "-c", "mount -t tmpfs none /dev/shm"]


def can_unshare() -> bool:
    try:
        return subprocess.run(OWN_SHARED_MEMORY, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def seen_by_dgl(whole: partition.PartitionedGraph, folder: Path) -> dict[str, np.ndarray]:
    """A server for each part and a client; every process is waited for and its exit code checked."""
    ip_config, out = folder / "ip_config.txt", folder / "seen.npz"
    first = free_ports(whole.num_parts)
    ip_config.write_text("".join(f"127.0.0.1 {first + part}\n" for part in range(whole.num_parts)))
    command = [sys.executable, dist_client.__file__, ip_config, whole.config_path, str(whole.num_parts), out]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    job = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output = job.communicate(timeout=LIMIT_SECONDS)[0].decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)  # what a process that failed left, too
        job.wait()
    assert job.returncode == 0, output
    return dict(np.load(out))


QUICK = [(homogeneous, 1), (heterogeneous, 3)]
SLOW = [(make, parts) for parts in (1, 2, 3, 4, 7) for make in (homogeneous, heterogeneous)]


@pytest.mark.parametrize(
    ("make", "num_parts"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK)],
)
def test_a_dist_graph_sees_the_input(tmp_path: Path, make: Any, num_parts: int) -> None:
    if num_parts > 1 and not can_unshare():
        pytest.skip("DGL's servers of several parts on one host need namespaces of their own: unshare needs root")
    graph = make()
    whole = partition.build(graph, out=tmp_path / "out", assignment=random_parts(graph, num_parts), report=False)
    seen = seen_by_dgl(whole, tmp_path)
    assert seen["parts"].tolist() == [num_parts]
    for ntype, columns in graph.node_data.items():
        for name, values in columns.items():
            assert np.array_equal(seen[f"node|{ntype}|{name}"], values[whole.node_map(ntype)])
    for etype, (src, dst) in graph.edges.items():
        key, order = ":".join(etype), whole.edge_map(etype)
        assert np.array_equal(whole.node_map(etype[0])[seen[f"src|{key}"]], src[order])
        assert np.array_equal(whole.node_map(etype[2])[seen[f"dst|{key}"]], dst[order])
        assert seen[f"sampled|{key}"].tolist() == list(range(len(src)))  # each in-edge once
        for name, values in graph.edge_data.get(etype, {}).items():
            assert np.array_equal(seen[f"edge|{key}|{name}"], values[order])
