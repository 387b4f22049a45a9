"""convert: partitions of DGL become ours, ours become chunked, and options that mean nothing are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import partition
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import HeteroGraph
from partition.conversion import write_assignment, write_chunked
from tests.partition.made_graphs import CITES, heterogeneous, homogeneous, random_parts
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


@pytest.mark.parametrize("edge_format", ["parquet", "csv"])
@pytest.mark.parametrize("num_chunks", [1, 3])
def test_a_chunked_graph_is_read_back(tmp_path: Path, edge_format: str, num_chunks: int) -> None:
    graph = heterogeneous()
    write_chunked(graph, tmp_path / "out", num_chunks=num_chunks, edge_format=edge_format)  # type: ignore[arg-type]
    back = read_graph(tmp_path / "out" / "metadata.json")
    assert (back.num_nodes, back.etypes, back.name) == (graph.num_nodes, graph.etypes, "hetero")
    for etype, ends in graph.edges.items():
        for got, want in zip(back.edges[etype], ends, strict=True):
            assert np.array_equal(got, want)
    assert np.array_equal(back.node_data["paper"]["feat"], graph.node_data["paper"]["feat"])
    assert np.array_equal(back.edge_data[CITES]["year"], graph.edge_data[CITES]["year"])


def test_names_that_end_in_digits_do_not_meet_the_numbers_of_chunks(tmp_path: Path) -> None:
    """Chunk 10 of ``feat`` and chunk 0 of ``feat1`` were both feat10.npy, and so with edge types."""
    ids = np.arange(22)
    graph = HeteroGraph(
        {"n": 22, "n1": 22},
        {("n", "r", "n"): (ids, ids), ("n", "r", "n1"): (ids, ids[::-1].copy())},
        {"n": {"feat": ids, "feat1": 2 * ids, "feat-1": 3 * ids}},
    )
    same_graph(read_graph(write_chunked(graph, tmp_path / "out", num_chunks=12)), graph)


@pytest.mark.parametrize("edge_format", ["parquet", "csv"])
def test_types_with_few_edges_or_none_are_read_back(tmp_path: Path, edge_format: str) -> None:
    """A csv chunk without edges was a file of 0 bytes, which the reader refuses as one that was cut off."""
    one, none = np.array([1, 0]), np.empty(0, np.int64)
    graph = HeteroGraph(
        {"n": 3},
        {("n", "r", "n"): (one, one), ("n", "q", "n"): (none, none), ("n", "p", "n"): (none, none)},
        edge_data={("n", "r", "n"): {"w": np.array([3.0, 4.0])}, ("n", "q", "n"): {"w": np.empty((0, 2))}},
    )
    place = write_chunked(graph, tmp_path / "out", num_chunks=5, edge_format=edge_format)  # type: ignore[arg-type]
    same_graph(read_graph(place), graph)
    metadata = json.loads((place / "metadata.json").read_text())
    for counts, name in zip(metadata["num_edges_per_chunk"], metadata["edge_type"], strict=True):
        assert len(counts) == len(metadata["edges"][name]["data"])


def test_metadata_has_the_counts_of_dgls_code_and_of_its_documentation(tmp_path: Path) -> None:
    write_chunked(heterogeneous(), tmp_path / "out", num_chunks=3)
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["num_nodes_per_type"] == [30, 50, 2]
    assert metadata["num_nodes_per_chunk"] == [[10, 10, 10], [16, 17, 17], [0, 1, 1]]
    assert (
        [sum(chunks) for chunks in metadata["num_edges_per_chunk"]] == metadata["num_edges_per_type"] == [100, 200, 9]
    )
    assert metadata["edge_type"] == ["author:writes:paper", "paper:cites:paper", "venue:held:paper"]
    assert metadata["node_data"]["paper"]["feat"]["format"] == {"name": "numpy"}
    assert "author" not in metadata["node_data"]


def test_csv_has_no_header_and_a_space_between_the_ends(tmp_path: Path) -> None:
    graph = homogeneous()
    write_chunked(graph, tmp_path / "out", edge_format="csv")
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    edges = metadata["edges"]["_N:_E:_N"]
    assert edges["format"] == {"name": "csv", "delimiter": " "}
    first = (tmp_path / "out" / edges["data"][0]).read_text().splitlines()[0]
    src, dst = graph.edges[graph.etypes[0]]
    assert first == f"{src[0]} {dst[0]}"


def test_original_ids_are_kept_beside(tmp_path: Path) -> None:
    graph = heterogeneous()
    write_chunked(graph, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "node_ids" / "author.parquet").to_pydict()
    assert table == {"position": list(range(30)), "original_id": graph.node_ids["author"].tolist()}


def test_assignment_files_are_what_dispatch_takes(tmp_path: Path) -> None:
    graph = heterogeneous()
    assignment = random_parts(graph, 3)
    write_assignment(assignment, tmp_path / "out")
    for ntype, parts in assignment.parts.items():
        assert (tmp_path / "out" / f"{ntype}.txt").read_text() == "".join(f"{part}\n" for part in parts)
    meta = json.loads((tmp_path / "out" / "partition_meta.json").read_text())
    assert meta == {"version": "1.0.0", "num_parts": 3, "algo_name": "random"}


def test_every_other_method_is_metis_to_dgl(tmp_path: Path) -> None:
    assignment = random_parts(homogeneous(), 2)
    assignment.method = "multilevel"
    write_chunked(homogeneous(), tmp_path / "out", assignment=assignment)
    assert json.loads((tmp_path / "out/assignment/partition_meta.json").read_text())["algo_name"] == "metis"


def test_a_taken_place_and_wrong_options_are_refused(tmp_path: Path) -> None:
    graph = homogeneous()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("")
    with pytest.raises(ConfigError, match="holds files; remove it or give another folder"):
        write_chunked(graph, tmp_path / "taken")
    with pytest.raises(ConfigError, match="holds files"):
        write_assignment(random_parts(graph, 2), tmp_path / "taken")
    with pytest.raises(ConfigError, match="num_chunks is 0"):
        write_chunked(graph, tmp_path / "out", num_chunks=0)
    with pytest.raises(ConfigError, match=r"unknown edge format 'cvs'.*did you mean 'csv'"):
        write_chunked(graph, tmp_path / "out", edge_format="cvs")  # type: ignore[arg-type]
    graph.node_data["_N"]["text"] = np.zeros(40, "U2")
    with pytest.raises(DataError, match="column 'text': dtype <U2"):
        write_chunked(graph, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
