"""metapath2vec through the pipeline: alone, by ranks in lockstep, by trainers and a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from tests.graph.test_datasets import VENUES, write_dbis
from tests.ranks import Ranks

QUICK: dict[str, Any] = {"dim": 16, "num_walks": 30, "walk_length": 21, "window": 4, "threads": 1, "lr": 0.05}


@pytest.fixture(scope="module")
def dbis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of DBIS with three areas whose authors write for their own venues, and a few papers elsewhere."""
    folder = write_dbis(tmp_path_factory.mktemp("root") / "dbis")
    rng = np.random.default_rng(0)
    venue = np.repeat(np.arange(15), 12)
    papers = np.arange(180)
    author = rng.integers(0, 13, (180, 2)) + 13 * (venue // 5)[:, None]
    author[::20] = rng.integers(0, 39, (9, 2))
    arrays = dict(np.load(folder / "graph.npz"))
    arrays["paper_author"] = np.array([np.repeat(papers, 2), author.ravel()], np.int32)
    arrays["paper_conf"] = np.array([papers, venue], np.int32)
    arrays["paper_id"] = papers
    np.savez(folder / "graph.npz", **arrays)
    return folder


def nmi(metrics: dict[str, Any]) -> float:
    return metrics["evaluation"]["clusters_venue"]["nmi_mean"]


def test_each_type_of_the_path_has_a_table_and_venues_are_judged(dbis: Path, tmp_path: Path) -> None:
    result = ge.pipeline("metapath2vec", "dbis", root=dbis.parent, out=tmp_path / "run", **QUICK)
    assert {name: table.weights.shape for name, table in result.tables.items()} == {
        "author": (40, 16),
        "paper": (180, 16),
        "venue": (17, 16),
    }
    assert result.tables["author"].node_ids[0] == 7000
    assert (tmp_path / "run" / "embeddings.npy").is_file()
    assert (tmp_path / "run" / "venue" / "embeddings.npy").is_file()
    assert nmi(result.metrics) > 0.6
    near = result.metrics["evaluation"]["nearest_venue"]["SIGIR"]
    assert len({name for name, _ in near[:4]} & set(VENUES[10:])) >= 3
    assert "author-[^written_by]-paper" in result.metrics["dataset"]["metapath"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metapath": "author-paper-confrence"}, r"'confrence'; known: author, paper, venue"),
        ({"metapath": "author-venue"}, "no relation joins author and venue; author is in: paper:written_by:author"),
        ({"metapath": "author-paper"}, r"walk_length = 21: .* at most 2 nodes"),
        ({"typed_negatives": True, "subsample": 0.01}, r"subsample is 0\.01 with typed_negatives"),
        ({"dataset": {"name": "dbis", "hold_out": 0.1}}, "dataset.hold_out = 0.1 has no effect on metapath2vec"),
        ({"evaluate": {"hits": [3]}}, r"evaluate\.hits = \(3,\) has no effect on metapath2vec"),
        (
            {"metapath": "paper-venue-paper", "evaluate": {"shuffles": 7}},
            r"evaluate\.shuffles = 7 has no effect on dbis, of whose",
        ),
        ({"typed_negatives": True, "shared_negatives": 2}, "2 and the path has 3 node types"),
    ],
)
def test_what_does_not_fit_is_refused(dbis: Path, options: dict[str, Any], message: str) -> None:
    given = {"dataset": "dbis", **QUICK, **options}
    with pytest.raises(ConfigError, match=message):
        ge.pipeline("metapath2vec", root=dbis.parent, **given)


def test_a_graph_without_a_path_of_its_own_needs_one(tmp_path: Path) -> None:
    (tmp_path / "by.csv").write_text("src,dst\n0,0\n1,1\n2,0\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes:\n  paper: {num_nodes: 3}\n  author: {num_nodes: 2}\n"
        "edges:\n  - {type: [paper, by, author], files: by.csv, source: src, destination: dst}\n"
    )
    with pytest.raises(ConfigError, match=r"model.metapath is missing; .* has: paper, author"):
        ge.pipeline("metapath2vec", tmp_path / "graph.yaml")
    options = {**QUICK, "metapath": "author-paper-author"}
    result = ge.pipeline("metapath2vec", tmp_path / "graph.yaml", **options)
    assert list(result.tables) == ["author", "paper"]


def run_on_a_rank(root: str, options: dict[str, Any]) -> dict[str, Any]:
    parallel = {"mode": "collective", "trainers": 2}
    return ge.pipeline("metapath2vec", "dbis", root=root, parallel=parallel, **options).metrics


@pytest.mark.dist
@pytest.mark.parametrize("typed", [False, True])
def test_two_ranks_find_the_areas(ranks: Ranks, dbis: Path, typed: bool) -> None:
    options = {**QUICK, "typed_negatives": typed, "num_walks": 60}
    found = [ranks.run(run_on_a_rank, 2, str(dbis.parent), {**options, "seed": seed}) for seed in range(4)]
    assert np.mean([nmi(first) for first, _ in found]) > 0.6  # of one seed .55 to .74, as in one process
    for first, second in found:
        assert first["train"]["sharing"].startswith("parallel.hogwild=auto: trainers ")
        assert "train" not in second


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
def test_trainers_and_a_server_find_the_areas(dbis: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from graph_emb.cli.main import main

    recipe = ["model.dim=16", "model.num_walks=60", "model.walk_length=21", "model.window=4", "--rule", "row_adagrad"]
    words = ["train", "metapath2vec", "--dataset", "dbis", "--root", str(dbis.parent), "--threads", "1", *recipe]
    assert main([*words, "--mode", "kvstore", "--trainers", "2", "--out", str(tmp_path / "run")]) == 0
    assert "clusters of venue" in capfd.readouterr().out
    assert nmi(json.loads((tmp_path / "run" / "metrics.json").read_text())) > 0.6
