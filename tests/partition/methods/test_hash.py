from __future__ import annotations

import numpy as np

from graph_emb.graph.typed import HeteroGraph
from partition.methods import assign
from partition.methods.hash import hashes


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
