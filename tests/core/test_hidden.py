"""What killed processes left goes away, and nothing else does."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from graph_emb.core import hidden
from graph_emb.core.hidden import MARK, HiddenFolder, left_behind, remove_folder, remove_left_behind, scratch_folder
from graph_emb.core.storage import PendingFiles, PendingFolder, replace_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead(place: Path) -> Path:
    """A hidden folder with a file as a killed process leaves it: its lock is gone, its mark is there."""
    folder = HiddenFolder(place)
    (folder.path / "half").write_text("1")
    folder.close(remove=False)
    return folder.path


def test_marked_folders_of_dead_processes_go_and_look_alikes_stay(tmp_path: Path) -> None:
    left, living = dead(tmp_path / "out"), HiddenFolder(tmp_path / "out")
    foreign = {
        ".out.partial-0123abcd": "thesis.tex",
        ".out.partial-0123abce": MARK,  # a mark of another program
        ".out.partial-0123abcf": "manifest.json",
        ".out.partial-aa": "",
        ".out.old-0123abcd": "x",
        ".out2.partial-0123abcd": "x",
    }
    for name, file in foreign.items():
        (tmp_path / name).mkdir()
        if file:
            (tmp_path / name / file).write_text(json.dumps({"format": "web app"}))
    (tmp_path / ".out.partial-00000000").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    target = dead(tmp_path / "elsewhere" / "y")
    (tmp_path / ".out.partial-11111111").symlink_to(target)
    before = set(names(tmp_path))
    assert remove_left_behind(left_behind(tmp_path / "out")) == [left]
    assert before - set(names(tmp_path)) == {left.name}
    assert (target / "half").exists()
    living.close()
    assert not living.path.exists()


def test_what_is_known_to_be_complete_and_ours_goes_without_a_mark(tmp_path: Path) -> None:
    for name in (".out.partial-0123abcd", ".out.partial-0123abce"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name[-1])
    removed = remove_left_behind(left_behind(tmp_path / "out"), lambda folder: (folder / "x").read_text() == "d")
    assert [path.name for path in removed] == [".out.partial-0123abcd"]


def test_a_kill_before_the_mark_was_written_leaves_nothing_for_ever(tmp_path: Path) -> None:
    for name, files in ((".out.partial-00000001", []), (".out.partial-00000002", [MARK])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    (tmp_path / ".thesis.writing").mkdir()
    assert len(remove_left_behind(tmp_path.iterdir())) == 2
    assert names(tmp_path) == [".thesis.writing"]


def test_a_folder_that_a_cleaner_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save made its folder, the clean-up of another removed it, and the first went on in a folder that was gone."""
    mkdir, taken = Path.mkdir, []

    def cleaned(self: Path) -> None:
        mkdir(self)
        if len(taken) < 3:
            taken.extend(remove_left_behind([self]))

    monkeypatch.setattr(Path, "mkdir", cleaned)
    folder = HiddenFolder(tmp_path / "out")
    assert len(taken) == 3
    assert names(tmp_path) == [folder.path.name]
    assert remove_left_behind([folder.path]) == []


def test_a_cleaner_that_looks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that was not waited for failed while a cleaner held it, and the save went on without a lock."""
    opened, asks, flock = threading.Event(), threading.Event(), fcntl.flock
    cleaner: list[threading.Thread] = []

    def look(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        flock(descriptor, fcntl.LOCK_EX)
        opened.set()
        asks.wait(30)
        os.close(descriptor)

    def asked(descriptor: int, how: int) -> None:
        if not cleaner:
            cleaner.append(threading.Thread(target=look, args=(tmp_path / "fixed",)))
            cleaner[0].start()
            assert opened.wait(30)
            threading.Timer(0.05, asks.set).start()
        flock(descriptor, how)

    monkeypatch.setattr(hidden.fcntl, "flock", asked)
    folder = HiddenFolder(tmp_path / "out", "fixed")
    assert asks.is_set()
    assert remove_left_behind([folder.path]) == []
    folder.close()
    cleaner[0].join()


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = dead(tmp_path / "out")

    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(hidden.fcntl, "flock", no_locks)
        HiddenFolder(tmp_path / "other").close()
        assert remove_left_behind([left]) == []
    with monkeypatch.context() as patch:
        patch.setattr(hidden, "_locks_reach_all_hosts", lambda descriptor: False)
        assert remove_left_behind([left]) == []
    assert remove_left_behind([left]) == [left]


@pytest.mark.parametrize(
    ("options", "shared"), [("rw,local_lock=none", True), ("rw,local_lock=all", False), ("rw,localflock", False)]
)
def test_mounts_whose_locks_stay_on_the_host_are_known(
    options: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - nfs4 host:/export {options}\n"
    monkeypatch.setattr(Path, "read_text", lambda self, **_: line)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert hidden._locks_reach_all_hosts(descriptor) is shared
    finally:
        os.close(descriptor)


def test_a_folder_of_ours_leaves_its_name_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "100" / "tables").mkdir(parents=True)
    (tmp_path / "100" / "tables" / "x").write_text("1")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # a real SIGINT is ignored where the tests run in the background of a shell

    with monkeypatch.context() as patch:
        patch.setattr(hidden.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(tmp_path / "100")
    (left,) = names(tmp_path)
    assert left.startswith(".100.partial-")
    assert len(remove_left_behind(left_behind(tmp_path / "100"))) == 1
    assert names(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from graph_emb.core.hidden import scratch_folder
from graph_emb.core.storage import PendingFiles, PendingFolder, replacing

place = Path(sys.argv[1])
with scratch_folder(place / "parts") as scratch, PendingFiles(place, ["a", "b"]) as files:
    with PendingFolder(place / "out", print) as folder, replacing(place / "file") as draft:
        for path in (scratch / "x", files.path("a"), folder.path / "x", draft):
            path.write_text("1")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_kind_cleans_up_after_its_own_killed_process(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 4
    with scratch_folder(tmp_path / "parts"):
        assert len(names(tmp_path)) == 4
    assert len(names(tmp_path)) == 3
    with PendingFiles(tmp_path, ["a", "b"]):
        pass
    assert len(names(tmp_path)) == 2
    with PendingFolder(tmp_path / "out", print):
        pass
    replace_text(tmp_path / "file", "2")
    assert names(tmp_path) == ["file"]


def test_a_scratch_folder_lies_in_the_temporary_directory_for_this_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden.tempfile, "gettempdir", lambda: str(tmp_path))
    left = dead(tmp_path / "graph-emb-parts")
    with scratch_folder("graph-emb-parts") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not left.exists()
    assert names(tmp_path) == []
