from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier

from graph_emb.core import progress
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.evaluate import node_classification as module
from graph_emb.evaluate.node_classification import f1, fit_one_vs_rest, node_classification, num_threads, top_k
from graph_emb.graph.labels import Labels


def test_the_ranker_gives_each_node_as_many_classes_as_it_has() -> None:
    scores = np.array([[0.1, 0.9, 0.5], [-1.0, -3.0, -2.0], [0.3, 0.2, 0.1]])
    found = top_k(scores, np.array([2, 1, 0]))
    assert found.tolist() == [[False, True, True], [True, False, False], [False, False, False]]


def test_equal_scores_go_to_the_lower_class() -> None:
    assert top_k(np.zeros((1, 3)), np.array([2])).tolist() == [[True, True, False]]


def test_a_class_that_was_never_trained_on_comes_last() -> None:
    assert top_k(np.array([[-np.inf, -5.0, np.inf]]), np.array([2])).tolist() == [[False, True, True]]


def test_f1_by_hand() -> None:
    # Class 0: 1 hit, 1 miss. Class 1: 1 hit, 1 false alarm. Class 2: nothing at all.
    truth = np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    predicted = np.array([[1, 1, 0], [0, 1, 0]], dtype=bool)
    micro, macro = f1(truth, predicted)
    assert micro == pytest.approx(2 * 2 / (3 + 3))
    assert macro == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_f1_is_scikit_learns_on_the_binarised_matrix() -> None:
    generator = np.random.default_rng(0)
    truth, predicted = generator.random((2, 30, 7)) < 0.3
    truth[:, 3] = predicted[:, 3] = False
    micro, macro = f1(truth, predicted)
    assert micro == pytest.approx(f1_score(truth, predicted, average="micro"))
    assert macro == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))


def multi_label(num_nodes: int = 120, num_classes: int = 4, seed: int = 0) -> tuple[np.ndarray, Labels]:
    """Nodes carry one or two classes; embeddings are noisy sums of class directions."""
    generator = np.random.default_rng(seed)
    has = np.zeros((num_nodes, num_classes), dtype=bool)
    has[np.arange(num_nodes), generator.integers(num_classes, size=num_nodes)] = True
    has[np.arange(num_nodes), generator.integers(num_classes, size=num_nodes)] = True
    rows = has @ generator.normal(size=(num_classes, 8)) + generator.normal(size=(num_nodes, 8))
    return rows.astype(np.float32), Labels.from_lists([np.flatnonzero(row) for row in has], num_classes)


def deepwalk_scoring(
    rows: np.ndarray, truth: np.ndarray, order: np.ndarray, ratio: float
) -> tuple[float, float]:  # example_graphs/scoring.py of phanein/deepwalk, in today's scikit-learn
    from sklearn.linear_model import LogisticRegression

    cut = int(ratio * len(order))
    train, test = order[:cut], order[cut:]
    model = OneVsRestClassifier(LogisticRegression(solver="liblinear")).fit(rows[train].astype(float), truth[train])
    chances = model.predict_proba(rows[test].astype(float))
    predicted = np.zeros_like(truth[test])
    for row, (chance, k) in enumerate(zip(chances, truth[test].sum(axis=1), strict=True)):
        predicted[row, chance.argsort()[-k:]] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        return (
            f1_score(truth[test], predicted, average="micro"),
            f1_score(truth[test], predicted, average="macro", zero_division=0),
        )


def test_the_protocol_is_deepwalks() -> None:
    rows, labels = multi_label()
    found = node_classification(rows, labels, ratios=(0.3, 0.75), shuffles=2, seed=5)
    truth = labels.to_matrix().toarray().astype(int)
    for shuffle in range(2):
        order = np.random.default_rng([5, shuffle]).permutation(len(rows))
        for place, ratio in enumerate((0.3, 0.75)):
            micro, macro = deepwalk_scoring(rows, truth, order, ratio)
            assert found.micro[place, shuffle] == pytest.approx(micro)
            assert found.macro[place, shuffle] == pytest.approx(macro)
    assert found.num_train == (36, 90)
    assert 0.5 < found.micro.min() < found.micro.max() < 1


def test_the_table_holds_means_and_unbiased_deviations() -> None:
    found = module.NodeClassification((0.5,), (10,), 20, 3, np.array([[0.2, 0.4]]), np.array([[0.1, 0.1]]))
    row = found.table[0]
    assert row[:2] == (0.5, 10)
    assert row.micro_mean == pytest.approx(0.3)
    assert row.micro_std == pytest.approx(math.sqrt(0.02))
    assert (row.macro_mean, row.macro_std) == (pytest.approx(0.1), 0.0)
    assert "30.00" in str(found)
    assert "50%" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["ratios"][0]["micro_mean"] == pytest.approx(0.3)


def test_one_shuffle_has_no_deviation() -> None:
    rows, labels = multi_label()
    row = node_classification(rows, labels, ratios=(0.5,), shuffles=1).table[0]
    assert math.isnan(row.micro_std)
    assert math.isnan(row.macro_std)


