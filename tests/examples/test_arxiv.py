"""examples/ogb/arxiv.py, run whole on a tiny graph in OGB's layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Example = Callable[[str], ModuleType]

QUICK = ["--dim", "16", "--num-walks", "20", "--walk-length", "20", "--epochs", "30", "--threads", "1"]


@pytest.fixture
def command(arxiv_root: Path, tmp_path: Path) -> list[str]:
    return ["--root", str(arxiv_root), "--out", str(tmp_path / "out"), *QUICK]


def test_citations_alone_tell_the_classes(
    example: Example, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "numbers.json"
    assert example("arxiv").main([*command, "--seeds", "0", "1", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "0.7007 ± 0.0013" in printed
    assert "peak memory" in printed
    numbers = json.loads(path.read_text())
    assert numbers["accuracy"]["test"]["mean"] > 0.8
    assert numbers["accuracy"]["test"]["mean"] == pytest.approx(sum(run["test"] for run in numbers["runs"]) / 2)
    run = numbers["runs"][0]
    # two tables of 90 rows; OGB's 40 classes; two batch norms
    mlp = (16 * 256 + 256) + (256 * 256 + 256) + (256 * 40 + 40) + 2 * 2 * 256
    assert run["num_parameters"] == 2 * 90 * 16 + mlp
    assert 0 < run["embedding_seconds"] < run["seconds"]


def test_a_finished_seed_stays_and_other_walks_are_refused(
    example: Example, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arxiv = example("arxiv")
    chosen = ["--model", "node2vec", "--seeds", "4"]
    assert arxiv.main([*command, *chosen]) == 0
    record = tmp_path / "out" / "node2vec" / "seed-4.json"
    before = record.stat().st_mtime_ns
    assert arxiv.main([*command, *chosen]) == 0
    assert record.stat().st_mtime_ns == before
    capsys.readouterr()
    assert arxiv.main([*command, *chosen, "--window", "2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "choose another --out" in error


def test_missing_data_is_one_line_and_exit_code_2(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example("arxiv").main(["--root", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "arxiv" in error
