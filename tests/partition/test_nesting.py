from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.cli.main import main
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from partition.nesting import checked_levels, nested


def communities(num_nodes: int = 960, size: int = 30) -> HeteroGraph:
    """Dense groups of ``size`` nodes, four of which are loosely tied."""
    rng = np.random.default_rng(0)
    src = np.repeat(np.arange(num_nodes), 8)
    dst = src // size * size + rng.integers(size, size=len(src))
    loose = np.arange(num_nodes)
    other = loose // (4 * size) * (4 * size) + rng.integers(4 * size, size=num_nodes)
    ends = np.append(src, loose), np.append(dst, other)
    return HeteroGraph({"_N": num_nodes}, {("_N", "_E", "_N"): ends}, name="groups")


def test_a_part_of_a_level_lies_in_one_part_of_every_coarser_level() -> None:
    found, quality = nested(communities(), [4, 8, 32])
    assert found.shape == (960, 3)
    for coarse, fine in ((0, 1), (1, 2), (0, 2)):
        pairs = np.unique(found[:, [fine, coarse]], axis=0)
        assert len(pairs) == len(np.unique(found[:, fine]))
    assert [level.num_parts for level in quality] == [4, 8, 32]
    assert all(len(np.unique(column)) <= level.num_parts for column, level in zip(found.T, quality, strict=True))
    assert all(level.largest <= 1.35 for level in quality)
    assert quality[0].cut < quality[2].cut < 0.35


def test_the_parts_of_machines_are_a_level_and_bound_the_finer_ones() -> None:
    graph = communities()
    machines = (np.arange(960) % 4).astype(np.int32)  # against the grain
    found, _ = nested(graph, [2, 4, 16], machines, 4)
    np.testing.assert_array_equal(found[:, 1], machines)
    assert all(len(np.unique(machines[found[:, 2] == part])) == 1 for part in np.unique(found[:, 2]))
    assert all(len(np.unique(found[machines == part, 0])) == 1 for part in range(4))


def test_the_levels_are_the_same_on_any_number_of_threads() -> None:
    one, two = (nested(communities(), [4, 32], seed=3, num_threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert (nested(communities(), [4, 32], seed=4)[0] != one).any()


def test_more_parts_than_any_graph_may_have_are_refused_before_it_is_read() -> None:
    """The most parts there may be were told as the number of its nodes."""
    with pytest.raises(ConfigError, match=r"^levels \[2097152\]: 2097152 parts; the most is 1048576$"):
        checked_levels([1 << 21], 4, 1 << 20)


@pytest.mark.parametrize(
    ("levels", "num_parts", "message"),
    [
        ([], 1, "give at least one, each larger than the one before"),
        ([8, 8], 1, r"levels \[8, 8\]"),
        ([64, 8], 1, r"levels \[64, 8\]"),
        ([1], 1, "a level is 1; it must be an integer of at least 2"),
        ([2, 961], 1, "961 parts of 960 nodes"),
        ([4, 10], 4, "10 is neither a multiple of the parts nor divides them"),
    ],
)
def test_levels_that_do_not_fit_are_refused(levels: list[int], num_parts: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nested(communities(), levels, np.zeros(960, np.int32), num_parts)


def test_a_partition_keeps_its_levels_in_partition_order(tmp_path: Path) -> None:
    graph = communities()
    parts = partition.build(graph, levels=[4, 32], out=tmp_path / "parts", report=False)
    assert (parts.num_parts, parts.level_sizes) == (4, (4, 32))
    levels = parts.levels()
    assert levels.dtype == np.int64
    own = parts.assignment().homogeneous()  # in the order of the input
    np.testing.assert_array_equal(levels[:, 0], own[parts.node_map()])
    partition.verify(parts.path).raise_problems()


def test_the_report_has_cut_and_size_of_each_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = partition.build(communities(), levels=[4, 32], out=tmp_path / "parts", report=True)
    assert parts.manifest is not None
    made = parts.manifest.made["levels"]["of"]
    told = json.loads((parts.path / "report.json").read_text(encoding="utf-8"))
    assert told["levels"] == made
    assert [level["num_parts"] for level in made] == [4, 32]
    row = f"cut {made[1]['cut']:.1%}, largest {made[1]['largest']:.2f} of the mean, {made[1]['empty']} empty"
    assert f"<th>level of 32 parts</th><td>{row}</td>" in (parts.path / "report.html").read_text(encoding="utf-8")
    assert main(["partition", "report", str(parts.path)]) == 0
    assert re.search(rf"level of 32 parts +{re.escape(row)}", capsys.readouterr().out)


def test_refine_replaces_the_levels_and_nothing_else(tmp_path: Path) -> None:
    parts = partition.build(communities(), 4, out=tmp_path / "parts", report=False)
    with pytest.raises(ConfigError, match="has no levels; build it with levels="):
        parts.levels()
    before = (tmp_path / "parts" / "part0" / "graph.dgl").read_bytes()
    assert partition.refine(parts, [4, 16]).level_sizes == (4, 16)
    again = partition.refine(parts.path, [2, 8])
    assert again.level_sizes == (2, 8)
    assert sorted(path.name for path in again.path.glob("levels*")) == ["levels-2-8.dgl"]
    assert (tmp_path / "parts" / "part0" / "graph.dgl").read_bytes() == before
    partition.verify(again.path).raise_problems()


def test_every_node_type_has_its_levels(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ends = rng.integers(60, size=400), rng.integers(90, size=400)
    graph = HeteroGraph({"user": 60, "item": 90}, {("user", "buys", "item"): ends}, name="shop")
    parts = partition.build(graph, levels=[2, 8], out=tmp_path / "shop", report=False)
    assert parts.levels("user").shape == (60, 2)
    assert parts.levels("item").shape == (90, 2)
    assert parts.levels("item")[:, 1].max() < 8
