"""NegativeSampler: the stated distribution, from counters alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from graph_emb.data.negatives import NegativeSampler, node_degrees
from graph_emb.errors import ConfigError
from graph_emb.graph.csr import Graph

DEGREES = np.array([1.0, 16.0, 0.0, 81.0, 3.0])


@pytest.mark.parametrize("power", [0.75, 0.0, 1.0])
def test_draws_follow_degree_to_the_power(power: float) -> None:
    sampler = NegativeSampler(DEGREES, power, seed=2)
    counts = np.bincount(sampler.sample(2000, 40).ravel(), minlength=5)
    share = DEGREES**power
    np.testing.assert_allclose(sampler.probabilities, share / share.sum())
    assert counts[share == 0].sum() == 0
    expected = 80_000 * share / share.sum()
    assert chisquare(counts[share > 0], expected[share > 0]).pvalue > 1e-4


def test_three_quarters_is_the_default() -> None:
    np.testing.assert_allclose(NegativeSampler(DEGREES).probabilities[[0, 1, 3]] * (36 + 3**0.75), [1, 8, 27])


def test_a_walks_draws_depend_on_neither_batch_nor_neighbours() -> None:
    sampler = NegativeSampler(DEGREES, seed=4)
    whole = sampler.sample(30, 8, epoch=2)
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(sampler.sample(10, 8, epoch=2, first=20), whole[20:])
    np.testing.assert_array_equal(sampler.sample(30, 5, epoch=2), whole[:, :5])
    assert (sampler.sample(30, 8, epoch=3) != whole).any()
    assert (NegativeSampler(DEGREES, seed=5).sample(30, 8, epoch=2) != whole).any()


def test_degrees_count_weights_at_both_ends_of_an_arc() -> None:
    undirected = Graph.from_edges([0, 1], [1, 2], num_nodes=4, weights=[2.0, 0.5])
    np.testing.assert_allclose(node_degrees(undirected), [2, 2.5, 0.5, 0])
    directed = Graph.from_edges([0, 1], [1, 2], num_nodes=4, directed=True)
    np.testing.assert_allclose(node_degrees(directed), [1, 2, 1, 0])


@pytest.mark.parametrize("power", [-1.0, float("nan"), float("inf")])
def test_a_bad_power_is_refused(power: float) -> None:
    with pytest.raises(ConfigError, match="negative power"):
        NegativeSampler(DEGREES, power)


def test_a_graph_without_edges_needs_uniform_negatives() -> None:
    with pytest.raises(ConfigError, match="use power=0"):
        NegativeSampler(np.zeros(3))
    assert set(NegativeSampler(np.zeros(3), 0.0).sample(1, 100).ravel()) == {0, 1, 2}


def test_counts_are_checked() -> None:
    with pytest.raises(ConfigError, match="per_walk = 0"):
        NegativeSampler(DEGREES).sample(1, 0)
