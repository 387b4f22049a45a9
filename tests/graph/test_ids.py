"""Ids and keys of edges that are looked up among others."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.graph.ids import are_among, number_ids


def test_keys_are_found_among_others_in_any_order_and_with_repeats() -> None:
    found = are_among(np.array([7, 2, 9, 2, -1]), np.array([2, 9, 2, 1]))
    assert found.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_edges_are_found_as_numpy_finds_them(seed: int) -> None:
    draw = np.random.default_rng(seed)
    keys, others = (draw.integers(-50, 50, draw.integers(0, 80)) for _ in range(2))
    assert np.array_equal(are_among(keys, others), np.isin(keys, others))


def test_names_that_differ_after_a_nul_are_two_nodes() -> None:
    """Arrow ends a string of numpy at its first NUL: both became the node 'a'."""
    (numbers,), ids, count = number_ids([np.array(["a\0c", "a\0b", "a\0c"])])
    assert count == 2
    assert ids is not None
    assert ids[numbers].tolist() == ["a\0c", "a\0b", "a\0c"]
