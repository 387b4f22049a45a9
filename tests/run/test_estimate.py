"""What a run takes, from a few seconds of it; how shares and times follow from the lines of each model."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import pytest

import graph_emb as ge
from graph_emb.config import MODELS, RunConfig, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.run.estimate import estimate_of, extrapolated, probed_run, progress_of, stages_of
from graph_emb.run.machine import check_memory


def config(name: str, **sections: object) -> RunConfig:
    return config_from({"model": name, "dataset": "graph.csv"}, sections)


def test_time_is_that_before_the_first_point_and_the_pace_after_it() -> None:
    assert extrapolated([(10.0, 0.1), (12.0, 0.2), (14.0, 0.3)]) == (pytest.approx(28.0), 0.3)
    assert extrapolated([(5.0, 0.25)]) == (20.0, 0.25)
    assert extrapolated([(5.0, 0.25), (5.0, 0.25)]) == (20.0, 0.25)
    assert math.isnan(extrapolated([])[0])
    assert math.isnan(extrapolated([(1.0, 0.0)])[0])


def test_the_share_is_counted_where_something_is_counted() -> None:
    lines = [{"epoch": 0, "walks": 100, "lr": 0.02, "elapsed": 2.0}]
    walks = config("deepwalk", model={"name": "deepwalk", "num_walks": 5}, train={"epochs": 2})
    assert progress_of(walks, lines, {"nodes": 40}) == [(2.0, 0.25)]
    triples = config("transe", train={"epochs": 4})
    assert progress_of(triples, [{"epoch": 1, "triples": 30, "elapsed": 3.0}], {"triples": 30}) == [(3.0, 0.25)]
    networks = config("sage", train={"epochs": 10})
    assert progress_of(networks, [{"epoch": 5, "loss": 1.0, "elapsed": 4.0}], {"nodes": 3}) == [(4.0, 0.5)]


def test_the_share_follows_from_a_rate_that_falls() -> None:
    lines = [{"epoch": 0, "lr": 0.0125, "elapsed": 1.0}]
    assert progress_of(config("metapath2vec", train={"lr": 0.025}), lines, None) == [(1.0, 0.5)]
    line, lines = config("line", train={"lr_decay": "none"}), [{"epoch": 0, "lr": 0.025, "walks": 300, "elapsed": 2.0}]
    assert progress_of(line, lines, {"edges": 6}) == [(2.0, 0.5)]  # 100 draws of each


def test_each_order_of_line_has_its_own_pace() -> None:
    """The first order's pace stood for both: a draw of the second takes longer, and the estimate fell short."""
    line = config("line", train={"lr": 0.025})
    run = [
        {"order": "first", "lr": 0.0125, "elapsed": 1.0},
        {"order": "first", "lr": 0.0, "elapsed": 2.0},
        {"order": "second", "lr": 0.02, "elapsed": 3.0},
        {"order": "second", "lr": 0.015, "elapsed": 4.0},
    ]
    stages = [progress_of(line, stage, None) for stage in stages_of(run)]
    assert stages == [[(1.0, 0.5), (2.0, 1.0)], [(1.0, pytest.approx(0.2)), (2.0, pytest.approx(0.4))]]
    assert [extrapolated(points)[0] for points in stages] == [2.0, pytest.approx(5.0)]


@pytest.mark.usefixtures("warm_starts")
def test_a_probe_that_ends_before_the_second_order_is_followed_by_one_of_it(tmp_path: Path) -> None:
    edges = tmp_path / "ring.csv"
    edges.write_text("".join(f"{n},{(n + step) % 500}\n" for n in range(500) for step in (1, 2)))
    sizes = {"dim": 16, "draws_per_edge": 20_000, "threads": 1}
    found = ge.estimate("line", str(edges), seconds=0.5, **sizes)
    assert found.parameters == 500 * 8 * (1 + 2)  # both orders, though the probe was stopped in the first
    assert 0 < found.measured < 0.9
    expected = 500 * (16 + 8 + 2) * 4 / 2**20  # rows, contexts and lengths, of which the probe has one order
    assert found.disk_mib == pytest.approx(expected, rel=0.04)


