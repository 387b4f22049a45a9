from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from graph_emb.compat.ogb import evaluator
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate import link_split
from graph_emb.evaluate.link_prediction import HITS_AT, evaluate_link, hits, mrr, ogb_metrics, roc_auc
from graph_emb.evaluate.ranks import TiesWarning


def scores(shape: tuple[int, ...], seed: int, levels: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if levels:
        return torch.randint(0, levels, shape, generator=generator).float()
    return torch.randn(shape, generator=generator)


def test_hits_by_hand_with_a_tie_at_the_kth_negative() -> None:
    negative = torch.tensor([0.9, 0.7, 0.7, 0.1])
    positive = torch.tensor([1.0, 0.8, 0.7, 0.2])
    # K-th best negatives: 0.9, 0.7, 0.7; only what is strictly above counts.
    assert hits(positive, negative, (1,)) == {1: 0.25}
    with pytest.warns(TiesWarning, match=r"hits@3: ties decide 25\.0 points"):
        assert hits(positive, negative, (1, 3)) == {1: 0.25, 3: 0.5}


def test_hits_with_fewer_than_k_negatives_is_one_as_in_ogb() -> None:
    assert hits(torch.tensor([0.0]), torch.tensor([1.0, 2.0]), (2, 3)) == {2: 0.0, 3: 1.0}


@pytest.mark.parametrize("levels", [0, 30])
def test_hits_equal_ogbs_evaluator(levels: int) -> None:
    positive, negative = scores((200,), 0, levels), scores((150,), 1, levels)
    judge = evaluator("ogbl-ddi")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        ours = hits(positive, negative)
    assert len(ours) == len(HITS_AT)
    for k, value in ours.items():
        judge.K = k
        theirs = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})[f"hits@{k}"]
        assert value == pytest.approx(theirs, rel=1e-12)
        assert 0 < value < 1


@pytest.mark.parametrize("levels", [0, 30])
def test_mrr_equals_ogbs_evaluator(levels: int) -> None:
    positive, negative = scores((50,), 0, levels), scores((50, 40), 1, levels)
    theirs = evaluator("ogbl-citation2").eval({"y_pred_pos": positive, "y_pred_neg": negative})["mrr_list"].mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        assert mrr(positive, negative) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("levels", [0, 6])
def test_auc_equals_scikit_learn(levels: int) -> None:
    positive, negative = scores((50,), 0, levels), scores((70,), 1, levels)
    truth = np.arange(120) < 50
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TiesWarning)
        ours = roc_auc(positive, negative)
    assert ours == pytest.approx(roc_auc_score(truth, torch.cat([positive, negative]).numpy()))


@pytest.mark.parametrize(
    ("judge", "value"), [(lambda p, n: hits(p, n, (10,)), {10: 0.0}), (mrr, 1 / 26), (roc_auc, 0.5)]
)
def test_a_collapsed_model_warns(judge: Callable[[torch.Tensor, torch.Tensor], object], value: object) -> None:
    with pytest.warns(TiesWarning, match="the scores have collapsed or are saturated"):
        assert judge(torch.ones(5), torch.ones(50)) == pytest.approx(value)


def test_ogb_metrics_are_the_evaluators_at_every_k() -> None:
    positive, negative = scores((200,), 0), scores((150,), 1)
    assert ogb_metrics("ogbl-ddi", positive, negative).keys() == {"hits@20"}
    by_k = ogb_metrics("ogbl-ddi", positive, negative, HITS_AT)
    assert by_k == {f"hits@{k}": value for k, value in hits(positive, negative).items()}


def test_ogb_metrics_take_numpy_where_ogbs_mrr_fails_on_it() -> None:
    positive, negative = scores((50,), 0), scores((50, 40), 1)
    found = ogb_metrics("ogbl-citation2", positive.numpy(), negative.numpy())
    assert found.keys() == {"hits@1", "hits@3", "hits@10", "mrr"}
    assert found["mrr"] == pytest.approx(mrr(positive, negative), rel=1e-6)
    assert found["hits@10"] == pytest.approx(hits(positive, negative, (10,))[10])


def test_ogb_metrics_of_an_auc_data_set() -> None:
    positive, negative = scores((50,), 0), scores((70,), 1)
    assert ogb_metrics("ogbl-vessel", positive, negative) == {"rocauc": pytest.approx(roc_auc(positive, negative))}
    with pytest.raises(ConfigError, match="judged by rocauc, not by Hits@K"):
        ogb_metrics("ogbl-vessel", positive, negative, (10,))


def test_ogb_metrics_refuse_what_ogb_would_misjudge() -> None:
    with pytest.raises(DataError, match="1 of 1 positive scores are NaN"):
        ogb_metrics("ogbl-ddi", torch.tensor([math.nan]), torch.ones(30))
    with pytest.raises(ShapeError, match="bfloat16"):
        ogb_metrics("ogbl-ddi", torch.ones(3), torch.ones(30).bfloat16())
    with pytest.raises(ShapeError, match="of 2 dimensions"):
        ogb_metrics("ogbl-citation2", torch.ones(3), torch.ones(30))


# Two clusters: nodes 0, 1, 2 point one way, 3, 4, 5 the other; node 2 is short, node 5 long.
ROWS = np.float32([[1, 0.1], [1, 0.2], [0.1, 0.0], [0.1, 1], [0.2, 1], [0, 9]])
SPLIT = {
    "train": {"edge": np.array([[0, 1], [3, 4], [4, 5], [1, 2]])},
    "valid": {"edge": np.array([[0, 2]]), "edge_neg": np.array([[0, 3], [1, 5]])},
    "test": {"edge": np.array([[3, 5], [0, 2]]), "edge_neg": np.array([[0, 5], [1, 3], [2, 4]])},
}


