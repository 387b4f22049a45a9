"""Levels of partitions that are never whole in memory: nested, counted as in memory, and bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from partition.nesting import qualities
from partition.problem import symmetric
from partition.streaming.source import Budget
from tests.partition.streaming.edge_files import MEMORY, write_parquet
from tests.partition.test_nesting import communities

pytestmark = pytest.mark.usefixtures("warm_starts")


def edge_file(folder: Path) -> Path:
    (ends,) = communities().edges.values()
    return write_parquet(folder / "edges.parquet", {"src": ends[0], "dst": ends[1]}, 2000)


def check(whole: partition.PartitionedGraph, counts: list[int]) -> None:
    """Levels are nested around the parts, and the manifest tells of them what the whole graph does."""
    graph, types = whole.to_graph(), whole.ntypes
    assert whole.level_sizes == tuple(counts)
    found = np.concatenate([whole.levels(ntype)[whole.node_map(ntype, inverse=True)] for ntype in types])
    machines = whole.assignment().homogeneous()
    for place, count in enumerate(counts):
        assert found[:, place].min() >= 0
        assert found[:, place].max() < count
        fine = np.stack([found[:, -1], found[:, place]], axis=1)
        assert len(np.unique(fine, axis=0)) == len(np.unique(found[:, -1]))
        pairs, parts = np.unique(np.stack([found[:, place], machines], axis=1), axis=0), max(count, whole.num_parts)
        assert len(pairs) <= parts
    expected = [level.to_dict() for level in qualities(symmetric(graph), found.astype(np.int32), counts)]
    for told, wanted in zip(whole.manifest.made["levels"]["of"], expected, strict=True):
        assert told == pytest.approx(wanted)


def test_a_build_in_bounded_memory_makes_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = edge_file(tmp_path)
    out = str(tmp_path / "parts")
    words = ["partition", "build", str(path), "--parts", "4", "--levels", "2,4,8,32", "--memory", MEMORY, "--out", out]
    assert main([*words, "--method", "ldg"]) == 0
    assert "level of 32 parts" in capsys.readouterr().out
    whole = partition.load(out)
    check(whole, [2, 4, 8, 32])
    assert whole.manifest.made["levels"]["of"][-1]["cut"] < 0.6  # of random parts .97
    partition.verify(whole.path).raise_problems()
    again = partition.build(path, 4, "ldg", levels=[2, 4, 8, 32], memory=MEMORY, out=tmp_path / "again")
    np.testing.assert_array_equal(again.levels(), whole.levels())


def test_refine_in_bounded_memory_takes_any_partition(tmp_path: Path) -> None:
    whole = partition.build(edge_file(tmp_path), 4, "hash", memory=MEMORY, out=tmp_path / "parts")
    check(partition.refine(whole, [2, 4, 16], memory=MEMORY), [2, 4, 16])
    rng = np.random.default_rng(1)
    ends = rng.integers(60, size=400), rng.integers(90, size=400)
    shop = HeteroGraph({"user": 60, "item": 90}, {("user", "buys", "item"): ends}, name="shop")
    typed = partition.build(shop, 2, out=tmp_path / "shop", report=False)
    check(partition.refine(typed, [2, 8, 64], memory=MEMORY), [2, 8, 64])


def test_each_node_of_a_small_part_is_a_piece(tmp_path: Path) -> None:
    ends = np.arange(19), np.arange(1, 20)
    given = partition.Assignment({"_N": np.array([0] * 17 + [1] * 3, np.int32)}, 2)
    graph = HeteroGraph({"_N": 20}, {("_N", "_E", "_N"): ends}, name="line")
    whole = partition.build(graph, assignment=given, out=tmp_path / "line", report=False)
    whole = partition.refine(whole, [4, 16], memory=MEMORY)
    check(whole, [4, 16])
    assert len(np.unique(whole.levels()[-3:, 1])) == 3


def test_levels_that_have_no_room_end_the_build_before_it_assigns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = edge_file(tmp_path)
    whole = partition.build(path, 4, "hash", memory=MEMORY, out=tmp_path / "parts")
    monkeypatch.setattr(Budget, "holds", lambda *_: False)
    with pytest.raises(ConfigError, match="too little to split an even part of 240 nodes and 2,160 edges into 8"):
        partition.build(path, 4, "hash", levels=[4, 32], memory=MEMORY, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match=r"too little to split part 0 of .* into 8; raise memory"):
        partition.refine(whole, [4, 32], memory=MEMORY)
    assert partition.load(whole.path).level_sizes == ()
    with pytest.raises(ConfigError, match="10 is neither a multiple of the parts"):
        partition.build(path, 4, "hash", levels=[4, 10], memory=MEMORY, out=tmp_path / "odd")
    monkeypatch.undo()
    monkeypatch.setattr(Budget, "work_bytes", lambda *_: 3 * 8 * 4 * 4 - 1)
    with pytest.raises(ConfigError, match="too little to join 4 parts; raise memory"):
        partition.refine(whole, [2, 4], memory=MEMORY)
