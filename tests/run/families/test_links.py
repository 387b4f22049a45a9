"""Matrix factorisation as a run: rows that learn with the predictor by which they are judged."""

from __future__ import annotations

import json
import os
import re
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import LackingError
from graph_emb.formats.network_files import load_network
from graph_emb.models.links import training
from graph_emb.run.family import read_again
from graph_emb.run.run_folder import read_run
from tests.ogb_layout import write_ddi

SMALL: dict[str, Any] = {"dim": 4, "lr": 0.05, "threads": 1, "predictor.hidden_dim": 8, "predictor.epochs": 5}


def train(root: Path, **options: Any) -> ge.run.pipeline.PipelineResult:
    return ge.pipeline("mf", "ogbl-ddi", root=root, seed=1, **{**SMALL, **options})


def test_a_run_keeps_rows_history_and_scores(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    result = train(tmp_path, out=tmp_path / "run")
    rows = np.load(tmp_path / "run" / "embeddings.npy")
    assert rows.shape == (40, 4)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history
    judged = json.loads((tmp_path / "run" / "metrics.json").read_text())["evaluation"]["link_predictor"]
    clock = ("elapsed", "memory_mib")
    assert judged["history"] == [{k: v for k, v in line.items() if k not in clock} for line in result.history]
    assert judged["metrics"]["hits@20"]["epoch"] == 5
    assert "hits@20" in str(result.findings[0])
    np.testing.assert_array_equal(train(tmp_path).embeddings.weights, rows)


def test_another_rule_gives_other_rows(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    adam, adagrad = (train(tmp_path, rule=rule).embeddings.weights for rule in ("adam", "adagrad"))
    assert not np.array_equal(adam, adagrad)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trainers": 2, "mode": "collective"}, "parallel.mode = 'collective' has no effect on mf"),
        ({"checkpoint": {"every": "10m"}}, "checkpoint.every = '10m' has no effect on mf"),
        ({"node_features": "raw"}, "evaluate.node_features = 'raw' has no effect on mf"),
        ({"evaluate": {"seed": 3}}, "evaluate.seed = 3 has no effect on mf"),
        ({"hold_out": 0.1}, "dataset.hold_out = 0.1 has no effect on mf"),
    ],
)
def test_what_has_no_effect_is_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ge.ConfigError, match=text):
        train(tmp_path, **options)


