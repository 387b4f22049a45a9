"""build: DGL opens what it writes and finds the input in it; what is wrong is refused and leaves nothing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partition
from graph_emb.compat import dgl as compat_dgl
from graph_emb.compat import graphbolt
from graph_emb.core.errors import CompatError, ConfigError, DataError, PartitionError
from graph_emb.graph.typed import HeteroGraph
from partition.verification import verify
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts
from tests.partition.test_partitioned import by_dgl

dgl = compat_dgl.load()
importlib.import_module("dgl.distributed")


def built(graph: HeteroGraph, out: Path, num_parts: int = 2, **options: Any) -> partition.PartitionedGraph:
    return partition.build(graph, out=out, assignment=random_parts(graph, num_parts), **{"report": False, **options})


def check_in_dgl(config: Path, part: int, graph: HeteroGraph, whole: partition.PartitionedGraph) -> dict[str, int]:
    """Every node, edge, column and id of a part as DGL sees it equals the input; returns the inner edges by type."""
    stored, node_feats, edge_feats, book, name, ntypes, etypes = dgl.distributed.load_partition(str(config), part)
    assert (name, ntypes, etypes) == (graph.name, graph.ntypes, graph.etypes)
    assert {k: str(stored.ndata[k].dtype) for k in ("_ID", "inner_node", "part_id")} == {
        "_ID": "torch.int64",
        "inner_node": "torch.uint8",
        "part_id": "torch.int64",
    }
    assert torch.equal(book.nid2partid(stored.ndata[dgl.NID]), stored.ndata["part_id"])
    types, typed = book.map_to_per_ntype(stored.ndata[dgl.NID])
    inner = stored.ndata["inner_node"].bool()
    for t, ntype in enumerate(ntypes):
        rows = typed[inner & (types == t)].numpy()
        expected = graph.node_data.get(ntype, {})
        assert {k for k in node_feats if k.startswith(f"{ntype}/")} == {f"{ntype}/{column}" for column in expected}
        for column, values in expected.items():
            found = node_feats[f"{ntype}/{column}"].numpy()
            assert np.array_equal(found, values[whole.node_map(ntype)[rows]])
    edge_types, edge_typed = book.map_to_per_etype(stored.edata[dgl.EID])
    owned = stored.edata["inner_edge"].bool()
    src, dst = stored.edges(order="eid")
    counts = {}
    for r, etype in enumerate(etypes):
        chosen = edge_types == r
        positions = whole.edge_map(etype)[edge_typed[chosen].numpy()]
        for ends, ntype, original in ((src, etype[0], graph.edges[etype][0]), (dst, etype[2], graph.edges[etype][1])):
            assert set(types[ends[chosen]].tolist()) <= {ntypes.index(ntype)}
            assert np.array_equal(whole.node_map(ntype)[typed[ends[chosen]].numpy()], original[positions])
        own = whole.edge_map(etype)[edge_typed[owned & chosen].numpy()]
        counts[":".join(etype)] = len(own)
        for column, values in graph.edge_data.get(etype, {}).items():
            assert np.array_equal(edge_feats[f"{':'.join(etype)}/{column}"].numpy(), values[own])
    if len(etypes) > 1:
        for data, wanted in ((stored.ndata, types), (stored.edata, edge_types)):
            assert data["_TYPE"].dtype == torch.int32  # in DGL's table of dtypes edge types, of the same key, win
            assert torch.equal(data["_TYPE"], wanted.to(torch.int32))
    return counts


@pytest.mark.parametrize("halo", ["dgl", "inbound"])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_dgl_opens_every_part_and_finds_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, num_parts: int, halo: Any
) -> None:
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")
    graph = make()
    whole = built(graph, tmp_path / "out", num_parts, halo=halo)
    config = tmp_path / "out" / f"{graph.name}.json"
    counts = [check_in_dgl(config, part, graph, whole) for part in range(num_parts)]
    for etype, (src, _) in graph.edges.items():
        assert sum(count[":".join(etype)] for count in counts) == len(src)  # with the ranges: each exactly once
    assert verify(tmp_path / "out", graph).problems == []


def test_dgl_passes_messages_over_the_parts_as_over_the_whole(tmp_path: Path) -> None:
    """DGL's own test of its partitions: the sum over in-neighbours of inner nodes equals the whole graph's."""
    graph = homogeneous()
    src, dst = graph.edges[graph.etypes[0]]
    feat = graph.node_data["_N"]["feat"]
    expected = np.zeros_like(feat)
    np.add.at(expected, dst, feat[src])
    whole = built(graph, tmp_path / "out", 3)
    for part in range(3):
        stored, *_ = dgl.distributed.load_partition(str(whole.config_path), part)
        original = whole.node_map()[stored.ndata[dgl.NID].numpy()]
        stored.ndata["x"] = torch.tensor(feat[original])
        stored.update_all(dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y"))
        inner = stored.ndata["inner_node"].bool().numpy()
        assert np.allclose(stored.ndata["y"].numpy()[inner], expected[original[inner]], atol=1e-6)


@pytest.mark.parametrize("progress", [True, False])
def test_bars_show_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    monkeypatch.setattr("graph_emb.core.terminal.SILENT_S", 0.0)
    monkeypatch.setattr("graph_emb.core.progress.LINE_S", 0.0)
    whole = built(homogeneous(), tmp_path / "out", 2, progress=progress)
    verify(whole.path, progress=progress)
    shown = capsys.readouterr().err
    for text in ("writing the parts", "checksums", "verifying"):
        assert (text in shown) is progress


def test_the_ranges_are_those_of_dgls_book(tmp_path: Path) -> None:
    graph = heterogeneous()
    whole = built(graph, tmp_path / "out", 3)
    book, *_ = dgl.distributed.load_partition_book(str(whole.config_path), 1)
    ids = torch.arange(graph.num_nodes["paper"])
    assert torch.equal(book.nid2partid(ids, "paper"), whole.books["paper"].owner(ids))
    edges = torch.arange(200)
    assert torch.equal(book.eid2partid(edges, graph.etypes[1]), whole.books[graph.etypes[1]].owner(edges))


def test_the_name_and_the_parts_can_be_given(tmp_path: Path) -> None:
    graph = homogeneous()
    whole = built(graph, tmp_path / "out", 2, name="other")
    assert (whole.name, whole.config_path.name, graph.name) == ("other", "other.json", "homo")
    with pytest.raises(ConfigError, match="num_parts is 3 but the assignment has 2 parts"):
        partition.build(graph, 3, out=tmp_path / "b", assignment=random_parts(graph, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "hash"},
        {"balance": ("nodes",)},
        {"tolerance": 0.1},
        {"seed": 99},
        {"method_options": {"passes": 3}},
    ],
)
def test_options_of_methods_are_refused_beside_an_assignment(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect on parts that are given"):
        built(homogeneous(), tmp_path / "out", **options)


@pytest.mark.parametrize(
    "options", [{"balance": ["edges"]}, {"tolerance": 0.5}, {"seed": 1}, {"edge_owner": "source"}, {"num_parts": 3}]
)
@pytest.mark.parametrize("memory", [None, "1GB"])
def test_arguments_are_no_options_of_methods(tmp_path: Path, options: dict[str, Any], memory: str | None) -> None:
    """The option won over the argument in silence, or both together were a TypeError."""
    with pytest.raises(ConfigError, match=rf"method_options: '{next(iter(options))}' is an argument of its own, --"):
        partition.build(
            tmp_path / "g.csv", 2, "hash", out=tmp_path / "out", balance=(), method_options=options, memory=memory
        )


def test_the_files_are_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    graph = heterogeneous()
    for threads in (1, 3):
        options = {"num_threads": threads, "report": False, "edge_owner": "balanced"}
        built(graph, tmp_path / f"{threads}", 3, **options)
    one, three = (sorted(p for p in (tmp_path / name).rglob("*") if p.is_file()) for name in ("1", "3"))
    assert [p.relative_to(tmp_path / "1") for p in one] == [p.relative_to(tmp_path / "3") for p in three]
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in three]


@pytest.mark.parametrize("edge_owner", ["source", "balanced"])
def test_the_report_counts_the_edges_that_the_parts_own(tmp_path: Path, edge_owner: Any) -> None:
    whole = built(homogeneous(), tmp_path / "out", 3, edge_owner=edge_owner, report=True)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["given"]["edges"] == whole.edges.sizes.sum(axis=1).tolist()


@pytest.mark.parametrize("method", ["auto", "multilevel", "hash"])
def test_a_method_makes_the_parts(tmp_path: Path, method: str) -> None:
    graph = homogeneous(400, 3000)
    options: dict[str, Any] = {"balance": ("nodes",), "tolerance": {"nodes": 0.5}} if method == "multilevel" else {}
    whole = partition.build(graph, 3, method, out=tmp_path / "out", seed=5, report=False, **options)
    assert whole.manifest is not None
    assert whole.manifest.made["seed"] == 5
    assert verify(tmp_path / "out", graph).sound


def test_a_taken_place_is_refused_and_replaced_only_when_asked(tmp_path: Path) -> None:
    graph, out = homogeneous(), tmp_path / "out"
    built(graph, out, 2)
    with pytest.raises(ConfigError, match=r"holds a partition; give another --out, or --overwrite"):
        built(graph, out, 3)
    assert built(graph, out, 3, overwrite=True).num_parts == 3
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt, which is no part of the partition"):
        built(graph, out, 2, overwrite=True)


def test_a_folder_of_others_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="holds files but no partition that this library wrote"):
        built(homogeneous(), tmp_path, 2, overwrite=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_parts": None}, ConfigError, "num_parts is missing"),
        ({"num_parts": 0}, ConfigError, "num_parts is 0; it must lie in 1 .. 40"),
        ({"num_parts": 41}, ConfigError, "num_parts is 41; it must lie in 1 .. 40"),
        ({"num_parts": 2, "name": "a/b"}, DataError, "graph name 'a/b'"),
        ({"num_parts": 2, "edge_owner": "target"}, ConfigError, "unknown edge owner 'target'"),
        ({"num_parts": 2, "halo": "all"}, ConfigError, "unknown halo 'all'"),
        ({"num_parts": 2, "reader_options": {"x": 1}}, ConfigError, r"reader_options \['x'\] have no effect"),
    ],
)
def test_wrong_options_leave_nothing(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        partition.build(homogeneous(), out=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["report", "manifest", "timings"])
def test_a_name_of_another_file_is_refused_before_the_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its JSON met report.json or manifest.json after the whole assignment: "File exists"."""
    monkeypatch.setattr("partition.methods.assign", None)
    edges = tmp_path / f"{name}.csv"
    edges.write_text("0,1\n1,2\n2,0\n")
    for memory in (None, "1GB"):
        with pytest.raises(ConfigError, match=rf"graph name '{name}': {name}\.json is another file .* name="):
            partition.build(edges, 2, out=tmp_path / "out", report=False, memory=memory)
    assert list(tmp_path.iterdir()) == [edges]


