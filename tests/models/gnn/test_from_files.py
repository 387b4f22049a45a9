"""Graph networks whose rows lie in files: the rows of a training in memory, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import message_graph
from graph_emb.models.gnn import trainer
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.part_rows import EvenRows
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, TripleTask
from graph_emb.models.gnn.train import train_rgcn, train_sage
from graph_emb.sampling import neighbors
from graph_emb.sampling.blocks import all_edges

NODES = 3_000


def _train(config: GNNConfig, placement: Any, task: str = "nodes") -> Any:
    nodes, rng = np.arange(NODES), np.random.default_rng(0)
    sources = np.concatenate([nodes, rng.integers(0, NODES, NODES)])
    edges = sources, np.concatenate([(nodes + 2) % NODES, rng.integers(0, NODES, NODES)])
    graph = HeteroGraph({"node": NODES}, {("node", "to", "node"): edges})
    split = {"train": nodes[:2_000], "valid": nodes[2_000:2_500], "test": nodes[2_500:]}
    train: Any = train_rgcn if isinstance(config, RGCNConfig) else train_sage
    of_task: Any = NodeTask("node", nodes % 2, split)
    pairs = np.stack(edges, axis=1)
    if task == "links":
        judged = {"edge": pairs[5_000:5_100], "edge_neg": rng.integers(0, NODES, (100, 2))}
        of_task = LinkTask({"train": {"edge": pairs[:1_000]}, "valid": judged, "test": judged}, ("hits@20",))
    elif task == "triples":
        triples = np.insert(pairs, 1, rng.integers(0, 2, len(pairs)), axis=1)
        parts = {"train": triples[:1_500], "valid": triples[5_000:5_100], "test": triples[5_100:5_200]}
        of_triples = KnowledgeGraph("random", NODES, 2, parts)
        graph, of_task = message_graph(of_triples), TripleTask(of_triples)
    return train(graph, of_task, config, placement=placement)


def _ntype(result: Any) -> str:
    (ntype,) = result.tables
    return str(ntype)


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


@pytest.mark.parametrize("policy", ["lru", "lookahead"])
@pytest.mark.parametrize("task", ["nodes", "links", "triples"])
def test_files_hear_of_the_next_step(task: str, policy: Any, tmp_path: Path, fresh_mode: None) -> None:
    kind = RGCNConfig if task == "triples" else SAGEConfig
    batch = {"nodes": 50, "links": 25, "triples": 8}[task]
    sizes = {"dim": 256, "hidden_dim": 16, "epochs": 1, "eval_every": 1, "fanouts": (1, 1), "batch_size": batch}
    few: dict[str, Any] = {"num_negatives": 8, "chunk_size": 8} if task == "triples" else {}
    config = kind(rule="adagrad", **sizes, **few)
    places = {"host": "host", "file": ge.File(tmp_path, "3MiB", policy)}
    found = {name: _train(config, where, task) for name, where in places.items()}
    rows = {name: result.tables[_ntype(result)].weight[torch.arange(NODES)] for name, result in found.items()}
    assert torch.equal(rows["host"], rows["file"])
    stats = found["file"].tables[_ntype(found["file"])].cache_stats()
    assert stats.evictions > 0
    assert stats.prefetched > 5 * stats.prefetched_unused
    assert stats.prefetched > stats.misses, "most pages are on their way before they are asked for"


def _mapped_from(rows: torch.Tensor) -> str:
    """The file of which a tensor's memory is a mapping; empty of other memory."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, *rest = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= rows.data_ptr() < high:
            return rest[4] if len(rest) > 4 else ""
    return ""


@pytest.mark.parametrize("task", ["nodes", "links"])
def test_an_evaluation_holds_neither_its_results_nor_the_edges_again(
    task: str, tmp_path: Path, fresh_mode: None
) -> None:
    found: list[str] = []
    compute = EvenRows.compute

    def computed(own: EvenRows, *args: Any) -> torch.Tensor:
        rows = compute(own, *args)
        found.append(_mapped_from(rows))
        return rows

    grouped: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvenRows, "compute", computed)
        for module in (trainer, neighbors):
            patch.setattr(module, "all_edges", lambda graph: grouped.append(1) or all_edges(graph))
        config = SAGEConfig(dim=32, hidden_dim=16, epochs=2, eval_every=1, fanouts=(3, 3), batch_size=500)
        _train(config, ge.File(tmp_path, "400KiB"), task)
    assert len(found) == 2
    assert all(path.startswith(str(tmp_path)) for path in found)
    assert len(grouped) == 1


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
