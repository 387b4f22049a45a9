"""Graph networks whose rows lie in files: the rows of a training in memory, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.train import train_rgcn, train_sage

NODES = 3_000


def _train(config: GNNConfig, placement: Any) -> Any:
    nodes, rng = np.arange(NODES), np.random.default_rng(0)
    sources = np.concatenate([nodes, rng.integers(0, NODES, NODES)])
    edges = sources, np.concatenate([(nodes + 2) % NODES, rng.integers(0, NODES, NODES)])
    graph = HeteroGraph({"node": NODES}, {("node", "to", "node"): edges})
    split = {"train": nodes[:2_000], "valid": nodes[2_000:2_500], "test": nodes[2_500:]}
    train: Any = train_rgcn if isinstance(config, RGCNConfig) else train_sage
    return train(graph, NodeTask("node", nodes % 2, split), config, placement=placement)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
@pytest.mark.parametrize("kind", [SAGEConfig, RGCNConfig])
def test_rows_are_those_of_a_training_in_memory(
    kind: type[GNNConfig], ema_decay: float, tmp_path: Path, fresh_mode: None
) -> None:
    config = kind(
        dim=32, hidden_dim=16, epochs=2, eval_every=1, fanouts=(3, 3), batch_size=500, rule="adagrad",
        ema_decay=ema_decay,
    )  # fmt: skip
    found = {name: _train(config, where) for name, where in (("host", "host"), ("file", ge.File(tmp_path, "400KiB")))}
    rows = {name: result.tables["node"].weight[torch.arange(NODES)] for name, result in found.items()}
    assert torch.equal(rows["host"], rows["file"])
    stats = found["file"].tables["node"].cache_stats()
    assert stats.evictions > 0
    assert stats.dirty_writes > 0
    for theirs, own in zip(found["host"].history, found["file"].history, strict=True):
        assert own.valid == pytest.approx(theirs.valid, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "memory", "said"),
    [
        ({"fanouts": None}, "1MiB", r"rows in files need steps of sampled neighbourhoods.*set fanouts"),
        ({}, "200KiB", r"memory of 204,800 bytes: 4 tables in files take 65,536 each at least"),
    ],
)
def test_what_files_cannot_do_is_refused(
    settings: dict[str, Any], memory: str, said: str, tmp_path: Path, fresh_mode: None
) -> None:
    with pytest.raises(ConfigError, match=said):
        _train(SAGEConfig(**{"fanouts": (3, 3), **settings}), ge.File(tmp_path, memory))
    assert list(tmp_path.iterdir()) == []


def test_device_caches_are_refused(fresh_mode: None) -> None:
    with pytest.raises(ConfigError, match=r"tables of a network lie in memory or in a ge.File"):
        _train(SAGEConfig(fanouts=(3, 3)), ge.DeviceCache("1MiB"))


def test_a_device_is_refused(fresh_mode: None) -> None:
    with pytest.raises(ConfigError, match=r"rows in files are read to the processor"):
        ge.pipeline("sage", "nothing.csv", train={"memory": "1MiB", "device": "cuda:0"})
