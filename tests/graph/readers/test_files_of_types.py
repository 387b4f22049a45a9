"""A heterogeneous graph by a YAML file: ids, features, labels, masks and weights from tables of every kind."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
YAML = """
name: shop
nodes:
  user:
    files: users.csv
    id: user_id
    features: {feat: [age, income], city: city}
    label: segment
    masks: {train: is_train, test: test.txt}
  item: {num_nodes: 4, features: {feat: items.npy}}
edges:
  - {type: [user, buys, item], files: "buys-*", source: who, destination: what, weight: amount, features: {year: year}}
  - {type: [user, knows, user], files: knows.tsv.gz}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(YAML)
    (tmp_path / "users.csv").write_text(
        "user_id,age,income,city,segment,is_train\nzoe,30,1.5,7,gold,1\nann,40,2.5,8,,0\nbob,50,3.5,9,basic,1\n"
    )
    (tmp_path / "test.txt").write_text("ann\n")
    np.save(tmp_path / "items.npy", np.arange(8).reshape(4, 2))
    table = pa.table({"what": [3, 0], "who": ["ann", "zoe"], "amount": [2, 5], "year": [1, 2]})
    parquet.write_table(table, tmp_path / "buys-0.parquet")
    table = pa.table({"what": [1], "who": ["bob"], "amount": [7], "year": [3]})
    parquet.write_table(table, tmp_path / "buys-1.parquet")
    with gzip.open(tmp_path / "knows.tsv.gz", "wt") as stream:
        stream.write("a\tb\nzoe\tbob\nbob\tann\n")
    return tmp_path / "shop.yaml"


def change(shop: Path, *pairs: tuple[str, str]) -> Path:
    text = shop.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    shop.write_text(text)
    return shop


