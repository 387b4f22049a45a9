"""convert: partitions of DGL become ours, ours become chunked, and options that mean nothing are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import partition
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from partition.chunked import write_chunked
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts
from tests.partition.test_partitioned import by_dgl, same_graph, without_small_types


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    graph = heterogeneous()
    return partition.build(graph, out=tmp_path / "ours", assignment=random_parts(graph, 3), report=False).path


@pytest.mark.parametrize("make", [homogeneous, without_small_types])
def test_a_partition_of_dgl_keeps_its_parts_and_ids(tmp_path: Path, make: Any) -> None:
    theirs = partition.load(by_dgl(make(), tmp_path / "theirs", 3))
    place = partition.convert(tmp_path / "theirs", tmp_path / "out", "dgl")
    made = partition.load(place)
    assert partition.verify(place, theirs.to_graph()).problems == []
    assert np.array_equal(made.nodes.starts, theirs.nodes.starts)
    for ntype in made.ntypes:
        assert np.array_equal(made.node_map(ntype), np.arange(made.num_nodes(ntype)))
    assert (place / "report.html").is_file()


@pytest.mark.parametrize("edge_owner", ["source", "balanced"])
def test_the_same_parts_own_the_same_edges(tmp_path: Path, edge_owner: Any) -> None:
    """The new partition was built with the default owner, so edges moved to the parts of their destinations."""
    graph = heterogeneous()
    given = random_parts(graph, 3)
    before = partition.build(graph, out=tmp_path / "a", assignment=given, edge_owner=edge_owner, report=False)
    after = partition.load(partition.convert(before.path, tmp_path / "b", "dgl"))
    assert np.array_equal(after.edges.starts, before.edges.starts)
    assert np.array_equal(after.edge_map("cites"), before.edge_map("cites"))
    assert after.edge_owner == edge_owner


def test_our_partition_takes_another_halo(ours: Path, tmp_path: Path) -> None:
    place = partition.convert(ours, tmp_path / "out", "dgl", halo="inbound")
    assert partition.verify(place, heterogeneous()).sound
    before, after = (partition.load(path) for path in (ours, place))
    assert sum(len(after.part(i).edge_ids) for i in range(3)) == 309
    assert sum(len(before.part(i).edge_ids) for i in range(3)) > 309
    assert np.array_equal(before.node_map("paper"), after.node_map("paper"))


def test_a_partition_becomes_chunked_with_its_parts(ours: Path, tmp_path: Path) -> None:
    place = partition.convert(ours, tmp_path / "out", "chunked", num_chunks=2, edge_format="csv")
    graph = heterogeneous()
    back = read_graph(place / "metadata.json")
    for etype, ends in graph.edges.items():
        assert np.array_equal(back.edges[etype], ends)
    lines = (place / "assignment" / "paper.txt").read_text().split()
    assert lines == [str(part) for part in random_parts(graph, 3).parts["paper"]]


def test_parts_that_dgls_servers_would_refuse_are_kept(tmp_path: Path) -> None:
    graph = heterogeneous()
    graph.node_data["venue"] = {"name": np.zeros(2)}  # two venues, three parts
    given = random_parts(graph, 3)
    path = partition.build(graph, out=tmp_path / "a", assignment=given, allow_empty=True, report=False).path
    assert partition.verify(partition.convert(path, tmp_path / "b", "dgl"), graph).sound


def test_a_partition_becomes_assignment_files(ours: Path, tmp_path: Path) -> None:
    place = partition.convert(ours, tmp_path / "out", "assignment")
    assert sorted(p.name for p in place.iterdir()) == ["author.txt", "paper.txt", "partition_meta.json", "venue.txt"]


def test_a_graph_becomes_chunked_but_no_partition(tmp_path: Path) -> None:
    write_chunked(homogeneous(), tmp_path / "chunked")
    place = partition.convert(tmp_path / "chunked", tmp_path / "again", "chunked", edge_format="csv")
    same_graph(read_graph(place / "metadata.json"), read_graph(tmp_path / "chunked" / "metadata.json"))
    with pytest.raises(ConfigError, match="has no parts; use build"):
        partition.convert(tmp_path / "chunked", tmp_path / "out", "dgl")


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("dgl", {"num_chunks": 2}, "num_chunks has no meaning for the form 'dgl'"),
        ("chunked", {"halo": "dgl"}, "halo has no meaning for the form 'chunked'"),
        ("chunked", {"overwrite": True}, "overwrite has no meaning for the form 'chunked'"),
        ("assignment", {"edge_format": "csv"}, "edge_format has no meaning for the form 'assignment'"),
        ("dlg", {}, r"unknown form 'dlg'.*did you mean 'dgl'"),
        ("dgl", {"reader_options": {"x": 1}}, r"is a partition; reader options \(x\) have no effect"),
    ],
)
def test_options_without_meaning_are_refused(
    ours: Path, tmp_path: Path, to: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        partition.convert(ours, tmp_path / "out", to, **options)
    assert not (tmp_path / "out").exists()


def test_an_old_partition_is_replaced_when_asked(ours: Path, tmp_path: Path) -> None:
    place = partition.convert(ours, tmp_path / "out", "dgl")
    with pytest.raises(ConfigError, match="holds a partition"):
        partition.convert(ours, place, "dgl")
    partition.convert(ours, place, "dgl", overwrite=True, num_hops=2)
    assert partition.load(place).config["halo_hops"] == 2


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        partition.convert(tmp_path / "nowhere", tmp_path / "out", "dgl")
