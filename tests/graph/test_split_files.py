"""Files of splits, matched to the ids of a graph and to its labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from graph_emb.core.errors import DataError
from graph_emb.graph import Graph, Labels
from graph_emb.graph.label_files import read_labels, read_labels_and_split, read_split

NAMES = Graph.without_edges(6, np.array(["ann", "bob", "carl", "dora", "eve", "fay"]))
GAPS = Graph.without_edges(6, np.array([10, 20, 30, 40, 50, 60]))
LABELS = Labels.from_single(np.array([0, 0, 1, 0, 0, -1]), class_names=["x", "y"])
EXPECTED = {"train": [1, 2], "valid": [0], "test": [3, 4]}
ROWS = "bob,train\ncarl,Train\nann,val\ndora,test\neve,test\nbob,train\n"
MASKS = "id,train_mask,valid,test\nbob,1,0,0\ncarl,true,false,\nann,0,1,0\ndora,0,0,1\neve,,,1\nfay,0,0,0\n"


def put(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def lists(split: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {part: nodes.tolist() for part, nodes in split.items()}


@pytest.mark.parametrize(
    ("graph", "content"),
    [
        (NAMES, ROWS),
        (NAMES, "who,group,split\n" + ROWS.replace(",", ",7,") + "fay,7,\n"),
        (NAMES, MASKS),
        (GAPS, "id split\n20 train\n30 train\n10 valid\n40 test\n50 test\n"),
    ],
)
def test_a_table_puts_nodes_into_parts_in_its_own_order(graph: Graph, content: str, tmp_path: Path) -> None:
    assert lists(read_split(put(tmp_path, "s.txt", content), graph).checked(LABELS)) == EXPECTED


def test_parquet_arrays_and_folders_say_the_same(tmp_path: Path) -> None:
    ids, parts = [20, 30, 10, 40, 50], ["train", "train", "valid", "test", "test"]
    parquet.write_table(pa.table({"id": ids, "split": parts}), tmp_path / "s.parquet")
    masks = {name: np.isin(np.arange(6), EXPECTED[part]) for name, part in (("train_mask", "train"), ("val", "valid"))}
    np.savez(tmp_path / "s.npz", **masks, test_idx=[3, 4])
    folder = tmp_path / "time"
    folder.mkdir()
    put(folder, "train.csv", "20\n30\n")
    put(folder, "val.csv", "id\n10\n")
    put(folder, "test.tsv", "40\n50\n")
    put(folder, "README.md", "no part")
    for source in ("s.parquet", "s.npz", "time"):
        assert lists(read_split(tmp_path / source, GAPS).checked(LABELS)) == EXPECTED


def test_a_file_of_labels_may_hold_the_split(tmp_path: Path) -> None:
    rows = "node,label,split,other\nbob,x,train,z\ncarl,y,train,\nann,x,val,\ndora,x,test,\neve,x,test,\nfay,,,\n"
    labels, split = read_labels_and_split(put(tmp_path, "l.csv", rows), NAMES)
    assert labels.class_names == ("x", "y", "z")
    assert labels.counts().tolist() == [1, 2, 1, 1, 1, 0]
    assert split is not None
    assert lists(split.checked(labels)) == EXPECTED
    kinds = pa.table({"id": [10, 20, 30], "classes": [["a", "b"], ["b"], None], "train": [True, None, False]})
    parquet.write_table(kinds, tmp_path / "l.parquet")
    labels, split = read_labels_and_split(tmp_path / "l.parquet", GAPS)
    assert labels.counts().tolist() == [2, 1, 0, 0, 0, 0]
    assert split is not None
    assert read_labels_and_split(put(tmp_path, "p.csv", "ann,x\n"), NAMES)[1] is None
    assert read_labels(put(tmp_path, "q.csv", "ann,train\nbob,test\n"), NAMES).class_names == ("test", "train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ann,train\nbob,tset\n", r"line 2: unknown part 'tset' of a split; known: .* \(did you mean 'test'\?\)"),
        ("ann,train\nzoe,test\n", "line 2: node 'zoe' is not among the 6 nodes"),
        ("ann,train\nbob,test\n\nann,val\n", r"line 4: node 'ann' is in valid, and in train by .*line 1; the parts"),
        ("ann,train\nbob,train\n", "no node is in test"),
        ("ann,val\nbob,test\n", "no node is in train"),
        ("ann,train\nbob,test\ncarl,test\n", "line 3: test node 'carl' is of class 'y', which no train node has"),
        ("ann,train\nfay,test\n", "line 2: test node 'fay' has no label; leave it out"),
        ("id,part\nann,train\n", "has no column split, and no mask train, valid or test; columns: part"),
        ("id,train,test\nann,1,0\nbob,2,1\n", "line 3: train = '2'; expected 0 and 1"),
        ("ann\n", "line 1: 1 column, expected node,part of a split"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(content: str, words: str, tmp_path: Path) -> None:
    path = put(tmp_path, "s.csv", content)
    with pytest.raises(DataError, match=words) as caught:
        read_split(path, NAMES).checked(LABELS)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_arrays_and_folders_that_do_not_fit_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "short.npz", train_mask=np.ones(5, bool))
    with pytest.raises(DataError, match="labels of 5 nodes, but the graph has 6"):
        read_split(tmp_path / "short.npz", NAMES)
    np.savez(tmp_path / "far.npz", train_idx=[0, 6])
    with pytest.raises(DataError, match=r"far.npz, row 1: train_idx 6 is outside \[0, 6\)"):
        read_split(tmp_path / "far.npz", NAMES)
    np.savez(tmp_path / "twice.npz", train_idx=[0, 1], test_idx=[1])
    with pytest.raises(DataError, match=r"twice\.npz: test_idx: node 'bob' is in test, and in train by .*: train_idx"):
        read_split(tmp_path / "twice.npz", NAMES)
    np.savez(tmp_path / "none.npz", label=np.zeros(6, int))
    with pytest.raises(DataError, match=r"none\.npz: holds no split; expected train_mask, val_mask, test_mask or"):
        read_split(tmp_path / "none.npz", NAMES)
    with pytest.raises(DataError, match="is a folder without files train and test"):
        read_split(tmp_path, NAMES)
    with pytest.raises(DataError, match=r"suffix '\.json' is no split file"):
        read_split(put(tmp_path, "s.json", "{}"), NAMES)
