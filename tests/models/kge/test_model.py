from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.models.kge.all_entities import QueryBatch
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import EXCLUDED, LOSSES, Dropout, KGEModel, TripleBatch, power_sums
from graph_emb.models.kge.scorers import SCORERS, ComplEx, RotatE, TransE, score
from graph_emb.sampling.known_triples import HEAD, TAIL
from tests.models.kge.references import normal

TRIPLES = np.array([[[0, 0, 1], [2, 1, 3]], [[4, 1, 0], [4, 1, 0]]])
NEGATIVES = np.array([[3, 4, 3], [1, 0, 2]])
WEIGHTS = np.array([[1.0, 0.5], [2.0, 0.0]], np.float32)


def batch(side: int, in_batch: bool = False) -> TripleBatch:
    excluded = np.zeros((2, 2, 5 if in_batch else 3), np.bool_)
    excluded[0, 1, 0] = True
    if in_batch:
        excluded[:, [0, 1], [3, 4]] = True
    return TripleBatch(TRIPLES, WEIGHTS, 7.0, side, NEGATIVES, excluded)


def expected(model: KGEModel, side: int, in_batch: bool, config: KGEConfig) -> torch.Tensor:
    """The weighted mean loss, triple by triple, from the score alone."""
    e, r = model.entity.weight[:], model.relation.weight[:]
    total = torch.zeros(())
    for k in range(2):
        candidates = NEGATIVES[k].tolist() + (TRIPLES[k, :, 0 if side == HEAD else 2].tolist() if in_batch else [])
        for c in range(2):
            h, rel, t = TRIPLES[k, c].tolist()
            scores = []
            for n, other in enumerate(candidates):
                ends = (other, t) if side == HEAD else (h, other)
                value = score(model.scorer, e[ends[0]], r[rel], e[ends[1]])
                scores.append(torch.tensor(EXCLUDED) if batch(side, in_batch).excluded[k, c, n] else value)
            true = score(model.scorer, e[h], r[rel], e[t])
            loss = LOSSES[config.loss](true[None], torch.stack(scores)[None], config.margin, config.temperature)[0]
            rows = (e[h][None], r[rel][None], e[t][None])
            loss = (
                loss
                + config.n3 * power_sums(model.scorer, rows, 3)[0]
                + config.l2 * power_sums(model.scorer, rows, 2)[0]
            )
            total = total + float(WEIGHTS[k, c]) * loss
    return total / 7.0


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("side", [HEAD, TAIL])
@pytest.mark.parametrize("name", SCORERS)
def test_the_loss_is_the_weighted_mean_over_triples(name: str, side: int, in_batch: bool) -> None:
    config = KGEConfig(model=name, dim=4, n3=0.3, l2=0.2, in_batch=in_batch, margin=2.0, loss="self_adversarial")
    model = KGEModel(5, 2, config, seed=1)
    found = model.loss(batch(side, in_batch)).detach()
    torch.testing.assert_close(found, expected(model, side, in_batch, config), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCORERS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    config = KGEConfig(model=name, dim=4, loss="logistic", n3=0.1, margin=1.0)
    model = KGEModel(5, 2, config, seed=3)
    model.loss(batch(TAIL)).backward()
    step = 1e-2
    for table in model.tables:
        ((ids, grads),) = table.pending()
        for row in (0, 1):
            total = grads[ids == row].sum(dim=0)
            kept = table.weight[row]
            for d in range(table.embedding_dim):
                values = []
                for sign in (1, -1):
                    moved = kept.clone()
                    moved[d] += sign * step
                    table.weight[torch.tensor([row])] = moved[None]
                    values.append(float(model.loss(batch(TAIL)).detach()))
                table.weight[torch.tensor([row])] = kept[None]
                assert float(total[d]) == pytest.approx((values[0] - values[1]) / (2 * step), abs=3e-3)


def over_all(model: KGEModel, queries: list[tuple[int, int, int, list[int], float]], total: float) -> torch.Tensor:
    """Cross entropy with penalties, query by query: (side, given, relation, answers, weight)."""
    e, r, config = model.entity.weight[:], model.relation.weight[:], model.config
    loss = torch.zeros(())
    for side, given, rel, answers, weight in queries:
        row = r[rel]
        query = model.scorer.tail_query(e[given], row) if side == TAIL else model.scorer.head_query(row, e[given])
        scores = model.scorer.comparison.pairs(query[None], e)
        own = scores.logsumexp(0) - (1 - config.label_smoothing) * scores[answers].mean()
        own = own - config.label_smoothing * scores.mean()
        for answer in answers:
            rows = (e[given][None], model.scorer.read_by(side, row)[None], e[answer][None])
            own = own + config.n3 * power_sums(model.scorer, rows, 3)[0] / len(answers)
        loss = loss + weight * own
    return loss / total


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("name", SCORERS)
def test_1vsall_asks_both_sides_of_a_triple_against_all_entities(name: str, reciprocal: bool) -> None:
    config = KGEConfig(
        model=name, dim=4, n3=0.3, training="1vsall", loss="softmax", reciprocal=reciprocal, label_smoothing=0.1
    )
    model = KGEModel(5, 2, config, seed=1)
    queries = []
    for (h, r, t), weight in zip(TRIPLES.reshape(-1, 3).tolist(), WEIGHTS.ravel().tolist(), strict=True):
        queries += [(TAIL, h, r, [t], weight), (HEAD, t, r, [h], weight)]
    torch.testing.assert_close(model.loss(batch(TAIL)).detach(), over_all(model, queries, 14.0), rtol=1e-5, atol=1e-5)


def test_kvsall_shares_a_target_among_the_answers() -> None:
    config = KGEConfig(model="complex", dim=4, n3=0.3, training="kvsall", reciprocal=True, label_smoothing=0.1)
    model = KGEModel(5, 2, config, seed=1)
    starts, weights = np.array([0, 2, 3, 6]), np.array([1.0, 2.0, 0.5], np.float32)
    found = QueryBatch(
        np.array([0, 2, 1]), np.array([0, 1, 1]), 2, starts, np.array([1, 3, 4, 0, 2, 3]), weights, 3.5, 0
    )
    queries = [(TAIL, 0, 0, [1, 3], 1.0), (TAIL, 2, 1, [4], 2.0), (HEAD, 1, 1, [0, 2, 3], 0.5)]
    torch.testing.assert_close(model.loss(found).detach(), over_all(model, queries, 3.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", ["negatives", "1vsall"])
def test_n3_leaves_the_row_of_the_other_direction_alone(training: str) -> None:
    config = KGEConfig(model="complex", dim=4, n3=100.0, reciprocal=True, training=training)
    model = KGEModel(5, 2, config, seed=1)
    model.loss(batch(TAIL)).backward()
    ((_, grads),) = model.relation.pending()
    half = grads.shape[1] // 2
    assert grads[:, :half].any()
    assert bool(grads[:, half:].any()) == (training == "1vsall"), "a step of tails alone reads the first half"


def test_dropped_numbers_are_a_function_of_seed_step_and_query() -> None:
    queries, ones = np.array([[0, 1, 2], [3, 1, 2], [0, 1, 2]]), torch.ones(3, 4000)

    def draw(seed: int, step: int, side: int) -> torch.Tensor:
        return Dropout(0.25, seed).apply(step, queries, side, ones)[0]

    found, other = Dropout(0.25, 7).apply(3, queries, 0, ones, ones)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1:], Dropout(0.25, 7).apply(3, queries[1:], 0, ones[1:])[0])
    for changed in (found[1], other[0], draw(8, 3, 0)[0], draw(7, 4, 0)[0], draw(7, 3, 1)[0]):
        alike = float((changed == found[0]).float().mean())
        assert 0.58 < alike < 0.67, ".75 ** 2 + .25 ** 2 of independent draws agree"
    assert sorted(set(found.flatten().tolist())) == pytest.approx([0.0, 4 / 3])
    assert float((found == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("training", ["negatives", "1vsall"])
def test_dropout_leaves_out_numbers_of_the_query_alone(training: str) -> None:
    """With nearly all of them gone the queries are 0, and all candidates score alike."""
    config = KGEConfig(model="distmult", dim=4, training=training, n3=0.0, dropout=0.999)
    loss = float(KGEModel(5, 2, config, seed=1).loss(batch(TAIL)).detach())
    counted = [5] * 4 if training == "1vsall" else [4, 3, 4, 4]  # the true one and the negatives that are not excluded
    mean = sum(w * np.log(num) for w, num in zip(WEIGHTS.ravel().tolist(), counted, strict=True)) / 7.0
    assert loss == pytest.approx(mean, rel=1e-5)


def test_an_empty_share_still_reaches_both_tables() -> None:
    model = KGEModel(5, 2, KGEConfig(dim=4, n3=0.1))
    whole = batch(TAIL)
    empty = TripleBatch(TRIPLES[:0], WEIGHTS[:0], 7.0, TAIL, NEGATIVES[:0], whole.excluded[:0])
    loss = model.loss(empty)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(table.touched for table in model.tables)


def test_only_the_rows_of_the_batch_are_touched() -> None:
    model = KGEModel(9, 3, KGEConfig(dim=4))
    optimizer = ge.SparseAdagrad(model.tables, lr=0.1)
    before = [table.weight[:] for table in model.tables]
    model.loss(batch(TAIL)).backward()
    optimizer.step()
    moved = [(new.weight[:] != old).any(dim=1).tolist() for new, old in zip(model.tables, before, strict=True)]
    assert moved == [[True] * 5 + [False] * 4, [True, True, False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "transh"}, "unknown model 'transh'"),
        ({"loss": "hinge"}, "loss = 'hinge': should be"),
        ({"rule": "adagard"}, "did you mean 'adagrad'"),
        ({"dim": 7}, "dim = 7: rotate needs an even width"),
        ({"batch_size": 100, "chunk_size": 64}, "batch_size = 100: should be a multiple of chunk_size, which is 64"),
        ({"num_negatives": 0}, "without in_batch and chunks of 2 triples there are no negatives"),
        ({"lr": 0.0}, "lr = 0.0: should be greater than 0"),
        ({"n3": float("nan")}, "n3 = nan: should be a finite number"),
        ({"epochs": True}, "epochs = True: must be a number"),
        ({"candidates": 0}, "candidates = 0: should be greater than or equal to 1"),
        (
            {"training": "1vsall", "loss": "softmax", "num_negatives": 3},
            "num_negatives = 3 has no effect on training=1vsall",
        ),
        ({"training": "kvsall"}, "loss = 'self_adversarial': training=kvsall is cross entropy; set loss=softmax"),
        ({"training": "kvsall", "loss": "softmax", "subsampling": True}, "training=kvsall has queries, leave it out"),
        ({"training": "kvsall", "loss": "softmax", "triple_scope": "local"}, "triple_scope = .local. places triples"),
        ({"label_smoothing": 0.1}, "label_smoothing = 0.1 needs training=1vsall or kvsall"),
        ({"model": "complex", "products": "bfloat16"}, "products = 'bfloat16' needs training=1vsall or kvsall"),
        ({"training": "1vsall", "loss": "softmax", "products": "bfloat16"}, "no effect on the distances of rotate"),
        ({"lr_decay": "plateau", "valid_every": 0}, "follows validations; set valid_every"),
        ({"lr_factor": 0.5}, "lr_factor = 0.5 belongs to lr_decay=plateau"),
        ({"lr_patience": 2}, "lr_patience = 2 belongs to lr_decay=plateau"),
    ],
)
def test_values_outside_their_limits_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        KGEConfig(**options)


ROW = torch.tensor([[3.0, 4.0]])


def test_n3_counts_complex_numbers_by_their_modulus() -> None:
    assert float(power_sums(ComplEx(2), [ROW, ROW, ROW], 3)) == pytest.approx(3 * 5.0**3)


def test_n3_counts_real_numbers_one_by_one() -> None:
    assert float(power_sums(TransE(2), [ROW, -ROW, ROW], 3)) == pytest.approx(3 * (27 + 64))


def test_l2_is_the_sum_of_squares() -> None:
    assert float(power_sums(ComplEx(2), [ROW, ROW, ROW], 2)) == pytest.approx(75.0)


def test_phases_of_rotate_are_real_numbers() -> None:
    assert float(power_sums(RotatE(2), [ROW, torch.tensor([[-2.0]]), ROW], 3)) == pytest.approx(2 * 125 + 8)


POSITIVE, NEGATIVE = torch.tensor([1.0]), torch.tensor([[0.5, -2.0]])
MARGIN, ALPHA = 0.25, 0.5


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(name: str) -> float:
    bad = [-math.log(1 - sigmoid(MARGIN + s)) for s in (0.5, -2.0)]
    good = -math.log(sigmoid(MARGIN + 1.0))
    if name == "logistic":
        return good + sum(bad) / 2
    if name == "margin":
        return (max(0, 0.25 - 1.0 + 0.5) + max(0, 0.25 - 1.0 - 2.0)) / 2
    if name == "softmax":
        return -math.log(math.exp(1.0) / (math.exp(1.0) + math.exp(0.5) + math.exp(-2.0)))
    share = [math.exp(ALPHA * s) for s in (0.5, -2.0)]
    return (good + sum(w / sum(share) * b for w, b in zip(share, bad, strict=True))) / 2


@pytest.mark.parametrize("name", LOSSES)
def test_losses_by_hand(name: str) -> None:
    assert float(LOSSES[name](POSITIVE, NEGATIVE, MARGIN, ALPHA)) == pytest.approx(by_hand(name), abs=1e-6)


def test_the_margin_loss_is_not_flat() -> None:
    assert float(LOSSES["margin"](POSITIVE, torch.tensor([[3.0, 0.8]]), 0.25, 1.0)) == pytest.approx((2.25 + 0.05) / 2)


@pytest.mark.parametrize("name", LOSSES)
def test_an_excluded_negative_neither_costs_nor_learns(name: str) -> None:
    negative = torch.tensor([[0.5, EXCLUDED]], requires_grad=True)
    loss = LOSSES[name](POSITIVE, negative, MARGIN, ALPHA)
    loss.sum().backward()
    alone = LOSSES[name](POSITIVE, torch.tensor([[0.5]]), MARGIN, ALPHA)
    counted_by_mean = 0.5 if name in ("logistic", "margin") else 1.0
    good = float(torch.nn.functional.softplus(-(MARGIN + POSITIVE))) if name == "logistic" else 0.0
    assert float(loss.detach()) == pytest.approx(good + counted_by_mean * (float(alone) - good), abs=1e-6)
    assert negative.grad is not None
    assert torch.isfinite(negative.grad).all()
    assert float(negative.grad[0, 1]) == 0.0


def test_self_adversarial_weights_get_no_gradient() -> None:
    positive, negative = normal(3), normal(3, 4, seed=1).requires_grad_()
    LOSSES["self_adversarial"](positive, negative, 1.0, 2.0).sum().backward()
    weights = (2.0 * negative.detach()).softmax(dim=1)
    assert negative.grad is not None
    torch.testing.assert_close(negative.grad, weights * (1.0 + negative.detach()).sigmoid() / 2)
