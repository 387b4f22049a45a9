"""Nothing but checkpoints of ours is ever replaced or removed; look-alikes and added files survive every save."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import graph_emb as ge
from graph_emb.checkpoint import manifest
from graph_emb.checkpoint.manifest import CheckpointManifest, Retention, pending_checkpoint
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError

WEB_APP = json.dumps({"name": "my web app", "start_url": "/"})


def save(path: Path, step: int = 0, **options: object) -> None:
    ge.shutdown()  # forgets the table of a save that raised
    table = ge.DistEmbedding(2, 1, "t", ge.initializers.Uniform(seed=0))
    ge.save_checkpoint(path, tables=[table], step=step, **options)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    """Every file by its path, with its content."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def look_alikes(folder: Path) -> dict[str, bytes]:
    """Folders with a manifest.json or a name as ours have, none of them ours."""
    for name in ("app", "5", "099", ".app.writing", ".thesis.removed", ".7.writing", ".6.partial-0123abcd"):
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").write_text(WEB_APP)
        (folder / name / "chapter").mkdir()
        (folder / name / "chapter" / "1.tex").write_text("years of work")
    for name in (".notes.writing", ".plain.removed"):
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text("mine")
    return files(folder)


def test_look_alikes_survive_saves_that_replace_and_remove(tmp_path: Path) -> None:
    """Any folder with a manifest.json was replaced, and each .*.writing and .*.removed beside it was deleted."""
    theirs = look_alikes(tmp_path)
    for step in range(1, 4):
        save(tmp_path / f"ckpt{step}", step=step, keep_last=1)
        save(tmp_path / "last", step=9)
    for name in ("app", "5", "099"):
        with pytest.raises(ConfigError, match=f"{name} exists and is no checkpoint; choose another name"):
            save(tmp_path / name)
    with pytest.raises(
        ConfigError, match=r"\.7\.writing: another process writes this checkpoint .* or remove the folder"
    ):
        save(tmp_path / "7")
    found = files(tmp_path)
    assert {name: found.get(name) for name in theirs} == theirs
    assert sorted({name.split("/")[0] for name in found} - {name.split("/")[0] for name in theirs}) == ["ckpt3", "last"]


def test_a_training_that_begins_anew_removes_its_own_checkpoints_only(tmp_path: Path) -> None:
    save(tmp_path / "4", step=4)
    table = ge.DistEmbedding(2, 1, "t2", ge.initializers.Uniform(seed=0))
    theirs = look_alikes(tmp_path)
    with pytest.raises(ConfigError, match="exists and is no checkpoint"):
        PeriodicCheckpoints(tmp_path, 1, overwrite=True).start([table])
    found = files(tmp_path)
    assert {name: found.get(name) for name in theirs} == theirs
    PeriodicCheckpoints(tmp_path / "own", 1, overwrite=True).start([table])


@pytest.mark.parametrize("keep_last", [None, 1])
def test_a_file_that_was_added_to_an_older_checkpoint_stops_the_save(keep_last: int | None, tmp_path: Path) -> None:
    save(tmp_path / "1", step=1)
    (tmp_path / "1" / "tables" / "notes.txt").write_text("mine")
    before = files(tmp_path)
    place = tmp_path / ("1" if keep_last is None else "2")
    with pytest.raises(ConfigError, match=r"checkpoint .*/1 holds tables/notes.txt, which is no part of it; move it"):
        save(place, step=2, keep_last=keep_last)
    assert files(tmp_path) == before
    save(tmp_path / "3", step=3, keep_last=None if keep_last is None else 2)  # nothing would go


def test_leftovers_of_killed_saves_go_those_of_older_versions_too(tmp_path: Path) -> None:
    for name in (".3.removed", ".4.writing", ".5.writing"):
        save(tmp_path / "made", step=3)
        (tmp_path / "made").rename(tmp_path / name)
    (tmp_path / ".5.writing" / "notes.txt").write_text("mine")
    folder = pending_checkpoint(tmp_path / "6", Retention(None, None, None))
    (folder.path / "tables").mkdir()
    folder._hidden.close(remove=False)  # as a kill leaves it
    (tmp_path / ".8.writing").mkdir()  # killed before it was marked
    save(tmp_path / "8")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".5.writing", "8"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(13, "Permission denied", "there"),
            "Permission denied, so it was not removed; the new checkpoint .*/2 is",
        ),
        (ConfigError("1 holds x"), "1 holds x; the new checkpoint .*/2 is complete and in its place"),
    ],
)
def test_an_error_after_the_new_checkpoint_is_in_place_says_so(
    error: Exception, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "1", step=1)

    def fail(path: Path) -> None:
        raise error

    monkeypatch.setattr(manifest, "remove_folder", fail)
    with pytest.raises(type(error), match=text):
        save(tmp_path / "2", step=2, keep_last=1)
    assert CheckpointManifest.read(tmp_path / "2").step == 2


MANY = """
import os, sys
from pathlib import Path
from graph_emb.checkpoint.manifest import CheckpointManifest, Retention, pending_checkpoint
from graph_emb.core.storage import write_file

place, saves = Path(sys.argv[1]), int(sys.argv[2])
about = {"created": "", "world": {"mode": "local", "ranks": 1, "library": "0"}, "tables": {}}
children = []
for job in range(8):
    if (child := os.fork()) == 0:
        try:
            for k in range(saves):
                folder = pending_checkpoint(place / f"{job}-{k}", Retention(None, None, None))
                text = CheckpointManifest(step=k, **about).to_json().encode()
                write_file(folder.path / "manifest.json", lambda stream: stream.write(text))
                folder.publish()
                folder.close()
        except BaseException as error:
            print(job, k, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(child)
failed = [child for child in children if os.waitpid(child, 0)[1]]
sys.exit(len(failed))
"""


def test_saves_beside_each_other_never_take_a_living_one_for_dead(tmp_path: Path) -> None:
    """Between mkdir and flock a folder looked like one of a killed job: 3 of 1,200 saves failed."""
    saves = 40
    done = subprocess.run(
        [sys.executable, "-c", MANY, tmp_path, str(saves)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "removing" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{j}-{k}" for j in range(8) for k in range(saves)
    )
