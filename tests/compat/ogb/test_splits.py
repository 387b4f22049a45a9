from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.compat.ogb import metadata
from graph_emb.compat.ogb.raw import allow_numpy_arrays, read_link_split, read_node_split
from graph_emb.core.errors import DataError
from tests.compat.ogb import layout


@pytest.mark.parametrize("numpy_1", [True, False])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float64", "bool"])
def test_arrays_of_either_numpy_load_with_weights_only(tmp_path: Path, numpy_1: bool, dtype: str) -> None:
    path = tmp_path / "part.pt"
    layout.write_split(path, {"edge": np.ones(3, dtype)}, numpy_1=numpy_1)
    allow_numpy_arrays()
    assert torch.load(path, weights_only=True)["edge"].dtype == dtype


def test_allowing_twice_adds_nothing() -> None:
    allow_numpy_arrays()
    before = len(torch.serialization.get_safe_globals())
    allow_numpy_arrays()
    assert len(torch.serialization.get_safe_globals()) == before


def test_one_file_may_hold_all_parts(tmp_path: Path) -> None:
    ids = {"train": torch.tensor([0, 1]), "valid": np.array([2], np.int32), "test": np.array([3])}
    layout.write_split(tmp_path / "split" / "time" / "split_dict.pt", ids)
    split = read_node_split(metadata("ogbn-arxiv"), tmp_path)
    assert {part: (rows.tolist(), rows.dtype) for part, rows in split.items()} == {
        "train": ([0, 1], np.int64),
        "valid": ([2], np.int64),
        "test": ([3], np.int64),
    }
    edges = {part: {"edge": np.array([[number, 0]])} for number, part in enumerate(ids)}
    layout.write_split(tmp_path / "split" / "target" / "split_dict.pt", edges)
    link = read_link_split(metadata("ogbl-ddi"), tmp_path)
    assert [link[part]["edge"][0, 0] for part in ("train", "valid", "test")] == [0, 1, 2]


def test_weights_keep_their_dtype(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        tables = {"edge": np.array([[0, 1]]), "weight": np.array([2.0], np.float32)}
        layout.write_split(tmp_path / "split" / "time" / f"{part}.pt", tables)
    assert read_link_split(metadata("ogbl-collab"), tmp_path)["train"]["weight"].dtype == np.float32


def test_parts_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        path = tmp_path / "split" / "target" / f"{part}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.zeros(2), path)
    with pytest.raises(DataError, match=r"train\.pt: the train split is no dict of arrays"):
        read_link_split(metadata("ogbl-ddi"), tmp_path)


def test_a_split_with_two_columns_is_refused(tmp_path: Path) -> None:
    layout.write_csv(tmp_path / "split" / "time" / "train.csv.gz", [[0, 1]])
    with pytest.raises(DataError, match="one column of node ids"):
        read_node_split(metadata("ogbn-arxiv"), tmp_path)
