"""Every recipe by its name; and of each kind one, small, whose run has the bits of the models called one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.compat.ogb import evaluator, metadata
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.threads import torch_threads
from graph_emb.evaluate.split_accuracy import MLPConfig, train_mlp
from graph_emb.evaluate.triple_ranks import rank_part, score_given
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import knowledge_graph, plain_dataset
from graph_emb.models.gnn.train import NodeClassTraining
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.models.kge.training import train_kge
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.links.matrix_factorization import MatrixFactorizationConfig, train_matrix_factorization
from graph_emb.models.links.training import FrozenRows, train_link_predictor
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig
from graph_emb.models.skipgram.line import train_line
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.ogb.recipes import RECIPES, recipe_named, recipes_of
from graph_emb.ogb.record import SeedResult, ogb_values, result_of
from graph_emb.ogb.script import RecipeRuns
from graph_emb.run.pipeline import PipelineResult, run
from graph_emb.sampling.known_triples import HEAD, TAIL
from graph_emb.sampling.walks import EdgeSampler, WalkSampler
from tests import ogb_layout

WALKS = {"num_walks": 2, "walk_length": 6, "dim": 4}
PREDICTOR: dict[str, Any] = {"hidden_dim": 8, "epochs": 2, "eval_every": 1, "metrics": ("hits@20",)}
KGE: dict[str, Any] = {"dim": 8, "num_negatives": 4, "chunk_size": 16}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ogb")
    for name in ("ogbl-ddi", "ogbl-collab", "ogbn-arxiv", "ogbn-proteins", "ogbl-wikikg2", "ogbn-mag"):
        ogb_layout.WRITERS[name](place)
    return place


def ran(name: str, root: Path, *layers: dict[str, Any]) -> PipelineResult:
    data = {"dataset": {"root": str(root)}, "train": {"threads": 1}, "seed": 1}
    return run(config_from(RECIPES[name], data, *layers))


def walked(root: Path, **evaluate: Any) -> PipelineResult:
    return ran("ogbl-ddi/deepwalk", root, {"model": WALKS, "evaluate": {"predictor": PREDICTOR, **evaluate}})


def test_a_name_is_a_data_set_of_ogb_and_a_model() -> None:
    for name, recipe in RECIPES.items():
        dataset, model = recipe_named(name)
        assert metadata(dataset).name == dataset
        assert recipes_of(dataset)[model] is recipe
        assert config_from(recipe).dataset.name == dataset
        assert config_from(config_from(recipe).sections()) == config_from(recipe)


def test_an_unknown_recipe_names_the_nearest_and_lists_the_known() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown recipe 'ogbl-ddi/deepwlak'; known: .*ogbn-mag/rgcn.* \(did you mean 'ogbl-ddi/deepwalk'\?\)",
    ):
        recipe_named("ogbl-ddi/deepwlak")


def test_walks_and_the_predictor_are_those_of_the_library(root: Path) -> None:
    found = result_of(walked(root))
    data = plain_dataset(load_dataset("ogbl-ddi", root))
    skipgram = SkipGramConfig(dim=4, window=2, num_negatives=1, negative_power=0.0, tables=2, lr=0.05)
    walks = WalkSampler(data.graph, num_walks=2, walk_length=6, seed=1)
    rows = train_skipgram(walks, skipgram, seed=1, num_threads=1).embeddings("add")
    config = LinkPredictorConfig(**PREDICTOR)
    with torch_threads(1):
        direct = train_link_predictor(FrozenRows(rows), data.link_split or {}, 40, config, seed=1)
    assert found.history == [evaluation.as_dict() for evaluation in direct.history]
    assert found.scores["hits@20"].model_dump() == direct.best_values()["hits@20"]
    assert found.parameters == {"embedding": 2 * 40 * 4, "link predictor": direct.predictor.num_parameters}


def test_line_and_the_mlp_are_those_of_the_library(root: Path) -> None:
    line = {"dim": 8, "draws_per_edge": 2}
    mlp = {"hidden_dim": 8, "epochs": 3}
    found = result_of(ran("ogbn-arxiv/line", root, {"model": line, "evaluate": {"mlp": mlp}}))
    data = plain_dataset(load_dataset("ogbn-arxiv", root))
    assert data.labels is not None
    assert data.node_split is not None
    edges = EdgeSampler.of_graph(data.graph, draws_per_edge=2, seed=1)
    trained = train_line(edges, LineConfig(dim=8, num_negatives=5), seed=1, num_threads=1)
    assert data.features is not None
    matrix, classes = torch.cat([torch.from_numpy(data.features), trained.embeddings()], 1), data.labels.to_single()
    parts = {p: (matrix[torch.from_numpy(n)], torch.from_numpy(classes[n])) for p, n in data.node_split.items()}
    with torch_threads(1):
        direct = train_mlp(parts, 40, MLPConfig(**mlp), seed=1)
    assert (found.metric, found.scores["acc"].epoch) == ("acc", direct.epoch)
    assert found.history == [{"epoch": direct.epoch, **direct.scores}]
    assert found.parameters == {"embedding": 90 * 4 + 2 * 90 * 4, "mlp": direct.num_parameters}


def test_matrix_factorisation_is_that_of_the_library(root: Path) -> None:
    layer = {"model": {"dim": 4}, "train": {"lr": 0.05}, "evaluate": {"predictor": PREDICTOR}}
    ran_result = ran("ogbl-ddi/mf", root, layer)
    split = plain_dataset(load_dataset("ogbl-ddi", root)).link_split
    config = MatrixFactorizationConfig(dim=4, std=0.1, lr=0.05)
    with torch_threads(1):
        table, direct = train_matrix_factorization(split or {}, 40, config, LinkPredictorConfig(**PREDICTOR), seed=1)
    assert ran_result.embeddings is not None
    np.testing.assert_array_equal(ran_result.embeddings.weights, table.weight[torch.arange(40)].detach())
    found = result_of(ran_result)
    assert found.history == [evaluation.as_dict() for evaluation in direct.history]
    clock = ("elapsed", "memory_mib")
    assert found.history == [{k: v for k, v in line.items() if k not in clock} for line in ran_result.history]
    assert found.parameters == {"embedding": 40 * 4, "link predictor": direct.predictor.num_parameters}


def test_a_knowledge_graph_is_judged_at_the_best_validated_epoch(root: Path) -> None:
    layer = {"model": {**KGE, "valid_every": 1}, "train": {"batch_size": 32, "epochs": 4}}
    found = result_of(ran("ogbl-wikikg2/distmult", root, layer))
    data = knowledge_graph(load_dataset("ogbl-wikikg2", root))
    config = config_from(RECIPES["ogbl-wikikg2/distmult"], layer).model
    assert isinstance(config, KGEConfig)
    direct = train_kge(data, config, seed=1, num_threads=1)
    assert direct.entities is not None
    assert direct.relations is not None
    ranks = rank_part(direct.model.scorer, direct.entities, direct.relations, data, "test")
    assert {name: score.test for name, score in found.scores.items()} == ogb_values(ranks)
    assert (found.selected_on, found.metric) == ("valid", "mrr")
    assert found.parameters == {"entities": 40 * 8, "relations": 2 * 8}
    by_epoch = [line["valid_mrr"] for line in found.history]
    assert by_epoch == [line.valid_mrr for line in direct.history]
    assert found.scores["mrr"].epoch == int(np.argmax(by_epoch)) + 1
    assert found.scores["mrr"].valid == pytest.approx(max(by_epoch))  # all validation triples were looked at


def test_without_validation_the_last_epoch_is_taken_and_said(root: Path) -> None:
    layer = {"model": {**KGE, "valid_every": 0}, "train": {"batch_size": 32, "epochs": 2}}
    found = result_of(ran("ogbl-wikikg2/distmult", root, layer))
    assert (found.selected_on, found.scores["mrr"].epoch) == ("none", None)


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-wikikg2"])
def test_the_values_are_ogbs_with_ties(tmp_path: Path, name: str) -> None:
    """Rows of few distinct numbers, so that scores are often equal; heads and tails in one list, as in OGB."""
    ogb_layout.WRITERS[name](tmp_path)
    data, generator = knowledge_graph(load_dataset(name, tmp_path)), torch.Generator().manual_seed(0)
    scorer = SCORERS["distmult"](KGEConfig(model="distmult", dim=8))
    entities = torch.randint(2, (data.num_entities, 8), generator=generator).float()
    relations = torch.randint(2, (data.num_relations, 8), generator=generator).float()
    given, triples = data.negatives["test"], data.parts["test"]
    pairs = [
        score_given(scorer, entities, relations, triples, side, where)
        for side, where in ((given.heads, HEAD), (given.tails, TAIL))
    ]
    positive, negative = (torch.cat(scores) for scores in zip(*pairs, strict=True))
    assert (positive[:, None] == negative).any()
    theirs = evaluator(name).eval({"y_pred_pos": positive, "y_pred_neg": negative})
    found = ogb_values(rank_part(scorer, entities, relations, data, "test"))
    assert found == {key: pytest.approx(theirs[f"{key}_list"].mean().item(), rel=1e-6) for key in found}
    assert set(found) == {"mrr", "hits@1", "hits@3", "hits@10"}


def test_types_without_features_have_learned_rows(root: Path) -> None:
    layer = {"model": {"hidden_dim": 4, "fanouts": None}, "train": {"epochs": 2, "batch_size": None}}
    made = ran("ogbn-mag/rgcn", root, layer)
    found = result_of(made)
    assert found.parameters["embedding"] == (30 + 12 + 6) * 128  # authors, fields, institutions
    assert found.metric == "acc"
    assert found.scores["acc"].epoch in (1, 2)
    edges = made.dataset.graph.edges
    assert ("paper", "rev_cites", "paper") not in edges  # citations go both ways within one relation


def test_sage_learns_both_ways_of_each_edge_and_reports_every_metric(root: Path) -> None:
    sage = {"dim": 4, "hidden_dim": 4, "eval_every": 1, "metrics": ("hits@20", "hits@50")}
    made = ran("ogbl-ddi/sage", root, {"model": sage, "train": {"epochs": 2, "batch_size": 64}})
    found = result_of(made)
    assert set(found.scores) == {"hits@20", "hits@50"}
    assert found.parameters["embedding"] == 40 * 4
    assert found.parameters["network"] > 0
    ((src, dst),) = made.dataset.graph.edges.values()
    assert set(zip(src.tolist(), dst.tolist(), strict=True)) == set(zip(dst.tolist(), src.tolist(), strict=True))


def test_metapath2vec_reads_features_and_counts_all_types(root: Path, tmp_path: Path) -> None:
    walks = {"dim": 4, "metapath": "author-paper-author", "num_walks": 1, "walk_length": 5}
    layer = {"model": walks, "evaluate": {"mlp": {"hidden_dim": 4, "epochs": 2}}}
    found = result_of(ran("ogbn-mag/metapath2vec", root, layer))
    assert found.parameters["embedding"] == (30 + 12 + 6 + 60) * 4
    assert found.parameters["mlp"] == ((128 + 4) * 4 + 4) + (4 * 4 + 4) + (4 * 349 + 349)
    authors = {"model": {"metapath": "author-institution-author"}}
    with pytest.raises(ConfigError, match=r"evaluate.mlp = .* has no effect on ogbn-mag, which has no labels with"):
        ran("ogbn-mag/metapath2vec", root, layer, authors)


def test_several_tasks_are_judged_by_roc_auc(root: Path) -> None:
    layer = {"model": WALKS, "evaluate": {"mlp": {"hidden_dim": 8, "epochs": 5}}}
    found = result_of(ran("ogbn-proteins/node2vec", root, layer))
    assert found.metric == "rocauc"
    assert found.parameters["mlp"] == ((8 + 4) * 8 + 8) + (8 * 8 + 8) + (8 * 112 + 112)


def test_the_embedding_has_a_seed_of_its_own(root: Path) -> None:
    """And the network's seed changes its result alone."""
    runs = [walked(root, seed=seed) for seed in (1, 1, 2)]
    rows = [made.embeddings.weights for made in runs if made.embeddings is not None]
    np.testing.assert_array_equal(rows[0], rows[2])
    losses = [[entry["loss"] for entry in result_of(made).history] for made in runs]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_the_context_table_counts_whatever_the_network_sees(root: Path) -> None:
    for context, width in (("none", 4), ("add", 4), ("concat", 8)):
        layer = {"model": WALKS, "evaluate": {"enabled": False}, "output": {"context": context}}
        made = ran("ogbl-ddi/deepwalk", root, layer)
        assert made.embeddings is not None
        assert made.embeddings.weights.shape == (40, width)
        assert made.metrics["train"]["parameters"] == 2 * 40 * 4


