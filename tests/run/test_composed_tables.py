"""Runs whose tables are composed of shared rows: levels of a partition or cut, one trainer or two, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.new_nodes import continue_run
from partition.nesting import nested
from tests.ranks import Ranks
from tests.run.test_multilevel import communities
from tests.run.test_own_triples import triples

pytestmark = [pytest.mark.usefixtures("fresh_mode", "warm_starts"), pytest.mark.dist]

TRIPLES: dict[str, Any] = {
    "dim": 8, "num_negatives": 6, "chunk_size": 4, "batch_size": 32, "epochs": 3, "valid_every": 0, "threads": 1,
    "rule": "adagrad", "model.table": "position",
}  # fmt: skip
TWO = {"mode": "collective", "trainers": 2, "hogwild": False}


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


WALKS: dict[str, Any] = {"dim": 8, "threads": 1, "evaluate": False, "rule": "adagrad", "model.table": "position"}
ROUNDS = {"deepwalk": {"num_walks": 2, "batch_size": 30}, "line": {"draws_per_edge": 2, "batch_size": 30}}


def walked(model: str, source: Any, levels: Any = None, out: Any = None, halves: int = 1, **parallel: Any) -> Any:
    """Rows by id, the levels kept and the parameters; batches are of all trainers together."""
    options = {**WALKS, **ROUNDS[model], "model.levels": levels}
    options["batch_size"] //= halves
    result = ge.pipeline(model, source, parallel=parallel, out=out, **options)
    if result.embeddings is None:
        return None
    order = np.argsort(result.embeddings.node_ids)
    kept = getattr(result.config.model, "levels", None)
    return result.embeddings.weights[order], kept, result.metrics["train"]["parameters"]


def walked_in_turn(model: str, folder: str, graph: Any) -> Any:
    own = walked(model, folder, halves=2, **TWO)
    beside = walked(model, graph, halves=2, **TWO, partition=folder)
    return own, beside, walked(model, graph, (3, 9), halves=2, **TWO)


@pytest.mark.parametrize("model", ["deepwalk", "line"])
def test_nodes_have_the_rows_of_their_parts_however_many_walk(ranks: Ranks, tmp_path: Path, model: str) -> None:
    """Trainers of another order of nodes draw other walks: the rows of parts are close, not equal."""
    place = tmp_path / "parts"
    folder = str(partition.build(communities(), 2, levels=[2, 8], out=place, seed=2, report=False).path)
    alone, cut = walked(model, folder, out=tmp_path / "run"), walked(model, communities(), (3, 9))
    (own, beside, cut_of_two), _ = ranks.run(walked_in_turn, 2, model, folder, communities())
    assert (alone[1], own[1], beside[1], cut[1], cut_of_two[1]) == ((2, 8),) * 3 + ((3, 9),) * 2
    numbers = {"deepwalk": 2 * 8, "line": 3 * 4}[model]  # of two tables of D; or of three of D / 2
    assert (alone[2], own[2], beside[2]) == (10 * numbers,) * 3
    for rows, levels, _ in (alone, own, beside, cut, cut_of_two):
        assert levels[-1] / 2 < len(np.unique(rows.round(5), axis=0)) <= levels[-1]
    shared = [np.unique(rows[0].round(5), axis=0, return_inverse=True)[1] for rows in (alone, own, beside)]
    for other in shared[1:]:  # the same nodes have the same row
        assert len(np.unique(np.stack([shared[0], other]), axis=1).T) == len(np.unique(shared[0]))


def test_a_walk_on_shared_rows_resumes_and_goes_on(tmp_path: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("".join(f"{a} {b}\n" for a, b in communities().edges().tolist()))
    options: dict[str, Any] = {**WALKS, "num_walks": 20, "walk_length": 10, "model.levels": (2, 8), "epochs": 2}
    whole = ge.pipeline("node2vec", edges, **options).embeddings
    run, more = tmp_path / "run", tmp_path / "more.txt"
    with pytest.MonkeyPatch.context() as patch:
        after = PeriodicCheckpoints.after

        def stopping(self: Any, at: int, position: Any) -> bool:
            saved = after(self, at, position)
            if at == 1:
                raise ConnectionError("the machine went away")
            return saved

        patch.setattr(PeriodicCheckpoints, "after", stopping)
        with pytest.raises(ConnectionError):
            ge.pipeline("node2vec", edges, out=run, checkpoint={"every": 1}, **options)
    ge.shutdown()
    resumed = ge.pipeline("node2vec", edges, out=run, resume=True, checkpoint={"every": 1}, **options).embeddings
    assert whole is not None
    assert resumed is not None
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    more.write_text("900 0\n900 8\n")
    on = continue_run(run, more)
    assert on.embeddings is not None
    assert getattr(on.config.model, "table", None) == "full"
    assert len(np.unique(on.embeddings.weights, axis=0)) > 8


def test_types_on_a_metapath_share_the_rows_of_parts() -> None:
    """All types are in one table, whose levels are of the whole graph, one type after the other."""
    rng = np.random.default_rng(0)
    papers, authors = rng.integers(0, 30, 80), rng.integers(0, 10, 80)
    graph = HeteroGraph({"paper": 30, "author": 10}, {("paper", "by", "author"): (papers, authors)})
    options = {**WALKS, "num_walks": 2, "metapath": "author-paper-author", "model.levels": (2, 5)}
    result = ge.pipeline("metapath2vec", graph, **options)
    rows = np.concatenate([result.tables[name].weights for name in ("paper", "author")])
    levels, _ = nested(graph, (2, 5), seed=result.config.seed)
    for part in np.unique(levels[:, 1]):
        assert len(np.unique(rows[levels[:, 1] == part].round(6), axis=0)) == 1
    assert len(np.unique(rows.round(6), axis=0)) == len(np.unique(levels[:, 1]))


def test_first_rows_of_nodes_are_refused() -> None:
    for name, value in (("warm_start", "prone"), ("multilevel", True), ("from_run", "run")):
        with pytest.raises(
            ge.ConfigError, match=f"{name} = .* gives each node a first row, and those of table = 'hash'"
        ):
            ge.pipeline("deepwalk", communities(), **{**WALKS, "model.table": "hash", f"model.{name}": value})
    with pytest.raises(ge.ConfigError, match=r"table = 'position': rows that nodes share .* set rule=adagrad, or path"):
        ge.pipeline("deepwalk", communities(), **{**WALKS, "rule": "sgd"})


def test_levels_that_a_run_cannot_have_are_refused(tmp_path: Path) -> None:
    folder = str(partition.build(triples(False), 3, levels=[3, 6], out=tmp_path / "parts", report=False).path)
    with pytest.raises(ge.ConfigError, match=r"model.levels = \[4, 8\]: the partition .* has the levels \[3, 6\]"):
        run(folder, (4, 8))
    with pytest.raises(ge.ConfigError, match=r"model.levels = \[8, 64, 512\]: \d+ nodes .* such as model.levels=\[8\]"):
        run(triples(False))  # the default levels, which named no setting on graphs of few nodes
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
