from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import config_from, fields_of, read_config_file
from graph_emb.core.errors import ConfigError
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph
from graph_emb.models.search import Span, one_of
from graph_emb.run import pipeline as run_of
from graph_emb.run.pipeline import config_of
from graph_emb.tuning import search
from graph_emb.tuning.search import TrialRow, tune, tune_config
from tests.models.kge.references import ring

pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("fresh_mode")

WALKS: dict[str, Any] = {"dim": 8, "num_walks": 1, "walk_length": 6, "train": {"threads": 1}}


def planted() -> Dataset:
    """Two circles of 20 nodes, a class each."""
    nodes = np.arange(20)
    ends = [np.concatenate([nodes, nodes + 20]), np.concatenate([(nodes + 1) % 20, (nodes + 1) % 20 + 20])]
    typed = HeteroGraph({NODE_TYPE: 40}, {("_N", "_E", "_N"): (ends[0], ends[1])})
    order = np.random.default_rng(0).permutation(40)
    split = {"train": order[:20], "valid": order[20:30], "test": order[30:]}
    labels = {NODE_TYPE: Labels.from_single((np.arange(40) >= 20).astype(np.int64))}
    return Dataset("circles", typed, labels=labels, node_split={NODE_TYPE: split})


def triples() -> Dataset:
    graph = ring()
    parts = {**graph.parts, "test": graph.parts["train"][:2]}
    typed = HeteroGraph({NODE_TYPE: graph.num_entities}, {("_N", "_E", "_N"): (np.array([0]), np.array([1]))})
    return Dataset("ring", typed, triples=KnowledgeGraph("ring", graph.num_entities, 2, parts))


def test_a_search_ends_with_files_that_others_read(tmp_path: Path) -> None:
    found = tune("deepwalk", planted(), out=tmp_path, trials=3, **WALKS)
    assert [row.number for row in found.trials] == [0, 1, 2]
    assert found.trials[0].settings["model.window"] == 10, "the defaults come first"
    assert "model.num_walks" not in found.trials[0].settings, "what is given is not searched"
    assert found.best is not None
    assert found.best.value == max(row.value or 0.0 for row in found.trials)
    best = fields_of(config_from(read_config_file(tmp_path / "best.yaml")))
    assert {name: best[name] for name in found.best.settings} == found.best.settings
    assert (best["model.dim"], best["dataset.digest"]) == (8, found.config.dataset.digest if found.config else None)
    tried = (tmp_path / "tried.txt").read_text().splitlines()
    assert all(line.startswith("--tried ") for line in tried)
    assert len(tried) == len(found.best.settings)
    assert len((tmp_path / "trials.tsv").read_text().splitlines()) == 4
    page = (tmp_path / "search.html").read_text()
    assert page.count("data:image/png") >= 2
    assert "http" not in page


def test_the_best_configuration_trains_with_the_whole_data(tmp_path: Path) -> None:
    found = tune("deepwalk", planted(), out=tmp_path, trials=2, **WALKS)
    result = ge.pipeline(dataset=planted(), config=found.config)
    assert set(result.metrics["evaluation"]["split_accuracy"]["accuracy"]) == {"train", "valid", "test"}


