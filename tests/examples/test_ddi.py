"""examples/ogb/ddi.py, run whole on a tiny graph in OGB's layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Example = Callable[[str], ModuleType]

QUICK = ["--dim", "8", "--num-walks", "2", "--epochs", "4", "--eval-every", "2", "--batch-size", "64", "--threads", "1"]


@pytest.fixture
def command(ddi_root: Path, tmp_path: Path) -> list[str]:
    return ["--root", str(ddi_root), "--out", str(tmp_path / "out"), *QUICK]


def test_every_model_gets_a_row_per_k_beside_the_published_one(
    example: Example, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ddi, path = example("ddi"), tmp_path / "numbers.json"
    assert ddi.main([*command, "--seeds", "0", "1", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("Hits@100") == 3
    assert "0.2642 ± 0.0610" in printed
    numbers = json.loads(path.read_text())
    assert numbers["seeds"] == [0, 1]
    counts = {model: entry["runs"][0]["num_parameters"] for model, entry in numbers["models"].items()}
    network = 8 * 256 + 256 + 256 * 256 + 256 + 256 + 1
    assert counts == {"deepwalk": 2 * 40 * 8 + network, "node2vec": 40 * 8 + network, "mf": 40 * 8 + network}
    columns = [re.split(" {2,}", line) for line in printed.splitlines()]
    for model, entry in numbers["models"].items():
        assert set(entry["hits"]) == {"10", "20", "30", "50", "100"}
        runs = [run["scores"]["hits@20"]["test"] for run in entry["runs"]]
        assert entry["hits"]["20"]["test"]["mean"] == pytest.approx(sum(runs) / 2)
        assert entry["hits"]["20"]["test"]["std"] == pytest.approx(abs(runs[0] - runs[1]) / 2**0.5)
        (row,) = [cells for cells in columns if cells[:2] == [model, "Hits@100"]]
        for cell, part in zip(row[3:5], ("valid", "test"), strict=True):
            assert cell.startswith(f"{entry['hits']['100'][part]['mean']:.4f} ±")
        assert entry["runs"][0]["history"] != entry["runs"][1]["history"]


def test_finished_seeds_stay_and_other_options_are_refused(
    example: Example, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ddi = example("ddi")
    chosen = ["--model", "mf", "--seeds", "3"]
    assert ddi.main([*command, *chosen]) == 0
    record = tmp_path / "out" / "mf" / "seed-3.json"
    before = record.stat().st_mtime_ns
    assert ddi.main([*command, *chosen]) == 0
    assert record.stat().st_mtime_ns == before
    capsys.readouterr()
    assert ddi.main([*command, *chosen, "--epochs", "2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "predictor" in error
    assert "choose another --out" in error


def test_a_frozen_embedding_serves_every_predictor_seed(
    example: Example, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ddi, seeds = example("ddi"), []
    embed = ddi.embed

    def spy(dataset: object, recipe: object, seed: int, args: object) -> object:
        seeds.append(seed)
        return embed(dataset, recipe, seed, args)

    monkeypatch.setattr(ddi, "embed", spy)
    chosen = ["--model", "node2vec", "--seeds", "5", "6"]
    assert ddi.main([*command, *chosen, "--freeze-embedding"]) == 0
    assert seeds == [5, 5]
    assert ddi.main([*command, *chosen]) == 0
    assert seeds == [5, 5, 5, 6]
    assert {path.parent.name for path in tmp_path.rglob("seed-*.json")} == {"node2vec", "node2vec-frozen-5"}


def test_the_predictor_is_twice_as_wide_for_both_tables_side_by_side(
    example: Example, command: list[str], tmp_path: Path
) -> None:
    chosen = ["--model", "deepwalk", "--seeds", "0", "--context", "concat"]
    assert example("ddi").main([*command, *chosen]) == 0
    record = json.loads((tmp_path / "out" / "deepwalk" / "seed-0.json").read_text())
    network = 2 * 8 * 256 + 256 + 256 * 256 + 256 + 256 + 1
    assert record["result"]["num_parameters"] == 2 * 40 * 8 + network


def test_missing_data_is_one_line_and_exit_code_2(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("ddi").main(["--root", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ddi" in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "mf", "--freeze-embedding"], "trains its embedding with the predictor"),
        (["--epochs", "0"], "0 is below 1"),
        (["--model", "line"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    example: Example, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        example("ddi").main(["--out", "out", *words])
    assert text in capsys.readouterr().err
