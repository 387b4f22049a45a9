"""The record of a seed: complete, typed, and the same after a trip through its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.ogb.record import read_record, this_hardware, write_record
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