def test_a_seed_fixes_the_shuffles_at_any_number_of_threads() -> None:
    rows, labels = multi_label()
    first = node_classification(rows, labels, (0.5,), 2, seed=1, threads=1)
    again = node_classification(torch.from_numpy(rows).requires_grad_(), labels, (0.5,), 2, seed=1, threads=3)
    other = node_classification(rows, labels, (0.5,), 2, seed=2)
    assert np.array_equal(first.micro, again.micro)
    assert not np.array_equal(first.micro, other.micro)


def test_more_shuffles_keep_the_first_ones() -> None:
    rows, labels = multi_label()
    two, three = (node_classification(rows, labels, (0.5,), count) for count in (2, 3))
    assert np.array_equal(two.micro, three.micro[:, :2])


def test_nodes_without_a_label_are_left_out() -> None:
    rows, labels = multi_label()
    wider = Labels(np.append(labels.indptr, labels.indptr[-1]), labels.indices, labels.num_classes)
    with_stranger = np.vstack([rows, np.full((1, 8), 1e6, dtype=np.float32)])
    found = node_classification(with_stranger, wider, (0.5,), 2)
    assert found.num_nodes == 120
    assert np.array_equal(found.micro, node_classification(rows, labels, (0.5,), 2).micro)


def test_a_class_without_training_nodes_is_judged_as_missed() -> None:
    classes = np.zeros(20, dtype=np.int64)
    order = np.random.default_rng([0, 0]).permutation(20)
    classes[order[5:10]] = 1
    classes[order[15]] = 2  # lies among the judged nodes of a half
    rows = np.eye(3, dtype=np.float32)[classes]
    found = node_classification(rows, Labels.from_single(classes), (0.5,), shuffles=1)
    assert found.micro[0, 0] == pytest.approx(0.9)
    assert found.macro[0, 0] < 0.67


def test_progress_is_drawn_only_when_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = multi_label()
    node_classification(rows, labels, (0.5,), 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_S", 0.0)  # standard error is a file here
    node_classification(rows, labels, (0.5,), 1, progress=True)
    assert "1/1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"ratios": (1.0,)}, ConfigError, "ratio 1.0 of 120 labelled nodes"),
        ({"ratios": (0.001,)}, ConfigError, r"ratio 0.001 of 120 labelled nodes trains on none; give at least 1/120"),
        ({"ratios": (float("nan"),)}, ConfigError, "ratio nan"),
        ({"ratios": ()}, ConfigError, "10 shuffles at 0 ratios"),
        ({"shuffles": 0}, ConfigError, "0 shuffles at 9 ratios"),
        ({"threads": 0}, ConfigError, "threads is 0"),
        ({"labels": Labels.from_single([0, 1])}, DataError, "labels are of 2 nodes, embeddings of 120"),
        ({"labels": Labels.from_single([1] * 120)}, DataError, "labels use 1 of 2 classes"),
        ({"embeddings": np.full((120, 2), np.inf)}, DataError, "row 0 is not finite"),
        ({"embeddings": np.ones((120, 2), dtype=np.int32)}, ShapeError, "dtype torch.int32"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    rows, labels = multi_label()
    arguments = {"embeddings": rows, "labels": labels, **change}
    with pytest.raises(error, match=text):
        node_classification(**arguments)  # type: ignore[arg-type]


@pytest.mark.data
def test_label_counts_alone_explain_little_of_blogcatalog(shared_data: Path) -> None:
    # Random rows: what the ranker owes to being told the number of labels. DeepWalk reaches 41 %.
    with np.load(shared_data / "blogcatalog" / "graph.npz") as graph:
        labels = Labels(graph["label_indptr"].astype(np.int64), graph["label_indices"].astype(np.int32), 39)
    rows = np.random.default_rng(0).normal(size=(10312, 4)).astype(np.float32)
    row = node_classification(rows, labels, (0.5,), 1).table[0]
    assert row.num_train == 5156
    assert row.micro_mean < 0.2
    assert row.macro_mean < 0.05


def noisy(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(80, 5))
    return rows, rows @ generator.normal(size=(5, num_classes)) + generator.normal(size=(80, num_classes)) > 0.5


def test_each_class_is_liblinears_own_fit() -> None:
    rows, targets = noisy(3)
    model = fit_one_vs_rest(rows, targets, threads=2)
    for column in range(3):
        alone = LogisticRegression(solver="liblinear", C=1.0).fit(rows, targets[:, column])
        assert np.array_equal(model.weights[:, column], alone.coef_[0])
        assert model.biases[column] == alone.intercept_[0]
        assert np.allclose(model.decide(rows)[:, column], alone.decision_function(rows))
    assert model.num_parameters == 3 * 6


def test_a_class_of_no_node_or_of_all_needs_no_fit() -> None:
    rows, targets = noisy(1)
    both = np.column_stack([targets, np.zeros(80, dtype=bool), np.ones(80, dtype=bool)])
    decisions = fit_one_vs_rest(rows, both).decide(rows)
    assert np.isfinite(decisions[:, 0]).all()
    assert (decisions[:, 1] == -np.inf).all()
    assert (decisions[:, 2] == np.inf).all()


def test_threads_are_bounded_by_the_memory_that_their_copies_need() -> None:
    assert num_threads(None, 1) >= 1
    assert num_threads(None, 1 << 60) == 1
    assert num_threads(7, 1 << 60) == 7
    with pytest.raises(ConfigError, match="threads is 0; give at least 1"):
        num_threads(0, 1)
