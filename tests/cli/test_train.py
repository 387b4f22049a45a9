"""The launcher of ``graph-emb train --trainers``."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import partition
from graph_emb.cli import train
from graph_emb.cli.main import main
from graph_emb.cli.parser import parse
from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import BAD_INPUT
from graph_emb.run.launch import job
from graph_emb.run.launch.command import machines_of
from graph_emb.run.launch.plan import Host, Machines
from graph_emb.run.launch.watch import ProcessFailure
from tests.cli.conftest import CliqueFiles, Outcome
from tests.cli.test_main import refused

OPENED = {"no such partition": "; give the folder or the JSON file in it\n", "holds no partition": "\n"}
PLACED = {"hosts": None, "host_index": None, "port": None, "ssh": False, "restarts": None, "restart_wait": None}
SMALL = ["--threads", "1", "dim=4", "num_walks=1", "walk_length=5"]


@pytest.mark.parametrize("had_logs", [True, False])
def test_bad_input_removes_the_logs_of_this_start_only(
    had_logs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder <out>-logs was removed whole, with the logs of an earlier run and the files of a user."""

    def refused(command: Any, hosts: Any, index: int, *, logs: Path, **_: Any) -> None:
        logs.mkdir(exist_ok=True)
        (logs / "trainer-0.log").write_text("ConfigError")
        raise ProcessFailure("trainer 0 ended with 2", BAD_INPUT, "trainer 0")

    monkeypatch.setattr(job, "run_host", refused)
    if had_logs:
        (tmp_path / "run-logs").mkdir()
        (tmp_path / "run-logs" / "notes.txt").write_text("mine")
    config = RunConfig.model_validate({"dataset": {"name": "karate"}, "model": {"name": "deepwalk"}})
    args = Namespace(argv=[], overwrite=False, quiet=True, command="train", resume=False, recipe=None, **PLACED)
    assert train.launch(config, tmp_path / "run", args) == BAD_INPUT
    assert [p.name for p in tmp_path.rglob("notes.txt")] == (["notes.txt"] if had_logs else [])
    assert (tmp_path / "run-logs").exists() is had_logs


def config_on(tmp_path: Path, hosts: str, *words: str) -> RunConfig:
    (tmp_path / "hosts.txt").write_text(hosts)
    args = parse(["train", "deepwalk", "--dataset", "x", "--hosts", str(tmp_path / "hosts.txt"), *words])
    return train.config_of(args)


def test_a_hosts_file_says_how_many_train(tmp_path: Path) -> None:
    def section(hosts: str, *words: str) -> tuple[str, int, int]:
        parallel = config_on(tmp_path, hosts, *words).parallel
        return parallel.mode, parallel.trainers, parallel.servers

    assert section("10.0.0.1 3\n10.0.0.2\n") == ("collective", 4, 0)
    assert section("10.0.0.1 3 2\n10.0.0.2 1 2\n") == ("kvstore", 4, 2)
    assert section("10.0.0.1\n10.0.0.2\n", "--mode", "kvstore", "--trainers", "6") == ("kvstore", 6, 1)
    with pytest.raises(ConfigError, match="mode = 'local' is one process"):
        section("10.0.0.1\n10.0.0.2\n", "--mode", "local")


