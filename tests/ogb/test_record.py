"""The record of a seed: complete, typed, the same after a trip through its file; seeds are run once, left as started
when they break off, and never mixed with those of other settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.ogb.record import (
    SeedRecord,
    SeedResult,
    differences,
    finished_record,
    flat,
    read_record,
    run_recorded,
    this_hardware,
    write_record,
)
from graph_emb.run.evaluation import each_seed
from tests.ogb.records import record, result, started


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "seed-3.json"
    one = record(3, result(history=[{"epoch": 1, "loss": 0.5}]))
    write_record(path, one)
    assert read_record(path) == one
    assert [p.name for p in path.parent.iterdir()] == ["seed-3.json"]  # no draft is left


def test_an_interrupted_seed_has_no_result() -> None:
    one = started(4)
    with pytest.raises(ConfigError, match="seed 4 was started and not finished; run it again: python examples"):
        one.finished()
    assert record().finished().metric == "hits@20"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"result": None}, "status is 'finished' and the result is absent"),
        ({"status": "started"}, "status is 'started' and the result is there"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(change: dict, text: str) -> None:
    told = {**record().model_dump(), **change}
    with pytest.raises(ValidationError, match=text):
        type(record())(**told)


def test_a_result_without_the_data_sets_metric_is_refused() -> None:
    with pytest.raises(ValidationError, match="scores lack 'mrr'"):
        result().model_validate({**result().model_dump(), "metric": "mrr"})


@pytest.mark.parametrize("text", ["", "[]", '{"options": {}}', "null"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"{path}: not the record of a seed .*remove it") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps({**record().model_dump(mode="json"), "format": 2}))
    with pytest.raises(DataError, match="format"):
        read_record(path)


def test_frozen_means_that_the_embedding_is_of_another_seed() -> None:
    assert record(3, embedding_seed=0).frozen
    assert not record(3).frozen


def test_this_machine_has_a_name_cores_and_memory() -> None:
    found = this_hardware()
    assert found.cpu
    assert found.cores >= 1
    assert found.memory_gib > 0.1


def finished_or_run(path: Path, wanted: SeedRecord, run: Callable[[], SeedResult]) -> SeedRecord:
    """As a script does for each of its seeds."""
    runs = each_seed([0], lambda _: run_recorded(path, wanted, run), lambda _: finished_record(path, wanted))
    return next(runs)[1]


def test_a_finished_seed_is_not_run_again(tmp_path: Path) -> None:
    runs = []

    def run() -> SeedResult:
        runs.append(read_record(path).status)
        return result()

    path = tmp_path / "deep" / "seed-0.json"
    records = [finished_or_run(path, started(), run) for _ in range(2)]
    assert records[0] == records[1] == read_record(path)
    assert records[0].finished() == result()
    assert runs == ["started"]  # once, with the file there from the first moment


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_broken_off_seed_stays_started_and_is_run_again(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "seed-0.json"

    def fail() -> SeedResult:
        raise error

    with pytest.raises(error):
        finished_or_run(path, started(), fail)
    assert read_record(path).status == "started"
    assert finished_or_run(path, started(), result).status == "finished"


def test_refused_data_leave_nothing_but_what_was_there(tmp_path: Path) -> None:
    def refuse() -> SeedResult:
        raise DataError("no such file")

    path = tmp_path / "out" / "deepwalk" / "seed-0.json"
    with pytest.raises(DataError):
        finished_or_run(path, started(), refuse)
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir(parents=True)
    with pytest.raises(DataError):
        finished_or_run(path, started(), refuse)
    assert list(path.parent.iterdir()) == []
    write_record(path, started())
    with pytest.raises(DataError):
        finished_or_run(path, started(), refuse)
    assert read_record(path).status == "started"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"settings": {"predictor": {"lr": 0.2, "epochs": 100}, "features": "none"}}, "predictor.lr=0.01 there, 0.2"),
        ({"embedding_seed": 7}, "embedding_seed=0 there, 7 now"),
        ({"dataset": "ogbl-ppa"}, "dataset='ogbl-ddi' there, 'ogbl-ppa' now"),
        ({"settings_selected_on": "valid"}, "settings_selected_on='none' there, 'valid' now"),
    ],
)
@pytest.mark.parametrize("finish", [True, False])
def test_a_seed_of_other_settings_is_refused_and_kept(tmp_path: Path, change: dict, text: str, finish: bool) -> None:
    path = tmp_path / "seed-0.json"

    def fail() -> SeedResult:
        raise KeyboardInterrupt

    if finish:
        finished_or_run(path, started(), result)
    else:
        with pytest.raises(KeyboardInterrupt):
            finished_or_run(path, started(), fail)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=rf"\({text}.*\); choose another --out"):
        finished_or_run(path, started(**change), result)
    assert path.read_bytes() == before


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text("mine")
    with pytest.raises(DataError, match="not the record of a seed"):
        finished_or_run(path, started(), result)
    assert path.read_text() == "mine"


def test_differences_are_told_by_path() -> None:
    left = {"inner": {"size": 4, "lr": 0.1, "names": ["a"]}, "word": "none"}
    right = {"inner": {"size": 4, "lr": 0.2, "names": ["a"]}, "word": "raw"}
    assert differences(left, right) == {"inner.lr": (0.1, 0.2), "word": ("none", "raw")}
    assert differences(left, left) == {}
    assert differences({"a": 1}, {}) == {"a": (1, None)}
    assert flat({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}
