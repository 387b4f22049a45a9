"""A run begins with the rows of a file: of its own nodes by id, whatever mode trains and however the graph is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.formats.embedding_files import align, load_embeddings, save_embeddings
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.model import usual_rows
from tests.ranks import Ranks

NAMES = [f"node{i}" for i in range(16)]
ROWS = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
# A rate at which no row moves: what comes out is what went in.
STILL: dict[str, Any] = {"dim": 4, "num_walks": 1, "walk_length": 4, "lr": 1e-12, "threads": 1, "evaluate": False}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A ring of 16 nodes with names, whose order in the file is not that of the rows."""
    order = np.random.default_rng(1).permutation(16)
    lines = [f"{NAMES[a]},{NAMES[(a + 1) % 16]}" for a in order]
    (tmp_path / "ring.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "ring.csv"


def first_rows(folder: Path, names: list[str] = NAMES, rows: np.ndarray = ROWS) -> str:
    save_embeddings(folder / "old", rows, names, ("parquet",))
    return str(folder / "old")


def train(graph: str, old: str, trainers: int = 1, **options: Any) -> Any:
    parallel = {"mode": "collective", "trainers": trainers} if trainers > 1 else {}
    result = ge.pipeline("deepwalk", graph, warm_start=old, parallel=parallel, **{**STILL, **options})
    return None if result.embeddings is None else align(result.embeddings, NAMES)


def test_every_node_begins_with_the_row_of_its_name(tmp_path: Path, graph: Path) -> None:
    found = train(str(graph), first_rows(tmp_path))
    np.testing.assert_allclose(found, ROWS, atol=1e-6)
    moved = train(str(graph), first_rows(tmp_path / "again"), lr=0.5)
    assert np.abs(moved - ROWS).max() > 0.01


@pytest.mark.dist
def test_ranks_begin_with_them_too(tmp_path: Path, graph: Path, ranks: Ranks) -> None:
    found = ranks.run(train, 2, str(graph), first_rows(tmp_path), 2)
    np.testing.assert_allclose(found[0], ROWS, atol=1e-6)


def test_a_partial_file_leaves_the_usual_rows_to_others(tmp_path: Path, graph: Path) -> None:
    """Ten of the nodes and one that the graph does not have; nodes are numbered in the order of their names."""
    old = first_rows(tmp_path, [*NAMES[:10], "elsewhere"], ROWS[:11])
    with pytest.raises(DataError, match="has rows for 1 ids that the table does not have, the first is id 'elsewhere'"):
        train(str(graph), old)
    found = train(str(graph), old, warm_start_partial=True, seed=3)
    np.testing.assert_allclose(found[:10], ROWS[:10], atol=1e-6)
    usual = torch.empty(16, 4)
    usual_rows(SkipGramConfig(dim=4), 3).fill_(usual, 0)
    place = {name: i for i, name in enumerate(sorted(NAMES))}
    np.testing.assert_allclose(found[10:], usual[[place[name] for name in NAMES[10:]]], atol=1e-6)


def test_a_file_of_another_width_or_a_lone_partial_is_refused(tmp_path: Path, graph: Path) -> None:
    with pytest.raises(ShapeError, match=r"embedding_dim is 4, the rows of .* have 3 numbers"):
        train(str(graph), first_rows(tmp_path, NAMES, ROWS[:, :3]))
    with pytest.raises(ConfigError, match="warm_start_partial has no effect without warm_start"):
        config_from({"model": {"name": "deepwalk", "warm_start_partial": True}, "dataset": {"name": "digits"}})
    with pytest.raises(ConfigError, match="warm_start"):
        config_from({"model": {"name": "line", "warm_start": "x"}, "dataset": {"name": "digits"}})


def test_the_written_configuration_names_the_file_from_anywhere(
    tmp_path: Path, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    ge.pipeline("deepwalk", "ring.csv", warm_start="old", out="run", **STILL)
    monkeypatch.chdir(tmp_path / "old")
    again = ge.pipeline(config=tmp_path / "run" / "config.yaml")
    assert again.embeddings is not None
    np.testing.assert_array_equal(again.embeddings.weights, load_embeddings(tmp_path / "run").weights)


def newest(folder: Path) -> Path:
    return max(folder.glob("*/manifest.json"), key=lambda path: int(path.parent.name)).parent


def test_checkpoints_of_a_run_are_exported_under_the_nodes_names(tmp_path: Path, graph: Path) -> None:
    out = tmp_path / "run"
    ge.pipeline("deepwalk", str(graph), out=out, checkpoint={"every": "1"}, **STILL)
    ge.export_checkpoint(newest(tmp_path / "run-checkpoints"), tmp_path / "exported", table="node")
    exported, run = load_embeddings(tmp_path / "exported"), load_embeddings(out)
    assert sorted(exported.node_ids.tolist()) == sorted(NAMES)
    np.testing.assert_allclose(align(exported, NAMES), align(run, NAMES), atol=1e-6)


def test_those_of_line_too(tmp_path: Path, graph: Path) -> None:
    options = {"dim": 4, "draws_per_edge": 1, "order": "first", "threads": 1, "evaluate": False}
    ge.pipeline("line", str(graph), out=tmp_path / "run", checkpoint={"every": "1"}, **options)
    ge.export_checkpoint(newest(tmp_path / "run-checkpoints"), tmp_path / "exported", table="node.first")
    assert sorted(load_embeddings(tmp_path / "exported").node_ids.tolist()) == sorted(NAMES)


def test_and_those_of_entities_and_relations(tmp_path: Path) -> None:
    triples = "".join(f"{NAMES[a]}\t{relation}\t{NAMES[(a + 1) % 16]}\n" for a in range(16) for relation in "xy")
    (tmp_path / "kg.tsv").write_text(triples, encoding="utf-8")
    options = {"dim": 4, "epochs": 1, "threads": 1, "evaluate": False}
    ge.pipeline("transe", str(tmp_path / "kg.tsv"), out=tmp_path / "run", checkpoint={"every": "1"}, **options)
    for table, names in (("entity", NAMES), ("relation", ["x", "y"])):
        ge.export_checkpoint(newest(tmp_path / "run-checkpoints"), tmp_path / table, table=table)
        assert sorted(load_embeddings(tmp_path / table).node_ids.tolist()) == sorted(names)