@pytest.mark.parametrize("model", ["deepwalk", "transe", "sage"])
@pytest.mark.parametrize("mode", ["collective", "kvstore"])
def test_parts_that_are_not_there_are_refused_before_a_trainer_starts(
    model: str, mode: str, cli: Callable[..., Outcome], cliques: CliqueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trainer found out, 11 s later."""

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a process started")

    monkeypatch.setattr(job, "run_host", started)
    graph, labels = cliques
    whole = partition.build(str(graph), 2, "random", out=graph.with_name("parts"), report=False)
    words = ["train", model, "--dataset", graph, "--mode", mode, "--trainers", 2, "--out", "run", "--partition"]
    for place, reason in ((graph.with_name("gone"), "no such partition"), (graph.parent, "holds no partition")):
        assert cli(*words, place) == (BAD_INPUT, "", f"graph-emb: error: {place}: {reason}" + OPENED[reason])
    (whole.path / "part1" / "graph.dgl").unlink()
    assert "part1/graph.dgl is missing; this machine's trainers take part 0, 1 of 2" in cli(*words, whole.path).err
    assert {path.name for path in graph.parent.iterdir()} == {graph.name, labels.name, "parts"}


@pytest.mark.parametrize("words", [["--ssh"], ["--host-index", "1"], ["--port", "2000"]])
def test_flags_about_hosts_need_a_hosts_file(words: list[str]) -> None:
    args = parse(["train", "deepwalk", "--dataset", "x", *words])
    with pytest.raises(ConfigError, match=f"{words[0]} is about the machines of a hosts file"):
        machines_of(args, None, 0)


@pytest.mark.parametrize("command", [["train", "deepwalk", "--dataset", "x"], ["launch"]])
def test_no_second_job_starts_inside_a_job(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    args = parse([*command, "--hosts", str(tmp_path / "hosts.txt")])
    with pytest.raises(ConfigError, match="rank 1 of a job of 2, in which no second one starts"):
        machines_of(args, 1, 0)


def test_a_training_into_a_file_tells_how_far_it_is(
    cli: Callable[..., Outcome], cliques: CliqueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bars were for terminals alone: a redirected run of hours said nothing until its end."""
    monkeypatch.setattr("graph_emb.core.progress.LINE_S", 0.0)
    words = ["train", "deepwalk", "--dataset", cliques[0], "num_walks=2", "--overwrite", "--no-eval"]
    told, quiet = cli(*words).err, cli("-q", *words).err
    assert re.search(r"^skip-gram: 100% .*tok/s.*loss [0-9.]+", told, re.MULTILINE)
    assert quiet == ""


def test_flags_and_overrides_change_a_preset(cli: Callable[..., Outcome]) -> None:
    words = ["train", "transe", "--preset", "codex_s", "--dataset", "umls", "margin=7", "train.epochs=3"]
    found = train.config_of(parse(words)).model
    assert (found.margin, found.epochs, found.reciprocal, found.valid_every) == (7.0, 3, True, 15)
    refused(cli("train", "--preset", "codex_s", "--dataset", "umls"), "graph-emb train MODEL --preset codex_s")
    refused(cli("train", "transe", "--preset", "nope", "--dataset", "umls"), "unknown preset of transe 'nope'")
    refused(cli("train", "transe", "--preset", "codex_s", "--config", "x.yaml"), "--config x.yaml")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--no-eval", "--seed", "3"),
        ("train.rule=adam", "train.lr=0.1"),
        ("train.memory=1MiB", "train.buckets=auto"),
        ("model.table=hash", "model.num_buckets=4", "train.rule=adagrad"),
        pytest.param(("--trainers", "2"), marks=pytest.mark.dist),
    ],
    ids=str,
)
def test_a_finished_run_is_complete_when_it_is_resumed(
    cli: Callable[..., Outcome], cliques: CliqueFiles, words: tuple[str, ...]
) -> None:
    """It was refused as a taken folder: who starts a command again until it exits with 0 never ended."""
    line = ["train", "deepwalk", "--dataset", cliques[0], "--out", "run", *SMALL, *words]
    resumed = [*line, "--checkpoint-every", "5", "--resume"]
    first = cli(*resumed)
    assert first.code == 0, first.err
    before = Path("run", "metrics.json").stat()
    again = cli(*resumed)
    assert (again.code, again.out) == (0, ""), again.err
    assert again.err == "graph-emb: nothing to resume, the run is complete: run/report.html\n"
    other = cli(*resumed, "--checkpoint-every", "2s", "train.log_interval=3", "--threads", "2")
    assert other.code == 0, "these may change when a run goes on"
    assert Path("run", "metrics.json").stat().st_mtime_ns == before.st_mtime_ns
    for more in (["--epochs", "2"], ["train.lr=0.2"], ["--formats", "npy,word2vec"], ["evaluate.shuffles=2"]):
        refused(cli(*[word for word in resumed if word != "--no-eval"], *more), "run holds a run; give another --out")
    refused(cli(*line), "run holds a run; give another --out")
    if not words:
        assert cli(*resumed, "--overwrite").code == 0
        assert Path("run", "metrics.json").stat().st_mtime_ns > before.st_mtime_ns


