"""A grown graph's partition: old nodes stay, new ones go to their neighbours, limits hold, the report says how well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.typed import HeldOut, HeteroGraph
from partition import cli, extending
from partition.assignment import Assignment
from partition.extending import cut_share, extended, with_levels

SIZE, PARTS = 12, 3
ETYPE = ("_N", "_E", "_N")


def cliques(num: int, size: int = SIZE) -> HeteroGraph:
    """Groups of friends, each befriending all of its own: nodes 0 .. size - 1, and so on."""
    pairs = np.array([(a, b) for a in range(size) for b in range(size) if a != b])
    src, dst = (np.concatenate([pairs[:, side] + size * k for k in range(num)]) for side in (0, 1))
    return HeteroGraph({"_N": num * size}, {ETYPE: (src, dst)})


@pytest.fixture
def parts(tmp_path: Path) -> partition.PartitionedGraph:
    graph = replace(cliques(PARTS), node_data={"_N": {"label": np.repeat(np.arange(PARTS), SIZE)}})
    given = Assignment({"_N": np.repeat(np.arange(PARTS, dtype=np.int32), SIZE)}, PARTS)
    return partition.build(graph, assignment=given, out=tmp_path / "old", report=False)


def joined(start: int, groups: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A new node for each group, with four friends there and one in the next; new nodes of one group are friends."""
    src, dst, last = [], [], dict[int, int]()
    for node, k in enumerate(groups, start):
        friends = [k * SIZE + j for j in range(4)] + [(k + 1) % PARTS * SIZE] + ([last[k]] if k in last else [])
        src += [node] * len(friends) + friends
        dst += friends + [node] * len(friends)
        last[k] = node
    return np.array(src), np.array(dst)


def test_new_nodes_join_their_friends_and_old_ones_stay(parts: partition.PartitionedGraph, tmp_path: Path) -> None:
    groups = [2, 0, 1, 1, 0, 2]
    data = {"_N": {"label": np.array(groups)}}
    grown = partition.extend(parts, joined(PARTS * SIZE, groups), 6, out=tmp_path / "new", node_data=data, compare=True)
    assert grown.assignment().parts["_N"].tolist() == [*np.repeat(range(PARTS), SIZE), *groups]
    graph = grown.to_graph()
    assert graph.node_data["_N"]["label"].tolist() == [*np.repeat(range(PARTS), SIZE), *groups]
    assert graph.total_edges == parts.num_edges() + len(joined(PARTS * SIZE, groups)[0])
    assert grown.manifest is not None
    told = grown.manifest.made["extended"]
    assert (told["times"], told["new_nodes"], told["partitioned_cut"]) == (1, 6, 0.0)
    assert told["cut"] == cut_share(graph, grown.assignment()) == 12 / graph.total_edges
    assert told["anew"]["cut"] == told["cut"]
    assert told["repartition_pays"] is False
    assert "6 new nodes by their neighbours' parts" in (grown.path / "report.json").read_text()
    again = partition.extend(grown, (np.array([0]), np.array([40])), out=tmp_path / "newer")
    assert again.manifest is not None
    assert again.manifest.made["extended"]["times"] == 2
    assert parts.num_nodes() == PARTS * SIZE
    assert not partition.verify(again).problems


def test_rows_follow_a_grown_partition(parts: partition.PartitionedGraph, tmp_path: Path, local_mode: None) -> None:
    emb = ge.DistEmbedding(PARTS * SIZE, 2, "node", ge.initializers.Uniform(seed=0), part_policy=parts.policy())
    emb.weight[:] = torch.arange(2.0 * PARTS * SIZE).view(-1, 2)
    by_position = emb.weight[torch.tensor(parts.node_map(inverse=True))]
    place = ge.save_checkpoint(tmp_path / "ck", tables=[emb])
    data = {"_N": {"label": np.array([0])}}
    grown = partition.extend(parts, joined(PARTS * SIZE, [0]), 1, out=tmp_path / "new", node_data=data)
    ge.shutdown()
    emb = ge.DistEmbedding(grown.num_nodes(), 2, "node", ge.initializers.Uniform(seed=0), part_policy=grown.policy())
    ge.load_checkpoint(place, tables=[emb], allow_new_rows=True)
    assert torch.equal(emb.weight[torch.tensor(grown.node_map(inverse=True))][:-1], by_position)


