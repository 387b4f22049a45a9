"""NegativeSampler: the stated distribution, from counters alone."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare

from graph_emb import ConfigError, DataError, PartitionError, ShapeError
from graph_emb.core.errors import StorageError
from graph_emb.graph.csr import Graph, frozen
from graph_emb.graph.partition_book import RangeBook
from graph_emb.sampling.negatives import (
    NearNegativeSampler,
    NegativeSampler,
    NonEdges,
    PartNegatives,
    TypedNegativeSampler,
    UniformSampler,
    gathered_degrees,
)
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.sampling.walk_kernels import alias_rows
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.lockstep import layout
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks

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


@pytest.mark.parametrize(
    ("degrees", "power"),
    [([8000, 8000, 1, 1], 10.0), ([1e-20, 1e-20, 1e-20, 1e-30], 3.0), ([1e300, 5e299, 0, 0], 1.0), ([2, 1, 0, 3], 1.0)],
)
def test_powers_beyond_float32_are_drawn_as_they_are(degrees: list[float], power: float) -> None:
    """Shares above 3.4e38 became infinite in the tables that are drawn from, and shares below 1e-45 zero."""
    with np.errstate(all="raise", under="ignore"):
        sampler = NegativeSampler(np.array(degrees), power, seed=2)
    found = np.bincount(sampler.sample(1000, 20).ravel(), minlength=4) / 20_000
    np.testing.assert_allclose(found, sampler.probabilities, atol=0.015)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0, 2.5])
def test_scaled_shares_keep_the_tables_bit_for_bit(power: float) -> None:
    degrees = np.random.default_rng(0).pareto(1.0, 1000)
    plain = (degrees**power).astype(np.float32)
    accept, other, _ = alias_rows(frozen(np.array([0, 1000])), frozen(plain))
    sampler = NegativeSampler(degrees, power)
    np.testing.assert_array_equal(sampler.accept, accept)
    np.testing.assert_array_equal(sampler.other, other)


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
    np.testing.assert_allclose(WalkSampler(undirected).degrees(), [2, 2.5, 0.5, 0])
    directed = Graph.from_edges([0, 1], [1, 2], num_nodes=4, directed=True)
    np.testing.assert_allclose(WalkSampler(directed).degrees(), [1, 2, 1, 0])


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


def test_draws_of_walks_by_index_are_those_of_consecutive_walks() -> None:
    sampler = NegativeSampler(DEGREES, seed=4)
    index = np.array([2, 3, 17])
    np.testing.assert_array_equal(sampler.sample_for(index, 8, epoch=2), sampler.sample(20, 8, epoch=2)[index])
    assert sampler.sample_for(index[:0], 8).shape == (0, 8)


def test_nodes_may_start_at_a_number_of_their_own() -> None:
    whole, moved = NegativeSampler(DEGREES, seed=4), NegativeSampler(DEGREES, seed=4, low=100)
    np.testing.assert_array_equal(moved.sample(5, 8), whole.sample(5, 8) + 100)
    np.testing.assert_array_equal(moved.pool(5, 0), whole.pool(5, 0) + 100)


def test_a_pool_is_shared_and_has_the_probabilities_of_a_draw() -> None:
    sampler = NegativeSampler(DEGREES, seed=2)
    pools = np.stack([sampler.pool(4, number) for number in range(5000)])
    share = DEGREES**0.75
    keep = share > 0
    counts = np.bincount(pools.ravel(), minlength=5)
    assert counts[~keep].sum() == 0
    assert chisquare(counts[keep], 20_000 * share[keep] / share.sum()).pvalue > 1e-4
    assert (sampler.pool(4, 0, epoch=1) != pools[0]).any()
    drawn = sampler.sample_for(np.arange(500), 8, pool=np.array([7, 9, 30], np.int32))
    assert drawn.dtype == np.int32
    assert chisquare([(drawn == node).sum() for node in (7, 9, 30)]).pvalue > 1e-4


def weighted(directed: bool) -> Graph:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 30, (2, 90))
    return Graph.from_edges(src, dst, num_nodes=31, weights=rng.uniform(0.1, 2, 90), directed=directed)


def degrees_on_a_rank(directed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group = ProcessGroup()
    try:
        places = layout(RangeBook([0, 4, 20, 31]), group.world_size, None, "w")
        part = PartGraph.of_graph(weighted(directed), places, group.rank)
        degrees = gathered_degrees(part, group)
        own, _ = PartitionedWalkSampler(part, group).own_degrees()
        return degrees, own, NegativeSampler(degrees, seed=1).sample(9, 20)
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("directed", [False, True])
def test_ranks_together_know_the_degrees_of_all_nodes(ranks: Ranks, directed: bool) -> None:
    expected = WalkSampler(weighted(directed)).degrees()
    found = ranks.run(degrees_on_a_rank, 3, directed)
    for degrees, _, drawn in found:
        np.testing.assert_allclose(degrees, expected, rtol=1e-15)
        np.testing.assert_array_equal(drawn, NegativeSampler(expected, seed=1).sample(9, 20))
    np.testing.assert_allclose(np.concatenate([own for _, own, _ in found]), expected, rtol=1e-15)


def test_negatives_that_are_mostly_near_count_each_node_as_draws_among_all() -> None:
    degrees = np.array([1.0, 2, 0, 5, 1, 7, 7, 3])
    negatives = NegativeSampler(degrees, 0.75, seed=4)
    near = NearNegativeSampler(negatives, (1, 5), shared=8, far=2)
    drawn = near.sample_for(np.arange(20_000), 16)
    places = drawn.reshape(-1, 8)
    assert ((places[:, :6] >= 1) & (places[:, :6] < 5)).all()
    assert ((places[:, 6:] < 1) | (places[:, 6:] >= 5)).all()
    shares = near.kinds(6, 8).shares(5.0)
    assert shares.sum() == pytest.approx(5.0)
    counted = np.bincount(places.ravel(), np.broadcast_to(shares, places.shape).ravel(), minlength=8) / len(places)
    np.testing.assert_allclose(counted, 5.0 * negatives.probabilities, rtol=0.02)
    np.testing.assert_array_equal(near.sample_for(np.array([7, 3]), 16), drawn[[7, 3]])


@pytest.mark.parametrize("owned", [(0, 8), (0, 0), (2, 3)])
def test_a_rank_that_owns_all_or_nothing_that_is_drawn_draws_among_all(owned: tuple[int, int]) -> None:
    negatives = NegativeSampler([1.0, 2, 0, 5, 1, 7, 7, 3], seed=4)
    assert not NearNegativeSampler.fits(negatives, owned)
    assert NearNegativeSampler.fits(negatives, (1, 3))
    assert not NearNegativeSampler.fits(typed_sampler(), (1, 3))


KINDS = np.array([0, 0, 0, 1, 1, 2, 2], np.int8)
TYPED_DEGREES = np.array([1.0, 2, 3, 5, 1, 7, 7])
PATH = np.array([0, 1, 0], np.int8)[:-1]


def typed_sampler(shared: int = 5, power: float = 1.0) -> TypedNegativeSampler:
    return TypedNegativeSampler(TYPED_DEGREES, KINDS, PATH, shared, power, seed=3)


def test_types_take_turns_and_each_is_drawn_by_its_own_degrees() -> None:
    drawn = typed_sampler().sample_for(np.arange(4000), 10)
    kinds = typed_sampler().kinds(6, 5)
    assert kinds.drawn.tolist() == [0, 1, 0, 1, 0]
    assert kinds.places.tolist() == [0, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(KINDS[drawn], np.broadcast_to(np.tile(kinds.drawn, 2), drawn.shape))
    for kind in (0, 1):
        nodes = np.flatnonzero(kind == KINDS)
        of_kind = drawn[KINDS[drawn] == kind]
        expected = TYPED_DEGREES[nodes] / TYPED_DEGREES[nodes].sum() * len(of_kind)
        counts = np.bincount(of_kind, minlength=7)[nodes]
        assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(0.999, len(nodes) - 1)


def test_a_context_has_the_same_weight_of_negatives_whatever_its_type() -> None:
    kinds = typed_sampler().kinds(6, 5)
    np.testing.assert_allclose(kinds.shares(4.0), [4 / 3, 2, 4 / 3, 2, 4 / 3])


def test_a_draw_depends_on_the_walk_alone() -> None:
    whole = typed_sampler().sample_for(np.arange(20), 10, epoch=1)
    np.testing.assert_array_equal(typed_sampler().sample_for(np.array([7, 3]), 10, epoch=1), whole[[7, 3]])
    assert (whole != typed_sampler().sample_for(np.arange(20), 10)).any()


def test_too_few_negatives_for_the_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="shared_negatives is 1 and the path has 2 node types"):
        typed_sampler(shared=1)


EDGES = torch.tensor([[0, 1], [2, 1], [1, 2], [3, 3]])  # 0 - 1 - 2, 3 alone with a loop


def test_every_ordered_non_edge_is_equally_likely_and_nothing_else_is_drawn() -> None:
    pairs = NonEdges(EDGES, 4).sample(8000, torch.Generator().manual_seed(0))
    assert pairs.shape == (8000, 2)
    counts = Counter(map(tuple, pairs.tolist()))
    expected = {(0, 2), (2, 0), (0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (3, 2)}
    assert set(counts) == expected
    assert all(abs(count - 1000) < 150 for count in counts.values())  # 5 sigma


def test_a_nearly_complete_graph_yields_its_only_non_edge() -> None:
    edges = torch.combinations(torch.arange(30), 2)
    missing = (edges == torch.tensor([4, 17])).all(1)
    pairs = NonEdges(edges[~missing], 30).sample(100, torch.Generator().manual_seed(0))
    assert {tuple(sorted(pair)) for pair in pairs.tolist()} == {(4, 17)}


def test_no_edge_of_a_sparse_graph_is_drawn() -> None:
    ring = torch.stack([torch.arange(200), (torch.arange(200) + 1) % 200], dim=1)
    left, right = NonEdges(ring, 200).sample(40_000, torch.Generator().manual_seed(0)).unbind(1)
    steps = torch.bincount((right - left) % 200, minlength=200)
    assert steps[[0, 1, 199]].sum() == 0
    assert (steps[2:199] - 40_000 / 197).abs().max() < 75  # 5 sigma


def test_the_same_generator_state_draws_the_same_pairs() -> None:
    draws = [NonEdges(EDGES, 4).sample(50, torch.Generator().manual_seed(s)) for s in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_no_edges_and_no_draws_are_fine() -> None:
    negatives = NonEdges(torch.empty((0, 2), dtype=torch.int64), 2)
    assert set(map(tuple, negatives.sample(20, torch.Generator().manual_seed(0)).tolist())) == {(0, 1), (1, 0)}
    assert negatives.sample(0, torch.Generator()).shape == (0, 2)


@pytest.mark.parametrize(
    ("edges", "num_nodes", "error", "text"),
    [
        (torch.tensor([[0, 1]]), 2, DataError, "all 2 ordered pairs of 2 nodes are edges"),
        (torch.tensor([[0, 4]]), 4, PartitionError, r"node 4, outside \[0, 4\)"),
        (torch.tensor([[0, -1]]), 4, PartitionError, r"node -1, outside"),
        (torch.tensor([0, 1]), 4, ShapeError, "shape \\(2,\\)"),
        (torch.tensor([[0.0, 1.0]]), 4, ShapeError, "float32"),
        (torch.empty((0, 2), dtype=torch.int64), 1, ConfigError, "at least 2"),
    ],
)
def test_bad_input_is_named(edges: torch.Tensor, num_nodes: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        NonEdges(edges, num_nodes)


def test_negatives_of_all_parts_stand_for_draws_among_all_nodes() -> None:
    degrees = np.array([1.0, 16.0, 0.0, 0.0, 0.0, 81.0, 3.0, 2.0])
    whole, bounds = NegativeSampler(degrees, 0.5), np.array([0, 2, 5, 8])
    parts = PartNegatives(degrees, bounds, 32, power=0.5)
    assert parts.num_drawn.tolist() == [9, 0, 23]  # shares .289, 0, .711
    assert (parts.num_drawn * parts.weights).sum() == pytest.approx(1)
    mass = np.zeros(8)
    for part, (low, high) in enumerate(pairwise(bounds)):
        accept, other = parts.tables(part)
        size = high - low
        assert len(accept) == len(other) == size
        chance = accept / size + np.bincount(other, (1 - accept) / size, size)  # what the alias tables draw
        mass[low:high] = parts.num_drawn[part] * parts.weights[part] * chance
    np.testing.assert_allclose(mass, whole.probabilities, rtol=1e-6)
    assert PartNegatives(degrees, bounds, 1, power=0.5).num_drawn.tolist() == [1, 0, 1]


def test_tables_of_parts_in_a_file_are_those_in_memory_and_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    degrees, bounds = np.random.default_rng(0).integers(0, 5, 100).astype(np.float64), np.array([0, 30, 31, 100])
    degrees[30] = 0
    here, there = (PartNegatives(degrees, bounds, 8, seed=2, folder=folder) for folder in (None, tmp_path))
    assert list(tmp_path.iterdir()) == []
    for part in (2, 0, 1):
        for ours, theirs in zip(here.tables(part), there.tables(part), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (here.num_drawn == there.num_drawn).all()
    os.ftruncate(there._file._descriptor, 400)
    there.tables(0)
    with pytest.raises(StorageError, match="negatives by part, 800 B: the file was cut off at byte 400"):
        there.tables(2)


def test_each_bucket_has_draws_of_its_own() -> None:
    parts = PartNegatives(DEGREES, np.array([0, 2, 5]), 4, seed=3)
    keys = {int(parts.key(*names)) for names in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1))}
    assert len(keys) == 5
    assert int(PartNegatives(DEGREES, np.array([0, 2, 5]), 4, seed=4).key(0, 0, 0)) not in keys


@pytest.mark.parametrize("num", [1, 3, 1000, 14_541])
def test_uniform_draws_need_no_table_and_are_those_of_power_0(num: int) -> None:
    one, other = NegativeSampler(np.full(num, 3.0), 0.0, seed=5, low=2), UniformSampler(num, seed=5, low=2)
    assert np.array_equal(one.sample(50, 40, epoch=1), other.sample(50, 40, epoch=1))
    assert np.array_equal(one.pool(30, 4), other.pool(30, 4))
    np.testing.assert_allclose(one.probabilities, other.probabilities)
