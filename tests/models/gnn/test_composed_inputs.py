from __future__ import annotations

import numpy as np
import pytest

from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_rgcn, train_sage

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


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="num_hashes = 3 has no effect on inputs = 'position'"):
        SAGEConfig(inputs="position", num_hashes=3)
    with pytest.raises(ValueError, match=r"levels = \(4,\) has no effect on inputs = 'hash'"):
        SAGEConfig(inputs="hash", levels=(4,))
    with pytest.raises(ValueError, match=r"ema_decay = 0.9 averages rows a node"):
        RGCNConfig(inputs="hash", ema_decay=0.9)
    with pytest.raises(ConfigError, match="levels have no effect on inputs='table'"):
        train_sage(rings(), NodeTask("node", SIDES, SPLIT), SAGEConfig(epochs=5), levels=LEVELS)