def test_a_full_part_takes_no_more_while_others_have_room() -> None:
    old = cliques(PARTS)
    before = Assignment({"_N": np.repeat(np.arange(PARTS, dtype=np.int32), SIZE)}, PARTS)
    new = [joined(PARTS * SIZE + k, [0]) for k in range(9)]  # all want the first part
    src, dst = (np.concatenate([old.edges[ETYPE][side], *(ends[side] for ends in new)]) for side in (0, 1))
    graph = HeteroGraph({"_N": PARTS * SIZE + 9}, {ETYPE: (src, dst)})
    found = extended(graph, before, balance=["nodes"], tolerance=0.1)
    assert np.bincount(found.parts["_N"])[0] == 16  # a tenth above the mean of 15
    assert found.parts["_N"][: PARTS * SIZE].tolist() == before.parts["_N"].tolist()
    loose = extended(graph, before, balance=["nodes"], tolerance=1.0)
    assert np.bincount(loose.parts["_N"]).tolist() == [SIZE + 9, SIZE, SIZE]


def two_groups() -> tuple[HeteroGraph, Assignment]:
    """Six new friends who each know an old node of the first part, and six with four friends each in the second part;
    each of the first six knows three of the others."""
    first, other = np.arange(36, 42), np.arange(42, 48)
    pairs = [(a, b) for group in (first, other) for a in group for b in group if a < b]
    pairs += [(a, int(a) - 36) for a in first] + [(b, SIZE + k) for b in other for k in range(4)]
    pairs += [(a, other[(i + k) % 6]) for i, a in enumerate(first) for k in range(3)]
    src, dst = np.array(pairs).T
    graph = cliques(PARTS)
    ends = [
        np.concatenate([own, *more]) for own, more in zip(graph.edges[ETYPE], ((src, dst), (dst, src)), strict=True)
    ]
    before = Assignment({"_N": np.repeat(np.arange(PARTS, dtype=np.int32), SIZE)}, PARTS)
    return HeteroGraph({"_N": 48}, {ETYPE: (ends[0], ends[1])}), before


