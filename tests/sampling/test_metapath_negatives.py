"""Negatives by node type."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from graph_emb.core.errors import ConfigError
from graph_emb.sampling.metapath_negatives import TypedNegativeSampler

KINDS = np.array([0, 0, 0, 1, 1, 2, 2], np.int8)
DEGREES = np.array([1.0, 2, 3, 5, 1, 7, 7])
PATH = np.array([0, 1, 0], np.int8)[:-1]


def sampler(shared: int = 5, power: float = 1.0) -> TypedNegativeSampler:
    return TypedNegativeSampler(DEGREES, KINDS, PATH, shared, power, seed=3)


def test_types_take_turns_and_each_is_drawn_by_its_own_degrees() -> None:
    drawn = sampler().sample_for(np.arange(4000), 10)
    kinds = sampler().kinds(6, 5)
    assert kinds.drawn.tolist() == [0, 1, 0, 1, 0]
    assert kinds.places.tolist() == [0, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(KINDS[drawn], np.broadcast_to(np.tile(kinds.drawn, 2), drawn.shape))
    for kind in (0, 1):
        nodes = np.flatnonzero(kind == KINDS)
        of_kind = drawn[KINDS[drawn] == kind]
        expected = DEGREES[nodes] / DEGREES[nodes].sum() * len(of_kind)
        counts = np.bincount(of_kind, minlength=7)[nodes]
        assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(0.999, len(nodes) - 1)


def test_a_context_has_the_same_weight_of_negatives_whatever_its_type() -> None:
    kinds = sampler().kinds(6, 5)
    np.testing.assert_allclose(kinds.shares(4.0)[kinds.drawn], [4 / 3, 2, 4 / 3, 2, 4 / 3])


def test_a_draw_depends_on_the_walk_alone() -> None:
    whole = sampler().sample_for(np.arange(20), 10, epoch=1)
    np.testing.assert_array_equal(sampler().sample_for(np.array([7, 3]), 10, epoch=1), whole[[7, 3]])
    assert (whole != sampler().sample_for(np.arange(20), 10)).any()


def test_too_few_negatives_for_the_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="shared_negatives is 1 and the path has 2 node types"):
        sampler(shared=1)
