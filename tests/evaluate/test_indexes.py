"""Approximate indexes: they find nearly what the exact search does, and their files come back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.indexes import INDEXES
from graph_emb.evaluate.nearest import NearestNeighbors

ROWS = np.random.default_rng(0).normal(size=(500, 8))
IDS = np.array([f"n{number}" for number in range(500)])
ASKED = ["n3", "n499", "n20"]


@pytest.fixture(params=INDEXES)
def index(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(INDEXES[request.param].package)
    return str(request.param)


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_an_index_finds_the_exact_neighbours_of_few_rows(index: str, metric: str) -> None:
    exact, near = NearestNeighbors(ROWS, IDS, metric), NearestNeighbors(ROWS, IDS, metric, index=index)
    expected, found = exact.nearest(ASKED, 5), near.nearest(ASKED, 5)
    assert found.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
    queries = np.random.default_rng(1).normal(size=(4, 8))
    assert near.search(queries, 3).ids.tolist() == exact.search(queries, 3).ids.tolist()
    assert near.recall(5) > 0.99


def test_recall_is_the_share_that_is_found(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = NearestNeighbors(ROWS, IDS, index=index)
    search = INDEXES[index].search

    def worse(self: Any, asked: Any, k: int, effort: int) -> Any:
        found = search(self, asked, k + 5, effort)
        assert found is not None
        return np.concatenate([found[:, :3], found[:, -(k - 3) :]], axis=1)

    monkeypatch.setattr(INDEXES[index], "search", worse)
    assert table.recall(10, sample=50) == pytest.approx(0.5, abs=0.02)  # the 2 nearest, and of the others 8 to 15


def test_a_search_that_finds_too_few_is_made_exact(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = NearestNeighbors(ROWS, IDS, index=index)
    monkeypatch.setattr(INDEXES[index], "search", lambda *_: None)
    assert table.nearest(ASKED, 5).ids.tolist() == NearestNeighbors(ROWS, IDS).nearest(ASKED, 5).ids.tolist()
    assert NearestNeighbors(ROWS[:3], IDS[:3], index=index, effort=1).nearest(["n1"], 2).ids.shape == (1, 2)


def test_a_saved_index_is_read_in_place_of_building_one(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = NearestNeighbors(ROWS, IDS, index=index)
    file = table.save_index(tmp_path / "near.index")
    monkeypatch.setattr(INDEXES[index], "_build", None)
    again = NearestNeighbors(ROWS, IDS, index=index, saved=file)
    assert again.nearest(ASKED, 5).ids.tolist() == table.nearest(ASKED, 5).ids.tolist()
    with pytest.raises(DataError, match=r"has rows of shape \(500, 8\), the table \(499, 8\); build the index again"):
        NearestNeighbors(ROWS[:499], index=index, saved=file)
    with pytest.raises(DataError, match="no such file; save_index writes it"):
        NearestNeighbors(ROWS, index=index, saved=tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"not an index")
    with pytest.raises(DataError, match=f"is no index of {index}"):
        NearestNeighbors(ROWS, index=index, saved=tmp_path / "bad")


def test_what_has_no_effect_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown index 'hnsw'; known: exact, faiss, hnswlib \(did you mean"):
        NearestNeighbors(ROWS, index="hnsw")
    with pytest.raises(ConfigError, match="effort=50 has no effect on index='exact'"):
        NearestNeighbors(ROWS, effort=50)
    with pytest.raises(ConfigError, match=r"effort=0 candidates: give a number in \[1, 1048576\]"):
        NearestNeighbors(ROWS, index="faiss", effort=0)
    with pytest.raises(ConfigError, match=r"effort=3.5 candidates: give a number in"):
        NearestNeighbors(ROWS, index="faiss", effort=3.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="save an index of 'hnswlib' or 'faiss'"):
        NearestNeighbors(ROWS).save_index(tmp_path / "x")
    assert NearestNeighbors(ROWS).recall(5, sample=3) == 1.0
    for name, kind in INDEXES.items():
        monkeypatch.setitem(sys.modules, kind.package, None)
        with pytest.raises(ConfigError, match=rf"pip install 'graph_emb\[{name}\]'"):
            NearestNeighbors(ROWS, index=name)
