"""verify finds every kind of damage, one test case for each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import partition
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.dgl_format import StoredGraph, read_graph, read_tensors, write_graph, write_tensors
from graph_emb.graph.typed import HeteroGraph
from partition.verification import verify
from tests.partition.made_graphs import CITES, heterogeneous, homogeneous, random_parts
from tests.partition.test_partitioned import by_dgl, without_small_types


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A heterogeneous partition of three parts."""
    place = tmp_path_factory.mktemp("sound") / "out"
    graph = heterogeneous()
    partition.build(graph, out=place, assignment=random_parts(graph, 3), report=False)
    return place


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """The same for one test to damage."""
    shutil.copytree(sound, tmp_path / "out")
    return tmp_path / "out"


def test_a_sound_partition_is_sound(sound: Path) -> None:
    found = verify(sound, heterogeneous())
    assert found.problems == []
    assert found.checked["inner nodes"] == 82
    assert found.checked["inner edges"] == found.checked["edges compared with the graph"] == 309
    found.raise_problems()


def test_a_graph_is_compared_in_whatever_form_it_is(tmp_path: Path) -> None:
    """A DGL graph or a path was taken for a graph of other types and counts."""
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n" + "".join(f"{i},{(i * 7 + 1) % 40}\n" for i in range(40)))
    partition.build(edges, 2, "random", out=tmp_path / "csv", report=False)
    assert verify(tmp_path / "csv", edges).problems == []
    assert verify(tmp_path / "csv", str(edges)).checked["edges compared with the graph"] == 40
    assert verify(tmp_path / "csv", edges, reader_options={"directed": False}).problems
    import dgl
    import torch

    graph = dgl.heterograph({("a", "x", "b"): (torch.arange(20), torch.arange(20) % 7)})
    graph.nodes["a"].data["f"] = torch.arange(20.0)
    partition.build(graph, 2, "random", out=tmp_path / "dgl", report=False)
    assert verify(tmp_path / "dgl", graph).problems == []
    graph.nodes["a"].data["f"][3] = 99.0
    assert any("'f'" in problem for problem in verify(tmp_path / "dgl", graph).problems)
    with pytest.raises(ConfigError, match="have no effect without a graph to read"):
        verify(tmp_path / "csv", homogeneous(), reader_options={"directed": False})


@pytest.mark.parametrize("make", [homogeneous, without_small_types])
def test_partitions_of_dgl_are_sound(tmp_path: Path, make: Callable[[], HeteroGraph]) -> None:
    found = verify(by_dgl(make(), tmp_path, 3))
    assert found.problems == []
    assert "checksums" not in found.checked


def test_a_changed_byte_is_found(copy: Path) -> None:
    path = copy / "part1" / "node_feat.dgl"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert "sha256 differs" in verify(copy).problems[0]
    assert verify(copy, checksums=False).sound
    with pytest.raises(DataError, match=r"part1/node_feat\.dgl: its sha256 differs"):
        verify(copy).raise_problems()


@pytest.mark.parametrize("name", ["part2/graph.dgl", "id_maps/node.paper.parquet", "part0/edge_feat.dgl"])
def test_a_missing_or_short_file_is_found(copy: Path, name: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[:-1])
    assert f"{len(data) - 1} bytes; the manifest says {len(data)}" in verify(copy, checksums=False).problems[0]
    (copy / name).unlink()
    assert verify(copy).problems == [f"{copy / name}: missing"]


def test_a_foreign_file_is_found(copy: Path) -> None:
    (copy / "part1" / "notes").write_text("")
    assert "1 files that the manifest does not know: part1/notes" in verify(copy).problems[0]


def test_several_problems_are_counted(copy: Path) -> None:
    for part in range(3):
        (copy / f"part{part}" / "graph.dgl").unlink()
    with pytest.raises(DataError, match=r"part0/graph\.dgl: missing \(and 2 more problems\)"):
        verify(copy).raise_problems()


def as_array(values: np.ndarray, **changes: Any) -> np.ndarray:
    changed = np.array(values)
    for index, value in changes.items():
        changed[int(index[1:])] = value
    return changed


