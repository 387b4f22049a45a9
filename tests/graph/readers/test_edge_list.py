"""Edge lists: ids of any kind, one file or many, two node types, and what is wrong with a file in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE


def pairs_of(graph, etype=EDGE_TYPE) -> list[tuple[int, int]]:
    return list(zip(*(ends.tolist() for ends in graph.edges[etype]), strict=True))


def test_ids_with_gaps_are_numbered_in_order_and_kept(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("70 5\n5 900000000000\n")
    graph = read_graph(tmp_path / "g.txt")
    assert graph.node_ids[NODE_TYPE].tolist() == [5, 70, 900000000000]
    assert pairs_of(graph) == [(1, 0), (0, 2)]


def test_names_of_all_files_of_a_folder_share_one_numbering(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("zoe,ann\n")
    with gzip.open(tmp_path / "a.csv.gz", "wt") as stream:
        stream.write("ann,bob\n")
    table = pa.table({"src": ["bob"], "dst": ["zoe"]})
    parquet.write_table(table, tmp_path / "c.parquet")
    graph = read_graph(tmp_path)
    assert graph.node_ids[NODE_TYPE].tolist() == ["ann", "bob", "zoe"]
    assert pairs_of(graph) == [(0, 1), (2, 0), (1, 2)]


def test_num_nodes_keeps_nodes_without_edges(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("3 1\n")
    graph = read_graph(tmp_path / "g.txt", num_nodes=6)
    assert graph.num_nodes == {NODE_TYPE: 6}
    assert (pairs_of(graph), graph.node_ids) == ([(3, 1)], {})


def test_two_node_types_have_ids_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("user,item\nann,7\nbob,7\n")
    graph = read_graph(tmp_path / "g.csv", edge_type="user:buys:item", header=True, ids="str")
    assert graph.num_nodes == {"user": 2, "item": 1}
    assert graph.node_ids["user"].tolist() == ["ann", "bob"]
    assert pairs_of(graph, ("user", "buys", "item")) == [(0, 0), (1, 0)]
    (tmp_path / "n.csv").write_text("0,4\n2,4\n")
    graph = read_graph(tmp_path / "n.csv", edge_type=("user", "buys", "item"), num_nodes={"user": 3})
    assert graph.num_nodes == {"user": 3, "item": 1}
    assert graph.node_ids["item"].tolist() == [4]
    with pytest.raises(DataError, match=r"n.csv, row 2: source 2 is outside \[0, 2\)"):
        read_graph(tmp_path / "n.csv", edge_type=("user", "buys", "item"), num_nodes={"user": 2})


def test_parquet_columns_are_found_by_name(tmp_path: Path) -> None:
    table = pa.table({"year": [1, 2], "to": [4, 5], "from": [5, 4], "amount": [0.5, 2.5]})
    parquet.write_table(table, tmp_path / "g.parquet")
    graph = read_graph(tmp_path / "g.parquet", columns=["from", "to", "amount"], num_nodes=6)
    assert pairs_of(graph) == [(5, 4), (4, 5)]
    assert graph.edge_data[EDGE_TYPE]["weight"].tolist() == [0.5, 2.5]


@pytest.mark.parametrize(
    ("text", "weight", "expected"),
    [
        ("0 1 1\n1 2 1\n", True, [1.0, 1.0]),
        ("0 1 0.5\n1 2 3\n", True, [0.5, 3.0]),
        ("0 1 4\n1 2 3\n", True, [4.0, 3.0]),
        ("0 1 4\n1 2 3\n", False, None),
        ("src dst weight\n0 1 4\n1 2 3\n", None, [4.0, 3.0]),
        ("src dst weight\n0 1 4\n1 2 3\n", False, None),
        ("src dst weight\n0 1 1\n1 2 1\n", None, None),
        ("src dst year\n0 1 4\n1 2 3\n", None, None),
        ("src dst year\n0 1 4\n1 2 3\n", "year", [4.0, 3.0]),
        ("a b year\n0 1 4\n1 2 3\n", True, [4.0, 3.0]),
    ],
)
def test_a_third_column_is_a_weight_where_it_is_named_so_or_told(
    tmp_path: Path, text: str, weight: bool | str | None, expected: list[float] | None
) -> None:
    (tmp_path / "g.txt").write_text(text)
    data = read_graph(tmp_path / "g.txt", weight=weight).edge_data.get(EDGE_TYPE)
    assert (None if data is None else data["weight"].tolist()) == expected


@pytest.mark.parametrize("third", ["1", "0.5", "word"])
def test_a_third_column_without_a_name_asks_what_it_is(tmp_path: Path, third: str) -> None:
    # triples of integers would be read as weighted edges, the relation as a node
    (tmp_path / "g.txt").write_text(f"0 12 {third}\n4 3 {third}\n1 3 7\n")
    with pytest.raises(
        DataError, match=rf"g.txt, line 1: a third column .*'{third}'; say weight=True.*weight=False.*format='triples'"
    ):
        read_graph(tmp_path / "g.txt")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0,1\n1,x\n", {}, r"g.csv, line 2: id 'x' is not an integer"),
        ("0,1\n1,2\n5,-1\n", {}, r"g.csv, line 3: id '-1' is negative"),
        ("0,1\n1,9\n", {"num_nodes": 9}, r"g.csv, line 2: id 9 is outside \[0, 9\)"),
        ("0,1\n1\n", {}, r"g.csv, line 2: 1 column\(s\), expected 2"),
        ("0,1,0.5\n1,2,nan\n", {"weight": True}, r"g.csv, line 2: weight 'nan' is not finite"),
        ("a,b,c\nb,c,a\n", {"header": False, "weight": True}, r"g.csv, line 1: the weight 'c' is not a number"),
        ("0,1,2,3\n", {}, r"g.csv, line 1: 4 column\(s\), expected 2 or 3"),
        ("# nothing\n", {}, "has no edges; expected at least 1"),
        ("0,1\n", {"num_nodes": 0}, "num_nodes=0: must be at least 1"),
        ("0,1\n", {"ids": "text"}, "unknown ids policy 'text'"),
        ("0,1\n", {"weight": 1}, "weight=1: expected True, False or the name of a column"),
        ("a,b\n0,1\n", {"weight": "c"}, "g.csv, line 1: no column 'c'; columns: a, b"),
        ("0,1\n", {"weight": True}, "g.csv, line 1: no weight column, but weight=True"),
        ("0,1,2\n", {"weight": "c", "header": False}, "weight= names columns of a header row"),
        ("0,1\n", {"num_nodes": {"user": 3}}, "unknown node type in num_nodes 'user'"),
        ("0,1\n", {"num_nodes": 3, "edge_type": "a:b:c"}, "the edges join two node types; give both"),
        ("0,1\n", {"edge_type": "a:b"}, "expected three names"),
        ("x,y\n", {"num_nodes": {"a": 3}, "edge_type": "a:b:c", "ids": "str"}, "num_nodes of 'a' needs ids 0"),
    ],
)
def test_what_is_wrong_is_told_with_line_value_and_limit(
    tmp_path: Path, text: str, options: dict, message: str
) -> None:
    (tmp_path / "g.csv").write_text(text)
    with pytest.raises((DataError, ConfigError), match=message):
        read_graph(tmp_path / "g.csv", **options)


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    stream = np.random.default_rng(0).integers(0, 10**9, (20000, 2))
    whole = gzip.compress("".join(f"{u} {v}\n" for u, v in stream).encode())
    (tmp_path / "g.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"g.txt.gz: damaged or cut off"):
        read_graph(tmp_path / "g.txt.gz")


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), tmp_path / "g.parquet")
    content = (tmp_path / "g.parquet").read_bytes()
    (tmp_path / "g.parquet").write_bytes(content[:-10])
    with pytest.raises(DataError, match=r"g.parquet: cannot be read as a Parquet file"):
        read_graph(tmp_path / "g.parquet")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"src": [0, None], "dst": [1, 0]}, "row 2: src is missing"),
        ({"src": [0, -4], "dst": [1, 0]}, r"row 2: src -4 is outside"),
        ({"src": [0.5, 1.0], "dst": [1, 0]}, "column 'src' holds double; expected integers or strings"),
        ({"src": ["a", ""], "dst": ["b", "a"]}, "row 2: src has 0 characters"),
        ({"src": [0, 1], "dst": [1, 0], "weight": [0.5, np.nan]}, "row 2: weight nan is not finite and above 0; drop"),
        ({"src": [0, 1], "dst": [1, 0], "weight": [1, -1]}, "row 2: weight -1 is not finite and above 0"),
        ({"src": [0, 1], "dst": [1, 0], "weight": [0.0, 1.0]}, "row 1: weight 0.0 is not finite and above 0"),
        ({"src": [0], "dst": [1], "weight": [[0.5, 1.0]]}, "column 'weight' holds lists; expected one weight for each"),
    ],
)
def test_bad_parquet_values_are_told_with_their_row(tmp_path: Path, columns: dict, message: str) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "g.parquet")
    with pytest.raises(DataError, match=message):
        read_graph(tmp_path / "g.parquet")


def test_ends_of_two_kinds_need_two_node_types(tmp_path: Path) -> None:
    # both ends of one type were numbered together, as the first of them
    parquet.write_table(pa.table({"src": [4, 1], "dst": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: one end .* holds numbers, the other names; say ids='str'"):
        read_graph(tmp_path / "a.parquet")
    assert read_graph(tmp_path / "a.parquet", ids="str").node_ids[NODE_TYPE].tolist() == ["1", "4", "a", "b"]
    two = read_graph(tmp_path / "a.parquet", edge_type="user:tags:tag")
    assert {ntype: ids.tolist() for ntype, ids in two.node_ids.items()} == {"user": [1, 4], "tag": ["a", "b"]}
    parquet.write_table(pa.table({"src": [4, 1], "dst": [2, 3]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet: its ids are numbers, those of the files before are names"):
        read_graph(tmp_path, edge_type="user:tags:tag")


def test_files_of_a_folder_that_differ_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,1\n")
    (tmp_path / "b.csv").write_text("x,y\n")
    with pytest.raises(DataError, match=r"b.csv: its ids are names, those of the files before are numbers"):
        read_graph(tmp_path)
    (tmp_path / "b.csv").write_text("src,dst,weight\n0,1,0.5\n")
    with pytest.raises(DataError, match=r"b.csv: has weights, unlike the files before"):
        read_graph(tmp_path)