@pytest.mark.parametrize(("model", "data"), [("deepwalk", planted), ("distmult", triples), ("rgcn", planted)])
def test_no_trial_is_given_the_test_data(
    model: str, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each run loads is looked at: its test part is the validation part, and test nodes have no class."""
    seen, true = [], run_of.family_of

    def watched(config: Any) -> Any:
        seen.append(config.dataset.held)
        return true(config)

    monkeypatch.setattr(run_of, "family_of", watched)
    quick = {"deepwalk": WALKS, "distmult": {"dim": 4, "epochs": 1, "chunk_size": 512}, "rgcn": {"epochs": 2}}[model]
    tune(model, data(), out=tmp_path, trials=2, **quick)
    assert len(seen) == 2
    whole = data()
    for held in seen:
        if whole.triples is not None:
            assert sorted(held.triples.parts) == ["train", "valid"]
            continue
        valid = held.node_split[NODE_TYPE]["valid" if model == "rgcn" else "test"]
        assert valid.tolist() == whole.node_split[NODE_TYPE]["valid"].tolist()
        assert not set(held.node_split[NODE_TYPE]["test"]) & set(whole.node_split[NODE_TYPE]["test"])
        assert not set(held.labels[NODE_TYPE].labelled()) & set(whole.node_split[NODE_TYPE]["test"].tolist())


def test_changed_test_data_change_nothing(tmp_path: Path) -> None:
    data = triples()
    assert data.triples is not None
    other = KnowledgeGraph("ring", 12, 2, {**data.triples.parts, "test": np.array([[3, 1, 9]])})
    found = []
    for number, graph in enumerate((data.triples, other)):
        own = Dataset("ring", data.graph, triples=graph)
        result = tune("distmult", own, out=tmp_path / str(number), trials=3, dim=4, epochs=2, chunk_size=512)
        found.append([(row.settings, row.value) for row in result.trials])
    assert found[0] == found[1]


def test_curves_below_the_median_end_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six trainings learn; one at a rate that learns nothing is stopped before its last validation."""
    rates, true = iter([0.1] * 6 + [1e-6]), search.SearchFolder.ask

    def ask(self: Any, number: int, first: Any) -> Any:
        study, _ = true(self, number, None)
        study.enqueue_trial({"train.lr": next(rates)})
        return study, study.ask(dict(self.distributions))

    monkeypatch.setattr(search.SearchFolder, "ask", ask)
    monkeypatch.setattr(search, "space_of", lambda base, ranges: {"train.lr": Span(1e-7, 1.0, log=True)})
    options = {"dim": 8, "epochs": 8, "valid_every": 1, "patience": 0, "chunk_size": 512, "batch_size": 512}
    found = tune("complex", triples(), out=tmp_path, trials=7, **options)
    assert [row.state for row in found.trials] == ["complete"] * 6 + ["pruned"]


def test_a_failed_trial_says_why_and_others_go_on(tmp_path: Path) -> None:
    space = {"model.dim": one_of(8, 7)}  # complex numbers have two halves
    found = tune("complex", triples(), out=tmp_path, trials=6, epochs=1, chunk_size=512, search=space)
    failed = [row for row in found.trials if row.state == "failed"]
    assert failed, "seeds that never draw 7 would test nothing"
    assert all("needs an even width" in str(row.problem) for row in failed)
    assert found.best is not None
    assert found.best.settings["model.dim"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "test.accuracy"}, "a search compares validation values"),
        ({"metric": "valid.mrr"}, "unknown metric 'valid.mrr'; known: valid.accuracy"),
        ({"search": {"model.windw": one_of(1)}}, "did you mean 'model.window'"),
        ({"trials": 0}, "trials=0"),
        ({"hold_out": 0.1}, "dataset.hold_out = 0.1 in a search"),
        ({"parallel": {"mode": "collective", "trainers": 2}}, "a trial trains in one process"),
        ({"evaluate": {"enabled": False}}, "a search compares evaluations"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        tune("deepwalk", planted(), out=tmp_path / "s", **{"trials": 1, **WALKS, **options})


def test_nothing_to_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ge.ConfigError, match="nothing to search: all of std, lr are set"):
        search.space_of(
            config_from({"model": {"name": "mf", "std": 0.1}, "train": {"lr": 0.1}, "dataset": {"name": "x"}}), {}
        )


def test_given_ranges_replace_the_models(tmp_path: Path) -> None:
    base = config_from({"model": {"name": "deepwalk", "window": 4}, "dataset": {"name": "x"}})
    space = search.space_of(base, {"window": one_of(3, 4), "lr": Span(0.1, 0.2)})
    assert space["model.window"] == one_of(3, 4)
    assert space["train.lr"] == Span(0.1, 0.2)
    assert "model.walk_length" in space


KILLED = """
import os, sys
from graph_emb.tuning import search
from tests.tuning.test_search import WALKS, planted
true, left = search.SearchFolder.add, [int(sys.argv[2])]
def add(self, *rest):
    true(self, *rest)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
search.SearchFolder.add = add
search.tune("deepwalk", planted(), out=sys.argv[1], trials=5, resume=True, **WALKS)
"""


@pytest.mark.usefixtures("warm_starts")
def test_a_killed_search_ends_with_the_trials_of_a_whole_one(tmp_path: Path) -> None:
    whole = tune("deepwalk", planted(), out=tmp_path / "whole", trials=5, **WALKS)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), "2"]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, check=False)
    assert done.returncode == -signal.SIGKILL
    resumed = tune("deepwalk", planted(), out=tmp_path / "killed", trials=5, resume=True, **WALKS)
    assert [(row.settings, row.value) for row in resumed.trials] == [(row.settings, row.value) for row in whole.trials]


@pytest.mark.dist
def test_two_jobs_share_the_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_emb.core.progress.LINE_S", 0.0)
    told: list[TrialRow] = []
    config = config_of(None, {"model": "deepwalk", "dataset": planted(), "evaluate": None}, WALKS)
    found = tune_config(config, out=tmp_path, trials=4, jobs=2, progress=True, on_trial=told.append)
    assert [row.number for row in found.trials] == [0, 1, 2, 3]
    assert sorted(told, key=lambda row: row.number) == found.trials
    assert "trials: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.dist)])