def with_node(graph: StoredGraph, name: str, values: np.ndarray) -> StoredGraph:
    return replace(graph, node_data={**graph.node_data, name: values})


def with_edge(graph: StoredGraph, name: str, values: np.ndarray) -> StoredGraph:
    return replace(graph, edge_data={**graph.edge_data, name: values})


def last_edge_twice(graph: StoredGraph) -> StoredGraph:
    data = {name: np.concatenate([v, v[-1:]]) for name, v in graph.edge_data.items()}
    return replace(
        graph, src=np.append(graph.src, graph.src[-1]), dst=np.append(graph.dst, graph.dst[-1]), edge_data=data
    )


def without_last_edge(graph: StoredGraph) -> StoredGraph:
    return replace(
        graph, src=graph.src[:-1], dst=graph.dst[:-1], edge_data={k: v[:-1] for k, v in graph.edge_data.items()}
    )


DAMAGE: dict[str, tuple[Callable[[StoredGraph], StoredGraph], str]] = {
    "no ids": (lambda g: replace(g, node_data={"inner_node": g.node_data["inner_node"]}), "no node data '_ID'"),
    "short column": (lambda g: with_edge(g, "inner_edge", g.edge_data["inner_edge"][1:]), "'inner_edge' has"),
    "end outside": (lambda g: replace(g, src=as_array(g.src, _0=g.num_nodes)), "an edge ends outside its"),
    "swapped ids": (lambda g: with_node(g, "_ID", as_array(g.node_data["_ID"], _0=1, _1=0)), "own node ids are not"),
    "wrong edge ids": (lambda g: with_edge(g, "_ID", as_array(g.edge_data["_ID"], _0=1)), "own edge ids are not"),
    "wrong mask": (lambda g: with_node(g, "inner_node", as_array(g.node_data["inner_node"], _0=0)), "inner_node does"),
    "wrong owner": (lambda g: with_node(g, "part_id", g.node_data["part_id"] * 0 + 2), "part_id names a wrong owner"),
    "wrong node type": (lambda g: with_node(g, "_TYPE", g.node_data["_TYPE"] * 0), "a wrong _TYPE"),
    "no edge type": (
        lambda g: replace(g, edge_data={k: v for k, v in g.edge_data.items() if k != "_TYPE"}),
        "wrong _TYPE",
    ),
    "edge twice": (last_edge_twice, "stores the same edge twice"),
    "edge lacking": (without_last_edge, "out-edges"),
    "reversed": (lambda g: replace(g, src=g.dst, dst=g.src), "of a type that its relation does not have"),
    "huge id": (lambda g: with_edge(g, "_ID", as_array(g.edge_data["_ID"], **{"_-1": 10**6})), "outside [0, 309)"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_graph_is_found(copy: Path, name: str) -> None:
    damage, problem = DAMAGE[name]
    path = copy / "part0" / "graph.dgl"
    rewrite(path, write_graph, damage(read_graph(path)))
    trust(copy, "part0/graph.dgl")
    assert any(problem in text for text in verify(copy).problems), verify(copy).problems


def test_an_edge_that_ends_elsewhere_is_found_beside_the_graph(copy: Path) -> None:
    path = copy / "part0" / "graph.dgl"
    stored = read_graph(path)
    own = np.flatnonzero((stored.edge_data["_TYPE"] == 1) & (stored.edge_data["inner_edge"] == 1))[:2]
    src = np.array(stored.src)
    other = next(s for s in src[own[0] :] if s != src[own[0]] and stored.node_data["_TYPE"][s] == 1)
    src[own[0]] = other
    rewrite(path, write_graph, replace(stored, src=src))
    trust(copy, "part0/graph.dgl")
    assert any(
        "edges of paper:cites:paper end elsewhere" in p or "other ends" in p or "lack" in p
        for p in verify(copy, heterogeneous()).problems
    )


def test_an_outer_edge_that_differs_from_its_owners_is_found(copy: Path) -> None:
    """Two outer edges that swap their ids keep every degree and every set of ids."""
    path = copy / "part0" / "graph.dgl"
    stored = read_graph(path)
    outer = np.flatnonzero((stored.edge_data["inner_edge"] == 0) & (stored.edge_data["_TYPE"] == 1))
    ends = stored.src[outer] * 1000 + stored.dst[outer]
    first, second = outer[0], outer[np.flatnonzero(ends != ends[0])[0]]
    ids = np.array(stored.edge_data["_ID"])
    ids[[first, second]] = ids[[second, first]]
    rewrite(path, write_graph, with_edge(stored, "_ID", ids))
    trust(copy, "part0/graph.dgl")
    assert any("has other ends than there" in p for p in verify(copy).problems)


def test_a_column_of_another_length_or_value_is_found(copy: Path) -> None:
    path = copy / "part0" / "node_feat.dgl"
    columns = dict(read_tensors(path))
    columns["paper/label"] = columns["paper/label"] + 1
    rewrite(path, write_tensors, columns)
    trust(copy, "part0/node_feat.dgl")
    assert verify(copy).sound
    assert "part 0, paper: column 'label' differs from the graph's" in verify(copy, heterogeneous()).problems
    columns["paper/label"] = columns["paper/label"][1:]
    rewrite(path, write_tensors, columns)
    trust(copy, "part0/node_feat.dgl")
    assert "column 'label' of paper has" in verify(copy).problems[0]


@pytest.mark.parametrize(
    ("direction", "change", "problem"),
    [
        ("to_original", lambda order: order[::-1], "do not undo each other"),
        ("to_partition", lambda order: order[::-1], "do not undo each other"),
        ("to_original", lambda order: order * 0, "do not undo each other"),
        ("to_original", lambda order: order + 1, "an id map is not over 0 .. 49"),
        ("to_original", lambda order: order[1:], "an id map is not over 0 .. 49"),
    ],
)
def test_an_id_map_that_is_no_permutation_is_found(
    copy: Path, direction: str, change: Callable[[np.ndarray], np.ndarray], problem: str
) -> None:
    name = f"id_maps/node.paper.{direction}.npy"
    np.save(copy / name, change(np.load(copy / name)))
    trust(copy, name)
    assert any(problem in text for text in verify(copy).problems)


def test_a_parquet_map_of_another_order_is_found(copy: Path) -> None:
    for change in (lambda table: table.take(list(range(49, -1, -1))), lambda table: table.slice(0, 49)):
        name = "id_maps/node.paper.parquet"
        table = pq.read_table(copy / name)
        pq.write_table(change(table), copy / "new")
        (copy / "new").rename(copy / name)
        trust(copy, name)
        assert any("positions are not those of the npy file" in text for text in verify(copy).problems)
        pq.write_table(table, copy / name)


def test_another_graph_is_found(sound: Path) -> None:
    graph = heterogeneous()
    graph.edges[CITES][0][7] = (graph.edges[CITES][0][7] + 1) % 50
    assert any("end elsewhere than in the graph" in text for text in verify(sound, graph).problems)
    assert any("types or counts differ" in text for text in verify(sound, homogeneous()).problems)
    graph = heterogeneous()
    graph.node_ids["author"][3] = "somebody"
    assert verify(sound, graph).problems == ["node type author: other original ids"]


def test_a_halo_too_short_for_its_hops_is_found(tmp_path: Path) -> None:
    graph = homogeneous()
    partition.build(graph, out=tmp_path / "out", assignment=random_parts(graph, 3), report=False, halo="inbound")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert verify(tmp_path / "out").sound
    for change, problem in (({"num_hops": 2}, "nodes lack in-edges"), ({"halo": "dgl"}, "lacks out-edges")):
        (tmp_path / "out" / "manifest.json").write_text(json.dumps({**manifest, **change}))
        assert any(problem in text for text in verify(tmp_path / "out").problems)


def rewrite(path: Path, write: Any, content: Any) -> None:
    """Replace a file that is mapped into memory while it is read."""
    new = path.with_suffix(".new")
    with new.open("wb") as stream:
        write(stream, content)
    new.rename(path)


def trust(folder: Path, name: str) -> None:
    """Let the manifest agree with a changed file, so that only its content can be found wrong."""
    from graph_emb.core.storage import sha256_of

    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
