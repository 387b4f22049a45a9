from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.graph.datasets import Dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.triples import GivenNegatives, KnowledgeGraph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeldOut, HeteroGraph
from graph_emb.tuning.validation import valid_values, without_test

NODES = 20
RING = np.arange(NODES), (np.arange(NODES) + 1) % NODES
SPLIT = {"train": np.arange(10), "valid": np.arange(10, 14), "test": np.arange(14, 18)}


def dataset(**more: Any) -> Dataset:
    graph = HeteroGraph(
        {NODE_TYPE: NODES},
        {EDGE_TYPE: RING},
        node_data={
            NODE_TYPE: {"label": np.arange(NODES) % 2, "test_mask": np.arange(NODES) > 13, "feat": np.eye(NODES)}
        },
        held_out=HeldOut(triples={"test": np.array([[0, 0, 1]])}),
    )
    return Dataset("ring", graph, **more)


def classes() -> dict[str, Labels]:
    return {NODE_TYPE: Labels.from_single(np.arange(NODES) % 2)}


@pytest.mark.parametrize("networks", [False, True])
def test_validation_nodes_stand_where_the_test_nodes_were(networks: bool) -> None:
    found = without_test(dataset(labels=classes(), node_split={NODE_TYPE: SPLIT}), networks=networks)
    split = found.node_split[NODE_TYPE]
    assert sorted(split) == (["test", "train", "valid"] if networks else ["test", "train"])
    assert split["valid" if networks else "test"].tolist() == SPLIT["valid"].tolist()
    trained = [*split["train"], *(split["test"] if networks else [])]
    assert sorted(trained) == SPLIT["train"].tolist()
    assert len(split["train"]) == (9 if networks else 10)
    assert found.labels[NODE_TYPE].labelled().tolist() == list(range(14)), "test nodes and others have no class"


def test_neither_columns_nor_tables_of_the_graph_tell_the_test_data() -> None:
    graph = without_test(dataset(labels=classes(), node_split={NODE_TYPE: SPLIT}), networks=True).graph
    assert list(graph.node_data[NODE_TYPE]) == ["feat"]
    assert graph.held_out is None


def test_a_split_without_validation_nodes_gives_some_training_nodes() -> None:
    split = {"train": SPLIT["train"], "test": SPLIT["test"]}
    found = without_test(dataset(labels=classes(), node_split={NODE_TYPE: split}), networks=False, seed=1)
    own = found.node_split[NODE_TYPE]
    assert (len(own["train"]), len(own["test"])) == (8, 2)
    assert sorted([*own["train"], *own["test"]]) == list(range(10))
    other = without_test(dataset(labels=classes(), node_split={NODE_TYPE: split}), networks=False, seed=2)
    assert other.node_split[NODE_TYPE]["test"].tolist() != own["test"].tolist()


def test_half_of_the_labelled_nodes_keep_their_labels_where_there_is_no_split() -> None:
    found = without_test(dataset(labels=classes()), networks=False, seed=3)
    assert len(found.labels[NODE_TYPE].labelled()) == NODES // 2
    assert found.labels[NODE_TYPE].num_classes == 2


def test_validation_edges_stand_where_the_test_edges_were() -> None:
    links = {part: {"edge": np.array([[number, number + 1]])} for number, part in enumerate(("train", "valid", "test"))}
    found = without_test(dataset(link_split=links), networks=False)
    assert found.link_split is not None
    assert found.link_split["test"]["edge"].tolist() == [[1, 2]]
    with pytest.raises(ge.DataError, match="no validation part to tune by"):
        without_test(dataset(link_split={"train": links["train"], "test": links["test"]}), networks=False)


def test_filtered_ranks_do_not_know_the_test_triples() -> None:
    parts = {part: np.array([[number, 0, number + 1]]) for number, part in enumerate(("train", "valid", "test"))}
    given = {part: GivenNegatives(np.array([[3]]), np.array([[3]])) for part in ("valid", "test")}
    graph = KnowledgeGraph("kg", NODES, 1, parts, negatives=given)
    found = without_test(dataset(triples=graph), networks=False).triples
    assert found is not None
    assert (sorted(found.parts), sorted(found.negatives)) == (["train", "valid"], ["valid"])
    assert [2, 0, 3] not in found.all_triples().tolist()


def test_data_without_a_judgement_are_refused() -> None:
    with pytest.raises(ge.DataError, match="no labels, held-out edges or triples to tune by"):
        without_test(dataset(), networks=False)


RANKS = {"triples_valid": {"both": {"mrr": {"realistic": 0.2}, "hits@1": {"realistic": 0.1}}}}
RATIOS = [{"ratio": ratio, "micro_mean": ratio, "macro_mean": ratio / 2} for ratio in (0.1, 0.5, 0.9)]


@pytest.mark.parametrize(
    ("train", "evaluation", "values"),
    [
        ({"best_valid_mrr": 0.3}, RANKS, {"valid.mrr": 0.3, "valid.hits@1": 0.1}),
        ({}, {"node_classification": {"ratios": RATIOS}}, {"valid.micro@0.5": 0.5, "valid.macro@0.5": 0.25}),
        ({}, {"split_accuracy": {"accuracy": {"train": {"mean": 1}, "test": {"mean": 0.7}}}}, {"valid.accuracy": 0.7}),
        ({}, {"link_prediction": {"parts": {"valid": {"metrics": {"auc": {"value": 0.8}}}}}}, {"valid.auc": 0.8}),
        ({}, {"link_predictor": {"metrics": {"hits@20": {"epoch": 5, "valid": 0.4}}}}, {"valid.hits@20": 0.4}),
        ({}, {"classes": {"summary": {"acc": {"valid": {"mean": 0.6}, "test": {"mean": 0.6}}}}}, {"valid.acc": 0.6}),
    ],
)  # fmt: skip
def test_values_of_each_evaluation(train: dict[str, Any], evaluation: dict[str, Any], values: dict[str, float]) -> None:
    result: Any = SimpleNamespace(metrics={"train": train, "evaluation": evaluation})
    found = valid_values(result)
    assert {name: found[name] for name in values} == values
    assert next(iter(found)) == next(iter(values)), "the usual one comes first"
