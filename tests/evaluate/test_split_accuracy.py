from __future__ import annotations

import json
import math

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.split_accuracy import MLPConfig, SplitAccuracy, split_accuracy
from graph_emb.graph.labels import Labels

QUICK = MLPConfig(hidden_dim=16, epochs=25)


def rings(num_nodes: int = 300) -> tuple[np.ndarray, Labels, dict[str, np.ndarray]]:
    """Two rings around the origin: no line tells them apart, a network does."""
    generator = np.random.default_rng(0)
    classes = np.arange(num_nodes) % 2
    angle = generator.uniform(0, 2 * np.pi, num_nodes)
    radius = np.where(classes, 2.0, 0.7)
    rows = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    order = generator.permutation(num_nodes)
    split = {"train": order[:150], "valid": order[150:220], "test": order[220:]}
    return rows, Labels.from_single(classes), split


def blobs() -> tuple[np.ndarray, Labels, dict[str, np.ndarray]]:
    classes = np.arange(60) % 3
    rows = np.eye(3, dtype=np.float32)[classes] * 5
    nodes = np.arange(60)
    return rows, Labels.from_single(classes), {"train": nodes[:30], "valid": nodes[30:40], "test": nodes[40:]}


def test_regression_finds_separate_classes() -> None:
    found = split_accuracy(*blobs())
    assert found.accuracy == {"train": (1.0,), "valid": (1.0,), "test": (1.0,)}
    assert (found.seeds, found.epochs) == ((None,), None)
    assert found.num_parameters == 3 * (3 + 1)


def test_regression_is_judged_on_each_part_by_hand() -> None:
    # Rows far apart on a line; node 3 (test) and node 5 (valid) carry the wrong class.
    rows = np.float32([[-9], [9], [-9], [9], [9], [9], [-9]])
    labels = Labels.from_single([0, 1, 0, 0, 1, 0, 0])
    split = {"train": np.array([0, 1]), "valid": np.array([5, 6]), "test": np.array([2, 3, 4])}
    found = split_accuracy(rows, labels, split)
    assert found.accuracy == {"train": (1.0,), "valid": (0.5,), "test": (pytest.approx(2 / 3),)}


def test_a_network_finds_rings_that_regression_cannot() -> None:
    assert split_accuracy(*rings()).mean("test") < 0.7
    assert split_accuracy(*rings(), "mlp", mlp=QUICK).mean("test") > 0.95


def test_parameters_are_counted() -> None:
    found = split_accuracy(*rings(), "mlp", mlp=MLPConfig(hidden_dim=4, epochs=1))
    # 2-4-4-2 with two batch norms of 2 x 4.
    assert found.num_parameters == (2 * 4 + 4) + (4 * 4 + 4) + (4 * 2 + 2) + 2 * 8


def test_a_seed_fixes_the_network_and_others_give_a_deviation() -> None:
    config = MLPConfig(hidden_dim=8, epochs=2, batch_size=50)
    rows, labels, split = rings()
    found = split_accuracy(rows, labels, split, "mlp", seeds=(0, 1, 0), mlp=config)
    tests = found.accuracy["test"]
    assert tests[0] == tests[2]
    assert tests[0] != tests[1]
    assert found.std("test") == pytest.approx(np.std(tests, ddof=1))
    assert found.mean("test") == pytest.approx(sum(tests) / 3)


def test_one_seed_has_no_deviation_and_the_result_serialises() -> None:
    found = SplitAccuracy("mlp", (0,), {"test": (0.25,)}, (3,), 10)
    assert math.isnan(found.std("test"))
    assert found.as_dict()["accuracy"]["test"]["mean"] == 0.25
    assert json.loads(json.dumps(found.as_dict()))["epochs"] == [3]
    assert "25.00" in str(found)


def test_regression_needs_no_validation_part_and_a_network_does() -> None:
    rows, labels, split = blobs()
    del split["valid"]
    assert split_accuracy(rows, labels, split).accuracy.keys() == {"train", "test"}
    with pytest.raises(DataError, match="the split has no valid nodes; mlp needs train, valid, test"):
        split_accuracy(rows, labels, split, "mlp")


def test_labels_of_several_classes_are_refused() -> None:
    rows, _, split = blobs()
    labels = Labels.from_lists([[0, 1], *[[0]] * 59])
    with pytest.raises(DataError, match=r"some nodes have several; accuracy needs one each, use node_classification"):
        split_accuracy(rows, labels, split)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"train": np.array([0, 1, 60])}, r"train node 60 is outside \[0, 60\)"),
        ({"valid": np.array([-1])}, "valid node -1 is outside"),
        ({"test": np.array([41, 29])}, "test node 29 is in an earlier part too"),
        ({"train": np.array([], dtype=np.int64)}, "the split has no train nodes"),
        ({"train": np.array([1])}, "one train node; at least 2"),
    ],
)
def test_a_bad_split_is_refused(change: dict[str, np.ndarray], text: str) -> None:
    rows, labels, split = blobs()
    with pytest.raises(DataError, match=text):
        split_accuracy(rows, labels, {**split, **change})


def test_a_node_without_a_label_is_refused() -> None:
    rows, _, split = blobs()
    classes = np.arange(60) % 3
    classes[45] = -1
    with pytest.raises(DataError, match="test node 45 has no label"):
        split_accuracy(rows, Labels.from_single(classes), split)


@pytest.mark.parametrize(
    ("classifier", "change", "text"),
    [
        ("svm", {}, "unknown classifier 'svm'; known: logreg, mlp"),
        ("logreg", {"seeds": (1,)}, r"seeds=\(1,\) has no effect on classifier 'logreg'"),
        ("logreg", {"mlp": QUICK}, "mlp=MLPConfig.* has no effect on classifier 'logreg'"),
        ("mlp", {"threads": 2}, "threads=2 has no effect on classifier 'mlp'"),
        ("mlp", {"seeds": ()}, "seeds is empty"),
    ],
)
def test_an_argument_without_effect_is_refused(classifier: str, change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        split_accuracy(*blobs(), classifier, **change)  # type: ignore[arg-type]
