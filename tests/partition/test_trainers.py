"""``num_trainers_per_machine`` and ``graph_formats``: what DGL reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partition
from graph_emb.core.errors import ConfigError
from partition import cli
from partition.methods import assign
from tests.partition.made_graphs import HELD, WRITES, heterogeneous, homogeneous, random_parts


def opened(folder: Path, part: int) -> tuple[Any, ...]:
    """DGL's graph, node data, edge data and book of a part."""
    from graph_emb.compat.dgl import load

    dgl = load()
    return dgl.distributed.load_partition(str(partition.load(folder).config_path), part)[:4]


@pytest.mark.parametrize("method", ["multilevel", "random"])
def test_pieces_of_a_part_are_what_the_method_makes_of_as_many_parts(method: str, tmp_path: Path) -> None:
    graph = homogeneous(400, 2000)
    made = partition.build(graph, 2, method, out=tmp_path / "p", num_trainers_per_machine=3)
    pieces = assign(graph, 6, method)
    trainers = pieces.parts["_N"]
    assert np.array_equal(made.assignment().parts["_N"], trainers // 3)
    original = made.node_map("_N")
    for part in range(2):
        dgl_graph, nodes, edges, _ = opened(tmp_path / "p", part)
        own = dgl_graph.ndata["inner_node"].bool()
        ids = dgl_graph.ndata["_ID"][own].numpy()
        assert nodes["_N/trainer_id"].dtype is torch.int64
        assert np.array_equal(nodes["_N/trainer_id"].numpy(), trainers[original[ids]])
        inner = dgl_graph.edata["inner_edge"].bool()
        ends = dgl_graph.ndata["_ID"][dgl_graph.edges()[1][inner]].numpy()
        assert np.array_equal(edges["_N:_E:_N/trainer_id"].numpy(), trainers[original[ends]])
    assert partition.verify(tmp_path / "p", graph).problems == []
    assert "3 trainers in each part" in made.manifest.made["why"]
    assert made.manifest.made["balance"]["nodes"] == pytest.approx(np.bincount(trainers // 3).max() * 2 / 400, abs=1e-6)


def test_dgl_splits_nodes_by_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import graph_emb.compat.dgl as compat

    dgl = compat.load()
    from dgl.distributed import dist_graph

    partition.build(homogeneous(400, 2000), 2, "multilevel", out=tmp_path / "p", num_trainers_per_machine=2)
    monkeypatch.setattr(dist_graph.role, "get_num_trainers", lambda: 4)
    parts = [opened(tmp_path / "p", part) for part in range(2)]
    trainers = torch.cat([nodes["_N/trainer_id"] for _, nodes, _, _ in parts])
    found = []
    for rank in range(4):
        own = dgl.distributed.node_split(
            torch.ones(400, dtype=torch.bool), parts[rank // 2][3], rank=rank, node_trainer_ids=trainers
        )
        assert (trainers[own] == rank).double().mean() > 0.85
        found.append(own)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(400))


def test_an_edge_of_a_source_is_its_sources_trainers(tmp_path: Path) -> None:
    graph = heterogeneous()
    options = {"num_trainers_per_machine": 2, "edge_owner": "source"}
    made = partition.build(graph, 3, "random", out=tmp_path / "p", **options)
    back = made.to_graph()
    assert np.array_equal(
        back.edge_data[WRITES]["trainer_id"], back.node_data["author"]["trainer_id"][graph.edges[WRITES][0]]
    )
    # two venues for three parts: DGL's servers would die of a part with data of no rows
    assert "trainer_id" not in back.node_data.get("venue", {})
    assert "trainer_id" not in back.edge_data.get(HELD, {})
    again = partition.repartition(tmp_path / "p", 2, out=tmp_path / "q")
    assert "trainer_id" not in again.to_graph().node_data.get("paper", {})


@pytest.mark.parametrize("formats", ["csc", ("csr", "coo"), ("csc", "csr", "coo")])
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_dgl_finds_the_formats_of_the_edges(make: Any, formats: Any, tmp_path: Path) -> None:
    graph = make()
    # edges into a node that other parts own come last, whatever their type
    options: dict[str, Any] = {"assignment": random_parts(graph, 2), "edge_owner": "source"}
    plain = partition.build(graph, out=tmp_path / "coo", **options)
    made = partition.build(graph, out=tmp_path / "p", graph_formats=formats, **options)
    names = {formats} if isinstance(formats, str) else set(formats)
    for part in range(2):
        expected, got = opened(tmp_path / "coo", part)[0], opened(tmp_path / "p", part)[0]
        assert expected.formats()["created"] == ["coo"]
        assert set(got.formats()["created"]) == names
        for side, ends in zip(expected.edges(order="eid"), got.edges(order="eid"), strict=True):
            assert torch.equal(side, ends)
        rows, stored = plain.part(part).graph, made.part(part).graph
        assert np.array_equal(rows.src, stored.src)
        assert np.array_equal(rows.dst, stored.dst)
        for form in names - {"coo"} if make is heterogeneous else ():
            starts, _, edges = got.adj_tensors(form)
            types = got.edata["_TYPE"][edges]
            for low, high in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
                assert (types[low:high].diff() >= 0).all()
    assert partition.verify(tmp_path / "p", graph).problems == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trainers_per_machine": 0}, "num_trainers_per_machine is 0; it must be an integer of at least 1"),
        ({"num_trainers_per_machine": 2.0}, "num_trainers_per_machine is 2.0"),
        ({"num_trainers_per_machine": 2, "edge_owner": "balanced"}, "edge_owner='balanced' gives it to neither"),
        ({"num_trainers_per_machine": 2, "memory": "1GB"}, "num_trainers_per_machine=2 needs the whole graph"),
        ({"num_trainers_per_machine": 30}, "2 parts of 30 trainers are 60 pieces of 40 nodes"),
        ({"graph_formats": "csx"}, "unknown graph format 'csx'.*did you mean"),
        ({"graph_formats": ()}, "graph_formats is empty"),
        ({"graph_formats": ["csc"], "memory": "1GB"}, r"graph_formats=\['csc'\] needs the whole graph"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        partition.build(homogeneous(), 2, out=tmp_path / "p", **options)
    assert list(tmp_path.iterdir()) == []


def test_trainers_of_parts_that_are_given_are_refused(tmp_path: Path) -> None:
    graph = homogeneous()
    with pytest.raises(ConfigError, match="num_trainers_per_machine has no effect on parts that are given"):
        partition.build(graph, assignment=random_parts(graph, 2), out=tmp_path / "p", num_trainers_per_machine=2)


def test_the_command_has_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = tmp_path / "g.csv"
    edges.write_text("src,dst\n" + "".join(f"{i},{(i + 1) % 9}\n" for i in range(9)))
    words = ["build", str(edges), "--parts", "1", "--trainers-per-machine", "3", "--graph-formats", "csc,coo"]
    assert cli.main([*words, "--out", str(tmp_path / "p")]) == 0
    graph, nodes, _, _ = opened(tmp_path / "p", 0)
    assert set(graph.formats()["created"]) == {"coo", "csc"}
    assert sorted(nodes["_N/trainer_id"].unique().tolist()) == [0, 1, 2]
    assert cli.main([*words[:-1], "csz", "--out", str(tmp_path / "q")]) == 2
    assert "unknown graph format 'csz'" in capsys.readouterr().err