def test_the_predictor_is_kept_and_scores_as_at_the_end(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    result = train(tmp_path, out=tmp_path / "run")
    (found,) = judged(tmp_path / "run")
    last = result.history[-1]
    metrics = found.scores.as_dict()["metrics"]
    assert {name: value["valid"] for name, value in metrics.items()} == last["valid"]
    assert {value["epoch"] for value in metrics.values()} == {5}


def test_the_usual_predictor_is_followed_by_the_rows_alone(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    ge.pipeline("mf", "ogbl-ddi", root=tmp_path, out=tmp_path / "run", dim=4, threads=1)
    assert [found.name for found in judged(tmp_path / "run")] == ["last_network", "link_prediction"]


def test_another_predictor_is_trained_anew(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    train(tmp_path, out=tmp_path / "run")
    (found,) = judged(tmp_path / "run", {"evaluate": {"predictor": {"hidden_dim": 4, "epochs": 5}}})
    assert found.name == "link_predictor"


def test_a_run_is_loaded_with_its_predictor(tmp_path: Path) -> None:
    write_ddi(tmp_path)
    result = train(tmp_path, out=tmp_path / "run")
    loaded = ge.load_run(tmp_path / "run")
    assert isinstance(loaded, ge.MatrixFactorization)
    assert loaded.score() == result.metrics["evaluation"]["link_predictor"]["metrics"]["hits@10"]["test"]
    pairs = np.stack([np.arange(8), np.arange(1, 9)], axis=1)
    scores = loaded.predict_links(pairs)
    assert scores.shape == (8,)
    np.testing.assert_array_equal(loaded.predict_links(pairs[::-1]), scores[::-1])
    saved = ge.load_run(loaded.save(tmp_path / "copy"))
    np.testing.assert_array_equal(saved.predict_links(pairs), scores)
    (tmp_path / "copy" / "network.safetensors").unlink()
    with pytest.raises(LackingError, match="predictor is not kept"):
        ge.load_run(tmp_path / "copy").predict_links(pairs)


FILES: dict[str, Any] = {"dim": 64, "train.memory": "12KiB"}
"""Of 40 rows with Adam's state, 30 KiB."""


def test_a_run_from_files_is_the_run_in_memory(tmp_path: Path, fresh_mode: None, capfd: Any) -> None:
    write_ddi(tmp_path)
    expected = train(tmp_path, dim=64)
    assert "plan:" not in capfd.readouterr().err
    found = train(tmp_path, out=tmp_path / "run", progress=True, **FILES, **{"train.scratch": str(tmp_path / "rows")})
    np.testing.assert_array_equal(found.embeddings.weights, expected.embeddings.weights)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "embeddings.npy"), expected.embeddings.weights)
    assert found.metrics["evaluation"] == {
        **expected.metrics["evaluation"],
        "link_predictor": {
            **expected.metrics["evaluation"]["link_predictor"],
            "seconds_per_epoch": found.metrics["evaluation"]["link_predictor"]["seconds_per_epoch"],
        },
    }
    assert found.metrics["train"]["cache"]["dirty_writes"] > 0
    assert list((tmp_path / "rows").iterdir()) == []
    plan = (
        r"^plan: 40 nodes with their state, 30.00 KiB, in a file in .*rows; 12.00 KiB of memory hold 40%; policy look"
    )
    assert re.search(plan, told := capfd.readouterr().err, re.MULTILINE), told
    (last, *_) = judged(tmp_path / "run")
    assert last.name == "last_network"


@pytest.mark.parametrize(
    ("train_section", "said"),
    [
        ({"memory": "2KiB"}, "train.memory = '2KiB' does not hold a page of 40 nodes with their state; raise it"),
        ({"placement": "device"}, "train.placement = 'device': it is for models of triples and graph networks, and mf"),
        ({"memory": "1MiB", "placement": "buckets"}, "mf does not train by buckets; take train.placement=file"),
    ],
)
def test_what_files_of_rows_cannot_be_is_refused(tmp_path: Path, train_section: dict[str, Any], said: str) -> None:
    write_ddi(tmp_path)
    with pytest.raises(ge.ConfigError, match=said):
        ge.pipeline("mf", "ogbl-ddi", root=tmp_path, dim=64, train={"scratch": None, **train_section})


def killed(root: Path, scratch: str) -> None:
    """A run whose process dies in its third epoch."""
    epoch, begun = training._train_epoch, []

    def dying(*args: Any) -> float:
        begun.append(1)
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return epoch(*args)

    training._train_epoch = dying
    train(root, **FILES, **{"train.scratch": scratch})


def test_a_run_after_a_killed_one_removes_its_file_and_ends_with_the_same_rows(
    tmp_path: Path, fresh_mode: None
) -> None:
    write_ddi(tmp_path)
    scratch = tmp_path / "rows"
    process = get_context("spawn").Process(target=killed, args=(tmp_path, str(scratch)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [*scratch.iterdir()]
    found = train(tmp_path, **FILES, **{"train.scratch": str(scratch)})
    np.testing.assert_array_equal(found.embeddings.weights, train(tmp_path, dim=64).embeddings.weights)
    assert list(scratch.iterdir()) == []


def judged(run: Path, *layers: dict[str, Any]) -> list[Any]:
    config, _, tables = read_run(run)
    family = read_again(config, *layers)
    data = family.load()
    return family.judge_rows(family.aligned(tables, data), data, load_network(run), progress=False)
