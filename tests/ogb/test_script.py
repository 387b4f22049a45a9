"""What every script of examples/ogb does with its command line, on recipes of which nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from graph_emb.config import RunConfig
from graph_emb.core.threads import MOST_THREADS
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.ogb.record import read_record
from graph_emb.ogb.script import Script
from graph_emb.run import pipeline
from graph_emb.run.evaluation import Finding, NetworkScores
from graph_emb.run.launch import job
from graph_emb.run.pipeline import PipelineResult

DICE: dict[str, Any] = {
    "dataset": {"name": "ogbl-ddi"},
    "model": {"name": "deepwalk"},
    "train": {"lr": 0.5},
    "evaluate": {"predictor": {"epochs": 6}},
}
RECIPES = {
    "dice": DICE,
    "card": {**DICE, "evaluate": {"mlp": {"epochs": 6}}},
    "coin": {"dataset": {"name": "ogbl-ddi"}, "model": {"name": "mf"}, "evaluate": {"predictor": {"epochs": 6}}},
    "toss": {"dataset": {"name": "ogbl-ddi"}, "model": {"name": "sage"}},
}
SCRIPT = Script("examples/ogb/x.py", "ogbl-ddi", RECIPES, "Throws.")


def throw(config: RunConfig, **options: Any) -> PipelineResult:
    """A result that is a function of seeds and settings, in 12 seconds; dim 4 is interrupted at seed 1."""
    if config.model.dim == 4 and config.seed == 1:
        raise KeyboardInterrupt
    network, seed = config.evaluate.predictor or config.evaluate.mlp, config.evaluate.seed
    assert network is not None
    value = (config.seed if seed is None else seed) / network.epochs + config.seed / 100
    scores = NetworkScores({"hits@20": {"epoch": 1, "valid": value, "test": value / 2}}, [], 24)
    facts = {"status": "finished", "train": {"parameters": 1000}, "seconds": {"train": 8.0, "evaluate": 4.4}}
    rows = Embeddings(np.zeros((1, 1)), np.arange(1))
    return PipelineResult(config, facts, rows, None, [Finding("link_predictor", "", scores)])


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run", throw)


def run(out: Path, *words: str) -> int:
    return SCRIPT.main(["--out", str(out), "--threads", "1", *words])


def test_the_first_model_is_run_with_ten_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json")} == {
        f"dice/seed-{seed}.json" for seed in range(10)
    }
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:10]] == [f"dice, seed {seed}" for seed in range(10)]
    assert lines[12].split()[:4] == ["dice", "hits@20", "10", "0.7950"]
    assert any(line.startswith("DeepWalk, published") and "0.2642 ± 0.0610" in line for line in lines)


def test_finished_seeds_stay_and_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--seeds", "3") == 0
    record = tmp_path / "dice" / "seed-3.json"
    before = record.stat().st_mtime_ns
    assert run(tmp_path, "--seeds", "3", "4") == 0
    assert record.stat().st_mtime_ns == before
    capsys.readouterr()
    assert run(tmp_path, "--seeds", "3", "--set", "train.lr=0.25") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "train.lr=0.5 there, 0.25 now" in error


def test_a_seed_of_an_earlier_version_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its settings had other paths, `embedding.skipgram.dim` for `model.dim`: no comparison would say anything."""
    assert run(tmp_path, "--seeds", "3") == 0
    path = tmp_path / "dice" / "seed-3.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "settings": {"embedding": {"skipgram": {"dim": 128}}}}))
    before = path.read_bytes()
    assert run(tmp_path, "--seeds", "3") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a seed of an earlier version, whose settings had other names; choose another --out" in error
    assert path.read_bytes() == before


def test_an_interrupted_seed_is_kept_as_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--seeds", "0", "1", "2", "--set", "model.dim=4") == 130
    printed = capsys.readouterr()
    assert "finished seeds are kept" in printed.err
    assert printed.out == "dice, seed 0: hits@20 valid 0.0000, test 0.0000; 12 s\n"
    found = {p.stem: read_record(p).status for p in tmp_path.rglob("*.json")}
    assert found == {"seed-0": "finished", "seed-1": "started"}


def test_settings_change_by_path_and_by_short_flag(tmp_path: Path) -> None:
    assert run(tmp_path, "--set", "train.lr=1", "--seeds", "0", "--epochs", "8", "--set", "model.dim=3") == 0
    settings = read_record(tmp_path / "dice" / "seed-0.json").settings
    assert settings["evaluate"]["predictor"]["epochs"] == 8
    assert (settings["train"]["lr"], settings["train"]["epochs"], settings["model"]["dim"]) == (1.0, 1, 3)
    assert not {"threads", "device", "log_interval"} & settings["train"].keys()  # they decide nothing


def test_the_record_says_what_was_typed_and_how_settings_were_chosen(tmp_path: Path) -> None:
    words = ["--seeds", "5", "--settings-selected-on", "valid", "--set", "train.lr=0.3"]
    assert run(tmp_path, *words) == 0
    record = read_record(tmp_path / "dice" / "seed-5.json")
    assert record.command == f"python examples/ogb/x.py --out {tmp_path} --threads 1 {' '.join(words)}"
    assert record.settings_selected_on == "valid"
    assert record.versions["ogb"]
    assert record.hardware.cores >= 1


