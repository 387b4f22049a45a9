"""Matrix factorisation: rows that learn with the predictor."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb import ConfigError
from graph_emb.embedding import DistEmbedding
from graph_emb.models.links.matrix_factorization import (
    LearningRows,
    MatrixFactorizationConfig,
    train_matrix_factorization,
)
from graph_emb.optimizer import SparseAdam, SparseSGD
from graph_emb.table.initializers import Normal
from tests.models.links.test_training import SMALL, two_groups


def test_rows_come_once_and_pairs_point_at_them() -> None:
    embedding = DistEmbedding(6, 3, init_func=Normal(seed=1))
    rows, local = LearningRows(embedding, SparseSGD([embedding], lr=1.0)).gather(torch.tensor([[5, 1], [1, 4]]))
    assert rows.shape == (3, 3)
    assert torch.equal(rows[local].detach(), embedding.weight[torch.tensor([[5, 1], [1, 4]]).flatten()].view(2, 2, 3))


def test_a_step_adds_up_the_chunks_and_leaves_other_rows() -> None:
    embedding = DistEmbedding(4, 2)
    source = LearningRows(embedding, SparseSGD([embedding], lr=0.5))
    rows, local = source.gather(torch.tensor([[0, 2], [2, 3]]))
    for pair in local:  # two chunks: node 2 is in both
        rows[pair].sum().backward()
    source.step(rows.grad)
    expected = torch.tensor([[-0.5, -0.5], [0.0, 0.0], [-1.0, -1.0], [-0.5, -0.5]])
    assert torch.equal(embedding.weight[torch.arange(4)], expected)


def test_steps_that_touch_every_row_equal_ogbs_dense_adam() -> None:
    embedding = DistEmbedding(5, 3, init_func=Normal(seed=2))
    dense = torch.nn.Parameter(embedding.weight[torch.arange(5)].clone())
    oracle = torch.optim.Adam([dense], lr=0.01)
    source = LearningRows(embedding, SparseAdam([embedding], lr=0.01))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        pairs = torch.cat([torch.randint(5, (7, 2), generator=generator), torch.tensor([[0, 1], [2, 3], [4, 0]])])
        target = torch.randn(10, generator=generator)
        rows, local = source.gather(pairs)
        ((rows[local[:, 0]] * rows[local[:, 1]]).sum(1) - target).square().sum().backward()
        source.step(rows.grad)
        oracle.zero_grad()
        ((dense[pairs[:, 0]] * dense[pairs[:, 1]]).sum(1) - target).square().sum().backward()
        oracle.step()
    assert torch.allclose(embedding.weight[torch.arange(5)], dense.detach(), atol=2e-6)


def test_it_learns_groups_from_edges_alone() -> None:
    _, split = two_groups()
    config = MatrixFactorizationConfig(dim=16, std=0.3, lr=0.05)
    recipe = SMALL.replace(batch_size=400, epochs=30, eval_every=10)
    embedding, result = train_matrix_factorization(split, 60, config, recipe)
    assert embedding.weight.shape == (60, 16)
    assert result.history[0].valid["hits@20"] < 0.5
    assert result.best("hits@20").valid["hits@20"] > 0.85
    assert result.num_parameters == 60 * 16 + result.predictor.num_parameters


def test_the_seed_decides_the_rows_too() -> None:
    _, split = two_groups()
    short = SMALL.replace(epochs=2)
    config = MatrixFactorizationConfig(dim=4)
    tables = [train_matrix_factorization(split, 60, config, short, seed=s)[0] for s in (0, 0, 1)]
    weights = [table.weight[torch.arange(60)] for table in tables]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_every_schedule_makes_other_rows_and_another_predictor() -> None:
    _, split = two_groups()
    short = SMALL.replace(epochs=4, eval_every=1, batch_size=100)
    schedules = [{}, {"lr_decay": "linear"}, {"lr_decay": "cosine"}, {"warmup": 0.5}, {"lr_decay": "plateau"}]
    found = []
    for schedule in schedules:
        config = MatrixFactorizationConfig(dim=4, lr=0.1, **schedule)
        embedding, result = train_matrix_factorization(split, 60, config, short)
        found.append((embedding.weight[torch.arange(60)], next(result.predictor.parameters()).detach()))
    for one, other in itertools.combinations(found, 2):
        assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other, strict=True))


NODES = 900


def trained(placement: Any, batch_size: int, **recipe: Any) -> tuple[DistEmbedding, Any]:
    """A training on random edges, most of whose batches are far from touching each row."""
    rng = np.random.default_rng(0)
    split: dict[str, Any] = {
        "train": {"edge": rng.integers(0, NODES, (200, 2))},
        "valid": {"edge": rng.integers(0, NODES, (50, 2)), "edge_neg": rng.integers(0, NODES, (500, 2))},
        "test": {"edge": rng.integers(0, NODES, (50, 2)), "target_node_neg": rng.integers(0, NODES, (50, 20))},
    }
    config = MatrixFactorizationConfig(dim=256, std=0.3, lr=0.05, rule="adagrad")
    sizes = SMALL.replace(batch_size=batch_size, epochs=2, eval_every=1, **recipe)
    return train_matrix_factorization(split, NODES, config, sizes, placement=placement)


@pytest.mark.parametrize("policy", ["lru", "lfu", "lookahead"])
@pytest.mark.parametrize(
    ("batch_size", "recipe"),
    [
        pytest.param(4, {"negatives": "by_degree", "num_negatives": 2}, id="batches that memory holds"),
        pytest.param(200, {}, id="batches that it does not"),
    ],
)
def test_rows_in_a_file_are_those_of_a_training_in_memory(
    batch_size: int, recipe: dict[str, Any], policy: Any, tmp_path: Path, local_mode: None
) -> None:
    found = [trained(place, batch_size, **recipe) for place in ("host", ge.File(tmp_path, "300KiB", policy))]
    (host, expected), (table, result) = found
    assert torch.equal(host.weight[torch.arange(NODES)], table.weight[torch.arange(NODES)])
    assert [line.as_dict() for line in result.history] == [line.as_dict() for line in expected.history]
    for own, theirs in zip(result.predictor.parameters(), expected.predictor.parameters(), strict=True):
        assert torch.equal(own, theirs)
    stats, frames = table.cache_stats(), table.shard._pages.frames  # type: ignore[attr-defined]
    assert stats.dirty_writes > 0
    assert not frames.announced
    assert frames.num_pinned == 0
    if batch_size == 4:
        assert stats.prefetched > 5 * stats.prefetched_unused, "a batch asks for the rows that it announced"


@pytest.mark.parametrize("change", [{"dim": 0}, {"std": -1.0}, {"lr": float("inf")}])
def test_bad_options_are_named(change: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        MatrixFactorizationConfig(**change)
