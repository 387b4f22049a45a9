"""WalkSampler: exact transition probabilities, and walks that depend on nothing but seed, epoch and index."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from graph_emb.graph.csr import Graph, frozen
from graph_emb.sampling import partitioned_walks
from graph_emb.sampling.walk_kernels import alias_rows, stream_key
from graph_emb.sampling.walks import WalkSampler

# 0-1-2 is a triangle, 3 hangs on 2 and 4 on 3, 5 closes the square 2-3-5; 6 is alone.
EDGES = np.array([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (2, 5), (1, 5)])
ARCS = np.array([(0, 1), (1, 0), (1, 2), (2, 0), (0, 2), (2, 3), (3, 2), (3, 1), (2, 1), (3, 3), (0, 3), (1, 4)])
TREE = np.array([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)])


def graph_of(pairs: np.ndarray, directed: bool, weighted: bool) -> Graph:
    weights = 0.25 + np.arange(len(pairs)) % 5 if weighted else None
    return Graph.from_edges(pairs[:, 0], pairs[:, 1], num_nodes=7, weights=weights, directed=directed)


def dense(graph: Graph) -> np.ndarray:
    return graph.to_scipy().toarray().astype(np.float64)


def second_order(adjacency: np.ndarray, t: int, v: int, p: float, q: float) -> np.ndarray:
    """Probabilities of the node after t -> v, straight from the definition."""
    chances = np.zeros(len(adjacency))
    for x in range(len(adjacency)):
        bias = 1 / p if x == t else 1.0 if adjacency[t, x] > 0 else 1 / q
        chances[x] = adjacency[v, x] * bias
    return chances / chances.sum()


def misfit(counts: np.ndarray, chances: np.ndarray) -> tuple[float, int]:
    """Chi-square distance and its degrees of freedom; a node that cannot be reached must not be."""
    assert counts[chances == 0].sum() == 0
    expected = counts.sum() * chances[chances > 0]
    return float(((counts[chances > 0] - expected) ** 2 / expected).sum()), int((chances > 0).sum()) - 1


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("p", "q"), [(1.0, 1.0), (0.25, 0.25), (4.0, 0.5), (0.5, 2.0), (0.01, 1.0), (0.02, 3.0), (3.0, 8.0)]
)
def test_steps_have_the_probabilities_of_the_definition(p: float, q: float, weighted: bool, directed: bool) -> None:
    graph = graph_of(ARCS if directed else EDGES, directed, weighted)
    assert_exact(graph, p, q)


def test_steps_are_exact_where_nearly_all_proposals_are_refused() -> None:
    # In a tree no neighbour of t is one of v: every bias is near 1e-4 under a ceiling of 1.
    assert_exact(graph_of(TREE, directed=False, weighted=True), p=5e3, q=1e4)


def assert_exact(graph: Graph, p: float, q: float) -> None:
    adjacency = dense(graph)
    sampler = WalkSampler(graph, num_walks=1, walk_length=12, p=p, q=q, seed=3)
    walks = sampler.walks_from(np.tile(np.arange(6), 3000))
    first = np.zeros((7, 7))
    np.add.at(first, (walks[:, 0], walks[:, 1]), walks[:, 1] >= 0)
    t, v, x = (walks[:, i : i + 10].ravel() for i in range(3))
    counts = np.zeros((7, 7, 7))
    np.add.at(counts, (t[x >= 0], v[x >= 0], x[x >= 0]), 1)
    fits = [misfit(first[s], adjacency[s] / adjacency[s].sum()) for s in range(7) if first[s].sum()]
    fits += [
        misfit(counts[t, v], second_order(adjacency, t, v, p, q))
        for t in range(7)
        for v in range(7)
        if counts[t, v].sum() >= 50
    ]
    distance, freedom = np.sum(fits, axis=0)
    assert freedom >= 8
    assert chi2.sf(distance, freedom) > 1e-4


def test_a_dead_end_ends_the_walk() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=4, directed=True)
    for p in (1.0, 0.5):
        walks = WalkSampler(graph, num_walks=1, walk_length=5, p=p).walks_from(np.arange(4))
        np.testing.assert_array_equal(
            walks, [[0, 1, 2, -1, -1], [1, 2, -1, -1, -1], [2, -1, -1, -1, -1], [3, -1, -1, -1, -1]]
        )


def test_a_walk_of_length_one_is_its_start() -> None:
    sampler = WalkSampler(graph_of(EDGES, False, False), num_walks=2, walk_length=1)
    (walks,) = sampler.batches(100)
    assert walks.shape == (14, 1)
    assert sorted(walks[:7, 0]) == sorted(walks[7:, 0]) == list(range(7))


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 2.0)])
def test_walks_depend_on_neither_threads_nor_batch_size(p: float, q: float) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(rng.integers(0, 60, 200), rng.integers(0, 60, 200), num_nodes=60)
    sampler = WalkSampler(graph, num_walks=10, walk_length=9, p=p, q=q, seed=5)
    whole = np.concatenate(list(sampler.batches(10_000, num_threads=1)))
    assert whole.shape == (600, 9)
    assert whole.dtype == np.int32
    for batch_size, threads in ((7, 2), (600, 3), (599, 8), (61, 1)):
        batches = list(sampler.batches(batch_size, num_threads=threads))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        np.testing.assert_array_equal(np.concatenate(batches), whole)
    np.testing.assert_array_equal(sampler.walks_from(whole[13:200, 0], first=13, num_threads=2), whole[13:200])


def test_each_pass_starts_once_at_every_node_in_a_new_order() -> None:
    sampler = WalkSampler(graph_of(EDGES, False, False), num_walks=3, walk_length=2, seed=1)
    assert sampler.num_walks_per_epoch == 21
    starts = np.concatenate(list(sampler.batches(5)))[:, 0].reshape(3, 7)
    np.testing.assert_array_equal(np.sort(starts, axis=1), np.tile(np.arange(7), (3, 1)))
    assert len({tuple(row) for row in starts}) == 3


def test_seeds_and_epochs_give_other_walks() -> None:
    graph = graph_of(EDGES, False, False)
    starts = np.zeros(50, np.int64)
    runs = [
        WalkSampler(graph, walk_length=8, seed=seed).walks_from(starts, epoch=epoch)
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (-1, 0))
    ]
    assert len({run.tobytes() for run in runs}) == 4


def test_walks_of_a_seed_stay_the_same_between_releases() -> None:
    graph = graph_of(EDGES, False, True)
    sampler = WalkSampler(graph, walk_length=6, seed=7)
    first = sampler.walks_from(np.array([0, 4]))
    second = WalkSampler(graph, walk_length=6, p=0.5, q=2.0, seed=7).walks_from(np.array([0, 4]))
    np.testing.assert_array_equal(first, [[0, 2, 3, 4, 3, 2], [4, 3, 4, 3, 4, 3]])
    np.testing.assert_array_equal(second, [[0, 2, 1, 5, 2, 5], [4, 3, 4, 3, 4, 3]])


def test_alias_rows_hold_the_weights() -> None:
    indptr = np.array([0, 3, 3, 4, 8])
    weights = np.array([1, 2, 5, 4, 0, 1, 0, 3], np.float32)
    accept, other, total = alias_rows(frozen(indptr), frozen(weights))
    np.testing.assert_allclose(total, [8, 0, 4, 4])
    for low, high in ((0, 3), (3, 4), (4, 8)):
        degree = high - low
        chances = accept[low:high] / degree
        np.add.at(chances, other[low:high], (1 - accept[low:high]) / degree)
        np.testing.assert_allclose(chances, weights[low:high] / weights[low:high].sum(), atol=1e-7)


def test_stream_keys_differ_in_every_word() -> None:
    keys = {int(stream_key(a, b)) for a in range(-3, 30) for b in range(30)}
    assert len(keys) == 33 * 30
    assert stream_key(1, 2) != stream_key(2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0.0}, "p = 0.0"),
        ({"q": float("nan")}, "q = nan"),
        ({"p": float("inf")}, "p = inf"),
        ({"q": -1.0}, "q = -1.0"),
        ({"p": 1e-310}, "p = 1e-310"),
        ({"num_walks": 0}, "num_walks = 0"),
        ({"walk_length": 0}, "walk_length = 0"),
        ({"walk_length": 2.5}, "walk_length = 2.5"),
        ({"num_walks": True}, "num_walks = True"),
    ],
)
def test_options_outside_their_limits_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WalkSampler(graph_of(EDGES, False, False), **options)


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match="walks over 0 nodes"):
        WalkSampler(Graph(np.zeros(1, np.int64), np.zeros(0, np.int32), None, directed=False))


def test_start_nodes_are_checked() -> None:
    sampler = WalkSampler(graph_of(EDGES, False, False))
    with pytest.raises(PartitionError, match=r"start node 7 is outside \[0, 7\)"):
        sampler.walks_from(np.array([0, 7]))
    with pytest.raises(ShapeError, match="float64"):
        sampler.walks_from(np.array([0.0]))
    assert sampler.walks_from(np.empty(0, np.int64)).shape == (0, 40)


def test_batches_refuse_bad_counts() -> None:
    sampler = WalkSampler(graph_of(EDGES, False, False))
    with pytest.raises(ConfigError, match="batch_size = 0"):
        next(sampler.batches(0))
    with pytest.raises(ConfigError, match="num_threads = 0"):
        next(sampler.batches(num_threads=0))


@pytest.mark.parametrize("q", [1.0, 2.0])
def test_walks_that_are_moved_some_at_a_time_are_the_same(q: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = WalkSampler(graph_of(EDGES, False, True), num_walks=20, walk_length=6, q=q, seed=3)
    (whole,) = sampler.batches(1000)
    monkeypatch.setattr(partitioned_walks, "WALKERS", 9)
    (found,) = sampler.batches(1000)
    assert np.array_equal(found, whole)