def test_an_empty_type_with_data_is_refused_unless_allowed(tmp_path: Path) -> None:
    graph = heterogeneous()
    graph.node_data["venue"] = {"name": np.zeros(2)}
    with pytest.raises(PartitionError, match="DGL's servers die"):
        built(graph, tmp_path / "out", 3)
    assert list(tmp_path.iterdir()) == []
    built(graph, tmp_path / "out", 3, allow_empty=True)
    assert verify(tmp_path / "out", graph).sound


def test_graphbolt_is_a_clear_error_where_its_library_is_absent(tmp_path: Path) -> None:
    stub = sys.modules.get("dgl.graphbolt")
    if stub is not None and not isinstance(stub, graphbolt.StubModule):
        pytest.skip("the installed dgl and torch have a working graphbolt")
    with pytest.raises(CompatError, match=f"graphbolt of dgl {dgl.__version__}"):
        built(homogeneous(), tmp_path / "out", 2, graphbolt=True)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The limit on a file's size makes a real write fail half-way, as a full disk does."""
    script = f"""
import resource, signal
import partition
from tests.partition.made_graphs import homogeneous, random_parts
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
graph = homogeneous()
try:
    partition.build(graph, out={str(tmp_path / "out")!r}, assignment=random_parts(graph, 2), report=False)
except OSError as error:
    print("OSError", error.strerror, error.filename)
"""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}  # the cache of compiled code is larger than the limit
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("OSError File too large ")
    assert "part0/graph.dgl" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_public_face_is_functions_whatever_was_imported_first() -> None:
    script = "import partition.building, partition.verification, partition; print(callable(partition.build))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with pytest.raises(AttributeError, match="module 'partition' has no attribute 'bild'"):
        partition.bild  # noqa: B018
    assert set(partition.__all__) <= set(dir(partition))


