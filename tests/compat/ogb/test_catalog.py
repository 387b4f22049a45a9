from __future__ import annotations

import importlib.util

import pytest

from graph_emb.compat.ogb import known_names, metadata
from graph_emb.core.errors import CompatError, ConfigError


@pytest.mark.parametrize("name", ["ogbl-ddi", "ogbl_ddi"])
def test_both_spellings_of_a_name_are_known(name: str) -> None:
    meta = metadata(name)
    assert (meta.name, meta.folder, meta.kind) == ("ogbl-ddi", "ogbl_ddi", "link")
    assert (meta.eval_metric, meta.split, meta.release_file) == ("hits@20", "target", "RELEASE_v1.txt")
    assert meta.num_classes is None


def test_every_name_of_the_installed_ogb_has_metadata() -> None:
    described = [metadata(name) for name in known_names()]
    assert {meta.name for meta in described} >= {"ogbl-collab", "ogbl-wikikg2", "ogbn-products", "ogbn-mag"}
    assert {meta.name for meta in described if meta.is_hetero} == {"ogbl-biokg", "ogbn-mag"}
    assert {meta.name for meta in described if meta.binary} == {"ogbl-vessel", "ogbn-papers100M"}


def test_further_tables_are_listed() -> None:
    assert metadata("ogbl-collab").edge_files == ("edge_weight", "edge_year")
    assert metadata("ogbn-arxiv").node_files == ("node_year",)
    assert metadata("ogbl-ddi").edge_files == ()


@pytest.mark.parametrize(
    ("name", "directed"),
    [("ogbl-ddi", False), ("ogbn-arxiv", True), ("ogbl-citation2", True), ("ogbl-vessel", False)],
)
def test_direction_is_told(name: str, directed: bool) -> None:
    assert metadata(name).is_directed is directed


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown OGB data set 'ogbl-ddl'.*did you mean 'ogbl-ddi'"):
        metadata("ogbl-ddl")


def test_an_absent_ogb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompatError, match=r"ogb is not installed; run: pip install 'ogb>=1\.3\.6'"):
        metadata("ogbl-ddi")
