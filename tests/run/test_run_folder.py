"""A run appears complete or not at all, and nothing that is not ours is ever replaced."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core import storage
from graph_emb.core.errors import ConfigError
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.run.run_folder import RunFolder, is_run, read_metrics


def write_run(place: Path, value: int, overwrite: bool = False) -> None:
    with RunFolder(place, overwrite=overwrite) as run:
        run.write_text("config.yaml", "seed: 0\n")
        run.publish_run({"value": value})


def fail_in(place: Path, error: Exception, overwrite: bool = False) -> None:
    with RunFolder(place, overwrite=overwrite) as run:
        run.write_text("config.yaml", "seed: 0\n")
        run.append({"loss": 1.0})
        raise error


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_published_run_holds_its_files_and_lists_them(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "run") as run:
        run.write_text("config.yaml", "seed: 0\n")
        run.append({"loss": 1.5})
        run.append({"loss": float("nan")})
        assert not (tmp_path / "a" / "run").exists()
        run.publish_run({"loss": np.float32(0.5), "bad": float("inf"), "counts": np.arange(2)})
    place = tmp_path / "a" / "run"
    assert names(place) == ["config.yaml", "metrics.json", "metrics.jsonl"]
    assert read_metrics(place) == {"loss": 0.5, "bad": None, "counts": [0, 1], "files": names(place)}
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"loss": 1.5}, {"loss": None}]
    assert is_run(place)
    assert names(tmp_path / "a") == ["run"]


def test_each_line_of_the_log_is_readable_while_the_run_goes_on(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.append({"step": 1})
        assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == '{"step": 1}\n'


def test_an_error_leaves_nothing_behind_not_even_new_parents(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        fail_in(tmp_path / "a" / "b" / "run", OSError(errno.ENOSPC, "No space left on device"))
    assert names(tmp_path) == []


def test_parents_that_were_there_stay_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(KeyError):
        fail_in(tmp_path / "runs" / "x", KeyError())
    assert names(tmp_path) == ["runs"]


def test_an_existing_run_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    place = tmp_path / "run"
    write_run(place, 1)
    with pytest.raises(ConfigError, match=r"holds a run; give another --out, or --overwrite"):
        RunFolder(place)
    write_run(place, 2, overwrite=True)
    assert read_metrics(place)["value"] == 2
    assert names(tmp_path) == ["run"]


def test_the_old_run_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    place = tmp_path / "run"
    write_run(place, 1)
    with pytest.raises(RuntimeError):
        fail_in(place, RuntimeError(), overwrite=True)
    assert read_metrics(place)["value"] == 1
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    place = tmp_path / "thesis"
    place.mkdir()
    (place / "metrics.json").write_text('{"files": "all"}', encoding="utf-8")
    (place / "config.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"thesis holds files but no run"):
        RunFolder(place, overwrite=overwrite)
    assert names(place) == ["config.yaml", "metrics.json"]


def test_overwrite_refuses_a_run_to_which_somebody_added_a_file(tmp_path: Path) -> None:
    place = tmp_path / "run"
    write_run(place, 1)
    (place / "notes").mkdir()
    (place / "notes" / "mine.txt").write_text("do not lose", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"holds notes/mine.txt, which the run did not write"):
        RunFolder(place, overwrite=True)


def test_an_empty_folder_is_taken_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "empty", 1)
    assert is_run(tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file"):
        RunFolder(tmp_path / "file", overwrite=True)
    with pytest.raises(ConfigError, match=r"file/a/b cannot be written: .*file is a file; give another --out"):
        RunFolder(tmp_path / "file" / "a" / "b")
    assert names(tmp_path) == ["empty", "file"]
    with pytest.raises(ConfigError, match=r"~nobody-has-this-name/x: this user has no home folder"):
        RunFolder("~nobody-has-this-name/x")


def test_a_place_taken_meanwhile_keeps_both_runs(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RunFolder(place) as slow:
        slow.write_text("config.yaml", "")
        write_run(place, 1)
        with pytest.raises(ConfigError, match=r"the complete run is in .*\.run\.partial-") as caught:
            slow.publish_run({"value": 2})
    assert read_metrics(place)["value"] == 1
    assert read_metrics(Path(str(caught.value).rpartition(" ")[2]))["value"] == 2


def test_a_rename_that_fails_brings_the_old_run_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "run"
    write_run(place, 1)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(storage, "swap_names", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", failing)
    with RunFolder(place, overwrite=True) as run:
        run.write_text("config.yaml", "")
        with pytest.raises(ConfigError, match="complete run is in"):
            run.publish_run({"value": 2})
    assert read_metrics(place)["value"] == 1


def test_a_disk_too_small_is_known_before_training(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as run:
        run.check_space(10)
        with pytest.raises(OSError, match=r"the run needs about .* TiB, the disk has"):
            run.check_space(1 << 60)


def test_a_run_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_run(tmp_path / "run", 1)
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o750


def test_a_run_of_the_version_before_is_read_and_replaced(tmp_path: Path) -> None:
    place, files = tmp_path / "run", ["config.yaml", "embeddings.npy", "ids.npy", "metrics.json", "metrics.jsonl"]
    place.mkdir()
    (place / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    (place / "metrics.json").write_text(json.dumps({"status": "finished", "files": files}, indent=2), encoding="utf-8")
    (place / "metrics.jsonl").touch()
    np.save(place / "embeddings.npy", np.float32([[1, 2], [3, 4]]))
    np.save(place / "ids.npy", np.array([7, 5]))
    assert is_run(place)
    assert read_metrics(place)["status"] == "finished"
    found = load_embeddings(place)
    assert (found.node_ids.tolist(), found.weights.tolist()) == ([7, 5], [[1, 2], [3, 4]])
    write_run(place, 1, overwrite=True)
    assert names(place) == ["config.yaml", "metrics.json", "metrics.jsonl"]
    assert names(tmp_path) == ["run"]
