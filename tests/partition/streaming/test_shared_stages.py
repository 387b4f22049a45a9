"""Tasks that are shared and done once; raw files one after the other read as one array."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, PartitionError
from partition.streaming import shared_stages as module
from partition.streaming.shared_stages import FileArray, Removed, Workers, Workplace, append, append_groups, write


def test_tasks_with_a_result_are_not_done_again(tmp_path: Path) -> None:
    done: list[int] = []

    def task(index: int) -> dict[str, Any]:
        done.append(index)
        return {"square": index**2}

    for _ in range(2):
        place = Workplace(tmp_path / "out", {"a": 1}, Workers())
        assert [found["square"] for found in place.run("stage", 3, task)] == [0, 1, 4]
        place.close(remove=False)
    assert done == [0, 1, 2]
    other = Workplace(tmp_path / "out", {"a": 2}, Workers())
    other.run("stage", 3, task)
    assert done == [0, 1, 2, 0, 1, 2]  # another job's results are thrown away
    other.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_that_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """A folder without a plan of ours was taken for an older build and removed."""
    for name, content in (("out", "{}"), ("more", '{"fingerprint": 3}')):
        (tmp_path / f".{name}.streaming").mkdir()
        (tmp_path / f".{name}.streaming" / "plan.json").write_text(content)
        (tmp_path / f".{name}.streaming" / "thesis.tex").write_text("years of work")
        with pytest.raises(ConfigError, match="is no folder of a build; move it"):
            Workplace(tmp_path / name, {}, Workers())
        assert (tmp_path / f".{name}.streaming" / "thesis.tex").exists()
    (tmp_path / ".out.streaming.removed").mkdir()
    (tmp_path / ".out.streaming.removed" / "x").touch()
    (tmp_path / ".free.streaming" / "out").mkdir(parents=True)  # killed before the plan was written
    Workplace(tmp_path / "free", {}, Workers()).close(remove=True)
    assert (tmp_path / ".out.streaming.removed" / "x").exists()


def test_a_run_with_other_settings_does_not_remove_the_folder_of_a_living_one(tmp_path: Path) -> None:
    first = Workplace(tmp_path / "out", {"a": 1}, Workers())
    with pytest.raises(ConfigError, match="another run works in"):
        Workplace(tmp_path / "out", {"a": 2}, Workers())
    assert first.run("stage", 1, lambda index: {"fine": True}) == [{"fine": True}]
    first.close(remove=True)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    first = Workplace(tmp_path / "out", {}, Workers())
    with pytest.raises(ConfigError, match="another run works in"):
        Workplace(tmp_path / "out", {}, Workers())
    first.close(remove=True)
    Workplace(tmp_path / "out", {}, Workers()).close(remove=True)


def test_workers_take_turns_and_wait_for_each_other(tmp_path: Path) -> None:
    by: dict[int, int] = {}

    def work(rank: int) -> None:
        place = Workplace(tmp_path / "out", {}, Workers(rank, 3))
        assert len(place.run("stage", 8, lambda index: {"rank": by.setdefault(index, rank)})) == 8
        place.close(remove=False)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert by == {index: index % 3 for index in range(8)}


def test_a_failure_ends_the_workers_of_the_same_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.1)
    first = Workplace(tmp_path / "out", {}, Workers(0, 2, "launch 1"))
    second = Workplace(tmp_path / "out", {}, Workers(1, 2, "launch 1"))
    second.say_failed(ValueError("no room"))
    with pytest.raises(PartitionError, match="worker 1 failed: ValueError: no room"):
        first.run("stage", 2, lambda index: {})
    first.close(remove=False)
    later = Workplace(tmp_path / "out", {}, Workers(0, 2, "launch 2"))
    with pytest.raises(PartitionError, match="waited"):  # for what an earlier launch says it does not end
        later.run("stage", 2, lambda index: {})
    second.close(remove=False)
    later.close(remove=True)


def test_a_worker_gives_up_when_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.1)
    place = Workplace(tmp_path / "out", {}, Workers(0, 2))
    with pytest.raises(PartitionError, match=r"waited .* for the others to finish 'stage'"):
        place.run("stage", 2, lambda index: {})
    place.close(remove=True)


def test_who_came_in_an_earlier_launch_has_not_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in ("launch 1", "launch 2"):
        first = Workplace(tmp_path / "out", {}, Workers(0, 2, launch))
        with monkeypatch.context() as patch:
            patch.setattr(module, "STALLED_S", 0.1)
            with pytest.raises(PartitionError, match=r"waited .* for all workers to arrive"):
                first.wait_arrived()
        second = Workplace(tmp_path / "out", {}, Workers(1, 2, launch))
        first.wait_arrived()
        second.close(remove=False)
        first.close(remove=False)


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("x", "2"), ("-1", "2")])
def test_ranks_must_fit(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ConfigError, match=f"RANK={rank}"):
        Workers.of_environment()


def test_a_worker_that_looks_late_sees_that_the_first_one_is_done(tmp_path: Path) -> None:
    """It waited half an hour for results that had gone with the folder between two looks."""
    first = Workplace(tmp_path / "out", {}, Workers(0, 2))
    second = Workplace(tmp_path / "out", {}, Workers(1, 2))
    assert not second.removed
    first.run("last", 1, lambda _: {})
    first.close(remove=True)
    assert second.removed
    assert not first.removed
    with pytest.raises(Removed):
        second.run("last", 1, lambda _: {})
    assert list(tmp_path.iterdir()) == []


def test_a_removal_between_two_looks_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that saw the folder, and then that it was gone, ended with ``Removed`` after the build was done."""
    first, second = (Workplace(tmp_path / "out", {}, Workers(rank, 2)) for rank in range(2))
    monkeypatch.setattr(Workplace, "removed", True)
    second.close(remove=True)
    first.close(remove=True)


