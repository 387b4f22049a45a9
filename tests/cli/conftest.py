"""A tiny labelled graph as files, and a way to run the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from graph_emb.cli.main import main

SIZE = 8
CliqueFiles = tuple[Path, Path]


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs ``graph-emb`` with words, in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRAPH_EMB_DATA", raising=False)

    def run(*words: object) -> Outcome:
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def cliques(tmp_path: Path) -> CliqueFiles:
    """Two cliques of 8 joined by one edge, ids a0 .. b7; and a label for each node, its clique."""
    groups = [[f"{group}{i}" for i in range(SIZE)] for group in "ab"]
    edges = [pair for group in groups for pair in combinations(group, 2)] + [("a0", "b0")]
    graph, labels = tmp_path / "cliques.csv", tmp_path / "labels.csv"
    graph.write_text("".join(f"{u},{v}\n" for u, v in edges), encoding="utf-8")
    labels.write_text("".join(f"{node},{node[0]}\n" for group in groups for node in group), encoding="utf-8")
    return graph, labels
