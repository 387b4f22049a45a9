from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.models.gnn.trainer import WeightAverage
from graph_emb.transport import runtime
from tests.ranks import Ranks

NODES = np.arange(60)
SIDES = (NODES // 15) % 2
SPLIT = {"train": NODES[::3], "valid": NODES[1::3], "test": NODES[2::3]}


def rings() -> HeteroGraph:
    """Four rings of 15 nodes; every second one is of the other class."""
    following = NODES // 15 * 15 + (NODES + 1) % 15
    ends = np.append(NODES, following), np.append(following, NODES)
    return HeteroGraph({"node": 60}, {("node", "to", "node"): ends})


LEVELS = {"node": np.stack([NODES // 30, NODES // 15], axis=1)}


@pytest.mark.parametrize("inputs", ["position", "position-hash", "hash", "quotient-remainder"])
def test_a_network_learns_from_composed_rows(inputs: str) -> None:
    buckets = {} if inputs == "position" else {"num_buckets": 20}
    config = SAGEConfig(dim=8, hidden_dim=8, num_layers=2, epochs=20, eval_every=20, inputs=inputs, lr=0.1, **buckets)
    levels = LEVELS if inputs.startswith("position") else None
    result = train_sage(rings(), NodeTask("node", SIDES, SPLIT), config, levels=levels)
    table = result.tables["node"]
    assert isinstance(table, ComposedEmbedding)
    assert table.num_parameters < 60 * 8
    if inputs == "position":
        assert result.best().test["accuracy"] == 1.0  # the parts are the rings


def test_types_with_features_need_no_levels() -> None:
    items, users = np.arange(60) % 4, NODES
    graph = HeteroGraph(
        {"user": 60, "item": 4}, {("user", "buys", "item"): (users, items), ("item", "rev", "user"): (items, users)}
    )
    config = RGCNConfig(dim=4, hidden_dim=4, epochs=2, inputs="position")
    task = NodeTask("user", items % 2, SPLIT)
    result = train_rgcn(
        graph, task, config, features={"item": np.eye(4, dtype=np.float32)}, levels={"user": LEVELS["node"]}
    )
    assert list(result.tables) == ["user"]
    with pytest.raises(ConfigError, match="needs the levels of node type 'item'"):
        train_rgcn(graph, task, config, levels={"user": LEVELS["node"]})


def averaged(transport: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Averages of composed rows, the rows, and the rows that took the averages over, each of 60 nodes."""
    config = SAGEConfig(dim=2, inputs="position-hash", num_buckets=5)
    inputs = InputRows({"node": 60}, config, levels=LEVELS)
    mean = WeightAverage([], inputs, 0.5)
    table, average = inputs.tables["node"], mean.tables["node"]
    assert isinstance(table, ComposedEmbedding)
    assert isinstance(average, ComposedEmbedding)
    assert torch.equal(average.buckets_of(torch.arange(60)), table.buckets_of(torch.arange(60)))
    for epoch in (1.0, 4.0):
        for kept in table.tables:
            kept.weight[:] = torch.full((kept.num_embeddings, kept.embedding_dim), epoch)
        transport.barrier()
        mean.add()
    rows = inputs.gather({"node": torch.arange(60)}, mean.tables)["node"].detach()
    last = table.weight[:]
    transport.barrier()
    mean.take_over()
    found = rows, last, table.weight[:]
    transport.barrier()
    return found


def check(found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    value = (1.0 * 0.5 + 4.0) / 1.5  # 3: of each shared row, and of each weight's distance from 1
    rows, last, taken_over = found
    torch.testing.assert_close(rows, torch.full((60, 2), 2 * value + 2 * (1 + value) * value))
    torch.testing.assert_close(last, torch.full((60, 2), 2 * 4.0 + 2 * 5.0 * 4.0))
    torch.testing.assert_close(taken_over, rows)


def test_an_average_of_composed_rows_is_of_what_they_are_made_of(local_mode: None) -> None:
    check(averaged(runtime.current()))


def in_ranks() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    transport = ge.init(mode="collective")
    try:
        return averaged(transport)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_average_the_shared_rows_that_they_store(ranks: Ranks) -> None:
    for found in ranks.run(in_ranks, 2):
        check(found)


def test_a_network_is_judged_by_averages_of_composed_rows() -> None:
    config = SAGEConfig(
        dim=8, hidden_dim=8, num_layers=2, epochs=6, eval_every=1, inputs="position-hash", num_buckets=20
    )
    last, shortest, mean = (
        train_sage(rings(), NodeTask("node", SIDES, SPLIT), config.replace(ema_decay=decay), seed=3, levels=LEVELS)
        for decay in (0.0, 1e-12, 0.9)
    )
    rows = [result.tables["node"].weight[:] for result in (last, shortest, mean)]
    torch.testing.assert_close(rows[0], rows[1])  # the average of the last epoch alone
    assert not torch.allclose(rows[0], rows[2], atol=1e-3)
    assert [line.loss for line in last.history] == [line.loss for line in mean.history]  # the steps are the same


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="num_hashes = 3 has no effect on inputs = 'position'"):
        SAGEConfig(inputs="position", num_hashes=3)
    with pytest.raises(ValueError, match=r"levels = \(4,\) has no effect on inputs = 'hash'"):
        SAGEConfig(inputs="hash", levels=(4,))
    with pytest.raises(ConfigError, match="levels have no effect on inputs='table'"):
        train_sage(rings(), NodeTask("node", SIDES, SPLIT), SAGEConfig(epochs=5), levels=LEVELS)
