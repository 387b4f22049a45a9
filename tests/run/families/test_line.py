"""LINE through the pipeline: alone, by ranks in lockstep, by trainers and a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.ranks import Ranks

QUICK: dict[str, Any] = {
    "dim": 16,
    "draws_per_edge": 20,
    "lr": 0.1,
    "threads": 1,
    "evaluate": {"ratios": [0.5], "shuffles": 1},
}
ADAGRAD = ["--rule", "row_adagrad", "train.batch_size=512"]


def micro(metrics: dict[str, Any]) -> float:
    return metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return ge.pipeline("line", "digits", **QUICK).metrics


def test_a_run_tells_speed_and_quality(alone: dict[str, Any], tmp_path: Path) -> None:
    assert micro(alone) > 0.9, "digits are easy; one class in ten is chance"
    assert alone["train"]["edges"] == 2 * 20 * alone["dataset"]["edges"]
    assert alone["train"]["edges_per_second"] > 0
    assert alone["train"]["parameters"] == 1797 * 8 * 3
    result = ge.pipeline("line", "digits", out=tmp_path / "run", **{**QUICK, "order": "second", "draws_per_edge": 1})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["order"] for line in lines} == {"second"}
    assert np.linalg.norm(result.embeddings.weights, axis=1) == pytest.approx(np.ones(1797), abs=1e-5)
    assert "lr: 0.1" in (tmp_path / "run" / "config.yaml").read_text()


def test_rows_may_keep_their_length() -> None:
    options = {**QUICK, "normalize": False, "draws_per_edge": 1, "evaluate": False}
    rows = ge.pipeline("line", "digits", **options).embeddings.weights
    assert np.linalg.norm(rows, axis=1).std() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "fist"}, r"model.order = 'fist'.*did you mean 'first'"),
        ({"dim": 7}, "dim = 7 has no halves"),
        ({"output": {"context": "add"}}, "output.context = 'add' has no effect on line"),
        ({"window": 3}, "line has no such field"),
        ({"directed": True, "symmetrize": False, "dataset": "graph"}, "first-order proximity has no direction"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    if options.get("dataset"):
        (tmp_path / "graph.csv").write_text("0,1\n1,2\n2,0\n")
        options = {**options, "dataset": tmp_path / "graph.csv"}
    with pytest.raises(ConfigError, match=message):
        ge.pipeline("line", **{"dataset": "digits", **options})


def test_both_orders_cannot_be_checkpointed(tmp_path: Path) -> None:
    options = {**QUICK, "checkpoint": {"every": "1"}, "out": tmp_path / "run"}
    with pytest.raises(ConfigError, match="train 'first' and 'second' as two runs"):
        ge.pipeline("line", "digits", **options)
    ge.pipeline("line", "digits", **{**options, "order": "first"})
    assert (tmp_path / "run-checkpoints").is_dir()


def run_on_a_rank(options: dict[str, Any]) -> dict[str, Any]:
    parallel = {"mode": "collective", "trainers": 2, "exchange_walks": 5000}
    return ge.pipeline("line", "digits", parallel=parallel, **options).metrics


@pytest.mark.dist
def test_two_ranks_are_as_good_as_one(ranks: Ranks, alone: dict[str, Any]) -> None:
    found = ranks.run(run_on_a_rank, 2, QUICK)
    assert micro(found[0]) > micro(alone) - 0.03
    assert "train" not in found[1]


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("recipe", [["--lr", "0.1"], [*ADAGRAD, "--lr", "0.2"]], ids=["sgd", "adagrad"])
def test_trainers_and_a_server_are_as_good_as_one_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recipe: list[str]
) -> None:
    """Ten shuffles: the F1 of a single one has a standard deviation of 0.8 points on 899 nodes."""
    from graph_emb.cli.main import main

    words = ["train", "line", "--dataset", "digits", "--threads", "1", *recipe, "model.dim=16", "model.order=first"]
    words += ["model.draws_per_edge=100", "evaluate.ratios=[0.5]", "evaluate.shuffles=10"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert main([*words, "--mode", "kvstore", "--trainers", "2", "--out", str(tmp_path / "two")]) == 0
    assert "edges/s" in capfd.readouterr().out
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert micro(one) > 0.9
    assert micro(two) > micro(one) - 0.03
