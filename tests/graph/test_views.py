"""Views of data sets: compressed rows, triples, typed nodes with classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.graph import Graph, Labels, read_graph
from graph_emb.graph.datasets import Dataset, load_dataset
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import PlainDataset, compressed, knowledge_graph, plain_dataset, typed_nodes, with_reverse
from tests.ogb_layout import write_mag


def arcs(src: list[int], dst: list[int], weights: list[float] | None = None) -> HeteroGraph:
    data = {} if weights is None else {EDGE_TYPE: {"weight": np.array(weights, dtype=np.float32)}}
    return HeteroGraph({NODE_TYPE: 4}, {EDGE_TYPE: (np.array(src), np.array(dst))}, edge_data=data)


def triples_of(graph: Graph) -> list[tuple[int, int, float]]:
    weights = np.ones(graph.num_arcs) if graph.weights is None else graph.weights
    return list(zip(graph.sources().tolist(), graph.indices.tolist(), weights.tolist(), strict=True))


def test_arcs_stay_as_they_are_unless_they_mean_both_directions() -> None:
    given = arcs([0, 0, 1, 2], [1, 1, 0, 3], [5, 2, 3, 4])
    graph, counts = compressed(given, symmetrize=False)
    assert graph.directed
    assert triples_of(graph) == [(0, 1, 5.0), (1, 0, 3.0), (2, 3, 4.0)]
    assert counts == {"duplicate edges merged": 1}
    graph, counts = compressed(given, symmetrize=True)
    assert not graph.directed
    assert triples_of(graph) == [(0, 1, 5.0), (1, 0, 5.0), (2, 3, 4.0), (3, 2, 4.0)]
    assert counts == {"duplicate edges merged": 1, "reverse edges added": 1}


def test_sums_count_an_edge_without_weight_as_one() -> None:
    graph, counts = compressed(arcs([0, 0, 1, 2], [1, 1, 0, 2], [5, 2, 3, 4]), symmetrize=True, duplicates="sum")
    assert triples_of(graph) == [(0, 1, 10.0), (1, 0, 10.0), (2, 2, 4.0)]
    assert counts == {"duplicate edges merged": 1}
    graph, _ = compressed(arcs([0, 0, 1], [1, 1, 2]), symmetrize=False, duplicates="sum")
    assert triples_of(graph) == [(0, 1, 2.0), (1, 2, 1.0)]


def test_a_graph_that_holds_both_directions_is_undirected_and_no_weight_is_doubled() -> None:
    """Sums over both directions of stored pairs would count each edge twice, but a self loop once."""
    both = arcs([0, 1, 1, 2, 2, 0, 1], [1, 0, 2, 1, 2, 1, 0], [5, 5, 3, 3, 4, 1, 1])
    for symmetrize in (True, False):
        graph, counts = compressed(both, symmetrize=symmetrize, duplicates="sum")
        assert not graph.directed
        assert triples_of(graph) == [(0, 1, 6.0), (1, 0, 6.0), (1, 2, 3.0), (2, 1, 3.0), (2, 2, 4.0)]
        assert counts == {"duplicate edges merged": 2}
    uneven, _ = compressed(arcs([0, 1], [1, 0], [5, 2]), symmetrize=False)
    assert uneven.directed
    turned, _ = compressed(arcs([0, 1, 2], [1, 2, 0]), symmetrize=False)  # degrees alone do not tell
    assert turned.directed


def test_a_view_equals_the_graph_that_is_built_at_once() -> None:
    rng = np.random.default_rng(0)
    src, dst, weights = rng.integers(0, 30, 200), rng.integers(0, 30, 200), rng.integers(1, 9, 200)
    graph = HeteroGraph({NODE_TYPE: 30}, {EDGE_TYPE: (src, dst)}, edge_data={EDGE_TYPE: {"weight": weights}})
    for duplicates in ("first", "sum"):
        for symmetrize in (True, False):
            found, _ = compressed(graph, symmetrize=symmetrize, duplicates=duplicates)
            built = Graph.from_edges(src, dst, 30, weights, directed=not symmetrize, duplicates=duplicates)
            assert triples_of(found) == triples_of(built)


def test_self_loops_are_dropped_and_counted_where_the_view_says_so() -> None:
    given = arcs([0, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 2, 3, 4, 5])
    for symmetrize in (True, False):
        graph, counts = compressed(given, symmetrize=symmetrize, self_loops="drop")
        assert [arc for arc in triples_of(graph) if arc[0] <= arc[1]] == [(0, 1, 4.0)]
        added = {"reverse edges added": 1} if symmetrize else {}
        assert counts == {"self loops dropped": 3, "duplicate edges merged": 1, **added}
    dataset = Dataset("x", given)
    assert plain_dataset(dataset).graph.num_self_loops == 2
    assert plain_dataset(dataset, self_loops="drop").graph.num_self_loops == 0


def test_a_graph_that_is_symmetric_by_construction_is_not_compared_with_its_reverse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The view sorted every graph a second time to find out what its reader had said; weights may differ still."""
    plain, uneven = (replace(arcs([0, 1], [1, 0], own), symmetric=True) for own in (None, [5, 2]))
    assert compressed(uneven, symmetrize=False)[0].directed
    monkeypatch.delattr(Graph, "reverse")
    graph, counts = compressed(plain, symmetrize=True)
    assert (graph.directed, triples_of(graph), counts) == (False, [(0, 1, 1.0), (1, 0, 1.0)], {})


