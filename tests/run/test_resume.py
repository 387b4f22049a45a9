"""A run that was stopped goes on as if nothing had happened: same bytes, same history, in any mode."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import graph_emb as ge
from graph_emb.checkpoint import manifest as manifests
from graph_emb.cli.main import main
from graph_emb.config import RunConfig, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import plain_dataset
from graph_emb.models.skipgram import training as skipgram
from graph_emb.run.about import FREE_FIELDS, FREE_SECTIONS, about, about_now

RUN: dict[str, Any] = {"num_walks": 2, "walk_length": 10, "dim": 4, "threads": 1, "evaluate": False, "epochs": 2}
COUNTS = ("epoch", "walks", "tokens")


class Stop(Exception):
    """Stands for whatever ends a process between two batches."""


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipgram, "TOKENS_PER_BATCH", 10 * 400)  # 9 batches of 400 walks an epoch


def run(out: Path, *, stop_after: int | None = None, **options: Any) -> np.ndarray | None:
    """The rows of a run; None where it was stopped after so many checkpoints."""
    taken = 0

    def save(self: Any, step: int, position: Any) -> None:
        nonlocal taken
        original(self, step, position)
        taken += 1
        if taken == stop_after:
            raise Stop

    original = skipgram.PeriodicCheckpoints.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipgram.PeriodicCheckpoints, "save", save)
        try:
            result = ge.pipeline("node2vec", "digits", out=out, **{**RUN, "checkpoint": {"every": 2}, **options})
        except Stop:
            return None
    return np.array(result.embeddings.weights)


def counts_of(folder: Path) -> list[list[int]]:
    """Epoch, walks and tokens of each line of a run's history."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [[json.loads(line)[key] for key in COUNTS] for line in lines]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_run_stopped_at_the_end_of_an_epoch_has_its_line_once(tmp_path: Path, stop_after: int) -> None:
    options: dict[str, Any] = {"log_interval": 1e-9, "checkpoint": {"every": 9}}
    run(tmp_path / "whole", **options)
    assert run(tmp_path / "run", stop_after=stop_after, **options) is None
    run(tmp_path / "run", resume=True, **options)
    assert counts_of(tmp_path / "run") == counts_of(tmp_path / "whole")