def test_a_frozen_embedding_is_that_of_the_first_seed(tmp_path: Path) -> None:
    assert run(tmp_path, "--seeds", "5", "6", "--freeze-embedding") == 0
    found = [read_record(tmp_path / "dice-frozen-5" / f"seed-{seed}.json") for seed in (5, 6)]
    assert [one.embedding_seed for one in found] == [5, 5]
    assert found[1].finished().scores["hits@20"].valid == pytest.approx(6 / 6 + 5 / 100)


def test_trainers_run_the_script_for_one_seed_and_the_record_says_what_was_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def run_host(command: list[str], hosts: Any, index: int, **options: Any) -> None:
        """The first trainer of the job."""
        assert command[1] == str(Path("examples/ogb/x.py").resolve())
        started.append(command[2:])
        with pytest.MonkeyPatch.context() as job_of_two:
            for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
                job_of_two.setenv(name, value)
            assert SCRIPT.main(command[2:]) == 0

    monkeypatch.setattr(job, "run_host", run_host)
    (tmp_path / "hosts.txt").write_text("127.0.0.1 2\n")
    hosts, frozen = ["--hosts", str(tmp_path / "hosts.txt")], ["--freeze-embedding"]
    words = ["--model", "dice", "card", "--seeds", "5", "6", *frozen, *hosts, "--set", "train.lr=1"]
    assert run(tmp_path / "out", *words) == 0
    printed = capsys.readouterr().out
    assert [line.partition(":")[0] for line in printed.splitlines()[:4]] == [
        f"{model}, seed {seed}" for model in ("dice", "card") for seed in (5, 6)
    ]
    assert printed.count("DeepWalk, published") == 1
    assert all("--hosts" not in own for own in started)
    for model in ("dice", "card"):
        record = read_record(tmp_path / "out" / f"{model}-frozen-5" / "seed-6.json")
        assert (record.seed, record.embedding_seed, record.settings["train"]["lr"]) == (6, 5, 1.0)
        assert record.finished().scores["hits@20"].valid == pytest.approx(6 / 6 + 5 / 100)
        assert (record.settings["parallel"]["mode"], record.settings["parallel"]["trainers"]) == ("collective", 2)
        assert record.command == f"python examples/ogb/x.py --out {tmp_path / 'out'} --threads 1 {' '.join(words)}"
    assert run(tmp_path / "out", *words) == 0
    assert len(started) == 4, "finished seeds are kept"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "card", "--patience", "3"], "--patience 3 has no effect on card"),
        (["--model", "coin", "--freeze-embedding"], "coin trains its embedding with what is judged"),
        (["--model", "toss", "--freeze-embedding"], "toss trains its embedding with what is judged"),
        (["--model", "dice", "--device", "cuda"], "train.device = 'cuda' has no effect on deepwalk"),
        (["--model", "dice", "coin", "--trainers", "2"], "parallel.mode = 'collective' has no effect on mf"),
        (["--partition", "parts"], "parallel: partition has no effect on one process"),
        (["--port", "2000"], "--port is about the machines of a hosts file"),
        (["--set", "predictor.epcohs=3"], "did you mean 'predictor.epochs'"),
        (["--set", "embedding.skipgram.dim=3"], "did you mean 'model.dim'"),
        (["--set", "predictor.lr"], "override 'predictor.lr': write key=value"),
        (["--set", "model.dim=soon"], "model.dim = 'soon': should be a valid integer"),
        (["--set", "evaluate.enabled=false"], "the scores of a recipe are its result"),
        (
            ["--model", "coin", "--set", "evaluate.node_features=raw"],
            "evaluate.node_features = 'raw' has no effect on mf",
        ),
        (["--set", "validation_edges=trained on"], "the rules allow it for ogbl-collab only, not ogbl-ddi"),
        (["--set", "validation_edges=used"], "dataset.validation_edges = 'used'"),
    ],
)
def test_what_has_no_effect_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert run(tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "line"], "invalid choice"),
        (["--epochs", "0"], "0 is below 1"),
        (["--seed", "0"], "unrecognized"),
        (["--seeds", "3", "-1"], "-1 is below 0"),
        (["--seeds", "9223372036854775808"], "is above 9223372036854775807"),
    ],
)
def test_a_wrong_word_is_argparses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, *words)
    assert text in capsys.readouterr().err


def test_threads_beyond_numbas_are_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba refuses more threads than NUMBA_NUM_THREADS, which may be below torch's count."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda count: asked.append(("torch", count)))
    monkeypatch.setattr(numba, "set_num_threads", lambda count: asked.append(("numba", count)))
    assert run(tmp_path, "--seeds", "0", "--threads", str(MOST_THREADS + 1)) == 0
    assert asked == [("torch", MOST_THREADS + 1), ("numba", MOST_THREADS)]


def test_the_json_sums_up(tmp_path: Path) -> None:
    path = tmp_path / "a" / "numbers.json"
    assert run(tmp_path / "out", "--model", "dice", "coin", "--seeds", "0", "6", "--json", str(path)) == 0
    told = json.loads(path.read_text())
    assert set(told["models"]) == {"dice", "coin"}
    assert told["models"]["coin"]["scores"]["hits@20"]["valid"]["mean"] == pytest.approx(0.53)
    assert told["models"]["dice"]["runs"][1]["seed"] == 6