def test_original_ids_go_along() -> None:
    graph = read_graph(Graph.from_edges(["a", "c"], ["b", "b"], directed=True))
    assert plain_dataset(Dataset("x", graph)).graph.node_ids.tolist() == ["a", "b", "c"]


def test_labels_of_another_number_of_nodes_are_refused() -> None:
    with pytest.raises(ShapeError, match="labels of 2 nodes for a graph of 3"):
        PlainDataset("x", Graph.from_edges([0], [1], num_nodes=3), Labels.from_single([0, 1]))


def two_types() -> HeteroGraph:
    edges = {
        ("paper", "by", "author"): (np.array([0, 1]), np.array([1, 0])),
        ("paper", "cites", "paper"): (np.array([2]), np.array([0])),
    }
    return HeteroGraph({"author": 2, "paper": 3}, edges, name="papers")


def test_more_types_than_one_and_relations_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'papers' has 2 node types and 2 edge types; expected one of each"):
        plain_dataset(load_dataset(two_types()))
    (tmp_path / "facts.tsv").write_text("a\tlikes\tb\n")
    with pytest.raises(DataError, match="'facts' is a knowledge graph; take a model of triples"):
        plain_dataset(load_dataset(tmp_path / "facts.tsv", format="triples"))


def test_edge_types_are_relations_of_triples() -> None:
    found = knowledge_graph(load_dataset(two_types()))
    assert (found.num_entities, found.num_relations) == (5, 2)
    assert found.relations == ("paper:by:author", "paper:cites:paper")
    assert found.train.tolist() == [[2, 0, 1], [3, 0, 0], [4, 1, 2]]
    assert found.entity_types == {"author": 0, "paper": 2}


@pytest.mark.parametrize("relations", ["column", "types"])
def test_a_graph_of_one_relation_is_one_of_triples(tmp_path: Path, relations: Any) -> None:
    """One relation is one edge type, which was taken for a graph without relations."""
    (tmp_path / "one.tsv").write_text("b\tlikes\ta\na\tlikes\tc\n")
    graph = read_graph(tmp_path / "one.tsv", format="triples", relations=relations)
    found = knowledge_graph(Dataset("one", graph))
    assert (found.relations, found.train.tolist()) == (("likes",), [[1, 0, 0], [0, 0, 2]])


