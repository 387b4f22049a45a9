"""Networks of users on DGL's blocks: the same steps as ours where the layers are the same, in every mode."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.own_network import dgl_block, train_network
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_sage
from graph_emb.run.own_parts import own_edges
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.neighbors import NeighborSampling
from tests.models.gnn.planted import CLASSES, planted, planted_links
from tests.ranks import Ranks

SAMPLED = GNNConfig(dim=16, epochs=3, lr=0.02, fanouts=(4, 4), batch_size=17)
LINKS = SAGEConfig(dim=16, hidden_dim=16, dropout=0.0, epochs=3, batch_size=64, eval_every=1)


class ByDGL(nn.Module):
    """Two rounds of DGL's GraphSAGE."""

    def __init__(self, widths: tuple[int, int, int]) -> None:
        super().__init__()
        compat_dgl.load()
        from dgl.nn.pytorch import SAGEConv

        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))

    def take_over(self, ours: nn.Module) -> None:
        """The values of our layers."""
        for theirs, layer in zip(self.layers, ours.layers, strict=True):  # type: ignore[arg-type]
            theirs.fc_neigh.weight.data.copy_(layer.neighbours.weight)
            theirs.fc_self.weight.data.copy_(layer.own.weight)
            theirs.fc_self.bias.data.copy_(layer.neighbours.bias)

    def forward(self, blocks: list[Any], rows: Tensor) -> Tensor:
        return self.layers[1](blocks[1], F.relu(self.layers[0](blocks[0], rows)))


class Attention(nn.Module):
    """Two rounds over several edge types, each with an attention of its own."""

    def __init__(self, etypes: list[Any], width: int) -> None:
        super().__init__()
        compat_dgl.load()
        from dgl.nn.pytorch import GATConv, HeteroGraphConv

        self.layers = nn.ModuleList(
            HeteroGraphConv({etype[1]: GATConv(width, out, 1, allow_zero_in_degree=True) for etype in etypes})
            for out in (width, CLASSES)
        )
        self.own = nn.Linear(width, CLASSES)

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        first = self.layers[0](blocks[0], rows)
        found = self.layers[1](blocks[1], {ntype: F.elu(values.flatten(1)) for ntype, values in first.items()})
        users = rows["user"][: blocks[1].num_dst_nodes("user")]
        return {**found, "user": found["user"].flatten(1) + self.own(users)}


def ring() -> tuple[Any, NodeTask]:
    """Links' graph, whose two groups are classes."""
    graph, _ = planted_links()
    order = np.random.default_rng(0).permutation(40)
    return graph, NodeTask("_N", np.arange(40) % 2, {"train": order[:20], "valid": order[20:30], "test": order[30:]})


def assert_same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found.history, expected.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.test == theirs.test
    for ntype, table in expected.tables.items():
        torch.testing.assert_close(found.tables[ntype].weight[:], table.weight[:], rtol=0, atol=2e-4)


@pytest.mark.parametrize("fanouts", [None, (4, 4)])
def test_dgls_layers_take_the_steps_of_ours(fanouts: Any) -> None:
    graph, task = ring()
    config = SAGEConfig(dim=8, hidden_dim=8, dropout=0.0, epochs=1, eval_every=1, batch_size=7, fanouts=fanouts)
    network = ByDGL((8, 8, 2))
    network.take_over(train_sage(graph, task, config.replace(lr=1e-30)).model)
    config = config.replace(epochs=4)
    same = {name: getattr(config, name) for name in ("dim", "epochs", "batch_size", "fanouts", "lr", "clip_norm")}
    result = train_network(network, graph, task, GNNConfig(**same), seed=0)
    assert result.model is network
    assert_same(result, train_sage(graph, task, config))


def test_dgls_layers_predict_links_as_ours_do() -> None:
    graph, task = planted_links()
    network = ByDGL((16, 16, 16))
    first: Any = train_sage(graph, task, LINKS.replace(lr=1e-30, epochs=1)).model
    network.take_over(first["encoder"])
    assert_same(train_network(network, graph, task, LINKS), train_sage(graph, task, LINKS))


def test_several_types_learn_by_layers_that_we_do_not_have() -> None:
    graph, task = planted()
    torch.manual_seed(0)
    result = train_network(Attention(graph.etypes, 16), graph, task, SAMPLED.replace(epochs=10))
    assert result.best().test is not None
    assert result.best().test["accuracy"] > 0.8, "one in three is chance"
    assert set(result.tables) == {"user", "tag"}