def test_two_runs_of_a_seed_differ_in_the_timings_alone(tmp_path: Path) -> None:
    """Seconds and peak memory stood in the report, and so its checksum in the manifest: both differed in every run."""
    for name in ("a", "b"):
        partition.build(heterogeneous(), 3, "ldg", out=tmp_path / name, seed=7, tolerance=1.0)
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert {"report.json", "report.html", "manifest.json", "timings.json"} <= {str(file) for file in files}
    told = json.loads((tmp_path / "a" / "timings.json").read_text())
    assert told["assign_seconds"] > 0
    assert told["report_seconds"] > 0
    for file in files:
        same = (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert same or file.name == "timings.json", file
    assert verify(tmp_path / "a").sound
    built(homogeneous(), tmp_path / "a", 2, overwrite=True)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_repartition_moves_everything_along(tmp_path: Path, num_parts: int) -> None:
    graph = heterogeneous()
    partition.build(graph, out=tmp_path / "three", assignment=random_parts(graph, 3), report=False)
    again = partition.repartition(
        tmp_path / "three", num_parts, "random", out=tmp_path / "new", balance=("nodes",), tolerance=1.0, report=False
    )
    assert again.num_parts == num_parts
    assert partition.verify(again.path, graph).problems == []


def test_a_partition_of_dgl_counts_as_an_input_in_its_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = partition.load(by_dgl(homogeneous(), tmp_path / "dgl", 3))
    again = partition.repartition(
        theirs.path, 2, "random", out=tmp_path / "new", balance=("nodes",), tolerance=1.0, report=False
    )
    assert "has no id maps" in caplog.text
    assert partition.verify(again.path, theirs.to_graph()).problems == []
    assert sorted(again.node_map()) == np.arange(40).tolist()


def test_repartition_finds_the_place_of_its_source_taken(tmp_path: Path) -> None:
    graph = homogeneous()
    partition.build(graph, out=tmp_path / "out", assignment=random_parts(graph, 3), report=False)
    with pytest.raises(ConfigError, match="holds a partition"):
        partition.repartition(tmp_path / "out", 2, "random", out=tmp_path / "out")
    again = partition.repartition(
        tmp_path / "out", 2, "random", out=tmp_path / "out", overwrite=True, balance=("nodes",), tolerance=1.0
    )
    assert again.num_parts == 2
    assert partition.verify(again.path, graph).sound
