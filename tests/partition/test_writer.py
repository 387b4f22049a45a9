"""What is written: names that DGL can hold, columns in the order of the ids, id maps with original ids."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from graph_emb.core.errors import DataError, PartitionError
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.building import build
from partition.relabel import relabel
from partition.writer import check_names, check_no_empty_features, dgl_config, npy_writer
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts


def tiny(**changes: object) -> HeteroGraph:
    ends = np.array([0, 1]), np.array([1, 0])
    return HeteroGraph(**{"num_nodes": {NODE_TYPE: 2}, "edges": {EDGE_TYPE: ends}, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("graph", "name", "message"),
    [
        (tiny(), "", "graph name ''"),
        (tiny(), "a/b", "graph name 'a/b'"),
        (tiny(), ".a", r"graph name '\.a'"),
        (tiny(num_nodes={"a:b": 2}, edges={}), "g", "type name 'a:b'"),
        (tiny(num_nodes={"a/b": 2}, edges={}), "g", "type name 'a/b'"),
        (tiny(node_data={NODE_TYPE: {"a/b": np.zeros(2)}}), "g", "node type '_N': column 'a/b'"),
        (tiny(edge_data={EDGE_TYPE: {"t": np.zeros(2, "U3")}}), "g", "edge type '_N:_E:_N', column 't': dtype <U3"),
    ],
)
def test_what_dgl_cannot_hold_is_refused(graph: HeteroGraph, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_names(replace(graph, name=name))


def test_a_part_without_rows_of_a_type_with_data_is_refused() -> None:
    graph = heterogeneous()
    check_no_empty_features(relabel(graph, random_parts(graph, 3)))  # venues are few, but have no data
    graph.node_data["venue"] = {"name": np.zeros(2)}
    with pytest.raises(PartitionError, match=r"part \d has no row of type 'venue', which has data \('name'\)"):
        check_no_empty_features(relabel(graph, random_parts(graph, 3)))


def test_a_part_without_edges_of_a_type_with_data_is_refused() -> None:
    graph = tiny(edge_data={EDGE_TYPE: {"w": np.zeros(2)}})
    graph.edges[EDGE_TYPE][1][:] = 1  # nothing ends at node 0
    assignment = random_parts(graph, 2)
    with pytest.raises(PartitionError, match=r"no row of type '_N:_E:_N', which has data \('w'\)"):
        check_no_empty_features(relabel(graph, assignment))


def test_the_json_is_what_dgl_writes_for_the_same_parts() -> None:
    graph = homogeneous()
    made = relabel(graph, random_parts(graph, 2))
    config = dgl_config(graph.ntypes, graph.etypes, made.nodes, made.edges, "g", "random", 1)
    assert list(config) == [
        *("graph_name", "num_nodes", "num_edges", "part_method", "num_parts", "halo_hops"),
        *("node_map", "edge_map", "ntypes", "etypes", "part-0", "part-1"),
    ]
    assert (config["ntypes"], config["etypes"]) == ({"_N": 0}, {"_N:_E:_N": 0})
    assert config["node_map"]["_N"][0][1] == config["node_map"]["_N"][1][0]
    assert config["part-1"]["part_graph"] == "part1/graph.dgl"


@pytest.mark.parametrize("values", [np.arange(5), np.zeros((0, 2), np.float32), np.arange(6).reshape(3, 2).T])
def test_npy_is_what_numpy_loads(values: np.ndarray) -> None:
    sink = io.BytesIO()
    npy_writer(np.ascontiguousarray(values))(sink)
    back = np.load(io.BytesIO(sink.getvalue()))
    assert back.dtype == values.dtype
    assert np.array_equal(back, values)


def test_id_maps_hold_positions_parts_and_original_ids(tmp_path: Path) -> None:
    graph = heterogeneous()
    assignment = random_parts(graph, 3)
    whole = build(graph, out=tmp_path / "out", assignment=assignment, report=False)
    assert whole.manifest is not None
    for ntype in graph.ntypes:
        table = pq.read_table(tmp_path / "out" / whole.manifest.id_maps["node"][ntype]["parquet"]).to_pydict()
        positions = np.array(table["position"])
        assert table["partition_id"] == list(range(graph.num_nodes[ntype]))
        assert positions.tolist() == whole.node_map(ntype).tolist()
        assert table["part"] == assignment.parts[ntype][positions].tolist()
        assert table["part"] == sorted(table["part"])
        expected = graph.node_ids["author"][positions].tolist() if ntype == "author" else positions.tolist()
        assert table["original_id"] == expected
        assert whole.node_map(ntype, inverse=True)[positions].tolist() == table["partition_id"]
    for etype in graph.etypes:
        order = whole.edge_map(etype)
        table = pq.read_table(tmp_path / "out" / whole.manifest.id_maps["edge"][":".join(etype)]["parquet"])
        assert table.column("position").to_pylist() == order.tolist()
        assert np.array_equal(whole.edge_map(etype, inverse=True)[order], np.arange(len(order)))


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        graph = heterogeneous()
        build(graph, out=tmp_path / name, assignment=random_parts(graph, 3), edge_owner="balanced", report=False)
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        made.append({p.relative_to(tmp_path / name): p.read_bytes() for p in files})
    assert made[0] == made[1]
    assert len(made[0]) == 3 * 3 + 6 * 3 + 2


def test_the_manifest_lists_every_file_but_itself(tmp_path: Path) -> None:
    graph = homogeneous()
    build(graph, out=tmp_path / "out", assignment=random_parts(graph, 2), report=False)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    present = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert set(manifest["files"]) == present - {"manifest.json"}
    assert manifest["made"]["num_nodes"] == {"_N": 40}
    assert (manifest["made"]["method"], manifest["made"]["seed"]) == ("random", 1)
