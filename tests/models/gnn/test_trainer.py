"""The average of the weights over the epochs: its formula in every mode, what is judged by it, and what stays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.link_prediction import link_part, metric_values
from graph_emb.graph.partition_book import RangeBook
from graph_emb.models.gnn import trainer
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.models.gnn.trainer import WeightAverage
from graph_emb.models.links.training import FrozenRows, LinkPredictor, score_links
from graph_emb.sampling.blocks import whole_graph
from graph_emb.transport import runtime
from tests.models.gnn.planted import planted, planted_links
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

DECAY = 0.75
PARTS = RangeBook([0, 4, 11])
QUICK = RGCNConfig(epochs=6, lr=0.02, dropout=0.3, ema_decay=DECAY)
LINKS = SAGEConfig(dim=8, hidden_dim=8, epochs=6, eval_every=2, batch_size=64, lr=0.02, ema_decay=DECAY)


def value(epoch: int) -> float:
    return float(epoch**2)


def expected(epochs: int) -> float:
    """The mean of the values, each as much as those after it leave: the definition, not the recursion."""
    weights = [DECAY ** (epochs - epoch) for epoch in range(1, epochs + 1)]
    return sum(w * value(e) for e, w in zip(range(1, epochs + 1), weights, strict=True)) / sum(weights)


def averaged(transport: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows, weights and averages of three epochs, then those of the networks that took them over."""
    inputs = InputRows({"a": 11, "b": 3}, RGCNConfig(dim=2), features={"b": torch.ones(3, 1)}, policies={"a": PARTS})
    network = nn.Linear(2, 1)
    found, mean = [], WeightAverage([network], inputs, DECAY)
    mean.take_over()
    table, steps = inputs.tables["a"], torch.arange(11.0)[:, None] + 1
    assert network.weight.abs().max() < 1, "there is nothing to take over yet"
    for epoch in (1, 2, 3):
        with torch.no_grad():
            table.weight[:] = (value(epoch) * steps).expand(11, 2)
            network.weight.fill_(value(epoch))
        transport.barrier()
        mean.add()
        rows = inputs.gather({"a": torch.arange(11), "b": torch.arange(3)}, mean.tables)
        assert torch.equal(rows["b"], torch.ones(3, 1))
        copied = mean.of(network)
        assert isinstance(copied, nn.Linear)
        found.append((rows["a"].detach() / steps, copied.weight.clone(), table.weight[:] / steps))
        transport.barrier()
    mean.take_over()
    found.append((table.weight[:] / steps, network.weight.detach().clone(), mean.tables["a"].weight[:] / steps))
    transport.barrier()
    return found


