"""Files of held-out edges and triples: read by the ids of a graph, and taken out of its training part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph import Graph
from graph_emb.graph.edge_files import read_held_out_edges, read_held_out_triples, without_held_out
from graph_emb.graph.held_out import hold_out_given
from graph_emb.graph.triples import KnowledgeGraph

NAMES = Graph.from_edges(["ann", "bob", "carl"], ["bob", "carl", "dora"])
GAPS = Graph.from_edges([10, 20, 30], [20, 30, 40], directed=True)
TRIPLES = np.array([[0, 0, 1], [1, 1, 2], [2, 0, 0], [0, 1, 2]])
FACTS = KnowledgeGraph("facts", 3, 2, {"train": TRIPLES}, ("a", "b", "c"), ("is", "has"))


def put(folder: Path, content: str, name: str = "e.csv") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("graph", "content", "expected"),
    [
        (NAMES, "carl,bob\nbob,carl\n", {"test": [[1, 2]]}),
        (NAMES, "source,target,split\ndora,ann,val\nann,bob,test\n", {"valid": [[0, 3]], "test": [[0, 1]]}),
        (GAPS, "from to\n20 10\n10 20\n", {"test": [[1, 0], [0, 1]]}),
    ],
)
def test_edges_become_node_numbers_by_part(graph: Graph, content: str, expected: dict, tmp_path: Path) -> None:
    found = read_held_out_edges(put(tmp_path, content), graph)
    assert {part: edges.tolist() for part, edges in found.items()} == expected


def test_triples_become_numbers_by_name(tmp_path: Path) -> None:
    found = read_held_out_triples(put(tmp_path, "head,relation,tail,split\nb,has,c,test\na,is,c,valid\n"), FACTS)
    assert {part: own.tolist() for part, own in found.items()} == {"valid": [[0, 0, 2]], "test": [[1, 1, 2]]}
    graph, removed = without_held_out(FACTS, found)
    assert graph.train.tolist() == TRIPLES[[0, 2, 3]].tolist()
    assert (removed, list(graph.parts)) == (1, ["train", "valid", "test"])
    numbered = KnowledgeGraph("facts", 3, 2, {"train": TRIPLES})
    assert read_held_out_triples(put(tmp_path, "1,1,2\n"), numbered)["test"].tolist() == [[1, 1, 2]]
    with pytest.raises(DataError, match="line 1: relation '2' is not among the 2 of the graph"):
        read_held_out_triples(put(tmp_path, "1,2,2\n"), numbered)
    rows = "".join(f"{'abc'[h]},{('is', 'has')[r]},{'abc'[t]}\n" for h, r, t in TRIPLES)
    with pytest.raises(DataError, match="all 4 training triples are held out"):
        without_held_out(FACTS, read_held_out_triples(put(tmp_path, rows), FACTS))


@pytest.mark.parametrize("directed", [False, True])
def test_held_out_edges_leave_the_graph_and_negatives_are_neither(directed: bool) -> None:
    nodes = np.arange(30)
    graph = Graph.from_edges(nodes, (nodes + 1) % 30, 30, nodes + 1.0, directed)
    given = {"valid": np.array([[0, 1], [0, 9]]), "test": np.array([[3, 4], [2, 7], [5, 6]])}
    train, split, removed = hold_out_given(graph, given, seed=5)
    assert removed == 3
    assert (train.num_nodes, train.num_edges) == (30, 27)
    for part, edges in given.items():
        assert split[part]["edge"].tolist() == edges.tolist()
        assert split[part]["edge_neg"].shape == edges.shape
        assert not train.has_edges(*edges.T).any()
        assert directed or not train.has_edges(*edges.T[::-1]).any()
    negatives = [tuple(pair) for part in given for pair in split[part]["edge_neg"].tolist()]
    assert len(set(negatives)) == 5
    assert not graph.has_edges(*np.array(negatives).T).any()
    assert not {(0, 9), (2, 7)} & set(negatives)
    kept = graph.has_edges(*train.edges().T)
    assert kept.all()
    assert train.edge_weights().tolist() == [  # type: ignore[union-attr]
        weight
        for edge, weight in zip(graph.edges().tolist(), graph.edge_weights().tolist(), strict=True)  # type: ignore[union-attr]
        if edge not in ([0, 1], [3, 4], [5, 6])
    ]
    with pytest.raises(DataError, match="30 edges, 30 held out; none is left to train on"):
        hold_out_given(graph, {"test": graph.edges()})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ann,bob\nann,zoe\n", "line 2: node 'zoe' is not among the 4 nodes of the graph"),
        ("ann,ann\n", "line 1: an edge of node 'ann' to itself is not predicted"),
        ("ann,bob,tset\n", "line 1: part 'tset'; held-out edges are of test or valid"),
        ("ann,bob,train\n", "line 1: part 'train'; held-out edges are of test or valid"),
        ("ann,bob,test\nbob,ann,val\n", "line 2: this edge is in valid, and in test by .*, line 1"),
        ("ann,bob,val\n", "has no test edges; expected rows source,target"),
        ("ann\n", "line 1: 1 columns; expected source,target"),
        ("ann,bob,1,test\n", "line 1: 4 columns; expected source,target"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(content: str, words: str, tmp_path: Path) -> None:
    path = put(tmp_path, content)
    with pytest.raises(DataError, match=words) as caught:
        read_held_out_edges(path, NAMES)
    assert str(caught.value).startswith(str(path))


def test_integers_are_asked_of_integer_ids(tmp_path: Path) -> None:
    for content in ("10,20\n10,x\n", "10,20\n10,99999999999999999999999\n", "10,20\n10,-5\n"):
        with pytest.raises(DataError, match=r"line 2: node '.*' is not among the 4 nodes"):
            read_held_out_edges(put(tmp_path, content), GAPS)
    with pytest.raises(DataError, match=r"suffix '\.npz' is no file of held-out edges"):
        read_held_out_edges(put(tmp_path, "x", "e.npz"), GAPS)
