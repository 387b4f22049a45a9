"""Label lists, single and several."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.graph import Labels


def several() -> Labels:
    return Labels.from_lists([[2, 0], [], [1], [0, 0]], num_classes=4, class_names=["w", "x", "y", "z"])


def test_lists_become_sorted_distinct_rows() -> None:
    labels = several()
    assert labels.indptr.tolist() == [0, 2, 2, 3, 4]
    assert labels.indices.tolist() == [0, 2, 1, 0]
    assert labels.to_matrix().toarray().astype(int).tolist() == [
        [1, 0, 1, 0],
        [0] * 4,
        [0, 1, 0, 0],
        [1, 0, 0, 0],
    ]
    assert labels.to_matrix().dtype == bool
    assert labels.counts().tolist() == [2, 0, 1, 1]
    assert labels.class_counts().tolist() == [2, 1, 1, 0]
    assert labels.labelled().tolist() == [0, 2, 3]
    assert (labels.num_nodes, labels.num_classes, labels.is_single) == (4, 4, False)


def test_single_labels_leave_unlabelled_nodes_empty() -> None:
    labels = Labels.from_single(np.array([1, -1, 0], dtype=np.int8))
    assert labels.num_classes == 2
    assert labels.is_single
    assert labels.to_single().tolist() == [1, -1, 0]
    assert labels.counts().tolist() == [1, 0, 1]
    assert Labels.from_single([0], class_names=["a", "b"]).num_classes == 2
    assert Labels.from_single(np.array([], dtype=np.int64)).num_classes == 0


def test_subset_follows_the_asked_order_and_repeats() -> None:
    part = several().subset([3, 0, 1, 0])
    assert part.indptr.tolist() == [0, 1, 3, 3, 5]
    assert part.indices.tolist() == [0, 0, 2, 0, 2]
    assert part.class_names == ("w", "x", "y", "z")


def test_the_arrays_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        several().indices[0] = 1


def test_several_labels_are_not_squeezed_into_one() -> None:
    with pytest.raises(DataError, match="node 0 has 2 labels"):
        several().to_single()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: Labels.from_single([0, 5], num_classes=3),
            DataError,
            r"class 5 at position 1 is outside \[0, 3\)",
        ),
        (lambda: Labels.from_single([0, -2]), DataError, "class -2"),
        (lambda: Labels.from_single([0.5]), ShapeError, "float64"),
        (
            lambda: Labels.from_pairs([0, 9], [0, 0], 3),
            DataError,
            r"node 9 at position 1 is outside \[0, 3\)",
        ),
        (lambda: several().subset([4]), DataError, r"node 4 at position 0 is outside \[0, 4\)"),
        (
            lambda: Labels.from_lists([[0]], class_names=["a"], num_classes=2),
            ShapeError,
            "1 names for 2 classes",
        ),
        (
            lambda: Labels(np.array([0, 2]), np.array([1, 0], dtype=np.int32), 2),
            DataError,
            "classes of node 0 are not sorted",
        ),
        (lambda: Labels(np.array([0, 2]), np.array([1], dtype=np.int32), 2), DataError, "end at 1"),
        (lambda: Labels(np.array([0, 1]), np.array([1]), 2), ShapeError, "indices has dtype int64"),
        (lambda: Labels(np.array([0, 1]), np.array([7], dtype=np.int32), 2), DataError, "class 7"),
        # what does not fit int32 was narrowed first: 2**32 + 5 became class 5, 1.7 became class 1
        (lambda: Labels.from_single([2**32 + 5]), DataError, r"class 4294967301 .* is outside \[0, 2147483648\)"),
        (lambda: Labels.from_lists([[1], [2**31]], 2**40), DataError, r"class 2147483648 at position 1 is outside"),
        (lambda: Labels.from_single(np.array([2**64 - 2], np.uint64)), DataError, "class 18446744073709551614"),
        (lambda: Labels.from_lists([[2**70]]), ShapeError, "classes have shape .*, dtype object; expected integers"),
        (lambda: Labels.from_pairs([0], [1.7], 1), ShapeError, "classes have shape .*, dtype float64"),
        (lambda: Labels.from_pairs(np.array([2**64 - 1], np.uint64), [0], 1), DataError, "node 18446744073709551615"),
    ],
)
def test_labels_out_of_range_are_refused(call: object, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
