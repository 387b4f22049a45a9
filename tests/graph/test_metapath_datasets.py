"""Graphs with node types by name or path."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.metapath_datasets import AREA_VENUES, load_typed

VENUES = [venue for venues in AREA_VENUES.values() for venue in venues]


def write_dbis(folder: Path, names: list[str] | None = None, drop: str = "") -> Path:
    """The layout of the DBIS network: a paper in each venue, by two authors, and a second, smaller venue "KDD"."""
    names = [*VENUES, "KDD", "Elsewhere"] if names is None else names
    papers = 2 * len(VENUES) + 2
    conf = np.r_[np.repeat(np.arange(len(VENUES)), 2), len(VENUES), len(VENUES) + 1]
    arrays = {
        "paper_author": np.array([np.repeat(np.arange(papers), 2), np.arange(2 * papers) % 40], np.int32),
        "paper_conf": np.array([np.arange(papers), conf], np.int32),
        "paper_id": np.arange(papers) + 100,
        "author_id": np.arange(40) + 7000,
        "conf_id": np.arange(len(VENUES) + 2) + 3000,
    }
    arrays.pop(drop, None)
    folder.mkdir()
    np.savez(folder / "graph.npz", **arrays)
    with gzip.open(folder / "conf_names.txt.gz", "wt") as file:
        file.write("".join(f"{name}\n" for name in names))
    return folder


def test_dbis_has_types_ids_areas_and_names(tmp_path: Path) -> None:
    write_dbis(tmp_path / "dbis")
    found = load_typed("dbis", tmp_path)
    assert found.graph.num_nodes == {"author": 40, "paper": 32, "venue": 17}
    assert found.graph.node_ids["author"][0] == 7000
    assert found.labels["venue"].to_single().tolist() == [*[0] * 5, *[1] * 5, *[2] * 5, -1, -1]
    assert found.names["venue"][found.asked["venue"]].tolist() == ["KDD", "SIGMODConference", "SIGIR", "WWW"]
    assert found.asked["venue"][0] == VENUES.index("KDD"), "the KDD with more papers"


def test_damaged_and_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'dbis': no such file or folder, nor under"):
        load_typed("dbis", tmp_path)
    write_dbis(tmp_path / "a", drop="paper_conf")
    with pytest.raises(DataError, match="has no paper_conf; is it the DBIS network"):
        load_typed(tmp_path / "a")
    write_dbis(tmp_path / "b", names=VENUES)
    with pytest.raises(DataError, match="15 names for 17 venues"):
        load_typed(tmp_path / "b")
    write_dbis(tmp_path / "c", names=[*VENUES[1:], "x", "y", "z"])
    with pytest.raises(DataError, match="no venue 'SIGMODConference'"):
        load_typed(tmp_path / "c")


def test_any_other_graph_with_types_is_read_with_its_labels(tmp_path: Path) -> None:
    (tmp_path / "by.csv").write_text("src,dst\n0,0\n1,1\n2,0\n")
    (tmp_path / "paper.csv").write_text("id,label\n0,1\n1,0\n2,1\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes:\n  paper: {files: paper.csv, id: id, label: label}\n  author: {num_nodes: 2}\n"
        "edges:\n  - {type: [paper, by, author], files: by.csv, source: src, destination: dst}\n"
    )
    found = load_typed(tmp_path / "graph.yaml")
    assert found.graph.num_nodes == {"paper": 3, "author": 2}
    assert found.metapath is None
    assert found.labels["paper"].to_single().tolist() == [1, 0, 1]


@pytest.mark.data
def test_the_real_dbis_has_all_areas(shared_data: Path) -> None:
    found = load_typed("dbis", shared_data)
    assert found.graph.num_nodes == {"author": 60_694, "paper": 72_902, "venue": 464}
    assert found.labels["venue"].class_counts().tolist() == [5, 5, 5]
