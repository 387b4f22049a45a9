"""What every script of examples/ogb does with its command line, on a recipe that trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numba
import pytest
import torch

from graph_emb.core.errors import DataError
from graph_emb.core.settings import Count, Number
from graph_emb.core.threads import MOST_THREADS
from graph_emb.ogb.methods import Recipe, Run
from graph_emb.ogb.record import BestScore, SeedResult, read_record
from graph_emb.ogb.script import Script, typed_graph
from tests.ogb.records import result


class Dice(Recipe):
    """Its result is a function of seed and settings."""

    sides: Count = 6
    rate: Number = 0.5
    fails_at: Count | None = None

    short: ClassVar[Mapping[str, str]] = {"epochs": "sides"}

    @property
    def freezable(self) -> bool:
        return not self.uses_device

    def run(self, data: Any, run: Run) -> SeedResult:
        if run.seed == self.fails_at:
            raise KeyboardInterrupt
        value = run.seed / self.sides + run.embedding_seed / 100
        return result(scores={"hits@20": BestScore(epoch=1, valid=value, test=value / 2)})


class Coin(Dice):
    """Without the short flag, on a GPU, and in one stage."""

    short: ClassVar[Mapping[str, str]] = {}
    uses_device: ClassVar[bool] = True


SCRIPT = Script("examples/ogb/x.py", "ogbl-ddi", {"dice": Dice(), "coin": Coin()}, "Throws.", lambda root: root)


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
    assert run(tmp_path, "--seeds", "3", "--set", "rate=0.25") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "rate=0.5 there, 0.25 now" in error


def test_an_interrupted_seed_is_kept_as_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--seeds", "0", "1", "2", "--set", "fails_at=1") == 130
    printed = capsys.readouterr()
    assert "finished seeds are kept" in printed.err
    assert printed.out == "dice, seed 0: hits@20 valid 0.0000, test 0.0000; 12 s\n"
    found = {p.stem: read_record(p).status for p in tmp_path.rglob("*.json")}
    assert found == {"seed-0": "finished", "seed-1": "started"}


def test_settings_change_by_path_and_by_short_flag(tmp_path: Path) -> None:
    assert run(tmp_path, "--set", "rate=1", "--seeds", "0", "--epochs", "8", "--set", "fails_at=3") == 0
    assert read_record(tmp_path / "dice" / "seed-0.json").settings == {"sides": 8, "rate": 1.0, "fails_at": 3}


def test_the_record_says_what_was_typed_and_how_settings_were_chosen(tmp_path: Path) -> None:
    words = ["--seeds", "5", "--settings-selected-on", "valid", "--set", "rate=0.3"]
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "coin", "--epochs", "3"], "--epochs 3 has no effect on coin"),
        (["--model", "coin", "--freeze-embedding"], "coin trains its embedding with what is judged"),
        (["--model", "dice", "--device", "cuda"], "--device cuda has no effect on dice"),
        (["--set", "sidse=3"], "did you mean 'sides'"),
        (["--set", "sides"], "override 'sides': write key=value"),
        (["--set", "fails_at=soon"], "Dice.fails_at = 'soon': should be a valid integer"),
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
        (["--seeds", "3", "-1"], "-1 is outside [0, 9223372036854775807]"),
        (["--seeds", "9223372036854775808"], "is outside [0, "),
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


def test_a_typed_graph_needs_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPH_EMB_DATA", raising=False)
    with pytest.raises(DataError, match="ogbn-mag needs --root, the folder that holds ogbn_mag/"):
        typed_graph("ogbn-mag")(None)