def test_a_column_of_relations_is_one_of_triples(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("a\tlikes\tb\nb\tis\tc\n")
    data = load_dataset(tmp_path / "facts.tsv", format="triples")
    given = knowledge_graph(data)
    for relations in ("column", "types"):
        graph = read_graph(given, relations=relations)
        found = knowledge_graph(Dataset("facts", graph))
        assert sorted(found.train.tolist()) == sorted(given.train.tolist())
        assert (found.entities, found.relations) == (given.entities, given.relations)
    with pytest.raises(DataError, match="has no relations; models of triples need them"):
        knowledge_graph(Dataset("plain", arcs([0], [1])))


def test_typed_nodes_of_a_plain_graph_have_each_edge_once_in_both_directions() -> None:
    labels, split = Labels.from_single([0, 1, -1, 0]), {"train": np.array([0])}
    graph = arcs([0, 0, 1], [1, 1, 2])
    found = typed_nodes(Dataset("x", graph, {NODE_TYPE: labels}, {NODE_TYPE: split}, {NODE_TYPE: np.ones((4, 2))}))
    src, dst = found.graph.edges[EDGE_TYPE]
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert found.labels.tolist() == [0, 1, -1, 0]
    assert found.features[NODE_TYPE].dtype == np.float32
    with pytest.raises(
        DataError, match=r"'x' has no split of its nodes; .* needs labels and a split; name a file, dataset\.split"
    ):
        typed_nodes(Dataset("x", graph, {NODE_TYPE: labels}))
    with pytest.raises(DataError, match="'x' has no labels"):
        typed_nodes(Dataset("x", graph))


def test_typed_nodes_of_a_typed_graph_have_reverse_types(tmp_path: Path) -> None:
    write_mag(tmp_path)
    data = load_dataset("ogbn-mag", tmp_path)
    found = typed_nodes(data)
    assert (found.name, found.ntype) == ("ogbn-mag", "paper")
    assert set(found.features) == {"paper"}
    assert len(found.graph.edges) == 2 * len(data.graph.edges)
    assert set(found.split) == {"train", "valid", "test"}


@pytest.mark.parametrize("merge_within", [False, True])
def test_reverse_types_that_are_there_are_not_turned_round_again(tmp_path: Path, merge_within: bool) -> None:
    """A partition that was built with them could not be trained on."""
    write_mag(tmp_path)
    data = load_dataset("ogbn-mag", tmp_path)
    expected = typed_nodes(data, merge_within=merge_within).graph.edges
    graph = replace(data, graph=read_graph(data.graph, reverse_types=True))
    for etype, ends in typed_nodes(graph, merge_within=merge_within).graph.edges.items():
        assert all(map(np.array_equal, ends, expected.pop(etype)))
    assert not expected
    edges, other = dict(graph.graph.edges), ("paper", "rev_writes", "author")
    edges[other] = edges[other][0], np.zeros_like(edges[other][1])
    with pytest.raises(DataError, match="paper:rev_writes:author is in the data already"):
        typed_nodes(replace(data, graph=replace(data.graph, edges=edges)))


def test_every_relation_has_its_reverse_and_citations_go_both_ways(tmp_path: Path) -> None:
    write_mag(tmp_path)
    dataset = load_dataset("ogbn-mag", tmp_path)
    graph = with_reverse(dataset.graph)
    assert set(graph.edges) == {
        ("author", "affiliated_with", "institution"),
        ("institution", "rev_affiliated_with", "author"),
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
        ("paper", "has_topic", "field_of_study"),
        ("field_of_study", "rev_has_topic", "paper"),
        ("paper", "cites", "paper"),
    }
    writes, written = graph.edges["author", "writes", "paper"], graph.edges["paper", "rev_writes", "author"]
    assert np.array_equal(writes[0], written[1])
    assert np.array_equal(writes[1], written[0])
    once = np.stack(dataset.graph.edges["paper", "cites", "paper"])
    cites = np.stack(graph.edges["paper", "cites", "paper"])
    assert np.array_equal(cites, np.concatenate([once, once[::-1]], axis=1))
    assert set(typed_nodes(dataset, merge_within=True).graph.edges) == set(graph.edges)


def test_classes_that_no_node_has_are_counted_as_ogb_counts_them(tmp_path: Path) -> None:
    write_mag(tmp_path)
    assert load_dataset("ogbn-mag", tmp_path).labels["paper"].num_classes == 349
