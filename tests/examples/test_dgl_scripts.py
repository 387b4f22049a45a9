"""The scripts of examples/dgl, started by ``graph-emb launch`` and by DGL's own variables."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.graph.typed import HeteroGraph
from graph_emb.transport.guard import new_token
from graph_emb.transport.kvstore.layout import free_ports
from tests import dgl_servers
from tests.models.gnn.planted import planted
from tests.netns import Network, network
from tests.transport.kvstore.cluster import LIMIT

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("one_dgl_graph", "warm_starts")]

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "dgl"
NUM = 80


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two groups of friends; users and tags. Parts of one machine, and of two under NAME-2, with classes and masks."""
    folder, found = tmp_path_factory.mktemp("parts"), {}
    source = np.repeat(np.arange(NUM), 4)
    target = (source + np.tile([2, 4, 6, 8], NUM)) % NUM  # of the same group
    ends = (np.concatenate([source, target]), np.concatenate([target, source]))
    friends = HeteroGraph({"_N": NUM}, {("_N", "_E", "_N"): ends})
    users, task = planted()
    split = {part: np.asarray(nodes) for part, nodes in task.split.items()}
    order = np.random.default_rng(0).permutation(NUM)
    for name, graph, ntype, labels, train, test in (
        ("examples_friends", friends, "_N", np.arange(NUM) % 2, order[: NUM // 2], order[NUM // 2 :]),
        ("examples_users", users, "user", np.asarray(task.labels), split["train"], split["test"]),
    ):
        columns = {"label": labels.astype(np.int64)}
        for part, nodes in (("train", train), ("test", test)):
            columns[f"{part}_mask"] = np.isin(np.arange(len(labels)), nodes)
        graph = replace(graph, node_data={ntype: columns})
        found[name] = partition.build(graph, 1, "range", name=name, out=folder / name, report=False).path
        two = partition.build(graph, 2, "random", name=name, out=folder / f"{name}-2", report=False)
        found[f"{name}-2"] = two.path
    return found


GRAPHSAGE = [str(SCRIPTS / "graphsage.py"), "--graph", "examples_friends", "--epochs", "15", "--batch-size", "20"]
RGCN = [str(SCRIPTS / "rgcn.py"), "--graph", "examples_users", "--target", "user", "--epochs", "15", "--lr", "0.03"]
LEAST = {"examples_friends": 0.7, "examples_users": 0.55}
"""Accuracy; .5 and .33 are chance, and neither trainers' order nor DGL's samples have a seed."""
JOBS = {"classes": GRAPHSAGE, "links": [*GRAPHSAGE, "--links"], "entities": RGCN}


def judge(said: list[str], name: str) -> None:
    """All trainers end with the same rows and networks, which know the classes."""
    ends = [[line for line in text.splitlines() if line.startswith(("rows of", "network:", "test"))] for text in said]
    assert len(ends[0]) >= 3
    assert ends[0] == ends[1], said
    (accuracy,) = (float(line.split()[-1]) for line in ends[0] if line.startswith("test accuracy"))
    assert accuracy > LEAST[name], said[0]


@pytest.mark.parametrize("job", ["links", "entities"])
def test_launched_by_us(parts: dict[str, Path], tmp_path: Path, job: str) -> None:
    words = [sys.executable, "-m", "graph_emb", "launch", "--trainers", "2", "--servers", "1", "--threads", "1"]
    words += ["--partition", str(parts[JOBS[job][2]]), "--logs", str(tmp_path / "logs"), "--", *JOBS[job]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    judge([(tmp_path / "logs" / f"trainer-{rank}.log").read_text() for rank in range(2)], JOBS[job][2])


@pytest.mark.parametrize("job", ["classes", "entities"])
def test_launched_by_dgl(parts: dict[str, Path], tmp_path: Path, job: str) -> None:
    config = parts[JOBS[job][2]] / f"{JOBS[job][2]}.json"
    more = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)), "OMP_NUM_THREADS": "1"}
    said = dgl_servers.run(JOBS[job], tmp_path, str(config), servers=1, trainers=2, **more)
    judge(said[:2], JOBS[job][2])


def on_hosts(net: Network, folder: Path, words: list[str]) -> None:
    """The launcher of each host, which must end with 0.

    DGL's servers share columns with trainers by names in /dev/shm, so a host's processes have one of their own.
    """
    own_memory = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    environment = {**os.environ, "GRAPH_EMB_TOKEN": new_token()}
    started, files = [], [folder / f"host-{host}" for host in range(len(net.hosts))]
    for host, file in enumerate(files):
        command = net.on(host, [*own_memory, sys.executable, "-m", "graph_emb", *words])
        with file.open("wb") as stream:
            started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream))
    try:
        codes = [process.wait(LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert codes == [0, 0], [file.read_text(errors="replace") for file in files]


@pytest.mark.parametrize("job", ["classes", "links", "entities"])
def test_two_machines_launched_by_us(parts: dict[str, Path], tmp_path: Path, job: str) -> None:
    name = JOBS[job][2]
    with network(2) as net:
        (tmp_path / "hosts.txt").write_text("".join(f"{address} 1\n" for address in net.addresses))
        words = ["launch", "--hosts", str(tmp_path / "hosts.txt"), "--servers", "1", "--threads", "1"]
        words += ["--partition", str(parts[f"{name}-2"]), "--logs", str(tmp_path / "logs"), "--", *JOBS[job]]
        on_hosts(net, tmp_path, words)
    judge([(tmp_path / "logs" / f"trainer-{rank}.log").read_text() for rank in range(2)], name)


def test_a_partition_needs_servers_and_a_part_for_each_machine(
    parts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from graph_emb.cli.main import main

    def refused(*words: str) -> str:
        assert main(["launch", "--logs", str(tmp_path / "logs"), *words]) == 2
        return capsys.readouterr().err

    one, script = str(parts["examples_friends"]), str(SCRIPTS / "graphsage.py")
    assert "is held by servers, and there are none; give --servers" in refused("--partition", one, "--", script)
    graph = HeteroGraph({"_N": 4}, {("_N", "_E", "_N"): (np.arange(4), np.arange(4)[::-1].copy())})
    two = str(partition.build(graph, 2, "range", out=tmp_path / "two", report=False).path)
    assert "has 2 parts" in refused("--servers", "1", "--partition", two, "--", script)
    assert "no such" in refused("--servers", "1", "--partition", str(tmp_path / "gone"), "--", script)
    train = refused("--servers", "1", "--partition", one, "--", "train", "deepwalk")
    assert "launch --partition is for scripts with DistGraph; write it behind 'train'" in train
