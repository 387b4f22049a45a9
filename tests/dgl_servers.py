"""A script in DGL's own servers and trainers, started as DGL's launcher does, on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from graph_emb.transport.kvstore.layout import free_ports
from tests.transport.kvstore.cluster import LIMIT


def run(command: Sequence[str], folder: Path, part_config: str, servers: int, trainers: int, **more: str) -> list[str]:
    """What each process printed, the trainers' first; every one must end with 0.

    Args:
        command: Arguments of Python in all processes; a server stays in its ``dgl.distributed.initialize``.
        folder: For the file of addresses.
        part_config: Of the graph that is served.
        more: Environment variables of all.
    """
    config = folder / "ip_config.txt"
    config.write_text(f"127.0.0.1 {free_ports(servers)}\n", encoding="utf-8")
    common = {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(config),
        "DGL_NUM_SERVER": str(servers),
        "DGL_NUM_CLIENT": str(trainers),
        "DGL_CONF_PATH": part_config,
    }
    roles = [{"DGL_ROLE": "client", "RANK": str(rank)} for rank in range(trainers)]
    roles += [{"DGL_ROLE": "server", "DGL_SERVER_ID": str(server)} for server in range(servers)]
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **common, **more, **role},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role in roles
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
    return said
