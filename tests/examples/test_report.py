"""Seeds are run once, summed up as OGB does, and never mixed with those of other options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from graph_emb import ConfigError, DataError

Example = Callable[[str], ModuleType]


def test_a_finished_seed_is_not_run_again(example: Example, tmp_path: Path) -> None:
    report, runs = example("report"), []

    def run() -> dict:
        runs.append(1)
        return {"hits": 0.5}

    path = tmp_path / "deep" / "seed-0.json"
    results = [report.finished_or_run(path, {"seed": 0, "hits": (10, 20)}, run) for _ in range(2)]
    assert results == [{"hits": 0.5}] * 2
    assert runs == [1]


def test_a_seed_of_other_options_is_refused_and_kept(example: Example, tmp_path: Path) -> None:
    report, path = example("report"), tmp_path / "seed-0.json"
    report.finished_or_run(path, {"lr": 0.1, "dim": 4}, lambda: {"hits": 0.5})
    with pytest.raises(ConfigError, match=r"\(lr=0.1 there, 0.2 now\); choose another --out"):
        report.finished_or_run(path, {"lr": 0.2, "dim": 4}, dict)
    assert json.loads(path.read_text())["result"] == {"hits": 0.5}


@pytest.mark.parametrize("text", ["", "[]", '{"options": {}}'])
def test_a_file_that_is_no_record_is_named(example: Example, tmp_path: Path, text: str) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(text)
    with pytest.raises(DataError, match="not the record of a finished seed"):
        example("report").finished_or_run(path, {}, dict)


def test_a_failed_run_leaves_no_file(example: Example, tmp_path: Path) -> None:
    def run() -> dict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        example("report").finished_or_run(tmp_path / "out" / "seed-0.json", {}, run)
    assert list(tmp_path.rglob("*.json")) == []


def test_std_is_unbiased_and_absent_for_one_value(example: Example) -> None:
    report = example("report")
    assert report.mean_std([1.0, 3.0]) == pytest.approx((2.0, 2.0**0.5))
    assert report.as_text([0.25, 0.75]) == "0.5000 ± 0.3536"
    assert report.as_text([0.25]) == "0.2500"


def test_peak_memory_counts_mebibytes(example: Example) -> None:
    report = example("report")
    assert 50 < report.peak_memory_mib() < 100_000
