"""Text edge lists: layouts, ids, and the line that is at fault."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import ReadOptions
from graph_emb.graph.readers.edge_list import edge_blocks
from tests.graph.readers.compressed import read_csr

Put = Callable[..., Path]
EDGES = [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    "content",
    [
        "0,1\n1,2\n",
        "0,1\r\n1,2\r\n",
        "0, 1\n 1 ,2",
        "0\t1\n1\t2\n",
        "0 1\n1 2\n",
        "  0   1  \n1\t 2 \r\n",
        "\n\n0 1\n\n   \n1 2\n\t\n",
        "# a comment, with commas\n0 1\n% another\n  # 7 8\n1 2\n#last",
        "\ufeff0,1\n1,2\n",
        "src,dst\n0,1\n1,2\n",
        "foo bar\n0 1\n1 2\n",
        "# FromNodeId\tToNodeId\n0\t1\n1\t2\n",
        '"0","1"\n"1","2"\n',
        "0,1\n\r\n1,2\n \r\n",
        "src,dst,weight\n0,1,1\n1,2,1.0\n",
        "time,target,source,note\n9,1,0,x\n9,2,1,y\n",
        "0 1 \n1 2",
    ],
)
def test_every_usual_layout_is_found(content: str, put: Put) -> None:
    graph = read_csr(put("edges.txt", content))
    assert graph.edges().tolist() == EDGES
    assert graph.weights is None
    assert graph.node_ids is None


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("ann,bob\nbob,carl\n", ["ann", "bob", "carl"]),
        ("source,target\nann,bob\nbob,carl\n", ["ann", "bob", "carl"]),
        ("ann, bob\n bob ,carl\n", ["ann", "bob", "carl"]),
        ("New York\tRome\nRome\tOslo\n", ["New York", "Oslo", "Rome"]),
        ('"a,b",c\n"c",d\n', ["a,b", "c", "d"]),
        ("x 7\n7 y\n", ["7", "x", "y"]),
        ("é\tñ\nñ\t漢字\n", ["é", "ñ", "漢字"]),
        ("src dst w\na b 2\nb c 3\n", ["a", "b", "c"]),
        ("http://x/#a http://x/#b\nhttp://x/#b c\n", ["c", "http://x/#a", "http://x/#b"]),
    ],
)
def test_string_ids_are_kept(content: str, ids: list[str], put: Put) -> None:
    graph = read_csr(put("edges.tsv", content))
    assert graph.node_ids.tolist() == ids
    assert graph.num_edges == 2


def test_integer_ids_with_gaps_are_kept(put: Put) -> None:
    graph = read_csr(put("edges.csv", f"5,{2**62}\n{2**63 - 1},5\n"))
    assert graph.node_ids.tolist() == [5, 2**62, 2**63 - 1]
    assert graph.edges().tolist() == [[0, 1], [0, 2]]


def test_ids_that_look_like_numbers_can_be_names(put: Put) -> None:
    path = put("edges.csv", "007,7\n1.5,7\n")
    assert read_csr(path, ids="str").node_ids.tolist() == ["007", "1.5", "7"]


def test_num_nodes_keeps_ids_and_isolated_nodes(put: Put) -> None:
    path = put("edges.csv", "1,4\n")
    assert read_csr(path).node_ids.tolist() == [1, 4]
    graph = read_csr(path, num_nodes=6)
    assert graph.node_ids is None
    assert graph.degrees().tolist() == [0, 1, 0, 0, 1, 0]


def test_columns_separator_header_and_comment_say_it_where_guessing_cannot(put: Put) -> None:
    path = put("a.csv", "when;who;whom;times\n1;a;b;2\n2;b;c;3\n")
    graph = read_csr(path, separator=";", columns=["who", "whom", "times"])
    assert graph.node_ids.tolist() == ["a", "b", "c"]
    assert graph.edge_weights().tolist() == [2.0, 3.0]
    assert read_csr(path, separator=";", columns=["who", "whom"]).weights is None
    path = put("b.csv", "x,y\ny,z\n")
    assert read_csr(path).num_edges == 2
    assert read_csr(path, header=True).num_edges == 1
    path = put("c.csv", "source,target\ny,z\n")
    assert read_csr(path, header=False).num_edges == 2
    path = put("d.txt", "#cat #dog\n#dog bird\n")
    assert read_csr(path, comment="").node_ids.tolist() == ["#cat", "#dog", "bird"]
    path = put("e.txt", "//old\n0 1\n")
    assert read_csr(path, comment="/").num_edges == 1


def test_weights_options_and_direction(put: Put) -> None:
    path = put("w.csv", "a,b,weight\n0,1,2.5\n1,0,1.5\n1,1,9\n")
    assert read_csr(path).edge_weights().tolist() == [2.5, 9.0]
    assert read_csr(path, duplicates="sum", self_loops="drop").edge_weights().tolist() == [4.0]
    assert read_csr(path, directed=True).num_arcs == 3
    assert read_csr(path, weight=False).weights is None
    assert read_csr(put("t.txt", "0 1 some\n1 2 words\n"), weight=False).num_edges == 2
    path = put("n.csv", "u,v,year,times\n0,1,7,2.5\n1,2,8,1.5\n")
    assert read_csr(path).weights is None
    assert read_csr(path, weight="times").edge_weights().tolist() == [2.5, 1.5]


@pytest.mark.parametrize("block_bytes", [16, 17, 40, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_give_all_edges_whatever_their_size(block_bytes: int, packed: bool, put: Put) -> None:
    lines = ["# comment", "", "source target weight", *(f"{n} {n + 1} {n + 0.5}" for n in range(50))]
    content = "\n".join(lines).encode()
    path = put("e.txt.gz", gzip.compress(content)) if packed else put("e.txt", content)
    blocks = list(edge_blocks(path, ReadOptions(), block_bytes))
    assert (len(blocks) > 2) == (block_bytes < 1000)
    assert np.concatenate([block.src for block in blocks]).tolist() == list(range(50))
    assert np.concatenate([block.dst for block in blocks]).tolist() == list(range(1, 51))
    assert np.concatenate([block.weights for block in blocks]).tolist() == [n + 0.5 for n in range(50)]


def test_the_line_number_counts_across_blocks_and_comments(put: Put) -> None:
    lines = ["# head", "source,target", *(f"{n},{n + 1}" for n in range(30)), "", "31,-2", "5,6"]
    path = put("e.csv", "\n".join(lines))
    for block_bytes in (24, 100, 1 << 20):
        with pytest.raises(DataError, match=rf"{path}, line 34: id '-2' is negative"):
            list(edge_blocks(path, ReadOptions(), block_bytes))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0 1\nword\n", r"line 2: 1 column\(s\), expected 2 as in the first line"),
        ("0 1\n1 2 3\n", r"line 2: 3 column\(s\), expected 2"),
        ("0 1\nthree words here\n", r"line 2: 3 column\(s\), expected 2"),
        ("three words here\n", "line 1: a third column without a name, 'here'; say weight=True"),
        ("a b c\nd e f\n", "line 1: a third column without a name, 'c'"),
        ("u v w\n0 1 2\n1 2 x\n", "line 3: the weight 'x' is not a number"),
        ("word\n", r"line 1: 1 column\(s\), expected 2 or 3"),
        ("1,2,3,4\n", "line 1: 4 column.*name them in a header row"),
        ("0 1\n1 x\n", "line 2: id 'x' is not an integer; pass ids='str'"),
        ("0.5 1.5\n", "line 1: id '0.5' is not an integer"),
        ("1e3 5\n", "line 1: id '1e3' is not an integer"),
        ("0 1\n-4 1\n", "line 2: id '-4' is negative"),
        ("0 1\n9223372036854775808 1\n", "line 2: id '9223372036854775808' is above 9223372036854775807"),
        ("0 1\n" + "9" * 60 + " 1\n", "line 2: id '9999999.*is not an integer"),
        ("0,1\n1,\n", "line 2: id '' is not an integer"),
        ("a,b\n,c\n", "line 2: an id is missing"),
        ("a\tb\n" + "x" * 1025 + "\tb\n", "line 2: id 'xxx.*has 1025 characters, expected at most 1024"),
        ("u v w\n0 1 1\n0 1 -1\n", "line 3: weight '-1' is not finite and above 0"),
        ("u v w\n0 1 0\n", "line 2: weight '0' is not finite and above 0"),
        ("u v w\n0 1 nan\n", "line 2: weight 'nan'"),
        ("u v w\n0 1 1\n0 1 inf\n", "line 3: weight 'inf'"),
        ("u v w\n0 1 1\n0 1 1e39\n", "line 3: weight '1e39'"),
        ("u v w\n0 1 1\n0 1 1e-60\n", "line 3: weight '1e-60'"),
        ("source,target\n", "has no edges"),
        ("# nothing\n\n", "has no edges"),
        ("   \n", "has no edges"),
    ],
)
def test_the_line_at_fault_is_named_with_value_and_limit(content: str, words: str, put: Put) -> None:
    path = put("edges.txt", content)
    with pytest.raises(DataError, match=words) as caught:
        read_csr(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "options", "error", "words"),
    [
        ("0 1\n1 5\n", {"num_nodes": 5}, DataError, r"line 2: id 5 is outside \[0, 5\)"),
        ("a b\n", {"num_nodes": 5}, ConfigError, "num_nodes=5 needs ids 0"),
        ("0 1\n", {"weight": True}, DataError, "line 1: no weight column"),
        ("0,1\n", {"separator": ";"}, DataError, "line 1: 1 column.*give separator="),
        ("0,1\n", {"separator": "::"}, ConfigError, "expected one character"),
        ("a,b\n0,1\n", {"columns": ["a", "c"]}, DataError, "line 1: no column 'c'; columns: a, b"),
        ("a,b\n0,1\n", {"columns": ["a"]}, ConfigError, "expected 2 or 3 different names"),
        ("a,b\n0,1\n", {"columns": ["a", "b"], "header": False}, ConfigError, "there is none"),
        ("x y\n", {"ids": "int"}, DataError, "line 1: id 'x' is not an integer"),
    ],
)
def test_options_that_do_not_fit_the_file(content: str, options: dict, error: type, words: str, put: Put) -> None:
    with pytest.raises(error, match=words):
        read_csr(put("edges.csv", content), **options)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0 1\n\xff\xfe 2\n", "line 2: byte 0xff is not UTF-8 text"),
        (b"a b\n\xff\xfe c\n", "line 2: byte 0xff is not UTF-8 text"),
        (b"0 1\n1\x00 2\n", "a null byte after line 0"),
        ("0 1\n".encode("utf-16"), "null byte"),
    ],
)
def test_bytes_that_are_no_text(content: bytes, words: str, put: Put) -> None:
    with pytest.raises(DataError, match=words):
        read_csr(put("edges.txt", content))


def test_a_line_without_end_is_refused(put: Put) -> None:
    with pytest.raises(DataError, match="line 2: longer than 32 bytes; is it text"):
        list(edge_blocks(put("e.txt", "0 1\n" + "7" * 400), ReadOptions(), block_bytes=16))


@pytest.mark.parametrize("kept", [5, 20, 200, -8])
def test_a_cut_gzip_file_is_named(kept: int, put: Put) -> None:
    lines = "".join(f"{n} {n * 7 % 1000}\n" for n in range(1000))
    with pytest.raises(DataError, match="damaged or cut off after line"):
        read_csr(put("edges.txt.gz", gzip.compress(lines.encode())[:kept]))


def test_a_plain_file_called_gz_is_named(put: Put) -> None:
    with pytest.raises(DataError, match="damaged or cut off after line 0: Not a gzipped file"):
        read_csr(put("edges.txt.gz", "0 1\n"))