def test_buckets_that_a_run_chose_stay_when_it_goes_on_with_other_memory(tmp_path: Path) -> None:
    """They were "auto" in the checkpoint, and other memory chose others: another order, kept as that of all the run."""
    by_number: dict[str, Any] = {"num_walks": 1, "epochs": 1, "dim": 16, "checkpoint": {"every": 5}}
    by_number["train.scratch"] = str(tmp_path / "rows")
    chosen: dict[str, Any] = {**by_number, "train.buckets": "auto"}
    whole = run(tmp_path / "whole", **chosen, **{"train.memory": "100KiB"})
    assert run(tmp_path / "run", stop_after=3, **chosen, **{"train.memory": "100KiB"}) is None
    number = yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())["train"]["buckets"]
    assert number > 2
    with pytest.raises(ConfigError, match=rf"a run with train.buckets = {number}, this one has 0"):
        run(tmp_path / "run", resume=True, **chosen, **{"train.memory": "10MiB"})
    by_number |= {"train.buckets": number, "train.memory": "10MiB"}
    assert np.array_equal(run(tmp_path / "run", resume=True, **by_number), whole)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rule": "adam", "epochs": 1},
        {"subsample": 0.01, "tables": 1},
        {"model.multilevel": True},
        {"train.memory": "60KiB", "num_walks": 1, "epochs": 1},
        {"train.memory": "50KiB", "num_walks": 1, "train.buckets": 4, "train.episode_walks": 400},
        {"train.memory": "40KiB", "num_walks": 1, "train.buckets": 4, "train.episode_walks": 400, "tables": 1},
    ],
    ids=str,
)
def test_a_stopped_run_gives_the_rows_of_one_that_was_not(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", log_interval=1e-9, **options)
    assert run(tmp_path / "run", stop_after=3, log_interval=1e-9, **options) is None
    assert not (tmp_path / "run").exists()
    rows = run(tmp_path / "run", resume=True, log_interval=1e-9, **options)
    assert rows is not None
    np.testing.assert_array_equal(rows, whole)
    assert counts_of(tmp_path / "run") == counts_of(tmp_path / "whole")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    elapsed = [json.loads(line)["elapsed"] for line in lines]
    assert elapsed == sorted(elapsed)  # those of the run that goes on come after those of before


@pytest.mark.usefixtures("small_batches")
def test_resume_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    np.testing.assert_array_equal(run(tmp_path / "run", resume=True), whole)


@pytest.mark.usefixtures("small_batches")
def test_what_decides_the_result_may_not_change(tmp_path: Path) -> None:
    run(tmp_path / "run", stop_after=1)
    with pytest.raises(ConfigError, match=r"is of a run with model.window = 10, this one has 5"):
        run(tmp_path / "run", resume=True, window=5)
    with pytest.raises(ConfigError, match="is a checkpoint of an earlier run; resume it"):
        run(tmp_path / "run")
    assert run(tmp_path / "run", resume=True, formats=("npy", "word2vec")) is not None


@pytest.mark.usefixtures("small_batches")
def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    run(tmp_path / "run", stop_after=3)
    (manifest,) = (tmp_path / "run-checkpoints").glob("6/manifest.json")
    saved = json.loads(manifest.read_text())
    about = saved["extra"]["about"]
    del about["model.symmetrize"], about["model.duplicates"]
    about |= {"dataset.weights": None, "parallel.negatives": "global"}
    del saved[manifests.SELF]
    manifest.write_text(json.dumps({**saved, manifests.SELF: manifests._digest(saved)}))
    np.testing.assert_array_equal(run(tmp_path / "run", resume=True), whole)


@pytest.mark.usefixtures("small_batches")
def test_files_of_labels_are_known_by_their_content(tmp_path: Path) -> None:
    """Paths were compared: other labels under an old name went on in silence, and a folder that moved did not."""
    first, moved = tmp_path / "labels.csv", tmp_path / "moved.csv"
    first.write_text("".join(f"{node},{node % 3}\n" for node in range(1797)))
    moved.write_bytes(first.read_bytes())
    run(tmp_path / "run", stop_after=1, labels=str(first))
    first.write_text("".join(f"{node},{node % 2}\n" for node in range(1797)))
    with pytest.raises(
        ConfigError, match=r"is of a run with dataset\.labels = 'content \w{16}', this one has 'content"
    ):
        run(tmp_path / "run", resume=True, labels=str(first))
    assert run(tmp_path / "run", resume=True, labels=str(moved)) is not None


def test_a_rank_that_cannot_see_the_files_leaves_them_to_the_first(tmp_path: Path) -> None:
    def named(**files: str) -> RunConfig:
        return config_from({"model": "deepwalk", "dataset": {"name": "digits", **files}})

    split = tmp_path / "split"
    split.mkdir()
    for part in ("train", "test"):
        (split / f"{part}.csv").write_text(f"{part}\n")
    saved = about(named(split=str(split)))
    assert saved["dataset.split"].startswith("content ")
    away = named(split="/nowhere/split")
    assert about_now(saved, away) == about(away)
    assert about_now(saved, named(split=str(split))) == saved
    (split / "test.csv").write_text("other\n")
    changed = named(split=str(split))
    assert about_now(saved, changed) == saved != about(changed)


def test_checkpoints_need_a_run_folder() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.every = '5' needs out"):
        ge.pipeline("deepwalk", "digits", checkpoint={"every": 5})
    with pytest.raises(ConfigError, match="overwrite=True has no effect without out"):
        ge.pipeline("deepwalk", "digits", overwrite=True)
    with pytest.raises(ConfigError, match="resume needs out"):
        ge.pipeline("deepwalk", "digits", resume=True)


def test_only_what_decides_the_result_is_compared() -> None:
    fields = about(config_from({"model": "deepwalk", "dataset": "digits"}))
    assert {"seed", "model.dim", "train.rule", "dataset.name"} <= set(fields)
    assert not [name for name in fields if name.partition(".")[0] in FREE_SECTIONS]
    assert not {f"{section}.{name}" for section, names in FREE_FIELDS.items() for name in names} & set(fields)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of the data set as a file, which a process reads without scikit-learn."""
    file = tmp_path_factory.mktemp("graph") / "digits.npz"
    graph = plain_dataset(load_dataset("digits")).graph
    np.savez(file, indptr=graph.indptr, indices=graph.indices, directed=False)
    return file


def words(graph: Path, out: Path, walks: int, *more: str) -> list[str]:
    told = f"--threads 1 --dim 4 --no-eval --quiet model.num_walks={walks}"
    return ["train", "deepwalk", "--dataset", str(graph), *told.split(), "--out", str(out), *more]


def killed_at_the_first_checkpoint(command: list[str], out: Path) -> None:
    """Start a job and kill all its processes when its first checkpoint is complete.

    Where this process was so slow that the job had ended, it is started anew.
    """
    line, folder = [sys.executable, "-m", "graph_emb", *command], out.with_name(f"{out.name}-checkpoints")
    for _ in range(10):
        job = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0)
        while not list(folder.glob("*/manifest.json")):
            assert job.poll() is None, job.communicate()[1].decode()
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):  # until all of the group, trainers and servers too, are gone
            while True:
                os.killpg(job.pid, signal.SIGKILL)
                job.poll()
                time.sleep(0.01)
        job.communicate()
        if not out.exists():
            return
        shutil.rmtree(out)
        shutil.rmtree(folder)
    pytest.fail("ten jobs ended before they were killed")


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize(
    ("walks", "first", "second"),
    [
        (20, (), ()),
        (8, ("--trainers", "2", "parallel.hogwild=false"), ("--trainers", "2", "parallel.hogwild=false")),
        (20, ("--trainers", "2"), ()),
        (20, ("--trainers", "2", "--mode", "kvstore"), ()),
    ],
    ids=["local", "collective", "collective to local", "kvstore to local"],
)
def test_a_killed_job_goes_on(
    tmp_path: Path, digits: Path, walks: int, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """Trainers that exchange rows take longer, so that fewer walks are enough to kill them in."""
    out = tmp_path / "run"
    killed_at_the_first_checkpoint(words(digits, out, walks, "--checkpoint-every", "1", *first), out)
    assert main(words(digits, out, walks, "--resume", *second)) == 0
    found = np.load(out / "embeddings.npy")
    if first == second:
        assert main(words(digits, tmp_path / "whole", walks, *first)) == 0
        np.testing.assert_array_equal(found, np.load(tmp_path / "whole" / "embeddings.npy"))
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["walks"] == walks * 1797
    assert np.isfinite(found).all()
