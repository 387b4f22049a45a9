"""Triples and N-Triples: names kept, relations as types or as a column, held-out triples left out."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.triples import type_names
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE


def pairs_of(graph, etype=EDGE_TYPE) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges[etype]), strict=True))


def test_relations_become_types_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "kg.tsv").write_text("b\t/people/born in\ta\na\tknows\tb\nc\tknows\ta\n")
    graph = read_graph(tmp_path / "kg.tsv", format="triples")
    assert graph.node_ids[NODE_TYPE].tolist() == ["a", "b", "c"]
    assert graph.etypes == [(NODE_TYPE, "people_born_in", NODE_TYPE), (NODE_TYPE, "knows", NODE_TYPE)]
    assert graph.relation_names.tolist() == ["/people/born in", "knows"]
    assert pairs_of(graph, graph.etypes[1]) == [(0, 1), (2, 0)]


def test_relations_become_a_column(tmp_path: Path) -> None:
    (tmp_path / "kg.csv").write_text("b,r2,a\na,r1,b\n")
    graph = read_graph(tmp_path / "kg.csv", format="triples", relations="column")
    assert pairs_of(graph) == [(1, 0), (0, 1)]
    assert graph.relation_names[graph.edge_data[EDGE_TYPE]["relation"]].tolist() == ["r2", "r1"]


def test_integer_entities_keep_their_numbers_and_gaps_their_ids(tmp_path: Path) -> None:
    (tmp_path / "kg.txt").write_text("0 5 1\n1 7 2\n")
    graph = read_graph(tmp_path / "kg.txt", format="triples", relations="column")
    assert (graph.num_nodes, graph.node_ids) == ({NODE_TYPE: 3}, {})
    assert graph.relation_names.tolist() == ["5", "7"]
    (tmp_path / "kg.txt").write_text("0 5 10\n")
    assert read_graph(tmp_path / "kg.txt", format="triples").node_ids[NODE_TYPE].tolist() == [0, 10]
    assert read_graph(tmp_path / "kg.txt", format="triples", ids="str").node_ids[NODE_TYPE].tolist() == ["0", "10"]


@pytest.mark.parametrize("order", ["hrt", "htr", "trh"])
def test_the_columns_may_stand_in_any_order(tmp_path: Path, order: str) -> None:
    cells = {"h": "ann", "r": "likes", "t": "bob"}
    (tmp_path / "kg.tsv").write_text("\t".join(cells[letter] for letter in order) + "\n")
    graph = read_graph(tmp_path / "kg.tsv", format="triples", order=order)
    assert graph.relation_names.tolist() == ["likes"]
    names = graph.node_ids[NODE_TYPE]
    assert [names[end].tolist() for end in graph.edges[graph.etypes[0]]] == [["ann"], ["bob"]]


def test_a_folder_gives_edges_of_train_and_entities_of_all(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    (tmp_path / "valid.txt").write_text("a\tr\tz\na\tq\tb\n")
    with gzip.open(tmp_path / "test.txt.gz", "wt") as stream:
        stream.write("z\tr\tb\n")
    graph = read_graph(tmp_path, format="triples")
    assert graph.node_ids[NODE_TYPE].tolist() == ["a", "b", "z"]
    assert (graph.total_edges, graph.relation_names.tolist()) == (1, ["r"])
    left = {"held-out triples of untrained relations": 1}
    assert graph.counts == {"valid edges left out": 2, "test edges left out": 1, **left}


def test_parquet_triples_need_no_header(tmp_path: Path) -> None:
    table = pa.table({"head": ["a"], "relation": [3], "tail": ["b"]})
    parquet.write_table(table, tmp_path / "kg.parquet")
    graph = read_graph(tmp_path / "kg.parquet", format="triples")
    assert graph.relation_names.tolist() == ["3"]
    assert pairs_of(graph, graph.etypes[0]) == [(0, 1)]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a\tb\n", {}, r"kg.tsv: 2 column\(s\) in the first line, expected 3"),
        ("a\tr\tb\na\tr\n", {}, "kg.tsv, line 2: Expected 3 columns, got 2"),
        ("a\tr\tb\tc\n", {}, r"kg.tsv: 4 column\(s\)"),
        ("0\tr\tb\n", {}, "heads and tails are of two kinds"),
        ("0\tr\t-4\n", {}, "row 1: tail -4 is outside"),
        ("a\tr\t\n", {}, "row 1: tail (is missing|has 0 characters)"),
        ("a\tr\tb\n", {"order": "hrr"}, "order='hrr': expected a permutation"),
        ("a\tr\tb\n", {"relations": "type"}, "unknown relations policy 'type'"),
        ("a\tr\tb\n", {"ids": "names"}, "unknown ids policy 'names'"),
        ("a\tr\tb\n", {"ids": "int"}, "expected integers as ids"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, options: dict, message: str) -> None:
    (tmp_path / "kg.tsv").write_text(text)
    with pytest.raises((DataError, ConfigError), match=message):
        read_graph(tmp_path / "kg.tsv", format="triples", **options)


def test_type_names_are_distinct_and_fit_dgls_files() -> None:
    names = np.array(["a/b", "a:b", "a_b_2", "<http://x.org/y#type>", "<http://z.org/type>", "<http://z.org/p>", "::"])
    full = type_names(names)
    assert len(set(full)) == 7
    assert not any(letter in name for name in full for letter in ":/ ")
    assert full[:3] == ["a_b", "a_b_3", "a_b_2"]
    assert type_names(names, short=True)[5] == "p"
    assert "type" not in type_names(names, short=True)


RDF = """# a comment
<http://x/a> <http://x#knows> <http://x/b> .
_:n1 <http://x#knows> <http://x/a> .  # one more