def array_of(folder: Path) -> FileArray:
    np.arange(3, dtype=np.int32).tofile(folder / "a")
    np.arange(3, 8, dtype=np.int32).tofile(folder / "c")
    return FileArray((folder / "a", folder / "missing", folder / "c"), np.dtype(np.int32), 2)


def test_slices_cross_files(tmp_path: Path) -> None:
    values = array_of(tmp_path)
    assert values.shape == (8,)
    for start in range(9):
        for stop in range(start, 10):
            assert values[start:stop].tolist() == list(range(8))[start:stop]
    assert [chunk.tolist() for chunk in values.chunks()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    values = array_of(tmp_path)
    assert len(values) == 8
    (tmp_path / "c").write_bytes(b"\0" * 8)
    with pytest.raises(EOFError, match="12 bytes early"):
        values[:]


def test_groups_keep_the_order_within(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    rows = np.array([(1, 0.5), (2, 1.5), (3, 2.5), (4, 3.5)], [("x", np.int32), ("y", np.float64)])
    append_groups(rows, np.array([1, 0, 1, 1]), paths)
    append(paths[0], rows[:1])
    assert FileArray((paths[0],), rows.dtype, 8)[:]["x"].tolist() == [2, 1]
    assert FileArray((paths[1],), rows.dtype, 8)[:].tolist() == [(1, 0.5), (3, 2.5), (4, 3.5)]


def test_a_full_disk_names_the_file_and_the_bytes(tmp_path: Path) -> None:
    """numpy's tofile said "1000 requested and 512 written" and an append named no file."""
    for make in (append, write):
        with pytest.raises(OSError, match=r"No space left .*; 7\.81 KiB more are needed, .* are free: ./dev/full"):
            make(Path("/dev/full"), np.zeros(1000))
    write(tmp_path / "x", np.arange(3))
    write(tmp_path / "x", np.arange(2))
    append(tmp_path / "x", np.arange(1))
    assert np.fromfile(tmp_path / "x", np.int64).tolist() == [0, 1, 0]
