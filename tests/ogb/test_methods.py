"""Methods: what the network sees, what is counted, and whose seed trains what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.mlp import MLPConfig
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import PlainDataset, plain_dataset
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.matrix_factorization import MatrixFactorizationConfig
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig
from graph_emb.ogb.methods import (
    LineEmbedding,
    LinkRecipe,
    NodeRecipe,
    Run,
    WalkEmbedding,
    with_features,
    with_validation_edges,
)
from tests import ogb_layout

WALKS = WalkEmbedding(skipgram=SkipGramConfig(dim=4, tables=1), num_walks=2, walk_length=6)
PREDICTOR = LinkPredictorConfig(hidden_dim=8, epochs=2, eval_every=1, metrics=("hits@20",))
RUN = Run(seed=1, embedding_seed=2, threads=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ogb")
    for name in ("ogbl-ddi", "ogbl-collab", "ogbl-vessel", "ogbn-arxiv", "ogbn-proteins"):
        ogb_layout.WRITERS[name](place)
    return place


@pytest.fixture
def ddi(root: Path) -> PlainDataset:
    return plain_dataset(load_dataset("ogbl-ddi", root))


def test_features_stand_before_the_embedding(root: Path) -> None:
    data, rows = plain_dataset(load_dataset("ogbl-vessel", root)), torch.ones(50, 2)
    assert data.features is not None
    assert with_features(rows, data, "none") is rows
    raw = with_features(rows, data, "raw")
    assert np.array_equal(raw[:, :3].numpy(), data.features)
    assert torch.equal(raw[:, 3:], rows)
    unit = with_features(rows, data, "unit columns")
    assert unit[:, :3].norm(dim=0).tolist() == pytest.approx([1.0] * 3)  # over the nodes, as OGB's vessel scripts do


def test_features_that_are_not_there_are_asked_for(ddi: PlainDataset) -> None:
    with pytest.raises(DataError, match="'ogbl-ddi' has no node features here"):
        with_features(torch.ones(40, 2), ddi, "raw")
    with pytest.raises(ConfigError, match=r"LinkRecipe.features = 'rwa'.*did you mean 'raw'"):
        LinkRecipe(embedding=WALKS, predictor=PREDICTOR, features="rwa")
    with pytest.raises(ConfigError, match="learns its rows from edges alone"):
        LinkRecipe(embedding=MatrixFactorizationConfig(), predictor=PREDICTOR, features="raw")


def test_the_embedding_has_a_seed_of_its_own(ddi: PlainDataset) -> None:
    rows = [WALKS.embed(ddi, replace(RUN, seed=s, embedding_seed=e)).embeddings for s, e in ((0, 5), (1, 5), (0, 6))]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_the_networks_seed_changes_its_result_alone(ddi: PlainDataset) -> None:
    recipe = LinkRecipe(embedding=WALKS, predictor=PREDICTOR)
    losses = [[e["loss"] for e in recipe.run(ddi, replace(RUN, seed=s)).history] for s in (1, 1, 2)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_the_context_table_counts_whatever_the_network_sees(ddi: PlainDataset) -> None:
    two = WalkEmbedding(skipgram=SkipGramConfig(dim=4, tables=2), num_walks=1, walk_length=6)
    for context, width in (("none", 4), ("add", 4), ("concat", 8)):
        rows = two.replace(context=context).embed(ddi, RUN)
        assert (rows.num_parameters, rows.embeddings.shape) == (2 * 40 * 4, (40, width))


def test_line_counts_the_contexts_of_the_second_order(ddi: PlainDataset) -> None:
    rows = LineEmbedding(line=LineConfig(dim=8), draws_per_edge=1).embed(ddi, RUN)
    assert rows.embeddings.shape == (40, 8)
    assert rows.num_parameters == 40 * 4 + 2 * 40 * 4


def test_matrix_factorisation_cannot_be_frozen() -> None:
    assert not LinkRecipe(embedding=MatrixFactorizationConfig(), predictor=PREDICTOR).freezable
    assert LinkRecipe(embedding=WALKS, predictor=PREDICTOR).freezable


def test_several_tasks_are_judged_by_roc_auc(root: Path) -> None:
    mlp = MLPConfig(hidden_dim=8, epochs=4, batch_norm=False)
    found = NodeRecipe(embedding=WALKS, mlp=mlp, features="raw").run(
        plain_dataset(load_dataset("ogbn-proteins", root)), RUN
    )
    assert found.metric == "rocauc"
    assert found.parameters["mlp"] == ((8 + 4) * 8 + 8) + (8 * 8 + 8) + (8 * 112 + 112)


def test_a_recipe_on_data_of_another_kind_is_refused(root: Path, ddi: PlainDataset) -> None:
    with pytest.raises(DataError, match="'ogbl-ddi' has no labels or no node split"):
        NodeRecipe(embedding=WALKS, mlp=MLPConfig()).run(ddi, RUN)
    with pytest.raises(DataError, match="'ogbn-arxiv' has no link split"):
        LinkRecipe(embedding=WALKS, predictor=PREDICTOR).run(plain_dataset(load_dataset("ogbn-arxiv", root)), RUN)


def test_validation_edges_join_graph_and_training_part(root: Path) -> None:
    data = plain_dataset(load_dataset("ogbl-collab", root))
    joined = with_validation_edges(data)
    assert data.link_split is not None
    assert joined.link_split is not None
    held = data.link_split["valid"]["edge"]
    assert not data.graph.has_edges(*held.T).any()
    assert joined.graph.has_edges(*held.T).all()
    assert joined.graph.num_edges == data.graph.num_edges + len(held)
    before, after = data.graph.edge_weights(), joined.graph.edge_weights()
    assert before is not None
    assert after is not None
    assert after.sum() == before.sum() + len(held)  # the tiny set's validation edges weigh 1 each
    assert len(joined.link_split["train"]["edge"]) == len(data.link_split["train"]["edge"]) + len(held)
    assert joined.link_split["test"] is data.link_split["test"]


def test_training_on_validation_edges_lasts_as_long_as_the_first_training_chose(root: Path) -> None:
    data = plain_dataset(load_dataset("ogbl-collab", root))
    recipe = LinkRecipe(embedding=WALKS, predictor=PREDICTOR.replace(epochs=6, metrics=("hits@50",), select="hits@50"))
    first = recipe.run(data, RUN)
    both = recipe.replace(validation_edges="trained on").run(data, RUN)
    chosen = first.scores["hits@50"]
    assert (both.scores["hits@50"].epoch, both.scores["hits@50"].valid) == (chosen.epoch, chosen.valid)
    assert both.history[: len(first.history)] == first.history
    (last,) = both.history[len(first.history) :]
    assert last["epoch"] == chosen.epoch
    assert both.scores["hits@50"].test == last["test"]["hits@50"]
    assert both.parameters == first.parameters


def test_training_on_validation_edges_is_refused_where_the_rules_do(ddi: PlainDataset) -> None:
    with pytest.raises(ConfigError, match="the rules allow it for ogbl-collab only, not ogbl-ddi"):
        LinkRecipe(embedding=WALKS, predictor=PREDICTOR, validation_edges="trained on").run(ddi, RUN)
    with pytest.raises(ConfigError, match=r"LinkRecipe.validation_edges = 'used'"):
        LinkRecipe(embedding=WALKS, predictor=PREDICTOR, validation_edges="used")