def test_a_recipe_on_data_of_another_kind_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate.mlp = .* has no effect on ogbl-ddi, which has no labels"):
        ran("ogbn-arxiv/deepwalk", root, {"dataset": {"name": "ogbl-ddi"}})
    with pytest.raises(ConfigError, match=r"evaluate.predictor = .* has no effect on ogbn-arxiv, which holds out no"):
        ran("ogbl-ddi/deepwalk", root, {"dataset": {"name": "ogbn-arxiv"}})
    with pytest.raises(DataError, match="ogbn-arxiv holds out no edges for validation and test, by which mf is"):
        ran("ogbl-ddi/mf", root, {"dataset": {"name": "ogbn-arxiv"}})
    with pytest.raises(DataError, match="'ogbl-ddi' has no node features here"):
        walked(root, node_features="raw")


def test_an_interrupted_training_is_no_result(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training keeps what it has and returns; a recipe's seed must not count as finished by it."""

    def stop(self: NodeClassTraining, number: int) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(NodeClassTraining, "epoch", stop)
    layer = {"dataset": {"root": str(root)}, "model": {"hidden_dim": 4}, "train": {"threads": 1}}
    config = config_from(RECIPES["ogbn-mag/rgcn"], layer)
    with pytest.raises(KeyboardInterrupt):
        list(RecipeRuns(config, "rgcn", tmp_path, "", lambda config, *_: run(config)).each([0]))


def test_training_on_validation_edges_lasts_as_long_as_the_first_training_chose(root: Path, tmp_path: Path) -> None:
    network = {**PREDICTOR, "epochs": 6, "metrics": ("hits@50",), "select": "hits@50"}
    layer = {"dataset": {"root": str(root)}, "model": WALKS, "train": {"threads": 1, "epochs": 1}}
    config = config_from(RECIPES["ogbl-collab/node2vec"], layer, {"evaluate": {"predictor": network}})

    def only(config: Any, out: Path) -> SeedResult:
        (record,) = RecipeRuns(config, "node2vec", out, "", lambda config, *_: run(config)).each([1])
        return record.finished()

    first = only(config, tmp_path / "a")
    both = only(config.replace(dataset={"validation_edges": "trained on"}), tmp_path / "b")
    chosen = first.scores["hits@50"]
    assert (both.scores["hits@50"].epoch, both.scores["hits@50"].valid) == (chosen.epoch, chosen.valid)
    assert both.history[: len(first.history)] == first.history
    (last,) = both.history[len(first.history) :]
    assert last["epoch"] == chosen.epoch
    assert both.scores["hits@50"].test == last["test"]["hits@50"]
    assert both.parameters == first.parameters