def test_every_field_becomes_data_of_its_type(shop: Path) -> None:
    graph = read_graph(shop)
    assert graph.name == "shop"
    assert graph.num_nodes == {"user": 3, "item": 4}
    assert {ntype: ids.tolist() for ntype, ids in graph.node_ids.items()} == {"user": ["zoe", "ann", "bob"]}
    assert [ends.tolist() for ends in graph.edges[BUYS]] == [[1, 0, 2], [3, 0, 1]]
    assert [ends.tolist() for ends in graph.edges[KNOWS]] == [[0, 2], [2, 1]]
    user = {name: values.tolist() for name, values in graph.node_data["user"].items()}
    assert user == {
        "feat": [[30.0, 1.5], [40.0, 2.5], [50.0, 3.5]],
        "city": [7, 8, 9],
        "label": [1, -1, 0],
        "train_mask": [True, False, True],
        "test_mask": [False, True, False],
    }
    assert graph.node_data["item"]["feat"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    buys = {name: values.tolist() for name, values in graph.edge_data[BUYS].items()}
    assert buys == {"year": [1, 2, 3], "weight": [2, 5, 7]}


def test_types_without_files_are_numbered_by_all_their_edges(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n9,b\n4,a\n")
    (tmp_path / "b.csv").write_text("x,y\n2,9\n")
    (tmp_path / "g.yaml").write_text(
        "edges:\n- {type: [user, likes, tag], files: a.csv}\n- {type: [user, knows, user], files: b.csv}\n"
    )
    graph = read_graph(tmp_path / "g.yaml")
    assert graph.num_nodes == {"user": 3, "tag": 2}
    assert graph.node_ids["user"].tolist() == [2, 4, 9]
    assert graph.node_ids["tag"].tolist() == ["a", "b"]
    assert [ends.tolist() for ends in graph.edges["user", "likes", "tag"]] == [[2, 1], [1, 0]]
    assert [ends.tolist() for ends in graph.edges["user", "knows", "user"]] == [[0], [2]]


def test_integer_ids_of_a_table_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,v\n700,1\n5,2\n")
    (tmp_path / "e.csv").write_text("s,d\n5,700\n")
    (tmp_path / "g.yaml").write_text(
        "nodes: {n: {files: n.csv, id: id, features: {v: v}}}\nedges: [{type: [n, to, n], files: e.csv}]\n"
    )
    graph = read_graph(tmp_path / "g.yaml")
    assert graph.node_ids["n"].tolist() == [700, 5]
    assert [ends.tolist() for ends in graph.edges["n", "to", "n"]] == [[1], [0]]
    (tmp_path / "e.csv").write_text("s,d\n5,700\n6,5\n")
    with pytest.raises(DataError, match=r"e.csv, row 2: source 6 is no id of 'n'"):
        read_graph(tmp_path / "g.yaml")


def test_a_folder_with_the_marks_of_a_pattern_is_no_pattern(tmp_path: Path) -> None:
    # the whole path was searched, so that "run[1]" stood for "run1"
    folder = tmp_path / "run[1]*"
    (folder / "parts").mkdir(parents=True)
    for number in (1, 0):
        (folder / "parts" / f"e-{number}.csv").write_text(f"a,b\n{number},{number + 1}\n")
    (folder / "g.yaml").write_text('edges: [{type: [n, to, n], files: "parts/e-[0-9].csv"}]\n')
    assert [ends.tolist() for ends in read_graph(folder / "g.yaml").edges["n", "to", "n"]] == [[0, 1], [1, 2]]
    change(folder / "g.yaml", ("parts/e-", f"{tmp_path}/run*/parts/e-"))
    assert read_graph(folder / "g.yaml").total_edges == 2


def test_text_ids_that_look_like_numbers_stay_text(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("s,d\n007,7\n")
    (tmp_path / "g.yaml").write_text(
        "edges: [{type: [n, to, n], files: e.csv, source: s, destination: d, id_type: str}]\n"
    )
    assert read_graph(tmp_path / "g.yaml").node_ids["n"].tolist() == ["007", "7"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [["007", "008"], ["10", "20"]])
def test_text_ids_of_a_table_and_of_a_mask_stay_text(tmp_path: Path, kind: str, ids: list[str]) -> None:
    # only edge files were told that ids are text: those of nodes and masks were read as the number 7
    if kind == "csv":
        (tmp_path / "u.csv").write_text(f"user_id,age\n{ids[0]},1\n{ids[1]},2\n")
    else:
        parquet.write_table(pa.table({"user_id": ids, "age": [1, 2]}), tmp_path / "u.parquet")
    (tmp_path / "e.csv").write_text(f"a,b\n{ids[0]},{ids[1]}\n")
    (tmp_path / "tr.txt").write_text(f"{ids[0]}\n")
    (tmp_path / "g.yaml").write_text(
        f"nodes: {{user: {{files: u.{kind}, id: user_id, id_type: str, masks: {{train: tr.txt}}}}}}\n"
        "edges: [{type: [user, r, user], files: e.csv, source: a, destination: b, id_type: str}]\n"
    )
    graph = read_graph(tmp_path / "g.yaml")
    assert graph.node_ids["user"].tolist() == ids
    assert [ends.tolist() for ends in graph.edges["user", "r", "user"]] == [[0], [1]]
    assert graph.node_data["user"]["train_mask"].tolist() == [True, False]


def test_a_file_without_rows_takes_the_width_of_the_others(tmp_path: Path) -> None:
    for name, rows in (("a", []), ("b", [[1.0, 2.0], [3.0, 4.0]])):
        parquet.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / f"u-{name}.parquet")
    (tmp_path / "e.csv").write_text("a,b\n0,1\n")
    (tmp_path / "g.yaml").write_text(
        "nodes: {user: {files: u-*.parquet, features: {v: v}}}\nedges: [{type: [user, r, user], files: e.csv}]\n"
    )
    assert read_graph(tmp_path / "g.yaml").node_data["user"]["v"].tolist() == [[1, 2], [3, 4]]


def test_labels_may_be_booleans_or_unsigned(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\n0,2\n")
    (tmp_path / "l.csv").write_text("age,spam\n1,true\n2,\n3,false\n")
    (tmp_path / "g.yaml").write_text(
        "nodes: {user: {files: l.csv, label: spam}}\nedges: [{type: [user, r, user], files: e.csv}]\n"
    )
    assert read_graph(tmp_path / "g.yaml").node_data["user"]["label"].tolist() == [1, -1, 0]
    parquet.write_table(pa.table({"spam": pa.array([7, 0, 255], pa.uint8())}), tmp_path / "l.parquet")
    change(tmp_path / "g.yaml", ("l.csv", "l.parquet"))
    assert read_graph(tmp_path / "g.yaml").node_data["user"]["label"].tolist() == [7, 0, 255]


def test_blank_lines_neither_add_nor_drop_nodes(tmp_path: Path) -> None:
    # one above the header made the header an edge; one in a file of one column took a node and its missing label away
    (tmp_path / "e.csv").write_text("\na,b\nu1,u2\n")
    (tmp_path / "g.yaml").write_text("edges: [{type: [user, r, user], files: e.csv}]\n")
    graph = read_graph(tmp_path / "g.yaml")
    assert (graph.total_edges, graph.node_ids["user"].tolist()) == (1, ["u1", "u2"])
    (tmp_path / "l.csv").write_text("label\nspam\n\nham\n")
    (tmp_path / "e.csv").write_text("a,b\n0,2\n")
    (tmp_path / "g.yaml").write_text(
        "nodes: {user: {files: l.csv, label: label}}\nedges: [{type: [user, r, user], files: e.csv}]\n"
    )
    graph = read_graph(tmp_path / "g.yaml")
    assert (graph.num_nodes, graph.node_data["user"]["label"].tolist()) == ({"user": 3}, [1, -1, 0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: shop", "nam: shop", "shop.yaml: nam = 'shop': unknown key"),
        ("id: user_id", "ids: user_id", "shop.yaml: nodes.user.ids = 'user_id': unknown key"),
        ("num_nodes: 4", "num_nodes: 0", "shop.yaml: nodes.item.num_nodes = '0': should be greater"),
        ("num_nodes: 4", "num_nodes: true", "shop.yaml: nodes.item.num_nodes = 'True'"),
        ("[user, buys, item]", "[user, buys]", r"shop.yaml: edges.0.type"),
        ("[user, buys, item]", '[user, "b:c", item]', r"shop.yaml: edges.0.type.*must not be empty or hold"),
        ("[user, knows, user]", "[user, buys, item]", "edge type user:buys:item is given twice"),
        ("destination: what, ", "", "shop.yaml: edges.0: source and destination go together"),
        ("train: is_train", "training: is_train", "nodes.user.masks.training"),
        ("features: {feat: [age", "features: {label: [age", "features.label: this name has a key of its own"),
        ("item: {num_nodes: 4, ", "item: {", "nodes.item: data needs files or num_nodes"),
    ],
)
def test_a_wrong_description_is_told_with_the_path_of_the_field(shop: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_graph(change(shop, (old, new)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: user_id", "id: uid", "users.csv: no column 'uid'; columns: user_id, age"),
        ("[age, income]", "[age, wealth]", "users.csv: no column 'wealth'"),
        ("city: city", "city: segment", "column 'segment' holds string; expected numbers"),
        ("files: users.csv", "files: [users.csv, more.csv]", "more.csv: no such file"),
        ('"buys-*"', '"bought-*"', "shop.yaml: no file matches 'bought-"),
        ("num_nodes: 4", "num_nodes: 5", r"items.npy: shape \(4, 2\), but nodes.item.features.feat needs 5 rows"),
        ("{feat: items.npy}", "{feat: price}", "nodes.item.features.feat: names columns, but the type has no files"),
        ("train: is_train", "train: age", "nodes.user.masks.train: expected 0 and 1"),
        ("train: is_train", "train: gone.txt", "nodes.user.masks.train = 'gone.txt': is neither a column nor a file"),
        ("source: who", "source: year", "source holds numbers, unlike the ids of 'user'"),
        ("id: user_id", "id: city", "names, unlike the ids of 'user'; set id_type: str"),
    ],
)
def test_files_that_do_not_fit_are_told(shop: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(change(shop, (old, new)))


def test_ids_outside_the_nodes_are_told_with_file_and_row(shop: Path) -> None:
    table = pa.table({"what": [1, 4], "who": ["bob", "bob"], "amount": [7, 7], "year": [3, 3]})
    parquet.write_table(table, shop.parent / "buys-1.parquet")
    with pytest.raises(DataError, match=r"buys-1.parquet, row 2: destination 4 is outside \[0, 4\)"):
        read_graph(shop)
    (shop.parent / "test.txt").write_text("ann\ncarl\n")
    parquet.write_table(table.slice(0, 1), shop.parent / "buys-1.parquet")
    with pytest.raises(DataError, match=r"test.txt, row 2: id 'carl' is no id of 'user'"):
        read_graph(shop)


def test_an_id_that_is_given_twice_is_told(shop: Path) -> None:
    text = (shop.parent / "users.csv").read_text()
    (shop.parent / "users.csv").write_text(text.replace("bob", "zoe"))
    with pytest.raises(DataError, match=r"users.csv, row 3: user_id 'zoe' is given twice"):
        read_graph(shop)


def test_a_value_that_is_no_number_is_told_with_its_line(shop: Path) -> None:
    (shop.parent / "knows.tsv.gz").unlink()
    (shop.parent / "knows.csv").write_text("a,b\nzoe,bob\nbob\n")
    with pytest.raises(DataError, match=r"knows.csv, line 3: Expected 2 columns, got 1"):
        read_graph(change(shop, ("knows.tsv.gz", "knows.csv")))


@pytest.mark.parametrize("text", ["{", "- a", "\tx: 1", "3"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.yaml").write_text(text)
    with pytest.raises((DataError, ConfigError), match=r"g.yaml: (not a YAML text|holds .* at the top)"):
        read_graph(tmp_path / "g.yaml")


def test_types_that_only_edges_name_stand_in_the_order_of_the_edges(tmp_path: Path) -> None:
    """They were taken from a set, so that their order, that of the type ids, changed from process to process."""
    names = ["zebra", "ant", "mule", "bee", "yak", "cow", "ox", "dog", "wasp", "eel"]
    edges = "".join(f"  - {{type: [{a}, r, {b}], files: e.csv}}\n" for a, b in pairwise(names))
    (tmp_path / "e.csv").write_text("a,b\n0,1\n")
    (tmp_path / "g.yaml").write_text("edges:\n" + edges)
    assert read_graph(tmp_path / "g.yaml").ntypes == names


def test_a_column_of_words_is_the_split_of_a_type(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("id,part\n7,train\n8,VAL\n9,test\n10,\n")
    (tmp_path / "e.csv").write_text("src,dst\n7,8\n9,10\n")
    described = "nodes: {u: {files: u.csv, id: id, split: part}}\nedges: [{type: [u, to, u], files: e.csv}]\n"
    (tmp_path / "g.yaml").write_text(described)
    data = read_graph(tmp_path / "g.yaml").node_data["u"]
    assert {name: np.flatnonzero(mask).tolist() for name, mask in data.items()} == {
        "train_mask": [0],
        "val_mask": [1],
        "test_mask": [2],
    }
    (tmp_path / "u.csv").write_text("id,part\n7,train\n8,tset\n9,test\n10,\n")
    with pytest.raises(DataError, match=r"u\.csv, row 2: unknown part 'tset' of a split"):
        read_graph(tmp_path / "g.yaml")
    (tmp_path / "g.yaml").write_text(described.replace("split: part", "split: part, masks: {val: part}"))
    with pytest.raises(ConfigError, match="split and masks both say the parts"):
        read_graph(tmp_path / "g.yaml")
    (tmp_path / "g.yaml").write_text(described.replace("split: part", "masks: {val: part, valid: part}"))
    with pytest.raises(ConfigError, match=r"masks\.valid and masks\.val are one part"):
        read_graph(tmp_path / "g.yaml")
