from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from graph_emb.core.terminal import INTERRUPTED
from graph_emb.tuning import search
from graph_emb.tuning.study import SearchFolder
from tests.cli.conftest import CliqueFiles, Outcome

pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("fresh_mode")

SMALL = ("--threads", "1", "dim=8", "num_walks=1", "walk_length=6", "evaluate.ratios=[0.5]")


def words_of(cliques: CliqueFiles, *more: str) -> list[str]:
    edges, labels = cliques
    return ["tune", "deepwalk", "--dataset", str(edges), "--labels", str(labels), *more, *SMALL]


def test_a_search_prints_its_trials_and_the_command_that_trains_the_best(
    cli: Callable[..., Outcome], cliques: CliqueFiles
) -> None:
    done = cli(*words_of(cliques, "--trials", "2", "--out", "found", "--search", "model.window=2,3"))
    assert done.code == 0
    assert {path.name for path in Path("found").iterdir()} >= {"best.yaml", "trials.tsv", "search.html", "tried.txt"}
    assert "trial 0 of 2: complete, valid" in done.err
    assert "best: trial" in done.out
    tried = Path("found/tried.txt").read_text()
    assert all(value in ("2", "3") for value in tried.split("window=")[1].split()[0].split(","))
    assert "graph-emb train --config found/best.yaml" in done.err
    trained = cli("train", "--config", "found/best.yaml", "--out", "run")
    assert trained.code == 0
    assert (Path("run") / "metrics.json").exists()


def test_hours_begin_no_trial_after_them_and_resume_goes_on(
    cli: Callable[..., Outcome], cliques: CliqueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, true = [1000.0], SearchFolder.add

    def add(self: SearchFolder, *rest: object) -> None:
        true(self, *rest)  # type: ignore[arg-type]
        now[0] += 1800.0  # as if each trial took half an hour

    monkeypatch.setattr(SearchFolder, "add", add)
    monkeypatch.setattr(search.time, "time", lambda: now[0])
    words = words_of(cliques, "--trials", "4", "--out", "found")
    assert cli(*words, "--hours", "0.75").code == 0
    assert len(Path("found/trials.tsv").read_text().splitlines()) == 1 + 2
    assert "--resume" in cli(*words).err, "a search that is there is not begun again"
    assert cli(*words, "--resume").code == 0
    assert len(Path("found/trials.tsv").read_text().splitlines()) == 1 + 4


def test_ctrl_c_ends_a_search_with_what_it_has(
    cli: Callable[..., Outcome], cliques: CliqueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = SearchFolder.ask

    def ask(self: SearchFolder, number: int, *rest: object) -> object:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return true(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchFolder, "ask", ask)
    words = words_of(cliques, "--trials", "3", "--out", "found")
    done = cli(*words)
    assert done.code == INTERRUPTED
    assert "interrupted; --resume --out found goes on" in done.err
    assert "best: trial 0" in done.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--trials", "0"], "trials=0"),
        (["--hours", "-1"], "hours=-1.0"),
        (["--metric", "test.accuracy"], "a search compares validation values"),
        (["--search", "model.windo=2,3"], "window"),
        (["--trainers", "2"], "--trainers"),
    ],
)
def test_bad_words_are_one_line_and_nothing_is_written(
    more: list[str], said: str, cli: Callable[..., Outcome], cliques: CliqueFiles
) -> None:
    done = cli(*words_of(cliques, *more, "--out", "found"))
    assert done.code == 2
    assert said in done.err
    assert not Path("found").exists()
