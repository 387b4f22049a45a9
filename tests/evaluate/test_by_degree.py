"""Scores by degree are those of the evaluation, split up."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.evaluate.by_degree import JudgedNodes, with_degrees
from graph_emb.evaluate.node_classification import node_classification
from graph_emb.evaluate.split_accuracy import split_accuracy
from graph_emb.graph.csr import Graph
from graph_emb.graph.labels import Labels


def test_degrees_fall_into_powers_of_two() -> None:
    judged = JudgedNodes(np.arange(6), np.array([0, 1, 1, 2, 3, 0]), np.array([1, 1, 2, 2, 4, 0]))
    found = judged.by_degree(np.array([0, 1, 2, 3, 9, 1]))
    assert [tuple(row) for row in found] == [(0, 0, 1, 0.0), (1, 1, 1, 1.0), (2, 3, 2, 0.75), (9, 9, 1, 0.75)]


def test_the_share_of_all_nodes_is_the_micro_f1_at_the_middle_ratio() -> None:
    rng = np.random.default_rng(1)
    labels = Labels.from_lists([sorted(set(rng.integers(0, 4, 1 + n % 2).tolist())) for n in range(60)], 4)
    found = node_classification(rng.normal(size=(60, 3)), labels, (0.2, 0.5, 0.8), 1, threads=1)
    assert found.judged is not None
    (row,) = found.judged.by_degree(np.ones(60, np.int64))
    assert row.score == pytest.approx(found.micro[1, 0])
    assert row.num_nodes == 30


def test_the_share_of_the_test_nodes_is_the_accuracy() -> None:
    rng = np.random.default_rng(2)
    labels = Labels.from_single(rng.integers(0, 2, 40))
    found = split_accuracy(rng.normal(size=(40, 3)), labels, {"train": np.arange(20), "test": np.arange(20, 40)})
    assert found.judged is not None
    assert found.judged.by_degree(np.full(40, 5))[0].score == pytest.approx(found.mean("test"))


def test_what_was_judged_otherwise_keeps_its_numbers() -> None:
    graph = Graph.without_edges(2)
    judged = type("Scores", (), {"judged": JudgedNodes(np.arange(2), np.ones(2, int), np.ones(2, int))})()
    assert with_degrees(object(), {"a": 1}, graph) == {"a": 1}
    assert with_degrees(judged, {"a": 1}, graph) == {"a": 1}  # the edges are elsewhere