def check(found: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for epoch, (rows, weight, now) in enumerate(found[:3], start=1):
        torch.testing.assert_close(rows, torch.full((11, 2), expected(epoch)))
        torch.testing.assert_close(weight, torch.full((1, 2), expected(epoch)))
        torch.testing.assert_close(now, torch.full((11, 2), value(epoch)), msg="the weights themselves stay")
    for taken in found[3]:
        torch.testing.assert_close(taken, torch.full_like(taken, expected(3)))


def test_later_epochs_count_more_in_pieces_of_any_size(local_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "CHUNK_ROWS", 2)
    check(averaged(runtime.current()))


def in_ranks() -> list[tuple[Tensor, Tensor, Tensor]]:
    transport = ge.init(mode="collective")
    try:
        return averaged(transport)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_average_their_own_rows(ranks: Ranks) -> None:
    for found in ranks.run(in_ranks, 2):
        check(found)


@pytest.mark.dist
@pytest.mark.parametrize("machines", [1, 2])
def test_trainers_of_servers_share_the_rows(machines: int) -> None:
    for found in Cluster(2, machines).run(averaged):
        check(found)


def test_the_steps_are_those_without_an_average() -> None:
    graph, task = planted()
    plain = train_rgcn(graph, task, QUICK.replace(ema_decay=0.0), seed=3)
    mean = train_rgcn(graph, task, QUICK, seed=3)
    assert [e.loss for e in mean.history] == [e.loss for e in plain.history]
    assert not torch.equal(mean.tables["user"].weight[:], plain.tables["user"].weight[:])
    shortest = train_rgcn(graph, task, QUICK.replace(ema_decay=1e-12), seed=3)
    assert [e.valid for e in shortest.history] == [e.valid for e in plain.history], "only the last epoch counts"


def test_what_was_judged_is_given_back() -> None:
    graph, task = planted()
    result = train_rgcn(graph, task, QUICK)
    blocks = whole_graph(graph, QUICK.num_layers, "user").blocks
    logits = result.model.eval()(blocks, {ntype: table.weight[:] for ntype, table in result.tables.items()})["user"]
    assert task.measure(logits.detach(), "valid") == result.history[-1].valid


def test_what_was_judged_on_links_is_given_back() -> None:
    graph, task = planted_links()
    result = train_sage(graph, task, LINKS)
    model, (table,) = result.model.eval(), result.tables.values()
    assert isinstance(model, nn.ModuleDict)
    predictor = model["predictor"]
    assert isinstance(predictor, LinkPredictor)
    with torch.no_grad():
        rows = model["encoder"](whole_graph(graph, LINKS.num_layers, "_N").blocks, {"_N": table.weight[:]})["_N"]
    ranks = link_part(task.split, "valid", 40).ranks(partial(score_links, predictor, FrozenRows(rows)))
    assert metric_values(ranks, task.metrics) == result.history[-1].valid


def test_a_network_without_tables_has_an_average() -> None:
    graph, task = planted()
    features = {ntype: torch.eye(num) for ntype, num in graph.num_nodes.items()}
    result = train_rgcn(graph, task, QUICK, features=features)
    plain = train_rgcn(graph, task, QUICK.replace(ema_decay=0.0), features=features)
    pairs = list(zip(result.model.parameters(), plain.model.parameters(), strict=True))
    assert pairs
    assert not any(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_is_below_one(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"ema_decay = .*: should be"):
        RGCNConfig(ema_decay=decay)


def test_types_without_features_get_a_table_and_others_give_their_features() -> None:
    features = np.arange(6.0).reshape(3, 2)
    inputs = InputRows({"a": 2, "b": 3}, RGCNConfig(dim=4), features={"b": features}, prefix="x-")
    assert list(inputs.tables) == ["a"]
    assert inputs.tables["a"].name == "x-a"
    assert inputs.widths == {"a": 4, "b": 2}
    assert inputs.num_parameters == 8
    rows = inputs.gather({"a": torch.tensor([1]), "b": torch.tensor([2, 0])})
    assert rows["b"].tolist() == [[4, 5], [0, 1]]
    assert torch.equal(rows["a"].detach(), inputs.tables["a"].weight[1:2])


def test_first_rows_depend_on_the_seed_and_the_type() -> None:
    def rows(seed: int, ntype: str) -> torch.Tensor:
        return InputRows({"a": 2, "b": 2}, RGCNConfig(), seed=seed).tables[ntype].weight[:]

    assert torch.equal(rows(1, "a"), rows(1, "a"))
    assert not torch.equal(rows(1, "a"), rows(1, "b"))
    assert not torch.equal(rows(1, "a"), rows(2, "a"))


@pytest.mark.parametrize(("clip_norm", "expected"), [(None, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_a_gradient_above_the_norm_is_scaled_down_to_it(clip_norm: float | None, expected: float) -> None:
    """SGD of rate 1 moves the row by its gradient: (3, 4), of norm 5."""
    inputs = InputRows({"a": 2}, RGCNConfig(dim=2, rule="sgd", lr=1.0))
    before = inputs.tables["a"].weight[1]
    rows = inputs.gather({"a": torch.tensor([1])})["a"]
    (rows * torch.tensor([3.0, 4.0])).sum().backward()
    inputs.step(clip_norm)
    moved = before - inputs.tables["a"].weight[1]
    torch.testing.assert_close(moved, torch.tensor([0.6, 0.8]) * expected)