def test_an_unknown_metric_leaves_a_free_folder(jobs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The search lay there with a metric that no trial has, and the folder took no other one."""
    options: dict[str, Any] = {"out": tmp_path / "search", "trials": 2, "jobs": jobs, **WALKS}
    with pytest.raises(ge.ConfigError, match=r"unknown metric 'valid.mrr'; known: valid.accuracy"):
        tune("deepwalk", planted(), metric="valid.mrr", **options)
    assert not (tmp_path / "search").exists()
    assert "Traceback" not in capfd.readouterr().err
    assert len(tune("deepwalk", planted(), **{**options, "trials": 1, "jobs": 1}).trials) == 1


ASKED = """
import sys
from graph_emb.core.terminal import exit_code
from graph_emb.run.pipeline import config_of
from graph_emb.tuning.search import tune_config
from tests.tuning.test_search import WALKS, planted
def told(row):
    print(row.number, flush=True)
def run(words):
    config = config_of(None, {"model": "deepwalk", "dataset": planted(), "evaluate": None}, WALKS)
    return 130 * tune_config(config, out=sys.argv[1], trials=100_000, jobs=2, on_trial=told).interrupted
if __name__ == "__main__":
    sys.exit(exit_code(run, [], "tune", ""))
"""


@pytest.mark.dist
def test_a_signal_to_the_asking_process_alone_ends_all_of_a_search(tmp_path: Path) -> None:
    """It waited until its processes had trained all trials."""
    (tmp_path / "asked.py").write_text(ASKED)
    words = [sys.executable, str(tmp_path / "asked.py"), str(tmp_path / "search")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    asked = subprocess.Popen(words, env=environment, start_new_session=True, **pipes)
    assert asked.stdout is not None
    assert asked.stdout.readline().strip().isdigit(), asked.communicate()
    asked.send_signal(signal.SIGTERM)
    _, said = asked.communicate(timeout=100)
    assert (asked.returncode, "Traceback" in said) == (130, False), said
    assert "leaked" not in said, "its processes left out what Python does at their end: a warning of the last line"


def test_a_range_is_given_once() -> None:
    with pytest.raises(ge.ConfigError, match=r"--search model.window is given twice; give all its values at once"):
        search.ranges_of(["model.window=2,3", "model.window=5"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 1.5}, "trials=1.5, jobs=1"),
        ({"trials": True}, "trials=True"),
        ({"jobs": "2"}, "jobs='2'"),
        ({"hours": "1"}, "hours='1'"),
        ({"metric": None}, "metric None: a search compares validation values"),
        ({"search": {"window": (2, 5)}}, r"search window=\(2, 5\): give Span\(low, high\) or one_of\(2, 5\)"),
        ({"search": {"windw": one_of(2, 5)}}, "unknown setting of deepwalk 'windw'"),
        ({"search": {"window": one_of(2, 0)}}, "search model.window: 0 cannot be drawn, it should be greater than"),
        ({"search": {"window": one_of(2, "wide")}}, "search model.window: 'wide' cannot be drawn, it should be a"),
        ({"search": {"lr": Span(0.1, 1e30)}}, r"search train.lr: 1e\+30 cannot be drawn, it should be less than"),
    ],
)
def test_what_is_no_search_is_refused_before_data_are_read(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Wrong types ended with tracebacks, and an unknown setting was told the sections of a configuration."""
    with pytest.raises(ge.ConfigError, match=said):
        tune("deepwalk", tmp_path / "nowhere.csv", out=tmp_path / "out", **{"trials": 1, **options})


@pytest.mark.parametrize(
    "ends", [(5, 2), (1, float("inf")), (float("nan"), 1), ("1", 2), (True, 2), (0, 1, True), (2, 2)], ids=str
)
def test_a_span_has_two_finite_numbers_that_rise(ends: tuple[Any, ...]) -> None:
    """Infinity ended with numpy's OverflowError in the first draw."""
    with pytest.raises(ge.ConfigError, match="is no range; give finite numbers that rise"):
        Span(*ends)
    with pytest.raises(ge.ConfigError, match=r"search 'train.lr=0.1:.inf': 0.1:.inf is no range; write LOW:HIGH"):
        search.ranges_of(["train.lr=0.1:.inf"])


def test_arguments_of_the_wrong_kind_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A search or a place that was none ended in errors of Python, and an hour was True."""
    for wrong in ({"search": 5}, {"search": ["window=1,2"]}, {"hours": True}, {"out": 5}, {"out": ""}, {"out": None}):
        with pytest.raises(ConfigError, match=r"is no mapping|hours=True|is no path"):
            tune("deepwalk", planted(), **{"out": tmp_path / "found", **wrong}, **WALKS)
    with pytest.raises(ConfigError, match="out=5 is no path"):
        ge.pipeline("deepwalk", planted(), out=5, **WALKS)
    assert not list(tmp_path.iterdir())
    counted = tune("deepwalk", planted(), out=tmp_path / "found", trials=np.int64(1), **WALKS)
    assert len(counted.trials) == 1
