"""Knowledge graphs that begin with the rows of a partition's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import NODE_TYPE, HeteroGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.models.kge.training import train_kge
from graph_emb.run import multilevel
from graph_emb.run.multilevel import triples_start
from graph_emb.sampling.partitioned_triples import OwnTriples
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

GROUPS, SIZE = 6, 20
COUNT = GROUPS * SIZE
RECIPE: dict[str, Any] = {
    "dim": 16, "num_negatives": 16, "chunk_size": 16, "batch_size": 64, "epochs": 2, "threads": 1, "evaluate": False,
}  # fmt: skip


def world() -> HeteroGraph:
    """Entities in groups: "near" joins those of a group, "next" those of one group and the following."""
    rng = np.random.default_rng(1)
    heads = rng.integers(0, COUNT, 900)
    near = heads // SIZE * SIZE + rng.integers(0, SIZE, 900)
    to = rng.integers(0, COUNT, 300)
    following = (to // SIZE + 1) % GROUPS * SIZE + rng.integers(0, SIZE, 300)
    names = {NODE_TYPE: np.array([f"e{(11 * n) % COUNT:03}" for n in range(COUNT)])}
    edges = {(NODE_TYPE, "near", NODE_TYPE): (heads, near), (NODE_TYPE, "next", NODE_TYPE): (to, following)}
    return HeteroGraph({NODE_TYPE: COUNT}, edges, node_ids=names, name="world")


def rows_of(result: Any) -> dict[str, np.ndarray]:
    """By table the rows in the order of their names."""
    return {name: own.weights[np.argsort(own.node_ids)] for name, own in result.tables.items()}


def closeness(rows: np.ndarray, names: np.ndarray) -> float:
    """Mean cosine of entities of a group over that of all."""
    groups = world().node_ids[NODE_TYPE].tolist()
    group = np.array([groups.index(name) // SIZE for name in names])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    same = group[:, None] == group
    return float((unit @ unit.T)[same].mean() - (unit @ unit.T)[~same].mean())


def test_entities_begin_with_the_row_of_their_part_and_relations_with_theirs() -> None:
    graph = KnowledgeGraph("pairs", 8, 2, {"train": np.array([[0, 0, 4], [1, 0, 5], [2, 1, 6], [0, 1, 1]])})
    model = {"name": "distmult", "dim": 4, "num_negatives": 2, "chunk_size": 2}
    train = {"threads": 1, "epochs": 4, "batch_size": 2}
    config = config_from({"model": model, "dataset": "memory", "train": train})
    fine = np.arange(8) // 2
    start = triples_start(config, graph, np.stack([fine // 2, fine], axis=1), None, None, progress=False)
    # a share of 1/4 and 1/2 of 4 epochs of 2 steps; between parts are 2 triples and 2, so 1 step an epoch
    told = [(level["nodes"], level["triples"], level["epochs"]) for level in start.levels]
    assert told == [(2, 2, 2), (4, 2, 4)]
    ((entities, relations),) = start.models
    first, kinds = torch.empty(8, 4), torch.empty(2, 4)
    entities.fill_(first, 0)
    assert relations is not None
    relations.fill_(kinds, 0)
    assert (first[::2] == first[1::2]).all()
    assert len(first.unique(dim=0)) == 4
    usual = KGEModel(8, 2, config.model).relation.weight[:]
    assert (kinds - usual).abs().min(dim=1).values.max() > 1e-4, "relations were trained"
    flat = config.model.model_copy(update={"epochs": 1})
    model_of = train_kge(graph, flat, first=(entities, relations), num_threads=1).model
    seen = KGEModel(8, 2, flat, first=(entities, relations))
    assert torch.equal(seen.entity.weight[:], first)
    assert torch.equal(seen.relation.weight[:], kinds)
    assert not torch.equal(model_of.entity.weight[:], first)


@pytest.mark.parametrize("model", SCORERS)
def test_every_model_goes_further_from_the_rows_of_parts(model: str) -> None:
    flat = ge.pipeline(model, world(), **RECIPE, lr=0.02)
    found = ge.pipeline(model, world(), **RECIPE, lr=0.02, **{"model.multilevel": [24]})
    (level,) = found.metrics["train"]["multilevel"]
    assert 12 < level["nodes"] <= 24
    assert level["epochs"] == round(2 / 2 * 19 / -(-level["triples"] // 64))
    assert found.metrics["train"]["triples"] == flat.metrics["train"]["triples"] == 2400
    gains = [closeness(own.weights, own.node_ids) for own in (flat.embeddings, found.embeddings)]
    assert gains[1] > gains[0] + 0.2


def two_trainers(source: Any, options: dict[str, Any]) -> Any:
    gathered, held = OwnTriples.gathered.__func__, []  # type: ignore[attr-defined]

    def counted(cls: Any, *given: Any) -> OwnTriples:
        own: OwnTriples = gathered(cls, *given)
        held.append((len(own.triples), own.num_triples))
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnTriples, "gathered", classmethod(counted))
        parallel = {"mode": "collective", "trainers": 2, "hogwild": False, **options.pop("parallel", {})}
        found = ge.pipeline("complex", source, parallel=parallel, **options)
    return (rows_of(found), found.metrics["train"], held) if found.tables else (None, None, held)


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("kind", ["cut", "named", "read"])
def test_two_trainers_take_the_steps_of_one(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    """Levels are cut from the graph, taken from the partition that is named, or read with the parts."""
    graph, options = world(), {**RECIPE, "model.multilevel": [6, 24]}
    source: Any = graph
    folder = str(partition.build(graph, 2, levels=[6, 24], out=tmp_path / "parts", report=False).path)
    one = ge.pipeline("complex", graph if kind == "cut" else folder, **options)
    if kind == "named":
        options["parallel"] = {"partition": folder}
    elif kind == "read":
        source = folder
    (rows, metrics, held), (_, _, others) = ranks.run(two_trainers, 2, source, options)
    for name, own in rows_of(one).items():
        np.testing.assert_allclose(rows[name], own, rtol=0, atol=2e-5)
    told = [[{**level, "seconds": 0} for level in run["multilevel"]] for run in (metrics, one.metrics["train"])]
    assert told[0] == told[1]
    assert held[-1][1] == others[-1][1] == told[0][-1]["triples"]
    assert 0 < held[-1][0] < held[-1][1], "each holds its own triples of a level"


class Stop(Exception):
    """Stands in for a kill."""


def test_a_stopped_run_goes_on_without_a_second_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**RECIPE, "epochs": 4, "checkpoint": {"every": 8}, "model.multilevel": [24]}
    whole = ge.pipeline("complex", world(), out=tmp_path / "whole", **options)
    saved, original = [], PeriodicCheckpoints.save

    def save(self: Any, step: int, position: Any) -> None:
        original(self, step, position)
        saved.append(step)
        if len(saved) == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(PeriodicCheckpoints, "save", save)
        with pytest.raises(Stop):
            ge.pipeline("complex", world(), out=tmp_path / "run", **options)
    monkeypatch.setattr(multilevel, "triples_start", None)  # a call fails
    found = ge.pipeline("complex", world(), out=tmp_path / "run", resume=True, **options)
    for name, rows in rows_of(whole).items():
        np.testing.assert_array_equal(rows_of(found)[name], rows)
    assert "multilevel" not in found.metrics["train"]


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ConfigError, match="gives each entity a first row"):
        KGEConfig(model="complex", table="hash", multilevel=True)
    graph = KnowledgeGraph("one", 2, 1, {"train": np.array([[0, 0, 1]])})
    with pytest.raises(ConfigError, match=r"is made by a run \(ge.pipeline\); give first="):
        train_kge(graph, KGEConfig(model="complex", multilevel=[2]))
    few = HeteroGraph({NODE_TYPE: 4}, {(NODE_TYPE, r, NODE_TYPE): (np.arange(3), np.arange(1, 4)) for r in "ab"})
    with pytest.raises(ConfigError, match="4 nodes in 1 parts are too few"):
        ge.pipeline("complex", few, **RECIPE, **{"model.multilevel": True})
    apart = HeteroGraph({NODE_TYPE: 4}, {(NODE_TYPE, r, NODE_TYPE): (np.array([0, 2]), np.array([1, 3])) for r in "ab"})
    with pytest.raises(ConfigError, match="no triple lies between the 2 parts of a level"):
        ge.pipeline("complex", apart, **RECIPE, **{"model.multilevel": [2]})