def test_a_probe_gives_the_memory_of_the_run_and_keeps_nothing(tmp_path: Path) -> None:
    edges = tmp_path / "ring.csv"
    edges.write_text("".join(f"{n},{(n + step) % 200}\n" for n in range(200) for step in (1, 2)))
    sizes = {"dim": 16, "num_walks": 2, "walk_length": 10, "threads": 1, "rule": "adam"}
    found = ge.estimate("deepwalk", str(edges), seconds=0.1, **sizes)
    ran = ge.pipeline("deepwalk", edges, out=tmp_path / "run", evaluate=False, **sizes)
    assert found.parameters == ran.metrics["train"]["parameters"] == 2 * 200 * 16
    assert found.table_mib == pytest.approx(2 * 200 * 16 * 4 / 2**20)
    assert found.state_mib == pytest.approx(2 * found.table_mib)  # of Adam
    assert found.disk_mib == pytest.approx(2 * 200 * 16 * 4 / 2**20, rel=0.02)  # context rows too
    assert found.memory_mib > 100
    assert found.train_seconds > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring.csv", "run"]
    assert "peak memory" in str(found)


@pytest.mark.parametrize(("compiled", "probes"), [(0.0, 1), (6.5, 2)])
def test_a_probe_that_compiled_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: float, probes: int
) -> None:
    """At a first start it told 3.5 times the seconds of a small network, and the compiler's memory as the run's."""
    ran = ge.pipeline("prone", nx.cycle_graph(60), out=tmp_path / "ran", evaluate=False, dim=4)
    assert ran.metrics["seconds"]["compile"] >= 0
    spent = [(compiled, 2.0 + compiled), (0.0, 2.0)]
    places = []

    def probe(place: Path, seconds: float, config: RunConfig, sockets: bool) -> list[dict[str, Any]]:
        assert not (place / "run").exists()
        compiling, train = spent[len(places)]
        places.append(place)
        metrics = {**ran.metrics, "seconds": {"load": 0.1, "train": train, "compile": compiling}}
        (place / "run").mkdir()
        (place / "run" / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
        return [{"elapsed": train}]

    monkeypatch.setattr("graph_emb.run.estimate._probe", probe)
    assert ge.estimate("prone", "digits", dim=4).train_seconds == 2.0
    assert len(places) == probes


class Late(subprocess.Popen[str]):
    """A process that hears of a signal when it has ended by itself, and loses what it was saving."""

    started: ClassVar[list[Late]] = []

    def __init__(self, words: list[str], **options: Any) -> None:
        super().__init__(words, **options)
        self.place = Path(words[-1])
        self.started.append(self)

    def send_signal(self, sig: int) -> None:
        self.wait()
        shutil.rmtree(self.place)


def test_a_probe_that_was_told_to_stop_while_it_saved_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the probe had logged no progress in a minute, after a second."""
    monkeypatch.setattr(subprocess, "Popen", Late)
    train = {"threads": 1, "epochs": 8, "log_interval": 0.01}
    small = config_from({"model": "deepwalk", "dataset": "digits", "train": train, "evaluate": {"enabled": False}})
    stages, metrics, _ = probed_run(tmp_path, small, 0.01)
    assert len(Late.started) == 2
    assert stages[0][-1]["tokens"] == metrics["train"]["tokens"] == 8 * 1797 * 10 * 40


@pytest.mark.usefixtures("warm_starts")
def test_what_a_run_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file"):
        ge.estimate("deepwalk", str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="name or path, not a graph"):
        estimate_of(config_from({"model": "deepwalk", "dataset": {"name": "in memory: x", "digest": "1"}}))
    with pytest.raises(ConfigError, match="seconds=0 of a probe"):
        ge.estimate("deepwalk", "digits", seconds=0)


def test_tables_that_do_not_fit_are_told_the_width_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 1000 * 128 * 8})()
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    model = config("deepwalk", model={"name": "deepwalk", "dim": 256}).model
    with pytest.raises(ConfigError, match=r"model\.dim=72 would fit, or take a rule with less state"):
        check_memory(1000, 2, model)  # 12 bytes a number: two tables and the copy that is saved
    check_memory(1000, 2, model.replace(dim=72))
    with pytest.raises(ConfigError, match=r"lower model\.dim"):
        check_memory(1_000_000, 2, model)


@pytest.mark.parametrize("name", MODELS)
def test_a_probe_sets_nothing_that_its_model_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's log_interval was refused by models that have no such setting: no estimate of them was possible."""

    class Started(Exception):
        pass

    def stop(*_: object) -> None:
        raise Started

    monkeypatch.setattr("graph_emb.run.estimate._probe", stop)
    with pytest.raises(Started):
        ge.estimate(name, "digits", seconds=1)
