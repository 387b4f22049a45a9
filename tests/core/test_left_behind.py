"""What dead processes left is found and removed; what lives, and what only looks like it, stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graph_emb.core import left_behind
from graph_emb.core.hidden import MARK, HiddenFolder
from graph_emb.core.left_behind import left_in, shared_name, shared_names_of


def dead(place: Path, name: str | None = None) -> Path:
    """A hidden folder as a killed process leaves it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = HiddenFolder(place, name)
    (folder.path / "half").write_text("1")
    folder.close(remove=False)
    return folder.path


def all_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(left_behind, "SHARED_MEMORY", folder)
    return folder


@pytest.fixture
def dead_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_hidden_folders_of_the_dead_go_from_a_folder_and_those_in_it(tmp_path: Path, shared_memory: Path) -> None:
    work = tmp_path / "work"
    left = [
        dead(work / ".." / "work" / "run"),
        dead(work / "graph-emb-parts"),
        dead(work / "run-checkpoints" / "5", ".5.writing"),
        dead(work / "run-logs" / "servers.txt"),
    ]
    living = HiddenFolder(work / "run")
    foreign = {
        ".run.partial-0123abcd": "thesis.tex",
        ".run.partial-0123abce": MARK,  # a mark of another program
        ".thesis.writing": "chapter",
        ".web.removed": "manifest.json",
        ".run.old-0123abcd": "embeddings.npy",
        "run-checkpoints/5": "manifest.json",
    }
    for name, file in foreign.items():
        (work / name).mkdir()
        (work / name / file).write_text(json.dumps({"format": "web app"}))
    (work / "deep" / "deeper").mkdir(parents=True)
    dead(work / "deep" / "deeper" / "run")
    elsewhere = dead(tmp_path / "elsewhere" / "run")
    (work / "link").symlink_to(elsewhere.parent)
    (work / ".run.partial-11111111").symlink_to(elsewhere)
    before = all_below(tmp_path)

    found = list(left_in([work, work], remove=False))
    assert {path.resolve() for path in found} == {path.resolve() for path in left}
    assert len(found) == len(left)
    assert all_below(tmp_path) == before

    assert set(left_in([work], remove=True)) == set(found)
    gone = {path.resolve().relative_to(tmp_path).as_posix() for path in left}
    assert {name for name in before - all_below(tmp_path)} == {
        name for name in before if any(name == one or name.startswith(f"{one}/") for one in gone)
    }
    assert list(left_in([work, tmp_path / "absent"], remove=True)) == []
    living.close()


def test_names_in_shared_memory_go_when_their_process_is_dead(
    shared_memory: Path, dead_process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher takes the names of its own processes away; nothing did where it was killed too."""
    own = shared_name()
    left = own.replace(f"_{os.getpid()}_", f"_{dead_process}_")
    elsewhere = f"graph_emb_{dead_process}_1_{'0' * 16}"  # a container that numbers its processes by itself
    foreign = [own, elsewhere, f"graph_emb_{dead_process}", f"graph_emb_{dead_process}_test", f"torch_{dead_process}"]
    for name in [left, *foreign]:
        (shared_memory / name).touch()
    assert shared_names_of(os.getpid()) == [shared_memory / own]
    assert list(left_in([], remove=False)) == [shared_memory / left]
    with monkeypatch.context() as patch:
        patch.setattr(left_behind.os, "getuid", lambda: 4321)
        assert list(left_in([], remove=True)) == []
    assert list(left_in([], remove=True)) == [shared_memory / left]
    assert all_below(shared_memory) == set(foreign)
