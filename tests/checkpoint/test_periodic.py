"""Checkpoints at intervals: when, which stay, and from where a training goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints, newest
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.settings import parse_interval


def table() -> tuple[ge.DistEmbedding, ge.SparseAdagrad]:
    emb = ge.DistEmbedding(6, 2, "t", init_func=ge.initializers.Uniform(seed=3))
    return emb, ge.SparseAdagrad([emb], lr=0.1)


def train(
    folder: Path, stop: int, *, steps: int = 9, lines: list[Any] | None = None, **options: Any
) -> tuple[torch.Tensor, list[int]]:
    """Steps that push 1 to one row each, saved by ``options``; stops after ``stop``. Rows, and the steps it made."""
    emb, opt = table()
    lines = [] if lines is None else lines
    saves = PeriodicCheckpoints(folder, **{"every": 2, "replay": lines.append, **options})
    begin, made = (saves.start([emb], [opt]) or {"next": 0})["next"], []
    for step in range(begin, min(stop, steps)):
        (emb(torch.tensor([step % 6])) * (step + 1)).sum().backward()
        opt.step()
        made.append(step)
        saves.record({"step": step})
        saves.after(step + 1, lambda done=step + 1: {"next": done})
    saves.finish()
    return emb.weight[:], made


@pytest.mark.parametrize(
    ("every", "wanted"),
    [(500, (500, None)), ("500", (500, None)), ("90s", (None, 90)), ("10m", (None, 600)), ("1.5h", (None, 5400))],
)
def test_an_interval_is_steps_or_a_time(every: int | str, wanted: tuple[Any, Any]) -> None:
    assert parse_interval(every) == wanted


@pytest.mark.parametrize("every", [0, -1, "0s", "ten", "5d", "1.5", ""])
def test_other_intervals_are_refused(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write a number of steps \(500\) or a time"):
        PeriodicCheckpoints(tmp_path, every)


@pytest.mark.parametrize("background", [False, True])
def test_a_stopped_training_goes_on_from_the_newest_checkpoint(tmp_path: Path, background: bool) -> None:
    whole, _ = train(tmp_path / "a", 9)
    train(tmp_path / "b", 5, background=background)
    rows, made = train(tmp_path / "b", 9, resume=True, background=background)
    assert made == [4, 5, 6, 7, 8]  # saved after 4 steps; the fifth is made again
    assert torch.equal(rows, whole)


def test_old_checkpoints_go_and_unfinished_ones_do_not_count(tmp_path: Path) -> None:
    train(tmp_path, 9, keep_last=2)
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir()) == ["6", "8"]
    (tmp_path / "10").mkdir()  # no manifest: a save that was cut off
    assert newest(tmp_path) == tmp_path / "8"
    assert newest(tmp_path / "absent") is None


def test_the_clock_decides_where_the_interval_is_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("graph_emb.checkpoint.periodic.time.monotonic", lambda: now[0])
    emb, opt = table()
    saves = PeriodicCheckpoints(tmp_path, "10s")
    saves.start([emb], [opt])
    taken = []
    for step in range(1, 6):
        now[0] += 4.0
        taken.append(saves.after(step, lambda: None))
    assert taken == [False, False, True, False, False]  # 12 s; the next one is due at 22 s


def test_the_history_is_cut_at_the_checkpoint_and_told_again(tmp_path: Path) -> None:
    train(tmp_path, 5)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 5
    lines: list[Any] = []
    train(tmp_path, 9, resume=True, lines=lines)
    assert lines == [{"step": step} for step in range(4)]
    written = [json.loads(line)["step"] for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert written == list(range(9))


def test_a_history_that_lost_lines_is_an_error(tmp_path: Path) -> None:
    train(tmp_path, 5)
    (tmp_path / "history.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(DataError, match=r"history.jsonl: has 1 lines, the checkpoint was taken after 4"):
        train(tmp_path, 9, resume=True)


def test_other_settings_are_named_before_a_row_changes(tmp_path: Path) -> None:
    train(tmp_path, 5, about={"model.dim": 2, "seed": 0})
    emb, opt = table()
    before = emb.weight[:].clone()
    saves = PeriodicCheckpoints(tmp_path, 2, resume=True, about={"model.dim": 2, "seed": 1})
    with pytest.raises(ConfigError, match="is of a run with seed = 0, this one has 1; resume with equal settings"):
        saves.start([emb], [opt])
    assert torch.equal(emb.weight[:], before)


def test_checkpoints_of_another_run_are_neither_mixed_nor_lost(tmp_path: Path) -> None:
    train(tmp_path, 5)
    with pytest.raises(ConfigError, match=r"4 is a checkpoint of an earlier run; resume it, or remove"):
        PeriodicCheckpoints(tmp_path, 2)
    assert newest(tmp_path) == tmp_path / "4"
    train(tmp_path, 3, overwrite=True)
    assert newest(tmp_path) == tmp_path / "2"


def test_a_checkpoint_of_somebody_else_is_refused(tmp_path: Path) -> None:
    emb, opt = table()
    ge.save_checkpoint(tmp_path / "7", tables=[emb], optimizers=[opt], step=7)
    with pytest.raises(ConfigError, match=r"7 was not saved by PeriodicCheckpoints; load it with load_checkpoint"):
        PeriodicCheckpoints(tmp_path, 2, resume=True).start([emb], [opt])


def test_keep_last_must_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_last is 0; keep at least 1"):
        PeriodicCheckpoints(tmp_path, 2, keep_last=0)


def test_a_folder_whose_name_only_looks_like_a_number_is_no_checkpoint(tmp_path: Path) -> None:
    """isdigit() takes a superscript two, which int() does not: newest() raised ValueError."""
    for name in ("²", "7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert newest(tmp_path) == tmp_path / "7"
