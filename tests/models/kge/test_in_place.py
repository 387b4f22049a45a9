"""Ranks that share rows take whole steps of a knowledge graph in turn, each on its own: one run's steps, once each."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge import training
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.training import train_kge
from tests.models.kge.references import ring
from tests.models.kge.test_training import FLOORS, umls_config
from tests.ranks import Ranks, with_shared_memory

pytestmark = [pytest.mark.dist, with_shared_memory]

TINY = KGEConfig(
    model="transe", dim=8, num_negatives=4, chunk_size=2, batch_size=2, epochs=3, valid_every=3, rule="adam", lr=0.05,
)  # fmt: skip
STEPS = 11
"""Of an epoch: 21 triples in steps of 2."""


def observed(
    config: KGEConfig, place: str | None = None, resume: bool = False, mode: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What this rank did in a training on the ring: number, weight and rate of each step, and the clocks at its end."""
    steps: list[tuple[int, float, float, float]] = []
    loss = KGEModel.loss
    seen: list[Any] = []
    sent: list[int] = []

    def noted(self: KGEModel, batch: Any) -> Any:
        rate = seen[0].optimizer.param_groups[0]["lr"]
        steps.append((batch.step, float(batch.weights.sum()), batch.total_weight, rate))
        sent.append(transport.traffic.bytes_sent)
        return loss(self, batch)

    class Observed(training._KGETraining):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            seen.append(self)

    transport = ge.init(**(mode or {"mode": "collective", "timeout": 60, "hogwild": True}))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KGEModel, "loss", noted)
            patch.setattr(training, "_KGETraining", Observed)
            patch.setattr(training, "VOTE_STEPS", 2)
            checkpoints = None if place is None else PeriodicCheckpoints(place, 1, keep_last=99, resume=resume)
            result = train_kge(ring(), config, seed=3, num_threads=1, checkpoints=checkpoints)
        tables = result.model.tables
        clocks = [int(table.shard.state["step"]) for table in tables if "step" in table.shard.state]
        return {"steps": steps, "clocks": clocks, "rows": result.entities, "sent": sent[-1]}
    finally:
        ge.shutdown()


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    ge.shutdown()
    return observed(TINY, mode={"mode": "local"})


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_step_of_one_process_is_taken_whole_by_one_rank(
    ranks: Ranks, alone: dict[str, Any], world_size: int
) -> None:
    """Its triples, their weight and the learning rate are those of one process, and nothing travels."""
    found = ranks.run(observed, world_size, TINY)
    assert sorted(itertools.chain(*(one["steps"] for one in found))) == alone["steps"]
    assert [number for number, *_ in alone["steps"]] == list(range(3 * STEPS))
    for rank, one in enumerate(found):
        assert {number % world_size for number, *_ in one["steps"]} == {rank}
        assert all(weight == total for _, weight, total, _ in one["steps"])
        assert one["sent"] == 0
        assert all(3 * STEPS <= clock < 3 * STEPS + world_size for clock in one["clocks"]), "Adam counts all steps"
    assert found[0]["rows"].isfinite().all()


def test_a_run_goes_on_in_the_middle_of_an_epoch(ranks: Ranks, tmp_path: Path, alone: dict[str, Any]) -> None:
    """Ranks stand together after every second step of each, and no step is left out or taken twice."""
    ranks.run(observed, 2, TINY, str(tmp_path))
    saved = sorted(int(entry.name) for entry in tmp_path.iterdir() if entry.name.isdigit())
    assert saved == [4, 8, 11, 15, 19, 22, 26, 30, 33]
    for step in saved[4:]:
        shutil.rmtree(tmp_path / str(step))
    found = ranks.run(observed, 2, TINY, str(tmp_path), True)
    assert sorted(itertools.chain(*(one["steps"] for one in found))) == alone["steps"][15:]
    assert all(33 <= clock < 35 for one in found for clock in one["clocks"])


def test_a_run_goes_on_with_another_number_of_ranks(ranks: Ranks, tmp_path: Path, alone: dict[str, Any]) -> None:
    ranks.run(observed, 2, TINY, str(tmp_path))
    for step in (22, 26, 30, 33):
        shutil.rmtree(tmp_path / str(step))
    ge.shutdown()
    again = observed(TINY, str(tmp_path), True, mode={"mode": "local"})
    assert again["steps"] == alone["steps"][19:]


def scores(graph: KnowledgeGraph, config: KGEConfig) -> float | None:
    """The last validation of a training on shared rows."""
    ge.init(mode="collective", timeout=60, hogwild=True)
    try:
        return train_kge(graph, config, num_threads=1).history[-1].valid_mrr
    finally:
        ge.shutdown()


@pytest.mark.data
@pytest.mark.parametrize(
    ("model", "options"),
    [("transe", {}), ("complex", {}), ("complex", {"training": "1vsall", "num_negatives": 512, "chunk_size": 512})],
)
def test_umls_is_learnt_on_shared_rows(
    ranks: Ranks, shared_data: Path, model: str, options: dict[str, Any], local_mode: None
) -> None:
    """Within the spread of seeds; rows of one rank alone, or steps at twice the rate, would be far from it."""
    graph = knowledge_graph(load_dataset("umls", shared_data))
    config = umls_config(model).replace(valid_triples=0, valid_every=8, **options)
    expected = train_kge(graph, config, num_threads=1).history[-1].valid_mrr
    assert expected is not None
    found = ranks.run(scores, 2, graph, config)[0]
    assert found > FLOORS[model]
    assert found == pytest.approx(expected, abs=0.05)


def test_lazy_decay_and_buckets_need_all_ranks_in_a_step(ranks: Ranks) -> None:
    lazy = TINY.replace(weight_decay=0.1, weight_decay_mode="lazy")
    buckets = TINY.replace(buckets=2)
    for config, message in ((lazy, "lazy weight decay needs every trainer in every step"), (buckets, "take turns")):
        assert all(message in text for text in ranks.run(refused, 2, config))


def refused(config: KGEConfig) -> str:
    try:
        observed(config)
    except ge.ConfigError as error:
        return str(error)
    return ""