<http://x/a> <http://x#name> "A \\"q\\" . <z>"@en-GB .
<http://x/a>\t<http://x#age>\t"4"^^<http://www.w3.org/2001/XMLSchema#int> .
<http://x/b><http://x#name>"b".\r
"""


def test_statements_of_every_form_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_text(RDF, newline="")
    graph = read_graph(tmp_path / "x.nt")
    assert [etype[1] for etype in graph.etypes] == ["age", "knows", "name"]
    names = graph.node_ids[NODE_TYPE]
    src, dst = graph.edges[graph.etypes[2]]
    assert names[src].tolist() == ["<http://x/a>", "<http://x/b>"]
    assert names[dst].tolist() == ['"A \\"q\\" . <z>"@en-GB', '"b"']
    assert names[graph.edges[graph.etypes[1]][0]].tolist() == ["<http://x/a>", "_:n1"]
    assert graph.relation_names.tolist() == ["<http://x#age>", "<http://x#knows>", "<http://x#name>"]


def test_literals_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_text(RDF)
    graph = read_graph(tmp_path / "x.nt", literals="drop", relations="column")
    assert graph.total_edges == 2
    assert graph.counts == {"literals dropped": 3}
    assert graph.relation_names.tolist() == ["<http://x#knows>"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("<a> <b> c .", r"x.nt, line 8: '<a> <b> c .' is no statement"),
        ("<a> <b> <c>", "line 8"),
        ('"a" <b> <c> .', "line 8"),
        ("<a> _:b <c> .", "line 8"),
        ('<a> <b> "open .', "line 8"),
        ('<a> <b> "' + "x" * 2000 + '" .', "line 8: an object of 2002 characters; a node's id has at most 1024"),
    ],
)
def test_a_line_that_is_no_statement_is_told(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.nt").write_text(RDF + line + "\n")
    with pytest.raises(DataError, match=message):
        read_graph(tmp_path / "x.nt")


def test_damaged_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_bytes(b"<a> <b> <c> .\n<a> <b> <\xff> .\n")
    with pytest.raises(DataError, match=r"x.nt, line 2: byte 0xff is not UTF-8"):
        read_graph(tmp_path / "x.nt")
    whole = gzip.compress(RDF.encode() * 50)
    (tmp_path / "x.nt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x.nt.gz: damaged or cut off"):
        read_graph(tmp_path / "x.nt.gz")
    (tmp_path / "x.nt").write_text("# nothing\n")
    with pytest.raises(DataError, match="has no statements"):
        read_graph(tmp_path / "x.nt")
    with pytest.raises(ConfigError, match="unknown literals policy 'no'"):
        read_graph(tmp_path / "x.nt", literals="no")


@pytest.mark.data
def test_the_real_aifb_has_its_published_counts(shared_data: Path) -> None:
    path = shared_data / "aifb" / "aifb_stripped_anon.nt.gz"
    graph = read_graph(path)
    assert (graph.total_nodes, graph.total_edges, len(graph.etypes)) == (8285, 29043, 45)
    triples = np.load(shared_data / "aifb" / "graph.npz")["triples"]
    with gzip.open(shared_data / "aifb" / "nodes.txt.gz", "rt", encoding="utf-8") as stream:
        terms = np.array(stream.read().splitlines())
    column = read_graph(path, relations="column")
    names = column.node_ids[NODE_TYPE]
    src, dst = column.edges[EDGE_TYPE]
    assert sorted(zip(names[src], names[dst], strict=True)) == sorted(
        zip(terms[triples[:, 0]], terms[triples[:, 2]], strict=True)
    )