def test_what_a_finished_run_chose_is_what_was_asked_for_as_auto_alone(
    cli: Callable[..., Outcome], cliques: CliqueFiles
) -> None:
    """The rate of walks, which config.yaml has as a number, made each finished seed another run."""
    line = ["train", "deepwalk", "--dataset", cliques[0], "--no-eval", *SMALL, "--out", "seeds", "--seeds", "0-1"]
    assert cli(*line).code == 0
    again = cli(*line)
    assert (again.code, again.err.count("is finished")) == (0, 2), again.err
    metrics = json.loads(Path("seeds", "seed-0", "metrics.json").read_text())
    assert metrics["chosen"] == ["train.lr"]
    rate = f"train.lr={metrics['train']['first_lr']}"
    assert cli(*line, rate).err.count("is finished") == 2, "these are its rows, too"
    assert cli(*line, rate, "--overwrite").code == 0
    other = cli(*line)
    assert (other.code, "seeds/seed-0 holds a run" in other.err) == (2, True), "its rate was given"


@pytest.mark.parametrize(
    ("mode", "setting"),
    [
        ("collective", "wire_dtype=float16"),
        ("kvstore", "wire_dtype=float16"),
        ("collective", "exchange_walks=9"),
        ("kvstore", "exchange_walks=9"),
        ("collective", "negative_pool=9"),
        ("collective", "remote_negatives=9"),
        ("collective", "overlap=true"),
        ("collective", "reduction=sum"),
    ],
)
def test_a_job_of_which_one_machine_is_left_goes_on_without_the_settings_of_an_exchange(
    mode: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own command was refused: wire_dtype has no effect on one trainer."""
    words: list[str] = []

    def started(self: Any, command: Any, config: Any, out: Any, *, again: Any, **rest: Any) -> int:
        words.extend(again(Machines([Host("10.0.0.1", 1, int(mode == "kvstore"))])))
        return 0

    monkeypatch.setattr(train.Start, "run", started)
    line = f"train deepwalk --dataset digits --out {tmp_path / 'run'} --trainers 2 --mode {mode} --restarts 1"
    assert main([*line.split(), "--checkpoint-every", "5", f"parallel.{setting}"]) == 0
    made = train.config_of(parse(words[words.index("train") :]))
    assert (made.parallel.trainers, made.exchange_settings) == (1, [])


@pytest.mark.parametrize("before", [[], ["-q"], ["-q", "--debug"]])
@pytest.mark.parametrize("how", ["train --trainers 2", "launch --trainers 2 -- train"])
def test_a_restart_goes_on_from_the_newest_checkpoint_wherever_train_stands(
    how: str, before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind -q it was "-q --resume train"; a job of launch was started as at first, which refuses its checkpoints."""
    again: list[str] = []

    def started(command: Any, machines: Machines, restarts: Any, others: Any, **rest: Any) -> bool:
        again.extend(others(machines))
        return True

    monkeypatch.setattr("graph_emb.run.launch.restarts.run_healing", started)
    monkeypatch.chdir(tmp_path)
    first, _, more = how.partition(" ")
    line = f"deepwalk --dataset digits --out {tmp_path / 'run'} --checkpoint-every 5"
    restarts = ["--restarts", "1"]
    words = [*before, first, *restarts, *more.split(), *line.split()]
    if first == "train":
        words = [*before, first, *line.split(), *more.split(), *restarts]
    assert main(words) == 0
    found = parse(again[again.index("graph_emb") + 1 :])
    assert (found.command, found.resume, found.checkpoint_every) == ("train", True, "5")


def test_waits_without_machines_to_wait_for_are_refused(cli: Callable[..., Outcome]) -> None:
    line = ["train", "deepwalk", "--dataset", "digits", "--trainers", "2", "--restart-wait", "9"]
    refused(cli(*line), "--restart-wait is about the machines of a restart; give --restarts")
    refused(cli(*line, "--restarts", "1"), "--restart-wait 9 is about the machines of a restart: give --hosts")