def test_a_block_says_which_edges_it_has() -> None:
    dgl = compat_dgl.load()
    graph, _ = planted()
    batch = NeighborSampling(graph, (3, 2), 0).sample({"user": torch.tensor([5, 80])})
    for block in batch.blocks:
        made = dgl_block(block)
        assert made is dgl_block(block)
        for etype, edges in block.edges.items():
            assert made.num_edges(etype) == edges.num_edges
            src, dst = made.edges(etype=etype)
            ids = made.edges[etype].data[dgl.EID]
            assert len(ids) == len(src) == len(dst)
    user_in = made.edges[("tag", "rev_uses", "user")].data[dgl.EID]  # the last round's, into the two users
    assert set(graph.edges[("tag", "rev_uses", "user")][1][user_in.numpy()].tolist()) == {5, 80}


def steps(parts: str) -> Any:
    transport: Any = ge.init(mode="collective", timeout=300)
    try:
        own = Trainers(transport.group, transport)
        held = partition.load(parts)
        graph = own_edges(held, own)
        torch.manual_seed(transport.rank)  # the first rank's values count
        policies = {ntype: held.policy(ntype) for ntype in held.ntypes}
        result = train_network(Attention(graph.etypes, 16), graph, planted()[1], SAMPLED, policies=policies)
        rows = {}
        for ntype, table in result.tables.items():
            places = table.original_ids.find(np.arange(table.num_embeddings))
            rows[ntype] = table(torch.from_numpy(places)).detach()
        return [e.loss for e in result.history], rows
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_two_trainers_with_parts_take_the_steps_of_one(tmp_path: Path) -> None:
    graph, task = planted()
    torch.manual_seed(0)
    alone = train_network(Attention(graph.etypes, 16), graph, task, SAMPLED)
    parts = partition.build(graph, 2, "random", seed=1, out=tmp_path / "parts", report=False).path
    ranks = Ranks()
    try:
        found = ranks.run(steps, 2, str(parts))
    finally:
        ranks.close()
    for losses, rows in found:
        assert losses == pytest.approx([e.loss for e in alone.history], rel=1e-4)
        for ntype, table in alone.tables.items():
            torch.testing.assert_close(rows[ntype], table.weight[:], rtol=0, atol=2e-3)


def test_a_stopped_training_goes_on(tmp_path: Path) -> None:
    graph, task = planted()

    def train(**how: Any) -> Any:
        torch.manual_seed(1)
        config = SAMPLED.replace(epochs=4, ema_decay=0.5)
        return train_network(Attention(graph.etypes, 16), graph, task, config, **how)

    whole = train()

    class Stopping(PeriodicCheckpoints):
        def save(self, step: int, position: Any) -> None:
            super().save(step, position)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(table_prefix="", checkpoints=Stopping(tmp_path, 2))
    resumed = train(table_prefix="", checkpoints=PeriodicCheckpoints(tmp_path, 2, resume=True))
    assert [e.epoch for e in resumed.history] == [e.epoch for e in whole.history]
    assert_same(resumed, whole)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    graph, task = ring()
    network = ByDGL((8, 8, 3))
    with pytest.raises(ShapeError, match=r"rows of '_N': shape \(\d+, 3\); the task needs \(\d+, 2\)"):
        train_network(network, graph, task, GNNConfig(dim=8))
    several, planted_task = planted()
    with pytest.raises(ShapeError, match="rows of 'user': dict without them"):
        train_network(Nothing(), several, planted_task, GNNConfig(dim=8))
    for config, words in (
        (GNNConfig(hidden_dim=32), "hidden_dim = 32 has no effect on a network of your own"),
        (GNNConfig(dropout=0.1), r"dropout = 0\.1 has no effect"),
        (RGCNConfig(), "RGCNConfig has settings of another network; classes take a GNNConfig"),
    ):
        with pytest.raises(ConfigError, match=words):
            train_network(network, graph, task, config)
    with pytest.raises(ConfigError, match="unknown node type 'gone'"):
        train_network(network, graph, NodeTask("gone", task.labels, task.split))
    links, link_task = planted_links()
    with pytest.raises(ConfigError, match="links take a graph of one node type and a SAGEConfig"):
        train_network(network, links, link_task, GNNConfig())


class Nothing(nn.Linear):
    """Gives rows of no type."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, blocks: Any, rows: Any) -> Any:  # type: ignore[override]
        return {}


def test_blocks_refuse_layers_that_mix_the_nodes_of_a_batch() -> None:
    network = nn.Sequential(nn.Linear(16, CLASSES), nn.BatchNorm1d(CLASSES))
    graph, task = ring()
    with pytest.raises(ConfigError, match=r"BatchNorm1d normalises by the nodes .* parallel.blocks = 2 computes them"):
        train_network(network, graph, task, SAMPLED.replace(blocks=2))
