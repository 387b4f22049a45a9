"""A graph network that was stopped goes on with the same bits: tables, network, both optimizers, random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.graph.views import message_graph
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import TripleTask
from graph_emb.models.gnn.train import GNNResult, train_rgcn, train_sage
from tests.models.gnn.planted import planted, planted_links, planted_triples

RUNS = {
    "whole graph": lambda **how: train_rgcn(*planted(), RGCNConfig(epochs=6, patience=5), **how),
    "sampled": lambda **how: train_rgcn(
        *planted(),
        RGCNConfig(epochs=6, fanouts=(3, 3), batch_size=16, lr_decay="cosine", warmup=0.2, input_dropout=0.2),
        **how,
    ),
    "plateau": lambda **how: train_rgcn(
        *planted(), RGCNConfig(epochs=6, lr=1e-3, lr_decay="plateau", lr_factor=0.3), **how
    ),
    "by relation": lambda **how: train_rgcn(
        *planted(), RGCNConfig(inputs="basis", num_bases=2, hidden_dim=4, epochs=6, ema_decay=0.5), **how
    ),
    "links": lambda **how: train_sage(
        *planted_links(), SAGEConfig(dim=8, hidden_dim=8, epochs=6, batch_size=64, dropout=0.3), **how
    ),
    "triples": lambda **how: train_rgcn(
        message_graph(planted_triples()),
        TripleTask(planted_triples()),
        RGCNConfig(
            dim=8, hidden_dim=8, num_blocks=2, edge_dropout=0.4, epochs=6, batch_size=64, num_negatives=8, chunk_size=16
        ),
        **how,
    ),
    "averaged": lambda **how: train_sage(
        *planted_links(), SAGEConfig(dim=8, hidden_dim=8, epochs=6, eval_every=2, batch_size=64, ema_decay=0.8), **how
    ),
    "averages of composed rows": lambda **how: train_sage(
        *planted_links(),
        SAGEConfig(dim=8, hidden_dim=8, epochs=6, batch_size=64, ema_decay=0.8, inputs="hash", num_buckets=8),
        **how,
    ),
}


class Stop(Exception):
    """Stands for the end of a process."""


def values(result: GNNResult) -> dict[str, Any]:
    tables = {name: table.weight[:] for name, table in result.tables.items()}
    ranked = {} if result.ranked is None else dict(zip(("entities", "relations"), result.ranked, strict=True))
    return {**tables, **ranked, **result.model.state_dict()}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """DGL draws from a generator for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", RUNS)
def test_a_stopped_training_gives_the_bits_of_one_that_was_not(kind: str, tmp_path: Path) -> None:
    train = RUNS[kind]
    whole = train(seed=4)

    class Stopping(PeriodicCheckpoints):
        def save(self, step: int, position: Any) -> None:
            super().save(step, position)
            if step == 4:
                raise Stop

    with pytest.raises(Stop):
        train(seed=4, table_prefix="", checkpoints=Stopping(tmp_path, 2))
    resumed = train(seed=4, table_prefix="", checkpoints=PeriodicCheckpoints(tmp_path, 2, resume=True))
    assert resumed.history == whole.history
    for (name, found), wanted in zip(values(resumed).items(), values(whole).values(), strict=True):
        assert torch.equal(found, wanted), name


def test_a_training_that_had_ended_is_not_prolonged(tmp_path: Path) -> None:
    train = RUNS["whole graph"]
    first = train(table_prefix="a", checkpoints=PeriodicCheckpoints(tmp_path, 1))
    rows = values(first)
    history = first.history
    del first
    again = train(table_prefix="a", checkpoints=PeriodicCheckpoints(tmp_path, 1, resume=True))
    assert again.history == history
    assert all(torch.equal(a, b) for a, b in zip(values(again).values(), rows.values(), strict=True))


def test_there_must_be_a_table_to_save(tmp_path: Path) -> None:
    graph, task = planted()
    features = {ntype: torch.ones(num, 3) for ntype, num in graph.num_nodes.items()}
    with pytest.raises(ConfigError, match="every node type has features, none learns"):
        train_rgcn(graph, task, RGCNConfig(epochs=1), features=features, checkpoints=PeriodicCheckpoints(tmp_path, 1))
