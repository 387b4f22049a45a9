"""Runs whose tables are composed of shared rows: levels of a partition or cut, one trainer or two, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from tests.ranks import Ranks
from tests.run.test_own_triples import triples

pytestmark = [pytest.mark.usefixtures("fresh_mode", "warm_starts"), pytest.mark.dist]

TRIPLES: dict[str, Any] = {
    "dim": 8, "num_negatives": 6, "chunk_size": 4, "batch_size": 32, "epochs": 3, "valid_every": 0, "threads": 1,
    "rule": "adagrad", "model.table": "position",
}  # fmt: skip
TWO = {"mode": "collective", "trainers": 2}


def run(source: Any, levels: Any = None, options: dict[str, Any] | None = None, **parallel: Any) -> Any:
    """Rows of the first table by id, and the levels kept."""
    given = {**TRIPLES, **(options or {}), "model.levels": levels}
    result = ge.pipeline("complex", source, parallel=parallel, **given)
    found = result.embeddings
    if found is None:
        return None
    order = np.argsort(found.node_ids)
    return found.weights[order], getattr(result.config.model, "levels", None), result.metrics["train"]["parameters"]


def in_turn(folder: str, graph: Any) -> Any:
    """From the partition alone, from its data set beside it, and from the data set cut for the trainers."""
    return run(folder, **TWO), run(graph, **TWO, partition=folder), run(graph, (3, 9), **TWO)


@pytest.mark.parametrize("typed", [False, True])
def test_entities_have_the_rows_of_their_parts_however_many_train(ranks: Ranks, tmp_path: Path, typed: bool) -> None:
    place = tmp_path / "parts"
    folder = str(partition.build(triples(typed), 3, levels=[3, 6], out=place, seed=2, report=False).path)
    graph = ge.read_graph(folder)
    alone, cut = run(folder), run(graph, (3, 9))
    (own, beside, cut_of_two), _ = ranks.run(in_turn, 2, folder, graph)
    assert (alone[1], own[1], beside[1], cut[1], cut_of_two[1]) == ((3, 6),) * 3 + ((3, 9),) * 2
    assert 4 < len(np.unique(alone[0].round(5), axis=0)) <= 6
    assert alone[2] - 9 * 8 == own[2] - 9 * 8 == (2 if typed else 3) * 8  # of relations
    for found in (own, beside):
        np.testing.assert_allclose(found[0], alone[0], rtol=0, atol=1e-3)
    np.testing.assert_allclose(cut_of_two[0], cut[0], rtol=0, atol=1e-3)
    assert np.abs(alone[0] - cut[0]).max() > 0.05


def test_levels_that_a_run_cannot_have_are_refused(tmp_path: Path) -> None:
    folder = str(partition.build(triples(False), 3, levels=[3, 6], out=tmp_path / "parts", report=False).path)
    with pytest.raises(ge.ConfigError, match=r"model.levels = \[4, 8\]: the partition .* has the levels \[3, 6\]"):
        run(folder, (4, 8))
    with pytest.raises(ge.ConfigError, match=r"train.memory = '1MiB': model.table = 'hash' keeps few rows"):
        run(folder, options={"model.table": "hash", "train.memory": "1MiB"})
    with pytest.raises(ge.ConfigError, match="num_hashes = 3 has no effect on table = 'position'"):
        run(folder, options={"model.num_hashes": 3})


def test_an_estimator_takes_the_kind_of_table() -> None:
    """Its rows are as many as the entities, of which a partition's parts share them."""
    rng = np.random.default_rng(0)
    names = np.array([f"e{n}" for n in range(48)])
    heads, tails = names[rng.integers(0, 48, (2, 200))]
    facts = np.stack([heads, np.array(["likes", "knows"])[rng.integers(0, 2, 200)], tails], axis=1)
    made = ge.ComplEx(dim=8, epochs=2, num_negatives=4, chunk_size=4, batch_size=32, table="position", levels=(2, 6))
    rows = made.fit(facts).tables_["entity"].weights
    assert len(rows) == 48
    assert 2 < len(np.unique(rows.round(6), axis=0)) <= 6
