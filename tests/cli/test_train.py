"""The launcher of ``graph-emb train --trainers``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from graph_emb.cli import train
from graph_emb.config import RunConfig
from graph_emb.run.launch import job
from graph_emb.run.launch.watch import ProcessFailure


@pytest.mark.parametrize("had_logs", [True, False])
def test_bad_input_removes_the_logs_of_this_start_only(
    had_logs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder <out>-logs was removed whole, with the logs of an earlier run and the files of a user."""

    def refused(command: Any, trainers: int, logs: Path, *_: Any) -> None:
        logs.mkdir(exist_ok=True)
        (logs / "trainer-0.log").write_text("ConfigError")
        raise ProcessFailure("trainer 0 ended with 2", train.BAD_INPUT, "trainer 0")

    monkeypatch.setattr(job, "run_local", refused)
    if had_logs:
        (tmp_path / "run-logs").mkdir()
        (tmp_path / "run-logs" / "notes.txt").write_text("mine")
    config = RunConfig.model_validate({"dataset": {"name": "karate"}, "model": {"name": "deepwalk"}})
    args = Namespace(argv=[], overwrite=False, quiet=True)
    assert train.launch(config, tmp_path / "run", args) == train.BAD_INPUT
    assert [p.name for p in tmp_path.rglob("notes.txt")] == (["notes.txt"] if had_logs else [])
    assert (tmp_path / "run-logs").exists() is had_logs
