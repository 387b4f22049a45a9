"""Which files of a partition a machine needs, whether it has them, and copies by rsync over ssh."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.cli.main import main
from graph_emb.core.errors import DataError, PeerError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.launch.plan import Host, Machines
from graph_emb.run.launch.shipping import check_parts, files_of, ship
from partition.assignment import Assignment

HOSTS = [Host("127.0.0.1", 1), Host("127.0.0.2", 1)]
FAKE_SSH = """#!/bin/sh
for last; do :; done
exec sh -c "$(printf %s "$last" | sed "s#$HERE#$THERE#g")"
"""
FAKE_RSYNC = f"""#!{sys.executable}
import os, pathlib, shutil, sys
assert "--files-from=-" in sys.argv, sys.argv
source, target = sys.argv[-2:]
assert target == "127.0.0.2:" + os.environ["HERE"] + "/" and source.endswith("/"), sys.argv
for name in sys.stdin.read().split():
    place = pathlib.Path(os.environ["THERE"], name)
    place.parent.mkdir(parents=True, exist_ok=True)
    data = pathlib.Path(source, name).read_bytes()
    place.write_bytes(bytes(len(data)) if name == os.environ.get("DAMAGED") else data)
"""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    graph = HeteroGraph({"n": 12}, {("n", "to", "n"): (np.arange(12), (np.arange(12) + 1) % 12)})
    owner = Assignment({"n": np.repeat(np.arange(2, dtype=np.int32), 6)}, 2)
    return partition.build(graph, assignment=owner, out=tmp_path / "parts", report=False).path


@pytest.fixture
def there(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the partition's folder on the other machine, reached by ssh and rsync that stay here."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("ssh", FAKE_SSH), ("rsync", FAKE_RSYNC)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("HERE", str(parts))
    monkeypatch.setenv("THERE", str(tmp_path / "there"))
    return tmp_path / "there"


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_machine_needs_its_parts_and_what_is_of_no_part(parts: Path) -> None:
    held = partition.load(parts)
    names = list(files_of(held, [1]))
    assert names[-1] == held.config_path.name, "a folder without it is no partition"
    assert set(names) == {name for name in names_in(parts) if not name.startswith("part0/")} - {"timings.json"}


def test_a_copy_of_own_parts_is_enough_and_of_others_is_not(parts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(parts, copy, ignore=shutil.ignore_patterns("part0"))
    assert check_parts(copy, Machines(HOSTS, 1)) == check_parts(parts, Machines(HOSTS, 0))
    with pytest.raises(DataError, match=r"part0/\w+.dgl is missing; this machine's trainers take part 0 of 2: copy it"):
        check_parts(copy, Machines(HOSTS, 0))
    with (copy / "part1" / "graph.dgl").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"part1/graph.dgl has \d+ bytes, not the manifest's \d+"):
        check_parts(copy, Machines(HOSTS, 1))


def test_the_command_ships_each_machine_its_parts_and_compares_checksums(
    parts: Path, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.txt").write_text("127.0.0.1\n127.0.0.2\n")
    words = ["partition", "ship", str(parts), "--hosts", str(tmp_path / "hosts.txt"), "--host-index", "0"]
    assert main(words) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "127.0.0.1: part 0, here"
    assert second.startswith("127.0.0.2: part 1, ")
    assert names_in(there) == {name for name in names_in(parts) if not name.startswith("part0/")} - {"timings.json"}
    check_parts(there, Machines(HOSTS, 1))
    monkeypatch.setenv("DAMAGED", "part1/graph.dgl")
    assert main(words) == 3
    assert "host 127.0.0.2: ssh ended with exit code 1: part1/graph.dgl: FAILED" in capsys.readouterr().err


def test_a_tool_that_is_missing_is_named(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError, match=r"host 127\.0\.0\.2: needs ssh, which is not installed on this machine"):
        ship(parts, Machines(HOSTS, 0))
