from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import HeteroGraph
from partition.methods import assign
from partition.methods.without_edges import hashes


def test_a_hash_depends_on_the_original_id_alone() -> None:
    ids = np.arange(100, 160)
    whole = assign(HeteroGraph({"a": 60}, {}, node_ids={"a": ids}), 3, "hash").parts["a"]
    turned = assign(HeteroGraph({"a": 60}, {}, node_ids={"a": ids[::-1]}), 3, "hash").parts["a"]
    assert whole.tolist() == turned[::-1].tolist()
    assert assign(HeteroGraph({"a": 160}, {}), 3, "hash").parts["a"][100:].tolist() == whole.tolist()


def test_a_string_hashes_alike_beside_longer_ones() -> None:
    assert hashes(np.array(["ann", "bo"]), 3)[0] == hashes(np.array(["ann", "a much longer name"]), 3)[0]
    assert hashes(np.array(["ann"]), 3)[0] != hashes(np.array(["ann"]), 4)[0]
    assert hashes(np.array(["ab"]), 0)[0] != hashes(np.array(["ba"]), 0)[0]


def test_hashes_spread_evenly() -> None:
    counts = np.bincount((hashes(np.arange(100_000), 0) % np.uint64(8)).astype(int))
    assert counts.max() / counts.mean() < 1.03


def test_random_deals_every_type_evenly() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "random", seed=2, balance=["nodes", "types"])
    assert np.ptp(np.bincount(made.parts["a"])) <= 1
    assert np.ptp(np.bincount(made.parts["b"])) <= 1
    assert np.ptp(np.bincount(made.homogeneous())) <= 1


def test_ranges_ascend_within_a_type_and_take_turns_with_the_rest() -> None:
    made = assign(HeteroGraph({"a": 10, "b": 7}, {}), 4, "range", balance=["nodes", "types"])
    assert made.parts["a"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert made.parts["b"].tolist() == [0, 0, 1, 2, 2, 3, 3]  # the extra ones: parts 0, 1 of a, then 2, 3, 0 of b
    assert np.bincount(made.homogeneous()).tolist() == [5, 4, 4, 4]
