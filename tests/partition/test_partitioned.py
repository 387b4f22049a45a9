"""A partition on disk: books, policies, id maps and parts, also of partitions that DGL wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.partition_book import as_book
from graph_emb.graph.typed import EDGE_TYPE, HeteroGraph
from tests.partition.made_graphs import CITES, WRITES, heterogeneous, homogeneous, random_parts


def built(graph: HeteroGraph, out: Path, num_parts: int = 3) -> partition.PartitionedGraph:
    return partition.build(graph, out=out, assignment=random_parts(graph, num_parts), report=False)


def by_dgl(graph: HeteroGraph, out: Path, num_parts: int) -> Path:
    """The same graph partitioned and written by DGL; its JSON."""
    dgl = compat_dgl.load()
    pairs = {etype: tuple(map(torch.tensor, ends)) for etype, ends in graph.edges.items()}
    made = dgl.heterograph(pairs, graph.num_nodes)
    for ntype, columns in graph.node_data.items():
        for name, values in columns.items():
            made.nodes[ntype].data[name] = torch.tensor(values)
    for etype, columns in graph.edge_data.items():
        for name, values in columns.items():
            made.edges[etype].data[name] = torch.tensor(values)
    dgl.seed(1)
    dgl.distributed.partition_graph(made, graph.name, num_parts, str(out), part_method="random")
    return out / f"{graph.name}.json"


def without_small_types() -> HeteroGraph:
    """DGL 1.1.3 cannot write a part that lacks a type."""
    graph = heterogeneous()
    del graph.num_nodes["venue"], graph.edges[graph.etypes[2]]
    return graph


def same_graph(found: HeteroGraph, expected: HeteroGraph) -> None:
    assert found.num_nodes == expected.num_nodes
    for etype, ends in expected.edges.items():
        for got, want in zip(found.edges[etype], ends, strict=True):
            assert np.array_equal(got, want)
    for mine, theirs in ((found.node_data, expected.node_data), (found.edge_data, expected.edge_data)):
        wanted = {(kind, name): v for kind, columns in theirs.items() for name, v in columns.items()}
        got_all = {(kind, name): v for kind, columns in mine.items() for name, v in columns.items()}
        assert set(got_all) == set(wanted)
        for key, values in wanted.items():
            assert np.array_equal(got_all[key], values), key
    assert {k: v.tolist() for k, v in found.node_ids.items()} == {k: v.tolist() for k, v in expected.node_ids.items()}


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_the_whole_graph_comes_back_in_its_order(tmp_path: Path, make: Any) -> None:
    same_graph(built(make(), tmp_path / "out").to_graph(), make())


def test_the_assignment_comes_back(tmp_path: Path) -> None:
    graph = heterogeneous()
    found, given = built(graph, tmp_path / "out").assignment(), random_parts(graph, 3)
    assert (found.num_parts, found.method, found.seed) == (3, "random", 1)
    for ntype, parts in given.parts.items():
        assert np.array_equal(found.parts[ntype], parts)


def test_counts_and_names(tmp_path: Path) -> None:
    whole = built(heterogeneous(), tmp_path / "out")
    assert (whole.num_nodes(), whole.num_nodes("paper")) == (82, 50)
    assert (whole.num_edges(), whole.num_edges("cites"), whole.num_edges(WRITES)) == (309, 200, 100)
    assert (whole.ntypes, whole.etypes[1]) == (["author", "paper", "venue"], CITES)
    assert "3 parts, 82 nodes" in repr(whole)
    with pytest.raises(ConfigError, match=r"unknown node type 'papr'.*did you mean 'paper'"):
        whole.num_nodes("papr")
    with pytest.raises(ConfigError, match="3 node types; name one: author, paper, venue"):
        whole.policy()
    with pytest.raises(ConfigError, match="unknown edge type 'likes'"):
        whole.num_edges("likes")
    with pytest.raises(PartitionError, match=r"part 3 is outside \[0, 3\)"):
        whole.part(3)


def test_a_policy_places_the_rows_of_a_table(tmp_path: Path) -> None:
    graph = heterogeneous()
    whole, given = built(graph, tmp_path / "out"), random_parts(graph, 3)
    policy = whole.policy("paper")
    assert policy.policy_str == "node~paper"
    owners = as_book(policy, 50, "t").owner(torch.arange(50))
    assert np.array_equal(owners.numpy(), given.parts["paper"][whole.node_map("paper")])
    edges = whole.policy(etype=CITES)
    assert (edges.policy_str, edges.book.num_rows) == ("edge~paper:cites:paper", 200)
    assert whole.policy(etype="paper:cites:paper") == whole.policy(etype="cites")
    with pytest.raises(ConfigError, match="give one of both"):
        whole.policy("paper", etype=CITES)


def test_a_table_follows_the_partition(tmp_path: Path) -> None:
    whole = built(homogeneous(), tmp_path / "out", 1)
    table = ge.DistEmbedding(whole.num_nodes(), 4, name="of_parts", part_policy=whole.policy())
    assert table(torch.arange(40)).shape == (40, 4)
    with pytest.raises(PartitionError, match="covers 40 ids but num_embeddings is 41"):
        ge.DistEmbedding(41, 4, name="too_long", part_policy=whole.policy())


def test_a_part_reads_its_own_rows(tmp_path: Path) -> None:
    graph = heterogeneous()
    whole = built(graph, tmp_path / "out")
    part = whole.part(1)
    rows = part.node_rows("paper")
    positions = whole.node_map("paper")[rows]
    assert np.array_equal(part.node_data("paper")["feat"], graph.node_data["paper"]["feat"][positions])
    src, dst = part.ends(CITES)
    edges = whole.edge_map(CITES)[part.edge_rows(CITES)]
    assert np.array_equal(whole.node_map("paper")[src], graph.edges[CITES][0][edges])
    assert ((dst >= rows.start) & (dst < rows.stop)).all()
    assert part.node_data("author") == {}


def test_original_ids_are_those_of_the_input(tmp_path: Path) -> None:
    graph = heterogeneous()
    whole = built(graph, tmp_path / "out")
    assert whole.original_ids("author").tolist() == graph.node_ids["author"][whole.node_map("author")].tolist()
    assert np.array_equal(whole.original_ids("paper"), whole.node_map("paper"))


def test_relations_keep_their_names(tmp_path: Path) -> None:
    graph = homogeneous()
    assert built(graph, tmp_path / "none").relation_names is None
    graph.relation_names = np.array(["likes", "is a"])
    whole = built(graph, tmp_path / "named")
    assert whole.to_graph().relation_names is not None
    assert whole.relation_names is not None
    assert whole.relation_names.tolist() == ["likes", "is a"]


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("make", [homogeneous, without_small_types])
def test_partitions_that_dgl_wrote_open(tmp_path: Path, make: Any, num_parts: int) -> None:
    graph = make()
    whole = partition.load(by_dgl(graph, tmp_path, num_parts))
    assert (whole.manifest, whole.num_parts) == (None, num_parts)
    assert not whole.has_id_map("node")
    assert not whole.has_id_map("edge")
    found = whole.to_graph()
    # in DGL's order: the same edges between nodes with the same features
    feat, expected = found.node_data[graph.ntypes[-1]]["feat"], graph.node_data[graph.ntypes[-1]]["feat"]
    etype = graph.etypes[-1]
    ends = sorted((tuple(feat[a]), tuple(feat[b])) for a, b in zip(*found.edges[etype], strict=True))
    want = sorted((tuple(expected[a]), tuple(expected[b])) for a, b in zip(*graph.edges[etype], strict=True))
    assert ends == want
    with pytest.raises(DataError, match="DGL wrote this partition without original ids"):
        whole.node_map(graph.ntypes[0])


def test_the_original_ids_of_dgls_pipeline_are_read(tmp_path: Path) -> None:
    """``dispatch_data.py --save-orig-nids --save-orig-eids`` puts them beside each part."""
    dgl = compat_dgl.load()
    graph = homogeneous()
    whole = built(graph, tmp_path / "out", 2)
    for part in range(2):
        for kind, name, order, rows in (
            ("nids", "_N", whole.node_map(), whole.part(part).node_rows()),
            ("eids", ":".join(EDGE_TYPE), whole.edge_map(), whole.part(part).edge_rows()),
        ):
            path = tmp_path / "out" / f"part{part}" / f"orig_{kind}.dgl"
            dgl.data.utils.save_tensors(str(path), {name: torch.tensor(np.array(order[rows]))})
    (tmp_path / "out" / "manifest.json").unlink()
    theirs = partition.load(tmp_path / "out")
    assert np.array_equal(theirs.node_map(inverse=True), whole.node_map(inverse=True))
    same_graph(theirs.to_graph(), homogeneous())


@pytest.mark.parametrize("kept", ["nids", "eids"])
def test_the_original_ids_of_nodes_or_edges_alone_are_read(tmp_path: Path, kept: str) -> None:
    """The file of the nodes stood for both, so without that of the edges there was a FileNotFoundError."""
    dgl = compat_dgl.load()
    graph = homogeneous()
    whole = built(graph, tmp_path / "out", 2)
    name, order = ("_N", whole.node_map()) if kept == "nids" else (":".join(EDGE_TYPE), whole.edge_map())
    for index in range(2):
        part = whole.part(index)
        rows = part.node_rows() if kept == "nids" else part.edge_rows()
        tensors = {name: torch.tensor(np.array(order[rows]))}
        dgl.data.utils.save_tensors(str(tmp_path / "out" / f"part{index}" / f"orig_{kept}.dgl"), tensors)
    (tmp_path / "out" / "manifest.json").unlink()
    theirs = partition.load(tmp_path / "out")
    found = theirs.to_graph()
    # a map brings its kind into the input's order, the other kind stays in that of the partition
    feat, weight = graph.node_data["_N"]["feat"], graph.edge_data[EDGE_TYPE]["weight"]
    expected = (feat, weight[whole.edge_map()]) if kept == "nids" else (feat[whole.node_map()], weight)
    assert np.array_equal(found.node_data["_N"]["feat"], expected[0])
    assert np.array_equal(found.edge_data[EDGE_TYPE]["weight"], expected[1])
    lacking, kind = (theirs.edge_map, "edges") if kept == "nids" else (theirs.node_map, "nodes")
    with pytest.raises(DataError, match=f"without original ids of its {kind}; use"):
        lacking()
    assert (theirs.has_id_map("node"), theirs.has_id_map("edge")) == (kept == "nids", kept == "eids")
    assert partition.verify(theirs.path).sound


def test_older_forms_of_the_json_open(tmp_path: Path) -> None:
    whole = built(homogeneous(), tmp_path / "out", 3)
    config = json.loads(whole.config_path.read_text())
    for key in ("node_map", "edge_map"):
        config[key] = [end for _, end in next(iter(config[key].values()))]  # DGL before 0.7: ends of one type
    del config["ntypes"], config["etypes"]
    whole.config_path.write_text(json.dumps(config))
    again = partition.load(whole.config_path)
    assert np.array_equal(again.nodes.starts, whole.nodes.starts)
    assert np.array_equal(again.edges.starts, whole.edges.starts)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_parts": 4}, PartitionError, "ranges of 3 parts; num_parts is 4"),
        (
            {"node_map": {"_N": [[0, 9], [10, 20], [20, 40]]}},
            PartitionError,
            r"part 1: range \[10, 20\] does not begin",
        ),
        ({"node_map": {"_N": [[0, 9], [9, 5], [5, 40]]}}, PartitionError, r"range \[9, 5\]"),
        ({"node_map": "node_map.npy"}, DataError, "no partition of DGL"),
        ({"etypes": {"_E": 0}, "edge_map": {"_E": [[0, 1], [1, 2], [2, 3]]}}, DataError, "DGL before 1.0"),
        ({"ntypes": {"_N": 1}}, DataError, "type ids"),
        ({"ntypes": {}}, DataError, "ntypes names no type of nodes"),
        ({"etypes": {}}, PartitionError, r"ranges of the types \['_N:_E:_N'\], but the types are \[\]"),
        ({"part-0": {}}, DataError, "part-0 names no 'part_graph'"),
    ],
)
def test_a_damaged_json_is_named(tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str) -> None:
    whole = built(homogeneous(), tmp_path / "out", 3)
    config = {**json.loads(whole.config_path.read_text()), **change}
    whole.config_path.write_text(json.dumps(config))
    with pytest.raises(error, match=message):
        partition.load(whole.config_path).part(0)


def test_where_no_partition_is_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such partition"):
        partition.load(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no partition"):
        partition.load(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"graph_name": name, "num_parts": 1, "node_map": {}}))
    with pytest.raises(DataError, match=r"several partitions: a\.json, b\.json"):
        partition.load(tmp_path)
