"""The launcher of ``graph-emb train --trainers``."""

from __future__ import annotations

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
    args = Namespace(argv=[], overwrite=False, quiet=True, command="train", **PLACED)
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
