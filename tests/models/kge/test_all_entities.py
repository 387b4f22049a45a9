from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.models.kge import all_entities
from graph_emb.models.kge.all_entities import QueryBatch, cross_entropy
from graph_emb.models.kge.comparisons import DOT, L1, L2, MODULUS, Comparison
from tests.models.kge.references import normal

COMPARISONS = {"dot": DOT, "l1": L1, "l2": L2, "modulus": MODULUS}
COUNTS = np.array([1, 3, 1, 2, 1, 1, 2])
ANSWERS = np.array([4, 0, 5, 8, 4, 1, 2, 8, 0, 3, 7])


def batch(num: int = len(COUNTS)) -> QueryBatch:
    starts = np.concatenate([[0], np.cumsum(COUNTS[:num])])
    weights = np.array([1.0, 0.5, 2.0, 1.0, 0.0, 1.5, 1.0], np.float32)[:num]
    return QueryBatch(np.arange(num), np.zeros(num, int), num, starts, ANSWERS[: starts[-1]], weights, 9.0, 0)


def dense(queries: Any, entities: Any, comparison: Comparison, smoothing: float, num: int) -> torch.Tensor:
    """The whole matrix of scores, by torch's own cross entropy with a distribution as target."""
    scores = comparison.pairs(queries[:, None], entities[None])
    targets = torch.full_like(scores, smoothing / len(entities))
    asked = np.repeat(np.arange(num), COUNTS[:num])
    own = batch(num)
    targets[torch.from_numpy(asked), torch.from_numpy(own.answers)] += torch.from_numpy(
        (1 - smoothing) / COUNTS[asked].astype(np.float64)
    )
    losses = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    return (losses * torch.from_numpy(own.weights).double()).sum() / own.total_weight


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("held", [1 << 20, 30, 6], ids=["one block", "blocks of queries", "blocks of both"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_value_and_gradients_are_those_of_the_whole_matrix(
    name: str, held: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_entities, "SCORES", held)
    monkeypatch.setattr(all_entities, "LEAST_QUERIES", 2)
    found, wanted = [], []
    for kept, function in ((found, cross_entropy), (wanted, dense)):
        queries, entities = normal(7, 6).requires_grad_(), normal(9, 6, seed=1).requires_grad_()
        if function is cross_entropy:
            loss = cross_entropy(queries, entities, batch(), COMPARISONS[name], smoothing)
        else:
            loss = dense(queries, entities, COMPARISONS[name], smoothing, 7)
        (3 * loss).backward()
        kept += [loss.detach(), queries.grad, entities.grad]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("held", [1 << 20, 6])
@pytest.mark.parametrize("name", COMPARISONS)
def test_float32_takes_the_compiled_comparisons(name: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_entities, "SCORES", held)
    monkeypatch.setattr(all_entities, "LEAST_QUERIES", 2)
    grads = []
    for dtype in (torch.float32, torch.float64):
        queries, entities = normal(7, 6).to(dtype).requires_grad_(), normal(9, 6, seed=1).to(dtype).requires_grad_()
        cross_entropy(queries, entities, batch(), COMPARISONS[name], 0.1).backward()
        grads.append((queries.grad, entities.grad))
    for single, double in zip(*grads, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)


def test_no_more_scores_are_held_than_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_entities, "SCORES", 12)
    monkeypatch.setattr(all_entities, "LEAST_QUERIES", 3)
    sizes = []

    class Watched(type(DOT)):  # type: ignore[misc]
        def chunks(self, queries: torch.Tensor, entities: torch.Tensor) -> torch.Tensor:
            scores = super().chunks(queries, entities)
            sizes.append(tuple(scores.shape[1:]))
            return scores

    cross_entropy(normal(7, 6).requires_grad_(), normal(9, 6), batch(), Watched(), 0.0).backward()
    assert max(q * e for q, e in sizes) <= 12
    assert sum(q * e for q, e in sizes) == 2 * 7 * 9, "made twice, as they do not stay"


def test_large_scores_do_not_overflow() -> None:
    queries = (100.0 * normal(7, 6).float()).requires_grad_()
    loss = cross_entropy(queries, 100.0 * normal(9, 6, seed=1).float(), batch(), DOT)
    loss.backward()
    assert torch.isfinite(loss.detach())
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()


def test_rounded_products_give_nearly_the_same_step_and_leave_other_products_alone() -> None:
    seen: list[str] = []

    class Watched(type(DOT)):  # type: ignore[misc]
        def chunks(self, queries: torch.Tensor, entities: torch.Tensor) -> torch.Tensor:
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
            return super().chunks(queries, entities)

    before, found = torch.backends.mkldnn.matmul.fp32_precision, []
    for rounded in (False, True):
        queries, entities = normal(7, 64).float().requires_grad_(), normal(9, 64, seed=1).float().requires_grad_()
        cross_entropy(queries, entities, batch(), Watched(), 0.1, bfloat16=rounded).backward()
        assert torch.backends.mkldnn.matmul.fp32_precision == before
        found.append((queries.grad, entities.grad))
    assert seen == [before, "bf16"]
    for plain, close in zip(*found, strict=True):
        torch.testing.assert_close(close, plain, rtol=0.1, atol=0.02)


def test_no_queries_cost_nothing() -> None:
    entities = normal(9, 6).requires_grad_()
    loss = cross_entropy(normal(0, 6), entities, batch(0), DOT, 0.1)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert entities.grad is not None
    assert not entities.grad.any()


def test_a_triple_asks_for_both_of_its_ends() -> None:
    triples = np.array([[1, 0, 2], [3, 1, 4]])
    found = QueryBatch.of_triples(triples, np.array([1.0, 0.5], np.float32), 1.5, 7)
    asked = [found.given, found.relations, found.answers, found.weights, found.starts]
    assert [values.tolist() for values in asked] == [
        [1, 3, 2, 4], [0, 1, 0, 1], [2, 4, 1, 3], [1.0, 0.5, 1.0, 0.5], [0, 1, 2, 3, 4],
    ]  # fmt: skip
    assert (found.num_tails, found.total_weight, found.step) == (2, 3.0, 7)
