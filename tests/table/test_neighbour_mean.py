"""New nodes begin with the mean of their neighbours' rows, in rounds, the same on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.graph.typed import HeteroGraph
from tests.growing_oracle import INIT
from tests.ranks import Ranks

DIM, KNOWN, NEW = 3, 12, 30


def edges(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Some edges among 42 ids far apart, with repeats and self loops; new nodes know few others."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, KNOWN + NEW, 45), rng.integers(0, KNOWN + NEW, 45)
    return ids_of(np.concatenate([src, [20], dst[:25]])), ids_of(np.concatenate([dst, [20], src[:25]]))


def ids_of(numbers: np.ndarray) -> np.ndarray:
    return (numbers.astype(np.int64) - 20) << 40


def expected(seed: int, rows: dict[int, Any]) -> dict[int, Any]:
    """By the definition: rounds of means over distinct neighbours that had a row in the round before."""
    friends: dict[int, set[int]] = {}
    for a, b in zip(*(side.tolist() for side in edges(seed)), strict=True):
        if a != b:
            friends.setdefault(a, set()).add(b)
            friends.setdefault(b, set()).add(a)
    found = dict(rows)
    while True:
        fresh = {}
        for node in ids_of(np.arange(KNOWN, KNOWN + NEW)).tolist():
            there = [found[other] for other in sorted(friends.get(node, ())) if other in found]
            if node not in found and there:
                fresh[node] = sum(there[1:], there[0]) / len(there)
        if not fresh:
            return found
        found |= fresh


def grow(world: int, seed: int) -> dict[int, Any]:
    """Rows of all ids after a table with the known ones has grown by the new ones, of which each rank names some."""
    ge.init(mode="collective" if world > 1 else "local")
    try:
        emb = ge.DistEmbedding(ge.growing(60), DIM, "growing", INIT, dtype=torch.float64)
        known = torch.from_numpy(ids_of(np.arange(KNOWN)))
        emb.grow(known, torch.from_numpy(np.random.default_rng(seed).normal(size=(KNOWN, DIM))))
        new = ids_of(np.arange(KNOWN, KNOWN + NEW))
        rank = emb.transport.rank
        mine = np.concatenate([new[rank::world], new[:3], known.numpy()[:2]])  # some are named twice, some are there
        emb.grow(mine, ge.NeighbourMean(edges(seed)))
        ids = emb.ids()
        return dict(zip(ids.tolist(), emb.weight[ids].numpy(), strict=True))
    finally:
        ge.shutdown()


@pytest.mark.usefixtures("fresh_mode")
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_means_of_rows_that_were_there_a_round_before(seed: int) -> None:
    found = grow(1, seed)
    known = {id: found[id] for id in ids_of(np.arange(KNOWN)).tolist()}
    means = expected(seed, known)
    assert len(found) == KNOWN + NEW
    assert KNOWN + 5 < len(means) < KNOWN + NEW, "some are reached, some are not"
    ge.init(mode="local")
    first = ge.DistEmbedding(ge.growing(60), DIM, "first", INIT, dtype=torch.float64)
    for id, row in found.items():
        assert np.allclose(row, means[id], rtol=1e-13) if id in means else (row == first.weight[[id]].numpy()).all()


@pytest.mark.dist
@pytest.mark.usefixtures("fresh_mode")
def test_ranks_that_name_other_new_nodes_get_the_rows_of_one_process(ranks: Ranks) -> None:
    alone = grow(1, 1)
    for world in (2, 3):
        for found in ranks.run(grow, world, world, 1):
            assert found.keys() == alone.keys()
            assert all((found[id] == alone[id]).all() for id in alone)


@pytest.mark.usefixtures("local_mode")
def test_a_graphs_own_ids_are_the_tables() -> None:
    ends = np.array([0, 1]), np.array([2, 2])
    graph = HeteroGraph({"_N": 3}, {("_N", "_E", "_N"): ends}, node_ids={"_N": np.array([70, 80, 90])})
    emb = ge.DistEmbedding(ge.growing(9), 1, "growing")
    emb.grow([70, 80], torch.tensor([[1.0], [2.0]]))
    emb.grow([90], ge.NeighbourMean(graph))
    assert emb.weight[[90]].item() == 1.5


def test_nodes_of_a_later_round_come_in_the_order_of_their_ids() -> None:
    found, rows = ge.NeighbourMean(([20, 30, 30], [30, 10, 5])).values(
        np.array([5, 10, 30]), np.array([20]), lambda asked: 7.0 + asked[:, None]
    )
    assert found.tolist() == [5, 10, 30]
    assert rows.tolist() == [[27.0]] * 3
    both, rows = ge.NeighbourMean(([20, 30, 21, 10, 40], [30, 10, 30, 40, 50])).values(
        np.array([10, 30, 40]), np.array([20, 21, 50]), lambda asked: asked[:, None].astype(float)
    )
    assert dict(zip(both.tolist(), rows[:, 0].tolist(), strict=True)) == {10: 35.25, 30: 20.5, 40: 50.0}


@pytest.mark.parametrize("far", [1, 1 << 30, 1 << 40, -1])
def test_the_size_of_ids_changes_nothing(far: int) -> None:
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 40, 80), rng.integers(0, 40, 80)
    known, new = np.arange(20), np.arange(20, 40)
    plain = ge.NeighbourMean((src, dst)).values(new, known, lambda asked: np.sqrt(asked[:, None]))
    order = slice(None, None, np.sign(far))
    values = ge.NeighbourMean((src * far, dst * far)).values(
        (new * far)[order], (known * far)[order], lambda asked: np.sqrt(asked[:, None] / far)
    )
    assert len(plain[0]) > 15
    assert np.array_equal(values[0] // far, plain[0][order])
    np.testing.assert_allclose(values[1], plain[1][order], rtol=1e-12)


def test_float32_rows_are_added_up_in_float64() -> None:
    rows = np.array([[1.0], [2.0**-30], [2.0**-30]], np.float32)
    found = ge.NeighbourMean(([3, 3, 3], [0, 1, 2])).values(np.array([3]), np.arange(3), lambda asked: rows[asked])
    assert found[1].dtype == np.float64
    assert found[1].item() == (1 + 2.0**-29) / 3


def test_what_is_no_graph_of_ids_is_said() -> None:
    ends = np.array([0]), np.array([1])
    with pytest.raises(ConfigError, match="ids are texts"):
        ge.NeighbourMean(HeteroGraph({"_N": 2}, {("_N", "_E", "_N"): ends}, node_ids={"_N": np.array(["a", "b"])}))
    with pytest.raises(ConfigError, match=r"the graph has node types \['a', 'b'\] and 1 edge types"):
        ge.NeighbourMean(HeteroGraph({"a": 2, "b": 2}, {("a", "r", "b"): ends}))
    with pytest.raises(ShapeError, match=r"edges of shape \(1,\), \(2,\) must be integers"):
        ge.NeighbourMean(([0], [1, 2]))
    with pytest.raises(ShapeError, match="must be integers"):
        ge.NeighbourMean(([0.5], [1.0]))