def test_new_friends_move_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node by node each of the six stays with its own friends in the first part, though 18 edges are cut, not 6."""
    graph, before = two_groups()
    found = extended(graph, before, tolerance=1.0)
    assert found.parts["_N"].tolist() == [*before.parts["_N"], *[1] * 12]
    assert cut_share(graph, found) * graph.total_edges == 2 * 6
    monkeypatch.setattr(extending, "together", lambda level, near, *rest: near)
    alone = extended(graph, before, tolerance=1.0)
    assert alone.parts["_N"].tolist() == [*before.parts["_N"], *[0] * 6, *[1] * 6]
    assert cut_share(graph, alone) * graph.total_edges == 2 * 18


def test_no_part_leaves_its_old_nodes_for_new_ones() -> None:
    """Were those of the first part free, they would follow 20 new nodes to the second, and take 3 others along."""
    old, many, few = cliques(PARTS), range(36, 56), range(56, 59)
    pairs = [(a, b) for a in many for b in (a % SIZE, SIZE, SIZE + 1)] + [(a, b) for a in few for b in range(4)]
    src, dst = np.array(pairs).T
    ends = [np.concatenate([own, *more]) for own, more in zip(old.edges[ETYPE], ((src, dst), (dst, src)), strict=True)]
    graph = HeteroGraph({"_N": 59}, {ETYPE: (ends[0], ends[1])})
    before = Assignment({"_N": np.repeat(np.arange(PARTS, dtype=np.int32), SIZE)}, PARTS)
    found = extended(graph, before, tolerance=3.0)
    assert found.parts["_N"].tolist() == [*before.parts["_N"], *[1] * 20, *[0] * 3]


def grown_by_chance(num: int, old: list[int]) -> tuple[HeteroGraph, Assignment]:
    """Random edges among nodes of which the first are in parts of these sizes."""
    rng = np.random.default_rng(3)
    ends = rng.integers(0, num, 4 * num), rng.integers(0, num, 4 * num)
    before = Assignment({"_N": np.repeat(np.arange(len(old), dtype=np.int32), old)}, len(old))
    return HeteroGraph({"_N": num}, {ETYPE: ends}), before


def test_a_part_above_its_limit_takes_none_and_no_other_gets_above_its_own() -> None:
    graph, before = grown_by_chance(600, [230, 20, 20])
    found = extended(graph, before, balance=["nodes"], tolerance=0.05)
    assert found.parts["_N"][:270].tolist() == before.parts["_N"].tolist()
    sizes = np.bincount(found.parts["_N"])
    assert sizes[0] == 230  # of 210
    assert sizes[1:].max() <= 210


def test_the_parts_of_new_nodes_follow_the_seed_and_not_the_threads() -> None:
    graph, before = grown_by_chance(3000, [100, 100, 100])
    found = [extended(graph, before, seed=seed, num_threads=n).parts["_N"] for seed, n in ((0, 1), (0, 2), (1, 1))]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    assert all(np.array_equal(parts[:300], before.parts["_N"]) for parts in found)


def test_the_report_says_when_a_repartition_pays(parts: partition.PartitionedGraph, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, PARTS * SIZE, 900), rng.integers(0, PARTS * SIZE, 900)
    grown = partition.extend(parts, edges, out=tmp_path / "new")
    assert grown.manifest is not None
    assert grown.manifest.made["extended"]["repartition_pays"] is True
    assert grown.manifest.made["why"].endswith("a repartition pays")


@pytest.mark.parametrize(("num_parts", "levels"), [(2, [2, 4]), (1, [2, 4]), (4, [2, 4])])
def test_levels_stay_and_new_nodes_take_their_friends_chain(tmp_path: Path, num_parts: int, levels: list[int]) -> None:
    groups = np.repeat(np.arange(4), SIZE)
    given = Assignment({"_N": (groups * num_parts // 4).astype(np.int32)}, num_parts)
    old = partition.build(cliques(4), assignment=given, levels=levels, out=tmp_path / "old", report=False)
    before = old.levels()[old.node_map(inverse=True)]
    new = joined(4 * SIZE, [2, 0, 1, 1, 0, 2])
    grown = partition.extend(old, new, 7, out=tmp_path / "new", report=False)  # of which the last has no friend
    assert grown.level_sizes == tuple(levels)
    chains = grown.levels()[grown.node_map(inverse=True)]
    assert np.array_equal(chains[: 4 * SIZE], before)
    parts = grown.assignment().parts["_N"]
    for node, k in enumerate([2, 0, 1, 1, 0, 2], 4 * SIZE):
        assert parts[node] == k * num_parts // 4
        friends = before[k * SIZE : k * SIZE + 4]
        assert chains[node].tolist() in friends.tolist()
    assert chains[-1].tolist() in before[parts[: 4 * SIZE] == parts[-1]].tolist()
    finest = [tuple(chain) for chain in np.unique(chains, axis=0)]
    assert len(finest) == len({chain[-1] for chain in finest})  # a finest part lies in one part of each coarser level
    assert grown.manifest is not None
    told = grown.manifest.made["levels"]["of"]
    sizes = np.bincount(chains[:, -1], minlength=levels[-1])
    assert told[-1]["largest"] == pytest.approx(sizes.max() * levels[-1] / len(chains))
    assert not partition.verify(grown).problems
    other = partition.extend(old, new, 7, out=tmp_path / "other", levels=[4, 8], report=False)
    assert other.level_sizes == (4, 8)


def test_new_nodes_join_the_finest_part_of_friends_in_their_part_else_the_smallest() -> None:
    before = np.array([[0, 0]] * 6 + [[0, 1]] * 5 + [[1, 2]] * 3 + [[1, 3]] * 4)
    # Node 18 has one friend in its own part and three in the other; 19, 20 and 21 know the other part alone.
    src, dst = np.array([18, 18, 18, 18, 19, 20, 21]), np.array([0, 11, 12, 13, 11, 12, 14])
    graph = HeteroGraph({"_N": 22}, {ETYPE: (src, dst)})
    found = Assignment({"_N": np.array([0] * 11 + [1] * 7 + [0] * 4, np.int32)}, 2)
    chains = with_levels(graph, found, (2, 4), {"_N": before}).levels["_N"]
    assert np.array_equal(chains[:18], before)
    assert chains[18:].tolist() == [[0, 0], [0, 1], [0, 1], [0, 0]]  # of sizes 7 and 5, then 7 and 7


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"new_nodes": 0}, PartitionError, r"new_edges: node 36 of type '_N' is outside \[0, 36\); give new_nodes"),
    ({"node_data": {}}, ConfigError, r"node_data of '_N': 'age' is missing for 1 new ones"),
    ({"node_data": {"_N": {"age": np.zeros(2)}}}, ConfigError, r"'age' has shape \(2,\) for 1 new ones; expected"),
    ({"node_data": {"_N": {"label": [0], "agE": [1]}}}, ConfigError, "the graph has no column 'agE'"),
    ({"node_data": {"user": {"age": [1]}}}, ConfigError, "node_data: unknown type 'user'"),
    ({"new_edges": cliques(1, 2), "new_nodes": 1}, ConfigError, "new_nodes has no effect beside a graph of new edges"),
    ({"reader_options": {"ids": "int"}}, ConfigError, "reader_options has no effect on new_edges in memory"),
    ({"new_edges": HeteroGraph({"_N": 1}, {}, node_ids={"_N": np.array(["a"])})}, DataError, "are texts, those of the"),
    ({"new_nodes": -1}, ConfigError, "new_nodes=-1: give integers of at least 0"),
    ({"new_nodes": 1.5}, ConfigError, "new_nodes=1.5: give integers"),
    ({"new_nodes": {"_N": "1"}}, ConfigError, "new_nodes={'_N': '1'}: give integers"),
    ({"new_nodes": None}, ConfigError, "new_nodes=None: give integers"),
    ({"new_edges": None, "new_nodes": 1}, ConfigError, r"None; give \(sources, destinations\)"),
    ({"seed": -1}, ConfigError, "seed is -1; it must be an integer"),
    ({"seed": "x"}, ConfigError, "seed is 'x'; it must be an integer"),
    ({"method": "ldg"}, ConfigError, "method='ldg' has no effect where nodes have their parts"),
    ({"assignment": None}, ConfigError, "assignment=None has no effect where nodes have their parts"),
    ({"new_nodes": {"user": 1}}, ConfigError, "unknown type 'user'"),
]


@pytest.mark.parametrize(("options", "error", "match"), WRONG)
def test_what_does_not_fit_is_said(
    parts: partition.PartitionedGraph, tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    graph = replace(parts.to_graph(), node_data={"_N": {"age": np.zeros(PARTS * SIZE), "label": np.zeros(36)}})
    aged = partition.build(graph, assignment=parts.assignment(), out=tmp_path / "aged", report=False)
    given = {"new_edges": joined(PARTS * SIZE, [0]), "new_nodes": 1, "node_data": {"_N": {"age": [3.0]}}, **options}
    if "new_edges" in options and "new_nodes" not in options:
        given = options
    with pytest.raises(error, match=match):
        partition.extend(aged, **given, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_columns_of_a_graph_without_any_are_refused(parts: partition.PartitionedGraph, tmp_path: Path) -> None:
    bare = partition.build(cliques(PARTS), assignment=parts.assignment(), out=tmp_path / "bare", report=False)
    for data in ({"node_data": {"_N": {"age": [3.0]}}}, {"edge_data": {ETYPE: {"weight": np.ones(10)}}}):
        with pytest.raises(ConfigError, match=r"the graph has no column '(age|weight)'; it has none"):
            partition.extend(bare, joined(PARTS * SIZE, [0]), 1, out=tmp_path / "new", **data)


def test_the_old_partition_stays_though_files_may_be_replaced(parts: partition.PartitionedGraph) -> None:
    before = parts.assignment().parts["_N"]
    with pytest.raises(ConfigError, match="is the partition that grows, and stays as it is"):
        partition.extend(parts, joined(PARTS * SIZE, [0]), 1, out=parts.path / ".." / "old", overwrite=True)
    assert np.array_equal(partition.load(parts.path).assignment().parts["_N"], before)


@pytest.mark.parametrize(
    ("edges", "match"),
    [
        (([0.5], [1]), "float64; give integers"),
        (([0, 1], [1]), r"\[2, 1\] ends; give as many of both kinds"),
        (([0], [1], [2]), "ends; give as many of both kinds"),
        (([[0]], [[1]]), r"shape \(1, 1\)"),
    ],
)
def test_ends_are_pairs_of_integers(parts: partition.PartitionedGraph, tmp_path: Path, edges: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        partition.extend(parts, tuple(np.array(side) for side in edges), out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def pairs(graph: HeteroGraph) -> list[tuple[int, int]]:
    return sorted(zip(*(side.tolist() for side in graph.edges[ETYPE]), strict=True))


def test_a_symmetric_graph_stays_symmetric(tmp_path: Path) -> None:
    weights = {ETYPE: {"weight": np.arange(1.0, 7.0)}}
    old = HeteroGraph({"_N": 4}, {ETYPE: (np.array([0, 1, 2, 1, 2, 3]), np.array([1, 2, 3, 0, 1, 2]))}, {}, weights)
    given = Assignment({"_N": np.array([0, 0, 1, 1], np.int32)}, 2)
    new, more = (np.array([4, 0, 3, 4]), np.array([0, 3, 0, 4])), {ETYPE: {"weight": [7.0, 8.0, 9.0, 10.0]}}
    for symmetric in (True, False):
        graph = replace(old, symmetric=symmetric)
        parts = partition.build(graph, assignment=given, out=tmp_path / f"old-{symmetric}", report=False)
        grown = partition.extend(parts, new, 1, out=tmp_path / f"new-{symmetric}", edge_data=more, report=False)
        found = grown.to_graph()
        assert found.symmetric is grown.symmetric is symmetric
        reverse = [(0, 4)] if symmetric else []
        assert pairs(found) == sorted([*pairs(old), (4, 0), (0, 3), (3, 0), (4, 4), *reverse])
        assert found.edge_data[ETYPE]["weight"].tolist() == [*range(1, 11), *([7] if symmetric else [])]
        assert grown.manifest is not None
        assert grown.manifest.made["reader"] == ({"reverse edges added": 1} if symmetric else {})


def test_what_is_held_out_stays_held_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    links = {"train": {"edge": np.array([[0, 1], [1, 2]])}, "test": {"edge": np.array([[0, 3]])}}
    held = HeldOut(links=links, nodes={"_N": {"train": np.array([2, 0]), "test": np.array([3, 1])}}, classes={"_N": 2})
    masks = {"train_mask": np.array([1, 0, 1, 0], bool), "test_mask": np.array([0, 1, 0, 1], bool)}
    data = {"_N": {"label": np.array([0, 1, 1, 0]), **masks}}
    old = HeteroGraph({"_N": 4}, {ETYPE: (np.array([0, 1, 2]), np.array([1, 2, 3]))}, data, held_out=held)
    given = Assignment({"_N": np.array([0, 0, 1, 1], np.int32)}, 2)
    parts = partition.build(old, assignment=given, out=tmp_path / "old", report=False)
    more = {"_N": {"label": [2, 0], "train_mask": [True, False]}}
    new = np.array([4, 5]), np.array([0, 5])
    found = partition.extend(parts, new, 2, out=tmp_path / "new", node_data=more, report=False).to_graph()
    assert found.held_out is not None
    for part, tables in links.items():
        assert found.held_out.links[part]["edge"].tolist() == tables["edge"].tolist()
    assert {part: own.tolist() for part, own in found.held_out.nodes["_N"].items()} == {
        "train": [2, 0, 4],
        "test": [3, 1],
    }
    assert found.held_out.classes == {"_N": 3}
    assert found.node_data["_N"]["test_mask"].tolist() == [0, 1, 0, 1, 0, 0]
    assert not caplog.records
    known = partition.extend(parts, (np.array([0]), np.array([3])), out=tmp_path / "known", report=False)
    assert known.manifest is not None
    assert known.manifest.made["reader"] == {"new edges that are held out": 1}
    assert "1 of the new edges are held out" in caplog.text


def test_held_out_triples_follow_the_numbers_of_their_nodes(tmp_path: Path) -> None:
    makes, likes = ("author", "makes", "paper"), ("paper", "likes", "author")
    edges = {makes: (np.array([0, 1]), np.array([0, 1])), likes: (np.array([0]), np.array([1]))}
    held = HeldOut(
        triples={"test": np.array([[0, 0, 3], [2, 1, 0]])},  # authors are 0 and 1, papers 2 and 3
        negatives={"test": {"heads": np.array([[1], [3]]), "tails": np.array([[2], [1]])}},
    )
    old = HeteroGraph({"author": 2, "paper": 2}, edges, held_out=held)
    parts = partition.build(old, 1, "hash", out=tmp_path / "old", report=False)
    new = {makes: (np.array([2]), np.array([0]))}
    found = partition.extend(parts, new, {"author": 1}, out=tmp_path / "new", report=False).to_graph()
    assert found.held_out is not None
    assert found.held_out.triples["test"].tolist() == [[0, 0, 4], [3, 1, 0]]
    assert {side: own.tolist() for side, own in found.held_out.negatives["test"].items()} == {
        "heads": [[1], [4]],
        "tails": [[3], [1]],
    }


def test_the_command_takes_edges_by_the_ids_of_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.csv").write_text("b,d\nd,f\nf,h\nb,f\n")
    (tmp_path / "new.csv").write_text("c,b\nc,a\nd,h\n")
    old = partition.build(str(tmp_path / "old.csv"), 2, "hash", out=tmp_path / "old", report=False)
    words = ["extend", str(old.path), "--edges", str(tmp_path / "new.csv"), "--out", str(tmp_path / "new")]
    assert cli.main([*words, "--tolerance", "1", "--balance", "nodes", "--halo", "inbound", "--compare", "-q"]) == 0
    assert "2 new nodes by their neighbours' parts" in capsys.readouterr().out
    grown = partition.load(tmp_path / "new")
    graph = grown.to_graph()
    names = graph.node_ids["_N"]
    assert names.tolist() == ["b", "d", "f", "h", "a", "c"]
    assert [f"{names[a]}{names[b]}" for a, b in zip(*graph.edges[ETYPE], strict=True)] == [
        "bd",
        "df",
        "fh",
        "bf",
        "cb",
        "ca",
        "dh",
    ]
    assert grown.manifest is not None
    assert grown.manifest.halo == "inbound"
    assert "anew" in grown.manifest.made["extended"]
    assert cli.main(words) == 2
    assert "holds a partition; give another --out" in capsys.readouterr().err


def test_numbered_nodes_stay_numbered_where_new_ones_follow(parts: partition.PartitionedGraph, tmp_path: Path) -> None:
    for last, ids in ((36, None), (50, [*range(36), 50])):
        (tmp_path / "new.csv").write_text(f"0,{last}\n{last},1\n")
        grown = partition.extend(parts, tmp_path / "new.csv", out=tmp_path / f"new-{last}", report=False)
        found = grown.to_graph()
        assert grown.num_nodes() == 37
        assert (None if ids is None else found.node_ids["_N"].tolist()) == ids
        assert ("_N" in found.node_ids) is (ids is not None)
        assert found.node_data["_N"]["label"][-1] == -1
