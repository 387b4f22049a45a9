"""Seeds are run once, left as started when they break off, and never mixed with those of other settings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.ogb.record import SeedResult, read_record
from graph_emb.ogb.seeds import as_text, finished_or_run, mean_std
from tests.ogb.records import result, started


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


def test_std_is_unbiased_and_absent_for_one_value() -> None:
    assert mean_std([1.0, 3.0]) == pytest.approx((2.0, 2.0**0.5))
    assert math.isnan(mean_std([1.0])[1])
    assert as_text([0.25, 0.75]) == "0.5000 ± 0.3536"
    assert as_text([0.25]) == "0.2500"
