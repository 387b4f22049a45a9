from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph, triples_between

TRAIN = np.array([[0, 0, 1], [1, 1, 2]])


def test_counts_and_all_triples() -> None:
    graph = KnowledgeGraph("g", 4, 2, {"train": TRAIN, "test": TRAIN[:1]})
    assert graph.occurrences().tolist() == [1, 2, 1, 0]
    assert len(graph.all_triples()) == 3


def test_triples_between_parts_keep_their_relations_once() -> None:
    triples = np.array([[4, 1, 0], [0, 0, 2], [1, 0, 3], [0, 1, 2], [0, 0, 1]])
    made = triples_between(triples, np.array([0, 0, 1, 1, 2]))
    assert made.tolist() == [[0, 0, 1], [0, 1, 1], [2, 1, 0]]  # the first two of 0 and 1, and none inside part 0
    assert made.dtype == np.int64
    assert triples_between(triples, np.zeros(5, np.int64)).shape == (0, 3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"test": TRAIN}, "has no train part"),
        ({"train": TRAIN[:, :2]}, r"triples have shape \(2, 2\)"),
        ({"train": TRAIN[:0]}, r"expected \(T, 3\) of int64, T > 0"),
        ({"train": TRAIN.astype(np.float32)}, "of float32"),
        ({"train": np.add(TRAIN, [3, 0, 0])}, r"train: entity 4 is outside \[0, 4\)"),
        ({"train": TRAIN, "valid": np.subtract(TRAIN, [0, 1, 0])}, r"valid: relation -1 is outside \[0, 2\)"),
    ],
)
def test_triples_that_do_not_fit_are_refused(parts: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        KnowledgeGraph("g", 4, 2, parts)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (np.array([[1]]), "expected a row for each of the part's triples"),
        (np.array([[1], [9]]), r"head negatives 9 is outside \[0, 4\)"),
    ],
)
def test_given_negatives_that_do_not_fit_are_refused(heads: np.ndarray, message: str) -> None:
    given = GivenNegatives(heads, np.array([[0], [0]]))
    with pytest.raises(DataError, match=message):
        KnowledgeGraph("g", 4, 2, {"train": TRAIN, "test": TRAIN}, negatives={"test": given})
