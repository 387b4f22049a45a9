"""Uses of rows: steps, or as often as they stand in one."""

from __future__ import annotations

import numpy as np

from graph_emb.table.places import count_uses, used_ids

MOST = (1 << 32) - 1


def counted(uses: np.ndarray) -> list[tuple[int, int]]:
    """The last step and the count of each place."""
    return [(int(word) >> 32, int(word) & MOST) for word in uses]


def test_a_step_is_one_use_or_as_many_as_are_told() -> None:
    uses = np.array([1 << 32 | 3, 0, 2 << 32 | 5, 7 << 32], np.uint64)
    at = np.array([2, 0, -1, 2, 0, 2])
    count_uses(at, uses, 8)
    assert counted(uses) == [(8, 4), (0, 0), (8, 6), (7, 0)]
    count_uses(at, uses, 9, np.array([1, 10, 100, 1000, 0, 5]))
    assert counted(uses) == [(9, 14), (0, 0), (9, 1012), (7, 0)]


def test_counts_end_at_the_most_that_fits() -> None:
    """One more would have been a step."""
    uses = np.array([1 << 32 | MOST - 3], np.uint64)
    count_uses(np.array([0, 0]), uses, 2, np.array([2, 9]))
    assert counted(uses) == [(2, MOST)]


def test_distinct_ids_have_the_sum_of_their_uses() -> None:
    ids = np.array([5, -3, 5, 9, -3, 5])
    assert [column.tolist() for column in used_ids(ids, None)] == [[-3, 5, 9], [1, 1, 1]]
    assert [column.tolist() for column in used_ids(ids, np.array([1, 2, 3, 4, 5, 0]))] == [[-3, 5, 9], [7, 4, 4]]
