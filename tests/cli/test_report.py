"""``graph-emb report`` and ``compare`` on runs of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import CliqueFiles, Outcome

TINY = ("model.dim=4", "model.num_walks=2", "model.walk_length=5", "train.threads=1", "model.window=2")
Cli = Callable[..., Outcome]


def test_report_draws_a_finished_run_again_and_belongs_to_it(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    graph, labels = cliques
    words = ("train", "deepwalk", "--dataset", graph, "--labels", labels, "--out", "run", *TINY)
    assert cli(*words, "output.report=none", "--no-eval").code == 0
    assert not (tmp_path / "run" / "report.html").exists()
    found = cli("report", "run", "--map", "pca")
    assert (found.code, found.out) == (0, "run/report.html\n")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "PCA of all rows; colours are the labels" in text
    assert "graph-emb train deepwalk --dataset" in text
    assert cli(*words, "--overwrite").code == 0  # the page is no foreign file
    labels.unlink()
    found = cli("report", "run")
    assert found.code == 0
    assert "the map has no labels" in found.err
    assert cli("report", "nowhere").code == 2
    assert "unknown map 'tsn'" in cli("report", "run", "--map", "tsn").err


def test_compare_prints_and_writes(cli: Cli, cliques: CliqueFiles, tmp_path: Path) -> None:
    for name, more in (("one", ()), ("two", ("train.lr=0.05",))):
        assert cli("train", "deepwalk", "--dataset", cliques[0], "--out", name, "--no-eval", *TINY, *more).code == 0
    found = cli("compare", "one", "two", "--json", "both.json", "--html", "both.html")
    assert found.code == 0
    assert "train.lr" in found.out
    assert json.loads((tmp_path / "both.json").read_text())["settings"] == {"train.lr": [0.1, 0.05]}
    assert (tmp_path / "both.html").read_text().startswith("<!doctype html>")
    assert "give at least two runs" in cli("compare", "one").err
