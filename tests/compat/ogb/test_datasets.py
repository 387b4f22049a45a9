"""Reading data sets: what is on the disk, twice the same, and nothing written."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.compat.ogb import metadata, read_hetero_dataset, read_link_dataset, read_node_dataset
from graph_emb.compat.ogb.datasets import class_labels
from graph_emb.core.errors import ConfigError, DataError
from tests.compat.ogb import layout


def test_a_link_set_reads_twice_the_same_and_writes_nothing(tmp_path: Path) -> None:
    folder = layout.write_ddi(tmp_path)
    processed = folder / "processed" / "data_processed"
    processed.parent.mkdir()
    torch.save({"edge_index": np.zeros((2, 1))}, processed, pickle_protocol=4)  # ogb's cache, to be ignored
    before = layout.contents(tmp_path)
    for _ in range(2):
        data = read_link_dataset("ogbl-ddi", tmp_path)
        assert data.num_nodes == 5
        assert data.edge_index.T.tolist() == layout.TRAIN
        assert data.edge_index.dtype == np.int64
        assert data.edge_index.flags.writeable
        assert not data.is_directed
        assert {part: sorted(tables) for part, tables in data.split.items()} == {
            "train": ["edge"],
            "valid": ["edge", "edge_neg"],
            "test": ["edge", "edge_neg"],
        }
        assert data.split["valid"]["edge_neg"].tolist() == layout.VALID_NEG
        assert data.split["test"]["edge"].tolist() == layout.TEST
    assert layout.contents(tmp_path) == before


def test_a_node_set_holds_features_labels_and_years(tmp_path: Path) -> None:
    layout.write_arxiv(tmp_path)
    data = read_node_dataset("ogbn_arxiv", str(tmp_path))
    assert data.labels.tolist() == [7, 0, 7, 39]
    assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 0]]
    assert data.is_directed
    assert data.node_feat is not None
    assert (data.node_feat.dtype, data.node_feat[1].tolist()) == (np.float32, [1.5, 2.0])
    assert data.extra["node_year"][:, 0].tolist() == [2017, 2018, 2019, 2020]
    assert {part: ids.tolist() for part, ids in data.split.items()} == {"train": [0, 1], "valid": [2], "test": [3]}


def test_a_copy_without_features_has_none(tmp_path: Path) -> None:
    layout.write_arxiv(tmp_path, features=False)
    data = read_node_dataset("ogbn-arxiv", tmp_path)
    assert data.node_feat is None
    assert data.metadata.has_node_attr


def test_a_set_in_npz_form_reads_as_in_csv_form(tmp_path: Path) -> None:
    folder = tmp_path / "ogbl_vessel"
    (folder / "raw").mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    np.savez(
        folder / "raw" / "data.npz",
        edge_index=np.array([[0, 1], [1, 2]]),
        num_nodes_list=np.array([3]),
        num_edges_list=np.array([2]),
        node_feat=np.ones((3, 3), np.float32),
        edge_length=np.array([[1.0], [2.0]]),
    )
    tables = {"edge": torch.tensor([[0, 1]]), "edge_neg": torch.tensor([[0, 2]])}  # tensors, not arrays
    for part in ("train", "valid", "test"):
        layout.write_split(folder / "split" / "spatial" / f"{part}.pt", tables)
    data = read_link_dataset("ogbl-vessel", tmp_path)
    assert (data.num_nodes, data.edge_index.tolist()) == (3, [[0, 1], [1, 2]])
    assert data.node_feat is not None
    assert data.node_feat.shape == (3, 3)
    assert list(data.extra) == ["edge_length"]
    assert data.split["test"]["edge_neg"].tolist() == [[0, 2]]


def test_species_of_proteins_reads_without_the_rename_that_ogb_does(tmp_path: Path) -> None:
    folder = tmp_path / "ogbn_proteins"
    layout.write_graph(folder, [[0, 1]], num_nodes=2)
    layout.write_csv(folder / "raw" / "species.csv.gz", [[3702], [4932]])
    layout.write_csv(folder / "raw" / "node-label.csv.gz", [[0] * 112, [1] * 112])
    layout.write_csv(folder / "raw" / "edge-feat.csv.gz", [[0.25] * 8])
    for part, node in {"train": 0, "valid": 1, "test": 1}.items():
        layout.write_csv(folder / "split" / "species" / f"{part}.csv.gz", [[node]])
    data = read_node_dataset("ogbn-proteins", tmp_path)
    assert data.extra["node_species"][:, 0].tolist() == [3702, 4932]
    assert data.labels.shape == (2, 112)
    assert data.edge_feat is not None
    assert data.edge_feat.shape == (1, 8)
    assert (folder / "raw" / "species.csv.gz").exists()


def test_a_missing_label_is_minus_one() -> None:
    table = np.array([[3.0], [np.nan]], np.float32)
    labels = class_labels(metadata("ogbn-papers100M"), table, 2, Path("x"))
    assert (labels.tolist(), labels.dtype) == ([3, -1], np.int64)


def test_several_node_types_read_by_type(tmp_path: Path) -> None:
    layout.write_mag(tmp_path)
    data = read_hetero_dataset("ogbn-mag", tmp_path)
    assert data.num_nodes == {"author": 2, "paper": 3}
    assert data.edge_index["author", "writes", "paper"].tolist() == [[0, 1], [2, 0]]
    assert data.edge_index["paper", "cites", "paper"].tolist() == [[0], [1]]
    assert data.node_feat["paper"][:, 0].tolist() == [0.5, 1.5, 2.5]
    assert data.edge_feat == {}
    assert data.extra["node_year"]["paper"][:, 0].tolist() == [2010, 2011, 2012]
    assert data.extra["edge_reltype"]["author", "writes", "paper"].tolist() == [[1], [1]]
    assert {kind: labels.tolist() for kind, labels in data.labels.items()} == {"paper": [4, 5, 6]}
    assert {part: ids["paper"].tolist() for part, ids in data.split.items()} == {
        "train": [0],
        "valid": [1],
        "test": [2],
    }


def test_a_typed_link_set_keeps_its_type_names(tmp_path: Path) -> None:
    folder = tmp_path / "ogbl_biokg"
    raw = folder / "raw"
    layout.write_csv(raw / "num-node-dict.csv.gz", [["drug", "protein"], [1, 2]])
    layout.write_csv(raw / "triplet-type-list.csv.gz", [["drug", "hits", "protein"]])
    place = raw / "relations" / "drug___hits___protein"
    layout.write_csv(place / "edge.csv.gz", [[0, 1]])
    layout.write_csv(place / "num-edge-list.csv.gz", [[1]])
    (folder / "RELEASE_v1.txt").touch()
    triple = {"head_type": ["drug"], "head": np.array([0]), "relation": np.array([5]), "tail": np.array([1])}
    for part in ("train", "valid", "test"):
        layout.write_split(folder / "split" / "random" / f"{part}.pt", triple)
    data = read_hetero_dataset("ogbl-biokg", tmp_path)
    assert data.split["train"]["head_type"].tolist() == ["drug"]
    assert data.split["test"]["relation"].tolist() == [5]
    assert data.labels == {}


# --- what is wrong ----------------------------------------------------------------------------------------


def test_an_absent_set_says_where_it_should_be_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_link_dataset("ogbl-ddi", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "ogbl_ddi" / "raw" / "edge.csv.gz") in message
    assert "folder that holds ogbl_ddi/" in message
    assert "download=True" in message
    assert "\n" not in message


def test_the_folder_itself_as_root_is_recognised(tmp_path: Path) -> None:
    folder = layout.write_ddi(tmp_path)
    with pytest.raises(DataError, match=f"give its parent, {tmp_path}, as root"):
        read_link_dataset("ogbl-ddi", folder)


def test_another_release_is_refused_without_a_question(tmp_path: Path) -> None:
    folder = layout.write_ddi(tmp_path)
    (folder / "RELEASE_v1.txt").rename(folder / "RELEASE_v0.txt")
    with pytest.raises(DataError, match=r"has no RELEASE_v1\.txt, so it is another release"):
        read_link_dataset("ogbl-ddi", tmp_path)


@pytest.mark.parametrize("file", ["raw/num-node-list.csv.gz", "split/target/valid.pt"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    folder = layout.write_ddi(tmp_path)
    (folder / file).unlink()
    with pytest.raises(DataError, match=rf"no file {folder / file}; .*download=True"):
        read_link_dataset("ogbl-ddi", tmp_path)


@pytest.mark.parametrize("file", ["raw/edge.csv.gz", "split/target/test.pt"])
@pytest.mark.parametrize("rest", [b"", b"junk\x00\x80\x95"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str, rest: bytes) -> None:
    folder = layout.write_ddi(tmp_path)
    (folder / file).write_bytes((folder / file).read_bytes()[:20] + rest if rest else b"")
    with pytest.raises(DataError, match=str(folder / file)) as caught:
        read_link_dataset("ogbl-ddi", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([[0, 1], [1, 5], [2, 3], [3, 4]], r"node id 5 is outside \[0, 5\)"),
        ([[0, 1], [-1, 2], [2, 3], [3, 4]], r"node id -1 is outside \[0, 5\)"),
        ([[0, 1, 2]] * 4, "two columns of integers, got 3"),
        ([[0.5, 1.0]] * 4, "two columns of integers"),
        ([["a", "b"]] * 4, "holds words where numbers are expected"),
        ([[0, 1], [1, 2]], "holds 2 edges, num-edge-list says 4"),
    ],
)
def test_edges_that_do_not_fit_are_refused(tmp_path: Path, rows: list[list[object]], problem: str) -> None:
    folder = layout.write_ddi(tmp_path)
    layout.write_csv(folder / "raw" / "edge.csv.gz", rows)
    with pytest.raises(DataError, match=problem):
        read_link_dataset("ogbl-ddi", tmp_path)


def test_a_split_of_another_graph_is_refused(tmp_path: Path) -> None:
    folder = layout.write_ddi(tmp_path)
    layout.write_split(folder / "split" / "target" / "valid.pt", {"edge": np.array([[0, 5]])})
    with pytest.raises(DataError, match=r"node id 5 is outside \[0, 5\)"):
        read_link_dataset("ogbl-ddi", tmp_path)
    layout.write_csv(layout.write_arxiv(tmp_path) / "split" / "time" / "valid.csv.gz", [[4]])
    with pytest.raises(DataError, match=r"node id 4 is outside \[0, 4\)"):
        read_node_dataset("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(("file", "name"), [("node-label", "labels"), ("node_year", "node_year")])
def test_tables_of_another_length_are_refused(tmp_path: Path, file: str, name: str) -> None:
    folder = layout.write_arxiv(tmp_path)
    layout.write_csv(folder / "raw" / f"{file}.csv.gz", [[1]] * 3)
    with pytest.raises(DataError, match=name):
        read_node_dataset("ogbn-arxiv", tmp_path)


def test_a_split_file_that_runs_code_is_refused(tmp_path: Path) -> None:
    """The pickle would create a file; weights_only must stop it before."""

    class Attack:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'owned'}",)

    folder = layout.write_ddi(tmp_path)
    layout.write_split(folder / "split" / "target" / "train.pt", {"edge": Attack()})
    with pytest.raises(DataError, match="torch refuses the file with weights_only on"):
        read_link_dataset("ogbl-ddi", tmp_path)
    (folder / "split" / "target" / "train.pt").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(DataError, match=r"train\.pt"):
        read_link_dataset("ogbl-ddi", tmp_path)
    assert not (tmp_path / "owned").exists()


def test_a_set_of_another_kind_names_its_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ogbn-arxiv is a node data set; read it with read_node_dataset"):
        read_link_dataset("ogbn-arxiv", tmp_path)
    with pytest.raises(ConfigError, match="several node types; read it with read_hetero_dataset"):
        read_node_dataset("ogbn-mag", tmp_path)
    with pytest.raises(ConfigError, match="one node type; read it with read_link_dataset"):
        read_hetero_dataset("ogbl-ddi", tmp_path)


# --- the real ones ----------------------------------------------------------------------------------------


@pytest.mark.data
def test_the_real_ddi_reads_from_a_folder_without_write_permission(shared_data: Path) -> None:
    before = layout.contents(shared_data / "ogbl_ddi")
    for _ in range(2):
        data = read_link_dataset("ogbl-ddi", shared_data)
        assert (data.num_nodes, data.edge_index.shape) == (4267, (2, 1067911))
        assert len(np.unique(data.edge_index)) == 4267
        sizes = {part: {key: len(rows) for key, rows in tables.items()} for part, tables in data.split.items()}
        assert sizes == {
            "train": {"edge": 1067911},
            "valid": {"edge": 133489, "edge_neg": 101882},
            "test": {"edge": 133489, "edge_neg": 95599},
        }
        assert np.array_equal(data.split["train"]["edge"].T, data.edge_index)
    assert layout.contents(shared_data / "ogbl_ddi") == before


@pytest.mark.data
def test_the_real_arxiv_has_the_published_counts(shared_data: Path) -> None:
    before = layout.contents(shared_data / "ogbn_arxiv")
    for _ in range(2):
        data = read_node_dataset("ogbn-arxiv", shared_data)
        assert (data.num_nodes, data.edge_index.shape) == (169343, (2, 1166243))
        assert {part: len(ids) for part, ids in data.split.items()} == {
            "train": 90941,
            "valid": 29799,
            "test": 48603,
        }
        assert len(np.unique(data.labels)) == data.metadata.num_classes == 40
        assert data.node_feat is None
    assert layout.contents(shared_data / "ogbn_arxiv") == before
