"""Numbers of a run reach trackers as metrics.jsonl has them, and a tracker never costs a training."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.run import trackers
from graph_emb.run.scores import scores_of
from graph_emb.run.trackers import KINDS, Ending, numbers_of

TINY: dict[str, Any] = {"num_walks": 1, "walk_length": 6, "dim": 4, "threads": 1, "train": {"log_interval": 0.001}}
FACTS = [(f"e{a}", "r", f"e{b}") for a in range(8) for b in range(8) if a != b]


class Recorder:
    """Keeps what it is told."""

    last: Recorder

    def __init__(self, module: Any, name: str, config: Any, folder: Path | None) -> None:
        self.name, self.folder = name, folder
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.ending: Ending | None = None
        self.closed: list[bool] = []
        Recorder.last = self

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.lines.append((step, dict(numbers)))

    def finish(self, ending: Ending) -> None:
        self.ending = ending

    def close(self, failed: bool) -> None:
        self.closed.append(failed)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "mlflow", (Recorder, "json", "none"))


@pytest.mark.usefixtures("recorder")
def test_a_tracker_gets_each_line_the_scores_and_the_rows(tmp_path: Path) -> None:
    result = ge.pipeline("deepwalk", "digits", out=tmp_path / "run", output={"trackers": ["mlflow"]}, epochs=3, **TINY)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) > 1
    told = Recorder.last
    assert told.name == "run"
    assert told.lines == [(step, dict(numbers_of(line))) for step, line in enumerate(lines, 1)]
    assert told.ending is not None
    assert told.ending.scores == scores_of(result.metrics["evaluation"])
    assert len(told.ending.scores) > 2
    assert told.ending.labels is not None
    assert set(told.ending.labels.tolist()) == {str(digit) for digit in range(10)}
    np.testing.assert_array_equal(told.ending.tables["node"].weights, result.embeddings.weights)
    assert told.closed == [False]


@pytest.mark.usefixtures("recorder")
def test_a_run_that_fails_ends_its_trackers() -> None:
    def stop(scores: dict[str, float]) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        ge.pipeline("deepwalk", "digits", output={"trackers": ["mlflow"]}, on_evaluation=stop, **TINY)
    assert Recorder.last.closed == [False]  # the rows were there: only the scores' reader failed
    with pytest.raises(ge.DataError):
        ge.pipeline("deepwalk", "no-such-graph.csv", output={"trackers": ["mlflow"]})

    def break_off(*_: Any, **options: Any) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graph_emb.run.families.plain.fit_skipgram", break_off)
        with pytest.raises(MemoryError):
            ge.pipeline("deepwalk", "digits", output={"trackers": ["mlflow"]}, **TINY)
    assert Recorder.last.closed == [True]


@pytest.mark.usefixtures("recorder")
def test_a_tracker_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(self: Recorder, numbers: Mapping[str, float], step: int) -> None:
        self.lines.append((step, {}))
        raise OSError("the server is gone")

    monkeypatch.setattr(Recorder, "log", refuse)
    monkeypatch.setattr(trackers, "note", lambda text: print(text, file=sys.stderr))
    result = ge.pipeline("deepwalk", "digits", output={"trackers": ["mlflow"]}, **TINY)
    assert result.metrics["status"] == "finished"
    assert len(Recorder.last.lines) == 1
    assert capsys.readouterr().err.count("the server is gone") == 1


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_package_is_one_error_with_its_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, KINDS[name][1], None)
    with pytest.raises(ConfigError, match=rf"output.trackers = {name} .*pip install 'graph_emb\[{name}\]'"):
        ge.pipeline("deepwalk", "no-such-graph.csv", output={"trackers": [name]})


def test_what_is_no_function_is_refused_before_the_training() -> None:
    """It ended a run with a traceback when the training was over."""
    with pytest.raises(ge.ConfigError, match="on_evaluation=5 must be a function"):
        ge.pipeline("deepwalk", "digits", on_evaluation=5, **TINY)  # type: ignore[arg-type]
    with pytest.raises(ge.ConfigError, match="config is a list; give a RunConfig, a mapping of sections or a YAML"):
        ge.pipeline(config=[1])  # type: ignore[arg-type]


def test_on_evaluation_gets_validations_and_scores(tmp_path: Path) -> None:
    (tmp_path / "kg").mkdir()
    for part, own in {"train": FACTS[::2], "valid": FACTS[1::4], "test": FACTS[3::4]}.items():
        (tmp_path / "kg" / f"{part}.txt").write_text("".join("\t".join(fact) + "\n" for fact in own))
    told: list[dict[str, float]] = []
    sizes = {"dim": 8, "batch_size": 16, "chunk_size": 8, "num_negatives": 4, "threads": 1}
    result = ge.pipeline(
        "transe", tmp_path / "kg", epochs=4, valid_every=2, patience=0, on_evaluation=told.append, **sizes
    )
    assert [line["epoch"] for line in told[:-1]] == [2, 4]
    assert [line["valid_mrr"] for line in told[:-1]] == [
        line["valid_mrr"] for line in result.history if line["valid_mrr"] is not None
    ]
    assert told[-1] == scores_of(result.metrics["evaluation"])
    assert "test mrr" in told[-1]


def test_tensorboard_has_curves_and_the_projector(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = ge.pipeline("deepwalk", "digits", out=tmp_path / "run", output={"trackers": ["tensorboard"]}, **TINY)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, len(result.history) + 1))
    assert events.Scalars("loss")[-1].value == pytest.approx(result.history[-1]["loss"])
    (names,) = (tmp_path / "run" / "tensorboard").rglob("metadata.tsv")
    lines = names.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "id\tlabel"
    assert len(lines) == 1 + 1797
    ge.pipeline("deepwalk", "digits", out=tmp_path / "run", overwrite=True, **TINY)  # the files are the run's own
    assert not (tmp_path / "run" / "tensorboard").exists()
    with pytest.raises(ConfigError, match="give out"):
        ge.pipeline("deepwalk", "digits", output={"trackers": ["tensorboard"]}, **TINY)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, of SQLAlchemy
def test_mlflow_has_settings_curves_and_scores(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    result = ge.pipeline("deepwalk", "digits", output={"trackers": ["mlflow"]}, **TINY)
    (found,) = mlflow.search_runs(output_format="list")
    assert found.data.params["model.name"] == "deepwalk"
    assert found.data.metrics["loss"] == pytest.approx(result.history[-1]["loss"])
    assert found.info.status == "FINISHED"


def test_wandb_runs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    ge.pipeline("deepwalk", "digits", output={"trackers": ["wandb"]}, **TINY)
    assert len(list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))) == 1
