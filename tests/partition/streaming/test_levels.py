"""Streams over chunks, coarser levels by hand, models of buffers; multilevel beyond memory against that in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.methods import assign
from partition.methods.effort import MultilevelSettings
from partition.problem import Constraints, symmetric
from partition.streaming import levels as module
from partition.streaming.levels import DiskLevel, DiskMultilevel, contracted, in_memory, modelled, streamed
from partition.streaming.shared_stages import FileArray, Workers, Workplace, write
from partition.streaming.source import Budget
from tests.partition.streaming.edge_files import MEMORY

TOLERANCE = 0.05


def graph_of(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> HeteroGraph:
    return HeteroGraph({NODE_TYPE: num_nodes}, {EDGE_TYPE: (src, dst)})


def level_of(folder: Path, graph: HeteroGraph) -> DiskLevel:
    """Each edge from both ends, parallel ones unmerged, one constraint."""
    src, dst = graph.edges[EDGE_TYPE]
    kept = src != dst
    ends, others = np.concatenate([src[kept], dst[kept]]), np.concatenate([dst[kept], src[kept]])
    write(folder / "others", others[np.argsort(ends, kind="stable")].astype(np.int32))
    counts = np.bincount(ends, minlength=graph.total_nodes)
    array = FileArray((folder / "others",), np.dtype(np.int32), 64)
    return DiskLevel(counts, array, None, np.ones((graph.total_nodes, 1), np.int64))


def communities(num_nodes: int = 2000, num_edges: int = 14_000) -> HeteroGraph:
    """Forty of them; nodes of one lie far from each other, and a tenth of the edges go anywhere."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, num_nodes, num_edges)
    dst = (src % 40 + 40 * rng.integers(0, num_nodes // 40, num_edges)) % num_nodes
    return graph_of(src, np.where(rng.random(num_edges) < 0.1, rng.integers(0, num_nodes, num_edges), dst), num_nodes)


def even(num_nodes: int) -> Constraints:
    return Constraints(("nodes",), np.ones((1, num_nodes), np.int64), np.array([TOLERANCE]))


@pytest.mark.parametrize("order", ["natural", "random"])
def test_two_rings_end_in_two_parts(tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Even nodes form one ring, odd nodes the other; each edge is there once, so its other end must learn of it.
    monkeypatch.setattr(module, "CHUNK_LINKS", 6)  # several chunks
    src = np.arange(20)
    level = level_of(tmp_path, graph_of(src, (src + 2) % 20, 20))
    wanted = Constraints(("nodes",), np.ones((1, 20), np.int64), np.array([0.1]))
    parts = streamed(level, wanted, 2, np.random.default_rng(3), "fennel", 20, order, lambda count: None)
    assert np.bincount(parts).tolist() == [10, 10]
    assert (parts[src] != parts[(src + 2) % 20]).sum() <= 4  # two cuts of each ring at most


@pytest.mark.parametrize("most", [1, 9, 1000])  # one cluster a bucket, some, all
def test_a_contracted_graph_holds_what_lies_between_clusters(tmp_path: Path, most: int) -> None:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 30, 90), rng.integers(0, 30, 90)
    labels = rng.permutation(np.arange(30) % 5).astype(np.int32)
    between = np.zeros((5, 5), np.int64)
    np.add.at(between, (labels[src], labels[dst]), 1)
    between += between.T
    np.fill_diagonal(between, 0)
    level = level_of(tmp_path, graph_of(src, dst, 30))
    for _ in range(2):  # what a killed build has left is written anew
        made = contracted(level, labels, 5, tmp_path, most, 7)
    found = np.zeros((5, 5), np.int64)
    rows = in_memory(made)
    for node in range(5):
        row = slice(rows.indptr[node], rows.indptr[node + 1])
        assert len(set(rows.indices[row].tolist())) == len(rows.indices[row])
        found[node, rows.indices[row]] = rows.weights[row]
    assert found.tolist() == between.tolist()
    assert made.node_weights[:, 0].tolist() == [6] * 5
    assert made.total == between.sum()


def test_a_graph_that_fits_is_that_of_a_build_in_memory(tmp_path: Path) -> None:
    graph = communities()
    ours, theirs = in_memory(level_of(tmp_path, graph)), symmetric(graph)
    assert ours.indptr.tolist() == theirs.indptr.tolist()
    assert sorted(zip(ours.indices.tolist(), ours.weights.tolist(), strict=True)) == sorted(
        zip(theirs.indices.tolist(), theirs.weight_array.tolist(), strict=True)
    )


def test_the_model_of_a_buffer_has_a_node_for_each_part(tmp_path: Path) -> None:
    ring = np.arange(6)
    level = level_of(tmp_path, graph_of(ring, (ring + 1) % 6, 6))
    before = level.ends.copy()
    model = modelled(level, 2, 4, np.array([0, 0, 1, 0, 1, 1], np.int32), np.array([[3], [3]]))
    assert model.indptr.tolist() == [0, 2, 4, 4, 4]
    # node 2 knows 3, position 1, and 1 in part 0, position 2; node 3 knows 4 in part 1, position 3
    assert [sorted(model.indices[:2].tolist()), sorted(model.indices[2:].tolist())] == [[1, 2], [0, 3]]
    assert model.node_weights.tolist() == [[1, 0], [1, 0], [2, 1], [2, 1]]
    assert level.ends.tolist() == before.tolist()


def made(
    folder: Path, graph: HeteroGraph, monkeypatch: pytest.MonkeyPatch, fits: int, seed: int = 0, buffer: int = 40_000
) -> tuple[np.ndarray, str]:
    """Four parts within a memory of ``fits`` entries for a graph and ``buffer`` bytes for a buffer."""
    folder.mkdir()
    monkeypatch.setattr(module, "CHUNK_LINKS", 3000)
    monkeypatch.setattr(Budget, "holds", lambda self, nodes, entries, parts, work: entries <= fits)
    monkeypatch.setattr(
        module, "buffers_of", lambda level, costs, most, cut=module.buffers_of: cut(level, costs, buffer)
    )
    place = Workplace(folder / "out", {}, Workers())
    wanted = even(graph.total_nodes)
    multilevel = DiskMultilevel(place, Budget.of(MEMORY), wanted, 4, MultilevelSettings.of(), lambda count: None)
    found = multilevel.parts(level_of(folder, graph), seed)
    place.close(remove=True)
    return found


def cut(graph: HeteroGraph, parts: np.ndarray) -> int:
    src, dst = graph.edges[EDGE_TYPE]
    return int((parts[src] != parts[dst]).sum())


@pytest.mark.parametrize(("fits", "limit"), [(10**9, 1.05), (9000, 1.25), (0, 1.5)])
def test_the_cut_is_near_that_in_memory(
    tmp_path: Path, fits: int, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = communities()
    whole = assign(graph, 4, "multilevel", balance=["nodes"], tolerance=TOLERANCE).parts[NODE_TYPE]
    parts, why = made(tmp_path / "a", graph, monkeypatch, fits)
    assert {10**9: "the graph fits", 9000: "clusters fit", 0: "do not fit"}[fits] in why
    assert np.bincount(parts, minlength=4).max() <= 525
    assert cut(graph, parts) <= limit * cut(graph, whole)


def test_a_seed_gives_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = communities()
    first, again, other = (
        made(tmp_path / name, graph, monkeypatch, 9000, seed)[0] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_buffers_are_refined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = communities()
    refined, _ = made(tmp_path / "a", graph, monkeypatch, 9000)
    monkeypatch.setattr(module, "REFINEMENTS", 0)
    plain, _ = made(tmp_path / "b", graph, monkeypatch, 9000)
    assert cut(graph, refined) < cut(graph, plain)