def test_dot_products_of_embeddings_by_hand() -> None:
    found = evaluate_link(ROWS, SPLIT, ("hits@1", "hits@2", "mrr", "auc"), scorer="dot")
    # Test edges 9.0, 0.1; non-edges 0.9, 0.3, 0.02: ranks 1 and 3.
    assert found.value("test", "hits@1") == 0.5
    assert found.value("test", "hits@2") == 0.5
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 3) / 2)
    assert found.value("test", "auc") == pytest.approx(4 / 6)
    # The valid edge has 0.1; non-edges 0.2 and 1.8.
    assert found.value("valid", "mrr") == pytest.approx(1 / 3)
    assert found.num_pairs == {"valid": (1, 2), "test": (2, 3)}


def test_cosine_ignores_the_length_that_misleads_the_product() -> None:
    assert evaluate_link(ROWS, SPLIT, ("auc",), scorer="cosine").value("test", "auc") == 1.0
    assert evaluate_link(ROWS, SPLIT, ("auc",), scorer="dot").value("test", "auc") < 1.0


def test_every_positive_may_have_its_own_negatives() -> None:
    negatives = np.array([[[0, 3], [0, 4]], [[5, 3], [5, 4]]])  # for edge (3, 5) tiny ones; for (0, 2) huge ones
    split = {"test": {"edge": SPLIT["test"]["edge"], "edge_neg": negatives}}
    found = evaluate_link(ROWS, split, ("mrr",), "dot", parts=("test",))
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 3) / 2)


@pytest.mark.parametrize("at_once", [1 << 20, 1])
def test_every_source_may_have_its_own_wrong_targets(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """ogbl-citation2 brings these: it was trained on, and then could not be judged."""
    monkeypatch.setattr(link_split, "PAIRS_AT_ONCE", at_once)
    # Edge (3, 5) has 9.0, its wrong targets 0.2, 0.3 and 0.01; edge (0, 2) has 0.1, its own 0.9, 0.2 and 0.3.
    targets = np.array([[0, 1, 2], [5, 3, 4]])
    split = {"test": {"edge": SPLIT["test"]["edge"], "target_node_neg": targets}}
    found = evaluate_link(ROWS, split, ("mrr", "hits@1"), "dot", parts=("test",))
    assert found.value("test", "mrr") == pytest.approx((1 + 1 / 4) / 2)
    assert found.value("test", "hits@1") == 0.5
    assert found.num_pairs == {"test": (2, 3)}


def test_wrong_targets_that_do_not_fit_are_named() -> None:
    edge = SPLIT["test"]["edge"]
    with pytest.raises(ShapeError, match=r"test target_node_neg has shape \(1, 2\); give \(2, M\)"):
        evaluate_link(ROWS, {"test": {"edge": edge, "target_node_neg": np.array([[0, 1]])}}, parts=("test",))
    with pytest.raises(DataError, match=r"test 'target_node_neg' names node 6, outside \[0, 6\)"):
        evaluate_link(ROWS, {"test": {"edge": edge, "target_node_neg": np.array([[0], [6]])}}, parts=("test",))


def test_16_bit_embeddings_are_scored_in_float32() -> None:
    table = torch.tensor([[1.0, 1 / 256], [1.0, 1.0], [1.0, 0.0]]).bfloat16()
    split = {"test": {"edge": np.array([[0, 1]]), "edge_neg": np.array([[2, 1]])}}
    # 1 + 1/256 against 1: bfloat16 sums would tie.
    assert evaluate_link(table, split, ("hits@1",), "dot", parts=("test",)).value("test", "hits@1") == 1.0


def test_a_table_of_equal_rows_warns_for_each_metric() -> None:
    with pytest.warns(TiesWarning) as caught:
        found = evaluate_link(np.ones((6, 2), dtype=np.float32), SPLIT, ("hits@2", "auc"), parts=("test",))
    assert [str(w.message).split(":")[0] for w in caught] == ["test hits@2", "test auc"]
    assert found.parts["test"]["hits@2"] == (0.0, 1.0, 0.0)  # ranks 1, 2.5 and 4
    assert found.value("test", "hits@2") == 0.0


def test_the_result_prints_and_serialises() -> None:
    found = evaluate_link(ROWS, SPLIT, ("hits@1",), "dot", parts=("test",))
    record = json.loads(json.dumps(found.as_dict()))
    assert record["parts"]["test"]["metrics"]["hits@1"]["value"] == 0.5
    assert record["parts"]["test"]["num_negatives"] == 3
    assert "hits@1" in str(found)
    assert "0.5000" in str(found)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"metrics": ("hit@5",)}, ConfigError, "unknown metric 'hit@5'"),
        ({"metrics": ("hits@0",)}, ConfigError, "unknown metric 'hits@0'"),
        ({"scorer": "dott"}, ConfigError, r"unknown scorer 'dott'.*did you mean 'dot'"),
        ({"parts": ("tset",)}, DataError, "no tset 'edge'; known parts: train, valid, test"),
        ({"embeddings": np.full((6, 2), np.nan, dtype=np.float32)}, DataError, "row 0 is not finite"),
        ({"embeddings": ROWS[:5]}, DataError, r"valid 'edge_neg' names node 5, outside \[0, 5\)"),
        ({"embeddings": ROWS[0]}, ShapeError, r"shape \(2,\)"),
        ({"embeddings": np.ones((6, 2), dtype=np.int64)}, ShapeError, "dtype torch.int64"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    arguments = {"embeddings": ROWS, "link_split": SPLIT, **change}
    with pytest.raises(error, match=text):
        evaluate_link(**arguments)  # type: ignore[arg-type]
