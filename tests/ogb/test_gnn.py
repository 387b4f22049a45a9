"""Recipes of graph networks and metapath2vec on the typed data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.compat.ogb import OGBHetero, read_hetero_dataset
from graph_emb.core.errors import DataError
from graph_emb.evaluate.mlp import MLPConfig
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import plain_dataset
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.train import NodeClassTraining
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.ogb.gnn import RGCNRecipe, SageRecipe, with_reverse
from graph_emb.ogb.metapath import MetapathRecipe
from graph_emb.ogb.methods import LinkRecipe, Run
from tests import ogb_layout

RUN = Run(0, 0, 1)


@pytest.fixture(scope="module")
def mag(tmp_path_factory: pytest.TempPathFactory) -> OGBHetero:
    root = tmp_path_factory.mktemp("ogb")
    ogb_layout.write_mag(root)
    return read_hetero_dataset("ogbn-mag", root)


def test_every_relation_has_its_reverse_and_citations_go_both_ways(mag: OGBHetero) -> None:
    graph = with_reverse(mag)
    assert set(graph.edges) == {
        ("author", "affiliated_with", "institution"),
        ("institution", "rev_affiliated_with", "author"),
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
        ("paper", "has_topic", "field_of_study"),
        ("field_of_study", "rev_has_topic", "paper"),
        ("paper", "cites", "paper"),
    }
    writes, written = graph.edges["author", "writes", "paper"], graph.edges["paper", "rev_writes", "author"]
    assert np.array_equal(writes[0], written[1])
    assert np.array_equal(writes[1], written[0])
    once = mag.edge_index["paper", "cites", "paper"]
    cites = np.stack(graph.edges["paper", "cites", "paper"])
    assert np.array_equal(cites, np.concatenate([once, once[::-1]], axis=1))


def test_types_without_features_have_learned_rows(mag: OGBHetero) -> None:
    config = RGCNConfig(dim=128, hidden_dim=4, epochs=2, batch_size=None)
    found = RGCNRecipe(rgcn=config).run(mag, RUN)
    assert found.parameters["embedding"] == (30 + 12 + 6) * 128  # authors, fields, institutions
    assert found.metric == "acc"
    assert found.scores["acc"].epoch in (1, 2)


def test_sage_learns_both_ways_of_each_edge_and_reports_every_metric(tmp_path: Path) -> None:
    ogb_layout.write_ddi(tmp_path)
    config = SAGEConfig(dim=4, hidden_dim=4, epochs=2, eval_every=1, batch_size=64)
    found = SageRecipe(sage=config, metrics=("hits@20", "hits@50")).run(
        plain_dataset(load_dataset("ogbl-ddi", tmp_path)), RUN
    )
    assert set(found.scores) == {"hits@20", "hits@50"}
    assert found.parameters["embedding"] == 40 * 4
    assert found.parameters["network"] > 0


def test_metapath2vec_reads_features_and_counts_all_types(mag: OGBHetero) -> None:
    recipe = MetapathRecipe(
        skipgram=SkipGramConfig(dim=4, tables=1, window=2),
        metapath="author-paper-author",
        mlp=MLPConfig(hidden_dim=4, epochs=2, batch_norm=False),
        num_walks=1,
        walk_length=5,
    )
    found = recipe.run(mag, RUN)
    assert found.parameters["embedding"] == (30 + 12 + 6 + 60) * 4
    assert found.parameters["mlp"] == ((128 + 4) * 4 + 4) + (4 * 4 + 4) + (4 * 349 + 349)
    bare = OGBHetero(**{**vars(mag), "node_feat": {}})
    with pytest.raises(DataError, match="nodes of type 'paper' have no features here"):
        recipe.run(bare, RUN)


def test_a_graph_network_is_told_apart_from_other_recipes_by_its_device() -> None:
    assert SageRecipe.uses_device
    assert RGCNRecipe.uses_device
    assert not LinkRecipe.uses_device
    assert not SageRecipe(sage=SAGEConfig(), metrics=("mrr",)).freezable


def test_an_interrupted_training_is_no_result(mag: OGBHetero, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training keeps what it has and returns; a script's seed must not count as finished by it."""

    def stop(self: NodeClassTraining) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeClassTraining, "epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        RGCNRecipe(rgcn=RGCNConfig(dim=128, hidden_dim=4, epochs=2)).run(mag, RUN)
