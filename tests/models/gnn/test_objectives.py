"""Triples through a graph network: the loss is DistMult's on the network's rows, and the best rows are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import message_graph
from graph_emb.models.gnn import objectives
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.objectives import TripleDecoder
from graph_emb.models.gnn.tasks import NodeTask, TripleTask
from graph_emb.models.gnn.train import GNNResult, train_rgcn
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.scorers import SCORERS
from tests.models.gnn.planted import planted, planted_triples

SMALL = RGCNConfig(
    dim=8, hidden_dim=8, batch_size=40, chunk_size=16, num_negatives=8, epochs=6, eval_every=2, dropout=0.0, l2=0.001
)


def train(config: RGCNConfig = SMALL, **options: Any) -> GNNResult:
    triples = planted_triples()
    return train_rgcn(message_graph(triples), TripleTask(triples), config, **options)


@pytest.mark.parametrize("decoder", ["distmult", "complex", "simple"])
def test_the_loss_is_that_of_the_knowledge_graph_model(decoder: Any) -> None:
    """Same rows, same batch: a network that hands its inputs on would be the model itself."""
    triples = planted_triples()
    config = SMALL.replace(decoder=decoder, in_batch=True, l2=0.1, n3=0.2)
    given = {"chunk_size": 16, "num_negatives": 8, "in_batch": True, "l2": 0.1, "n3": 0.2, "batch_size": 48}
    model = KGEModel(triples.num_entities, 2, KGEConfig(model=decoder, dim=8, loss="softmax", **given))
    module = TripleDecoder(2, config)
    module.relation.data = model.relation.weight[:]
    _, batch = next(Batches(triples, config, 0, 0, 1, True).epoch(0))
    rows = model.entity.weight[:]
    found = module(rows, torch.from_numpy(batch.entities()), batch)
    torch.testing.assert_close(found, model.loss(batch).detach(), check_dtype=False)


def test_a_few_chunks_at_a_time_give_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train()
    monkeypatch.setattr(objectives, "SCORES", 1)
    pieces = train()
    for one, other in zip(whole.history, pieces.history, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_held_out_triples_are_told_from_others() -> None:
    """Relation 0 joins the entities of a group, relation 1 neighbouring groups: a third of the entities answers."""
    result = train(SMALL.replace(epochs=30, lr=0.03))
    best = result.best("mrr")
    assert best.valid is not None
    assert best.test is not None
    assert set(best.valid) == {"mrr", "hits@1", "hits@3", "hits@10"}
    assert best.test["hits@10"] > 0.75, "chance is below .4"


def test_the_rows_are_those_of_the_best_evaluation() -> None:
    config = SMALL.replace(epochs=12, eval_every=1, lr=0.5)
    result = train(config)
    best = result.best("mrr")
    assert best.epoch < 12, "a rate that forgets"
    assert result.ranked is not None
    triples, scorer = planted_triples(), SCORERS["distmult"](config.decoder_settings)
    for part, values in (("valid", best.valid), ("test", best.test)):
        assert values is not None
        assert rank_part(scorer, *result.ranked, triples, part).mrr().realistic == values["mrr"]


def test_triples_without_held_out_parts_end_with_the_last_rows() -> None:
    triples = planted_triples()
    bare = KnowledgeGraph("bare", triples.num_entities, 2, {"train": triples.train})
    result = train_rgcn(message_graph(bare), TripleTask(bare), SMALL)
    assert [evaluation.test for evaluation in result.history] == [{}]
    assert result.ranked is not None
    assert result.ranked[0].shape == (bare.num_entities, 8)


def test_sampled_neighbourhoods_learn_too() -> None:
    result = train(SMALL.replace(fanouts=(4, 4)))
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_blocks": 3}, "num_blocks = 3 does not divide a layer's widths 8 and 8"),
        ({"num_blocks": 2, "num_bases": 2}, "num_blocks = 2 and num_bases = 2: give one of them"),
        ({"decoder": "complex", "hidden_dim": 7}, "hidden_dim = 7: decoder = 'complex' needs an even width"),
        ({"num_negatives": 0}, "there are no negatives"),
        ({"margin": 1.0}, "margin = 1 has no effect on the softmax loss"),
        ({"edge_dropout": 1.0}, "edge_dropout = 1.0: should be less than 1"),
        ({"candidates": 500}, "num_candidates is 500; it must be in"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(SMALL.replace(**change))


def test_triples_and_classes_keep_to_their_own() -> None:
    graph, task = planted()
    with pytest.raises(ConfigError, match=r"l2 = 0\.5 has no effect on classes of nodes"):
        train_rgcn(graph, task, RGCNConfig(l2=0.5))
    triples = planted_triples()
    with pytest.raises(ConfigError, match="the graph has 2 node types; triples take one, of all entities"):
        train_rgcn(graph, TripleTask(triples), SMALL)
    nodes = np.arange(5)
    other = HeteroGraph({"node": 5}, {("node", "to", "node"): (nodes, nodes)})
    with pytest.raises(ShapeError, match="the graph has 5 nodes, its triples 30 entities"):
        train_rgcn(other, TripleTask(triples), SMALL)
    assert isinstance(task, NodeTask)
