from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graph_emb as ge
from graph_emb.models.search import Span, one_of
from graph_emb.tuning.study import NUMBER, SearchFolder, tried_values

pytest.importorskip("optuna")

SPACE = {"train.lr": Span(0.01, 1.0, log=True), "model.window": one_of(2, 5, 10), "dim": Span(4, 8)}


def opened(folder: Path, about: dict[str, Any] | None = None, *, resume: bool = True, **options: Any) -> SearchFolder:
    return SearchFolder(folder, about or {"metric": "valid"}, SPACE, **{"seed": 1, "jobs": 1, **options}, resume=resume)


def value_of(params: dict[str, Any]) -> float:
    return -abs(params["train.lr"] - 0.1) + params["model.window"] / 100


def run(folder: SearchFolder, total: int, most: int = 99) -> list[int]:
    """Run trials until there are ``total``, at most some of them; returns their numbers."""
    done: list[int] = []
    while len(done) < most:
        with folder.next_trial(total) as number:
            if number is None:
                break
            study, trial = folder.ask(number, None)
            folder.add(study.tell(trial, value_of(trial.params)), number, 0.5, None)
            done.append(number)
    return done


def settings(folder: SearchFolder) -> list[dict[str, Any]]:
    return [trial.params for trial in folder.finished()]


def test_a_search_in_pieces_has_the_trials_of_a_whole_one(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole")
    assert run(whole, 14) == list(range(14))
    for _ in range(7):
        run(opened(tmp_path / "pieces"), 14, 2)  # each time by a reader of the journal that knows nothing else
    assert settings(opened(tmp_path / "pieces")) == settings(whole)


def test_later_trials_learn_from_earlier_ones(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    run(folder, 10)
    by_one = folder.ask(10, None)[1].params
    other = opened(tmp_path / "other")
    while len(other.finished()) < 10:
        with other.next_trial(10) as number:
            assert number is not None
            study, trial = other.ask(number, None)
            other.add(study.tell(trial, -value_of(trial.params)), number, 0.5, None)
    assert settings(other) == settings(folder), "the first ten are drawn"
    assert other.ask(10, None)[1].params != by_one


def test_another_seed_draws_others(tmp_path: Path) -> None:
    first, other = opened(tmp_path / "a"), opened(tmp_path / "b", seed=2)
    run(first, 3), run(other, 3)
    assert settings(first) != settings(other)


def test_trial_0_takes_the_settings_that_are_given(tmp_path: Path) -> None:
    given = {"train.lr": 0.5, "model.window": 10, "dim": 4}
    assert opened(tmp_path).ask(0, given)[1].params == given
    assert opened(tmp_path).ask(1, given)[1].params != given


def test_a_running_trial_is_not_taken_twice(tmp_path: Path) -> None:
    with opened(tmp_path).next_trial(3) as first, opened(tmp_path).next_trial(3) as second:
        assert (first, second) == (0, 1)
    with opened(tmp_path).next_trial(3) as again:
        assert again == 0, "it was given back unfinished"


def test_a_trial_learns_from_those_before_the_other_jobs(tmp_path: Path) -> None:
    folder = opened(tmp_path, jobs=3)
    run(folder, 5)
    study, _ = folder.ask(5, None)
    assert [trial.user_attrs[NUMBER] for trial in study.get_trials() if NUMBER in trial.user_attrs] == [0, 1, 2]


def test_half_a_line_that_a_kill_left_is_cut_off(tmp_path: Path) -> None:
    run(opened(tmp_path), 3)
    journal = tmp_path / "journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "worker')
    folder = opened(tmp_path)
    assert run(folder, 4) == [3]
    assert len(opened(tmp_path).finished()) == 4


@pytest.mark.parametrize("line", ["no json", "[1]", '{"op_code": 99}', "{}"])
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    run(opened(tmp_path), 1)
    with (tmp_path / "journal.log").open("a") as journal:
        journal.write(f"{line}\n")
    with pytest.raises(ge.DataError, match=r"journal\.log: is damaged \(.*; give another --out"):
        opened(tmp_path)


def test_a_search_that_was_killed_when_it_began_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder held no more than an empty one, and was taken for somebody else's."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("graph_emb.tuning.study.replace_json", kill)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "search")
    assert run(opened(tmp_path / "search"), 1) == [0]


def test_another_search_and_other_files_are_refused(tmp_path: Path) -> None:
    opened(tmp_path / "taken")
    with pytest.raises(ge.ConfigError, match="holds a search; give another --out, or --resume"):
        opened(tmp_path / "taken", resume=False)
    with pytest.raises(ge.ConfigError, match=r"metric is 'valid' in the search that is there and 'valid\.mrr' now"):
        opened(tmp_path / "taken", {"metric": "valid.mrr"})
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    with pytest.raises(ge.ConfigError, match="holds files but no search"):
        opened(tmp_path / "own")


def test_tried_values_are_distinct_and_rise(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    run(folder, 6)
    tried = tried_values(folder.finished())
    assert tried["train.lr"] == sorted(tried["train.lr"])
    assert len(tried["train.lr"]) == 6
    assert set(tried["model.window"]) <= {2, 5, 10}
