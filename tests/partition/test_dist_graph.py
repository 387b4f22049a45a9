"""A real DistGraph over DGL's servers sees the input: every edge, column and in-neighbour."""

from __future__ import annotations

import os
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

pytestmark = pytest.mark.dist
CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60

# DGL's servers of different parts on one host write to the same names in shared memory, so each gets a /dev/shm of its
# own. The client shares that of part 0, which DGL takes for its machine's.
OWN_SHARED_MEMORY = ["unshare", "--mount", "--ipc", "sh", "-c", 'mount -t tmpfs none /dev/shm && eval "$0"']


def can_unshare() -> bool:
    try:
        return subprocess.run([*OWN_SHARED_MEMORY, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def seen_by_dgl(whole: partition.PartitionedGraph, folder: Path) -> dict[str, np.ndarray]:
    """Start a server for each part and a client; every child is waited for and its exit code checked."""
    ip_config, out = folder / "ip_config.txt", folder / "seen.npz"
    first = free_ports(whole.num_parts)
    ip_config.write_text("".join(f"127.0.0.1 {first + part}\n" for part in range(whole.num_parts)))
    program = f"{sys.executable} {dist_client.__file__}"
    serve = [f"{program} serve {ip_config} {whole.config_path} {part}" for part in range(whole.num_parts)]
    look = f"{program} look {ip_config} {whole.config_path} {out}"
    # one shell for part 0 and the client: both have to end well
    scripts = [
        f"{serve[0]} & server=$!; {look} || {{ kill $server; exit 1; }}; wait $server",
        *(f"exec {command}" for command in serve[1:]),
    ]
    command = OWN_SHARED_MEMORY if whole.num_parts > 1 else ["sh", "-c", 'eval "$0"']
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
    children = [
        subprocess.Popen(
            [*command, script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for script in scripts
    ]
    try:
        outputs = [child.communicate(timeout=LIMIT_SECONDS)[0].decode() for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, 9)
                child.wait()
    assert [child.returncode for child in children] == [0] * len(children), "\n".join(outputs)
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
