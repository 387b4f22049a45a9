"""Entities whose rows are composed of shared ones: the steps of a dense reference, in any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel, triple_loss
from graph_emb.models.kge.training import KGEResult, train_kge
from partition.partitioned import PartPolicy
from tests.models.kge.references import ring
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

ENTITIES = np.arange(12)
LEVELS = np.stack([ENTITIES // 6, ENTITIES // 2], axis=1)
KINDS = ("position-hash", "position", "hash", "quotient-remainder")
RULES = {"sgd": 0.5, "adagrad": 0.1}


def config_of(kind: str, **options: Any) -> KGEConfig:
    buckets = {} if kind == "position" else {"num_buckets": 5}
    given: dict[str, Any] = {
        "dim": 8, "num_negatives": 4, "chunk_size": 2, "batch_size": 8, "epochs": 3, "valid_every": 0, "n3": 0.01,
        "loss": "softmax", "rule": "adagrad", "lr_decay": "none", "table": kind, **buckets, **options,
    }  # fmt: skip
    return KGEConfig(model="complex", **given)


def levels_of(kind: str) -> np.ndarray | None:
    return LEVELS if kind.startswith("position") else None


def dense(kind: str, entity: ComposedEmbedding, tables: list[Tensor]) -> Tensor:
    """All rows (12, D) by the formulas, from whole tables in the order of ``entity.tables``."""
    if kind == "quotient-remainder":
        return tables[0][ENTITIES // 5] + tables[1][ENTITIES % 5]
    total: Any = 0.0
    if kind.startswith("position"):
        total = tables[0][ENTITIES // 6] + tables[1][ENTITIES // 2]
    if kind.endswith("hash"):
        buckets = tables[-2][entity.buckets_of(torch.from_numpy(ENTITIES))]
        total = total + ((1 + tables[-1]).unsqueeze(2) * buckets).sum(dim=1)
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_a_dense_reference(kind: str, rule: str) -> None:
    config = config_of(kind, rule=rule, lr=RULES[rule])
    result = train_kge(ring(), config, seed=3, levels=levels_of(kind), num_threads=1)
    model = KGEModel(12, 2, config, seed=3, levels=levels_of(kind))
    entity = model.entity
    assert isinstance(entity, ComposedEmbedding)
    leaves = [table.weight[:].double().requires_grad_() for table in expanded(model.tables)]
    sums = [torch.zeros_like(leaf) for leaf in leaves]
    batches = Batches(ring(), config, 3, 0, 1, True)
    for epoch in range(3):
        for _, batch in batches.epoch(epoch, 0):
            rows = dense(kind, entity, leaves[:-1])[batch.entities()]
            relation = leaves[-1][torch.from_numpy(batch.triples).view(-1, 3)[:, 1]]
            grads = torch.autograd.grad(triple_loss(model.scorer, config, batch, rows, relation), leaves)
            with torch.no_grad():
                for leaf, grad, total in zip(leaves, grads, sums, strict=True):
                    total += grad**2
                    leaf -= RULES[rule] * (grad if rule == "sgd" else grad / (total.sqrt() + 1e-10))
    trained = expanded(result.model.tables)
    for table, leaf in zip(trained, leaves, strict=True):
        torch.testing.assert_close(table.weight[:].double(), leaf.detach(), rtol=1e-3, atol=1e-4)
    assert result.entities is not None
    torch.testing.assert_close(
        result.entities.double(), dense(kind, entity, leaves[:-1]).detach(), rtol=1e-3, atol=1e-4
    )
    assert result.model.num_parameters == sum(leaf.numel() for leaf in leaves)


POLICY = PartPolicy("node~entity", RangeBook([0, 5, 12]), ArrayIds(np.roll(ENTITIES, 5), 12))


def collective(config: KGEConfig, policy: Any, folder: str | None) -> Any:
    ge.init(mode="collective")
    try:
        checkpoints = None if folder is None else PeriodicCheckpoints(Path(folder), 1, resume=True)
        options: dict[str, Any] = {"part_policy": policy, "checkpoints": checkpoints}
        return train_kge(ring(), config, seed=3, levels=LEVELS, num_threads=1, **options).entities
    finally:
        ge.shutdown()


def alone(config: KGEConfig, **options: Any) -> KGEResult:
    return train_kge(ring(), config, seed=3, levels=LEVELS, num_threads=1, **options)


@pytest.mark.dist
def test_two_ranks_take_the_steps_of_one_wherever_entities_lie(ranks: Ranks) -> None:
    config = config_of("position-hash")
    wanted = alone(config).entities
    for policy in (None, POLICY):
        entities, other = ranks.run(collective, 2, config, policy, None)
        torch.testing.assert_close(entities, wanted, rtol=1e-4, atol=1e-5)
        assert other is None


@pytest.mark.dist
def test_a_training_stops_in_one_process_and_ends_in_two(ranks: Ranks, tmp_path: Path) -> None:
    config, whole = config_of("position-hash", valid_every=2), alone(config_of("position-hash", valid_every=2))
    ge.shutdown()

    class Stopping(PeriodicCheckpoints):
        def after(self, at: int, position: Any) -> bool:
            saved = super().after(at, position)
            if at == 4:
                raise ConnectionError("the machine went away")
            return saved

    with pytest.raises(ConnectionError):
        alone(config, checkpoints=Stopping(tmp_path, 1))
    ge.shutdown()
    entities, _ = ranks.run(collective, 2, config, None, str(tmp_path))
    torch.testing.assert_close(entities, whole.entities, rtol=1e-4, atol=1e-5)
    resumed = alone(config, checkpoints=PeriodicCheckpoints(tmp_path, 1, resume=True))
    torch.testing.assert_close(resumed.entities, whole.entities, rtol=1e-4, atol=1e-5)


def test_the_seed_chooses_buckets() -> None:
    kept = [KGEModel(12, 2, config_of("hash"), seed=seed).entity for seed in (3, 4)]
    one, other = (emb.buckets_of(torch.from_numpy(ENTITIES)) for emb in kept if isinstance(emb, ComposedEmbedding))
    assert not torch.equal(one, other)


def test_a_loss_over_all_entities_takes_composed_rows() -> None:
    config = KGEConfig(
        model="complex", dim=8, training="1vsall", batch_size=8, epochs=15, valid_every=0, rule="adagrad", lr=0.3,
        loss="softmax", table="position-hash", num_buckets=5,
    )  # fmt: skip
    losses = [line.loss for line in alone(config).history]
    assert losses[-1] < 0.7 * losses[0]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ge.ConfigError, match="table='position' needs the levels of entities: pass levels="):
        train_kge(ring(), config_of("position"))
    with pytest.raises(ge.ConfigError, match="levels have no effect on table='hash'; leave them out"):
        train_kge(ring(), config_of("hash"), levels=LEVELS)
    with pytest.raises(ge.ShapeError, match=r"levels of entities have shape \(11, 2\); give a row for each of the 12"):
        train_kge(ring(), config_of("position"), levels=LEVELS[1:])
    with pytest.raises(ge.ConfigError, match="keeps few rows, in memory; leave out the file"):
        train_kge(ring(), config_of("hash"), placement=ge.File(str(tmp_path), memory="1MiB"))
    with pytest.raises(ValueError, match=r"levels = \(4,\) has no effect on table = 'full'"):
        KGEConfig(model="complex", levels=(4,))
