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
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment
from partition.extending import cut_share, extended

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


def test_the_report_says_when_a_repartition_pays(parts: partition.PartitionedGraph, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, PARTS * SIZE, 900), rng.integers(0, PARTS * SIZE, 900)
    grown = partition.extend(parts, edges, out=tmp_path / "new")
    assert grown.manifest is not None
    assert grown.manifest.made["extended"]["repartition_pays"] is True
    assert grown.manifest.made["why"].endswith("a repartition pays")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"new_nodes": 0}, PartitionError, r"new_edges: node 36 of type '_N' is outside \[0, 36\); give new_nodes"),
    ({}, ConfigError, r"node_data of '_N': 'label' is missing for 1 new ones"),
    ({"node_data": {"_N": {"label": np.zeros(2)}}}, ConfigError, r"'label' has shape \(2,\) for 1 new ones; expected"),
    ({"node_data": {"_N": {"label": [0], "age": [1]}}}, ConfigError, "the graph has no column 'age'"),
    ({"new_nodes": -1}, ConfigError, "no number may be negative"),
    ({"new_nodes": {"user": 1}}, ConfigError, "unknown type 'user'"),
]


@pytest.mark.parametrize(("options", "error", "match"), WRONG)
def test_what_does_not_fit_is_said(
    parts: partition.PartitionedGraph, tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        partition.extend(parts, joined(PARTS * SIZE, [0]), **{"new_nodes": 1, **options}, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


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
