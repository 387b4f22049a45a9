"""Trainers of knowledge graphs with triples of their own: the steps of ranks that hold all, and nothing held whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.edge_files import read_held_out_triples, without_held_out
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.run import own_parts
from graph_emb.run.parallel import policy_of
from graph_emb.sampling import partitioned_triples
from graph_emb.sampling.partitioned_triples import OwnTriples
from partition import PartitionedGraph
from tests.ranks import Ranks

pytestmark = [pytest.mark.usefixtures("fresh_mode", "warm_starts"), pytest.mark.dist]

RECIPE: dict[str, Any] = {
    "model": "complex", "dim": 8, "num_negatives": 6, "chunk_size": 4, "batch_size": 32, "epochs": 3, "valid_every": 1,
}  # fmt: skip


def triples(typed: bool) -> HeteroGraph:
    """Some 240 triples, some of them twice, of relations in a column or of several types of nodes and edges."""
    rng = np.random.default_rng(2)
    if typed:
        edges = {
            ("a", "to", "b"): (rng.integers(0, 30, 140), rng.integers(0, 18, 140)),
            ("b", "near", "b"): (rng.integers(0, 18, 100), rng.integers(0, 18, 100)),
        }
        return HeteroGraph({"a": 30, "b": 18}, edges)
    data = {EDGE_TYPE: {RELATION: rng.integers(0, 3, 240)}}
    names = np.array([f"e{(7 * n) % 48:02}" for n in range(48)])
    ends = {EDGE_TYPE: (rng.integers(0, 48, 240), rng.integers(0, 48, 240))}
    words = np.array(["r0", "r1", "r2"])
    return HeteroGraph({NODE_TYPE: 48}, ends, edge_data=data, node_ids={NODE_TYPE: names}, relation_names=words)


def refuse(*args: Any, **options: Any) -> Any:
    raise AssertionError("a trainer reads the whole partition")


def both_ways(folder: str, held: str | None, recipe: dict[str, Any]) -> Any:
    """Rows of ranks that hold all triples, then of a run of the partition, its scores, and what this rank held."""
    graph = knowledge_graph(load_dataset(folder))
    if held is not None:
        graph = without_held_out(graph, read_held_out_triples(held, graph))[0]
    parts = partition.load(folder)
    policy = policy_of(NODE_TYPE, parts.assignment().homogeneous(), parts.num_parts)
    transport: Any = ge.init(mode="collective")
    first, world = transport.rank == 0, transport.world_size
    whole = train_kge(graph, KGEConfig(**recipe), part_policy=policy, num_threads=1)
    ge.shutdown()
    seen: list[int] = []
    gathered = OwnTriples.gathered.__func__

    def counted(cls: Any, *given: Any) -> OwnTriples:
        own: OwnTriples = gathered(cls, *given)
        seen.append(max(len(given[0]), len(own.triples)))
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionedGraph, "to_graph", refuse)
        patch.setattr(OwnTriples, "gathered", classmethod(counted))
        patch.setattr(own_parts, "EDGES_AT_ONCE", 7)
        patch.setattr(partitioned_triples, "MARKED_AT_ONCE", 50)
        dataset = {"name": folder, **({} if held is None else {"test_edges": held})}
        parallel: dict[str, Any] = {"mode": "collective", "trainers": world, "hogwild": False}
        recipe = dict(recipe)
        for field, key in (("negative_scope", "negatives"), ("triple_scope", "triples")):
            if field in recipe:
                parallel[key] = recipe.pop(field)
        found = ge.pipeline(dataset=dataset, parallel=parallel, threads=1, **recipe)
    if not first:
        return None, seen
    rows = [(whole.entities.numpy(), whole.relations.numpy()), [own.weights for own in found.tables.values()]]
    expected = [line.valid_mrr for line in whole.history]
    return (rows, expected, [line["valid_mrr"] for line in found.history], found.metrics), seen


@pytest.mark.parametrize(
    ("typed", "held", "recipe"),
    [
        (False, True, {"subsampling": True, "negative_power": 0.75, "in_batch": True}),
        (False, False, {"negative_scope": "local", "filter_negatives": False}),
        (True, False, {"subsampling": True, "triple_scope": "local"}),
        (False, True, {"table": "hash", "num_buckets": 9, "own_rows": 5}),
    ],
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_own_triples_train_the_same_steps(
    ranks: Ranks, tmp_path: Path, world_size: int, typed: bool, held: bool, recipe: dict[str, Any]
) -> None:
    """Bit for bit; parts are 3, so that ranks have several of them, or a piece of one."""
    graph = triples(typed)
    folder = str(partition.build(graph, 3, "random", seed=2, out=tmp_path / "parts", report=False).path)
    file = None
    if held:
        heads, tails = graph.edges[EDGE_TYPE]
        relations = graph.edge_data[EDGE_TYPE][RELATION]
        names = graph.node_ids[NODE_TYPE]
        lines = [f"{names[heads[n]]},r{relations[n]},{names[tails[n]]},{('valid', 'test')[n % 2]}" for n in range(20)]
        file = str(tmp_path / "held.csv")
        Path(file).write_text("\n".join(lines) + "\n")
    results = ranks.run(both_ways, world_size, folder, file, {**RECIPE, **recipe})
    (expected, found), valid, valid_found, metrics = results[0][0]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert valid == valid_found
    total = metrics["dataset"]["triples"]
    assert total == (240 if not held else 240 - metrics["dataset"]["counts"]["held-out edges removed"])
    assert all(max(seen) < 0.8 * total for _, seen in results), "each holds its own"
    if held:
        assert metrics["evaluation"]["triples_test"]["num_triples"] == 10


def test_trainers_beside_servers_hold_their_own_triples_and_servers_their_own_rows_in_files(tmp_path: Path) -> None:
    folder = str(partition.build(triples(False), 2, "random", out=tmp_path / "parts", report=False).path)
    words = ["train", "complex", "--dataset", folder, "--out", str(tmp_path / "run"), "--threads", "1"]
    small = ["model.dim=8", "model.num_negatives=4", "model.chunk_size=4", "train.batch_size=16", "train.epochs=2"]
    files = ["train.memory=20KiB", f"train.scratch={tmp_path / 'rows'}"]
    assert main([*words, "--mode", "kvstore", "--trainers", "2", *small, *files]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["train"]["cache"]["requested"] > 240
    assert list((tmp_path / "rows").iterdir()) == []
