"""The scripts of examples/ogb on several trainers and machines, each by one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import partition
from graph_emb.ogb.record import SeedRecord, read_record
from graph_emb.transport.guard import new_token
from tests.examples.test_scripts import LINK, WALKS
from tests.netns import network

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("warm_starts")]

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = str(CHECKOUT / "examples" / "ogb" / "ddi.py")
PATIENCE = 200


@pytest.fixture
def words(ogb_root: Path, tmp_path: Path) -> list[str]:
    """A run of ogbl-ddi by a partition, in which no node has its place of the data set."""
    parts = tmp_path / "parts"
    options = {"out": parts, "report": False, "reader_options": {"root": str(ogb_root)}}
    partition.build("ogbl-ddi", 2, "hash", **options)
    assert (partition.load(parts).node_map() != range(40)).any()
    place = ["--root", str(ogb_root), "--out", str(tmp_path / "out"), "--partition", str(parts)]
    return [*place, "--seeds", "3", "--threads", "1", "--set", *WALKS, *LINK]


def judged(tmp_path: Path) -> SeedRecord:
    """The record, whose rows learned: by chance it is 0.13, and rows of other nodes have no more."""
    record = read_record(tmp_path / "out" / "deepwalk" / "seed-3.json")
    assert record.settings["parallel"]["trainers"] == 2
    assert record.finished().scores["hits@20"].test >= 0.8
    assert record.finished().parameters["embedding"] == 2 * 40 * 8
    assert record.command.startswith("python examples/ogb/ddi.py --root ")
    return record


@pytest.mark.parametrize("mode", ["collective", "kvstore"])
def test_two_trainers_follow_a_partition(tmp_path: Path, words: list[str], mode: str) -> None:
    command = [sys.executable, SCRIPT, *words, "--trainers", "2", "--mode", mode]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deepwalk, seed 3: ") == 1
    assert "DeepWalk, published" in done.stdout
    assert judged(tmp_path).settings["parallel"]["mode"] == mode


def test_two_hosts_run_the_same_script_and_the_first_has_the_record(tmp_path: Path, words: list[str]) -> None:
    started = []
    with network(2) as net:
        (tmp_path / "hosts.txt").write_text("".join(f"{address}\n" for address in net.addresses))
        environment = {**os.environ, "GRAPH_EMB_TOKEN": new_token()}
        try:
            for number in range(2):
                command = net.on(number, [sys.executable, SCRIPT, *words, "--hosts", str(tmp_path / "hosts.txt")])
                with (tmp_path / f"host-{number}").open("wb") as log:
                    started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
            codes = [process.wait(PATIENCE) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    said = [(tmp_path / f"host-{number}").read_text(errors="replace") for number in range(2)]
    assert codes == [0, 0], said
    assert ["DeepWalk, published" in own for own in said] == [True, False]
    assert judged(tmp_path).settings["parallel"]["mode"] == "collective"
