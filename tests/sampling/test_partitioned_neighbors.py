"""Owners draw: a batch over parts is the batch over the whole graph, whoever asks for it (law 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.graph.typed import HeteroGraph
from graph_emb.run.own_parts import data_of, own_edges
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.neighbors import NeighborSampling
from graph_emb.sampling.partitioned_neighbors import PartitionedNeighborSampling
from tests.ranks import Ranks

pytestmark = pytest.mark.dist

FANOUTS = (3, -1, 2)
EPOCH = 4


def typed() -> HeteroGraph:
    """Two types and three relations with hubs, parallel edges and nodes that nothing reaches."""
    rng = np.random.default_rng(0)

    def ends(source: int, target: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, source, count), (target * rng.random(count) ** 2).astype(np.int64)

    edges = {("a", "x", "b"): ends(50, 30, 400), ("b", "y", "a"): ends(30, 50, 300), ("a", "z", "a"): ends(50, 50, 350)}
    return HeteroGraph({"a": 50, "b": 30}, edges)


def asked(rank: int) -> dict[str, torch.Tensor]:
    """Other nodes on every rank, by original number; the last rank asks for none."""
    if rank == 2:
        return {}
    order = torch.randperm(50, generator=torch.Generator().manual_seed(rank))
    return {"a": order[: 7 + 5 * rank], "b": torch.tensor([29, 3, 0])[: 3 - rank]}


def on_a_rank(path: str) -> list[Any]:
    """Inputs by original number, and each block's edges."""
    transport: Any = ge.init(mode="collective")
    try:
        parts = partition.load(path)
        own = own_edges(parts, Trainers(transport.group, transport))
        sampling = PartitionedNeighborSampling(own, FANOUTS, seed=11)
        sampling.start_epoch(EPOCH)
        wanted = {t: torch.from_numpy(parts.node_map(t, inverse=True)[ids]) for t, ids in asked(transport.rank).items()}
        return told(sampling.sample(wanted), {ntype: parts.node_map(ntype) for ntype in parts.ntypes})
    finally:
        ge.shutdown()


def told(batch: Any, names: dict[str, np.ndarray]) -> list[Any]:
    inputs = {ntype: names[ntype][ids].tolist() for ntype, ids in batch.inputs.items()}
    blocks = [
        {etype: (e.indptr.tolist(), e.sources.tolist(), e.edge_ids.tolist()) for etype, e in block.edges.items()}
        for block in batch.blocks
    ]
    sizes = [(block.num_sources, block.num_destinations) for block in batch.blocks]
    return [inputs, blocks, sizes]


@pytest.mark.parametrize(("num_parts", "num_ranks"), [(1, 2), (2, 2), (4, 2), (3, 3), (2, 3)])
def test_a_batch_over_parts_is_the_batch_over_the_whole(
    ranks: Ranks, tmp_path: Path, num_parts: int, num_ranks: int
) -> None:
    graph = typed()
    path = partition.build(graph, num_parts, "random", seed=2, out=tmp_path / "parts", report=False).path
    sampling = NeighborSampling(graph, FANOUTS, seed=11)
    sampling.start_epoch(EPOCH)
    same = {ntype: np.arange(num) for ntype, num in graph.num_nodes.items()}
    for rank, found in enumerate(ranks.run(on_a_rank, num_ranks, str(path))):
        assert found == told(sampling.sample(asked(rank)), same)


def held_by_a_rank(path: str) -> tuple[int, dict[str, list[int]]]:
    transport: Any = ge.init(mode="collective")
    try:
        own = own_edges(parts := partition.load(path), Trainers(transport.group, transport))
        assert data_of(parts, own.ranges)[1] == {}
        return sum(edges.num_edges for edges in own.edges.values()), {t: n.tolist() for t, n in own.names.items()}
    finally:
        ge.shutdown()


def test_each_edge_and_node_is_held_once(ranks: Ranks, tmp_path: Path) -> None:
    graph = typed()
    path = partition.build(graph, 3, "random", out=tmp_path / "parts", report=False).path
    found = ranks.run(held_by_a_rank, 3, str(path))
    assert sum(count for count, _ in found) == graph.total_edges
    assert max(count for count, _ in found) < graph.total_edges / 2
    for ntype, num in graph.num_nodes.items():
        assert sorted(node for _, names in found for node in names[ntype]) == list(range(num))
