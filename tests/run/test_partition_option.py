"""``--partition``: trainers take the parts of a partition that was built before, for every model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.config import config_from
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import typed_nodes
from graph_emb.run.family import family_of
from graph_emb.run.parallel import WALKS, Trainers, assigned, policies_for
from partition.assignment import Assignment
from tests.ogb_layout import write_mag
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

NAMES = np.array([f"n{(7 * number) % 40:02}" for number in range(40)])
"""Forty names in another order than their own."""
OWNER = {name: (int(name[1:]) // 5) % 3 for name in NAMES}
"""Three parts of 15, 15 and 10 nodes."""


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    """A ring of names with chords."""
    lines = [f"{NAMES[i]} {NAMES[(i + step) % 40]}\n" for i in range(40) for step in (1, 3)]
    place = tmp_path / "ring.txt"
    place.write_text("".join(lines))
    return place


@pytest.fixture
def triples(tmp_path: Path) -> Path:
    place = tmp_path / "triples"
    place.mkdir()
    lines = [f"{NAMES[i]}\tr{step}\t{NAMES[(i + step) % 40]}\n" for i in range(40) for step in (1, 3)]
    (place / "train.txt").write_text("".join(lines))
    (place / "test.txt").write_text("n01\tr1\tn02\n")
    return place


def built(graph: HeteroGraph, out: Path, owner: dict[str, int] = OWNER) -> Path:
    """The partition of a graph of one node type by the names of its nodes."""
    (ntype,) = graph.num_nodes
    parts = np.array([owner[name] for name in graph.node_ids[ntype].tolist()], np.int32)
    return partition.build(graph, assignment=Assignment({ntype: parts}, 3), out=out, report=False).path


@pytest.fixture
def parts(edges: Path, tmp_path: Path) -> Path:
    return built(read_graph(edges), tmp_path / "parts")


def following(parts: Path, **section: Any) -> Any:
    parallel = {"mode": "collective", "trainers": 2, "partition": str(parts), **section}
    return config_from({"model": "deepwalk", "dataset": "x", "parallel": parallel})


def test_nodes_go_where_their_ids_lie(parts: Path, edges: Path) -> None:
    """The partition was built in one order of nodes, the graph has another."""
    graph = read_graph(edges)
    order = np.random.default_rng(3).permutation(40)
    ids = next(iter(graph.node_ids.values()))[order]
    loops = {("other", "to", "other"): (np.arange(40), np.arange(40))}
    told = HeteroGraph({"other": 40}, loops, node_ids={"other": ids})
    found = assigned(told, following(parts))
    assert found.num_parts == 3
    assert found.parts["other"].tolist() == [OWNER[name] for name in ids]


def test_types_go_by_their_names(tmp_path: Path) -> None:
    graph = HeteroGraph({"a": 4, "b": 3}, {("a", "to", "b"): (np.array([0, 1, 2, 3]), np.array([0, 1, 2, 0]))})
    chosen = {"a": np.array([1, 0, 1, 0], np.int32), "b": np.array([0, 1, 1], np.int32)}
    path = partition.build(graph, assignment=Assignment(chosen, 2), out=tmp_path / "parts", report=False).path
    flat = HeteroGraph({"_N": 7}, {("_N", "to", "_N"): (np.arange(6), np.arange(1, 7))})
    found = assigned(flat, following(path), graph)
    assert found.parts["_N"].tolist() == [1, 0, 1, 0, 0, 1, 1]
    renamed = HeteroGraph({"a": 4, "c": 3}, {("a", "to", "c"): (np.array([0]), np.array([0]))})
    with pytest.raises(ge.ConfigError, match=r"parts: unknown node type 'c'; known: a, b"):
        assigned(renamed, following(path))


def test_a_partition_of_other_nodes_is_refused(parts: Path, tmp_path: Path) -> None:
    names = {"n": np.array(["n00", "x"])}
    fewer = HeteroGraph({"n": 2}, {("n", "to", "n"): (np.array([0]), np.array([1]))}, node_ids=names)
    with pytest.raises(ge.ConfigError, match=r"has 40 nodes .*, the graph 2; it lacks 1 of them, such as x; build"):
        assigned(fewer, following(parts))
    with pytest.raises(ge.ConfigError, match=r"method='metis' has no effect on the parts of partition"):
        following(parts, method="metis")
    with pytest.raises(ge.ConfigError, match="partition has no effect on one process"):
        following(parts, mode="local", trainers=1)
    with pytest.raises(ge.DataError, match="nowhere"):
        assigned(fewer, following(tmp_path / "nowhere"))


def policy_of_a_rank(graph: str, parts: str) -> tuple[list[int], list[str]]:
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        held = read_graph(graph) if transport.rank == 0 else None
        (policy,) = policies_for(Trainers(transport.group, transport), following(Path(parts)), held).values()
        return policy.book.bounds.tolist(), NAMES_SORTED[policy.original_ids.of(0, 40)].tolist()
    finally:
        ge.shutdown()


NAMES_SORTED = np.sort(NAMES)


@pytest.mark.dist
def test_every_rank_knows_the_policy(ranks: Ranks, edges: Path, parts: Path) -> None:
    for bounds, names in ranks.run(policy_of_a_rank, 2, str(edges), str(parts)):
        assert bounds == [0, 15, 30, 40]
        assert [OWNER[name] for name in names] == [0] * 15 + [1] * 15 + [2] * 10


QUICK: dict[str, Any] = {
    "deepwalk": {"dim": 8, "num_walks": 2, "evaluate": False},
    "line": {"dim": 8, "evaluate": False},
    "rotate": {"dim": 8, "epochs": 2, "batch_size": 8, "chunk_size": 4, "num_negatives": 4, "valid_every": 0},
}


def train_on_parts(model: str, data: str, parts: str, options: dict[str, Any]) -> Any:
    parallel = {"mode": "collective", "trainers": 2, "partition": parts}
    result = ge.pipeline(model, data, parallel=parallel, threads=1, **{**QUICK[model], **options})
    if result.embeddings is None:
        return None
    return result.embeddings.node_ids.tolist(), result.embeddings.weights


@pytest.mark.dist
@pytest.mark.parametrize("model", QUICK)
def test_models_train_on_the_parts_and_keep_their_ids(
    ranks: Ranks, edges: Path, triples: Path, parts: Path, model: str
) -> None:
    data = triples if model == "rotate" else edges
    (ids, rows), nothing = ranks.run(train_on_parts, 2, model, str(data), str(parts), {})
    assert sorted(ids) == NAMES_SORTED.tolist()
    assert rows.shape[0] == 40
    assert np.isfinite(rows).all()
    assert nothing is None


def classify_on_parts(root: str, parts: str) -> Any:
    """R-GCN with a partition in memory of its own data."""
    options: dict[str, Any] = {"dim": 8, "hidden_dim": 8, "epochs": 2, "threads": 1}
    parallel = {"mode": "collective", "trainers": 2}
    result = ge.pipeline("rgcn", "ogbn-mag", root=root, parallel=parallel, partition=partition.load(parts), **options)
    tables = {name: (table.node_ids, table.weights) for name, table in result.tables.items()}
    return tables, result.metrics.get("evaluation")


@pytest.mark.dist
def test_graph_networks_train_on_the_parts(ranks: Ranks, tmp_path: Path) -> None:
    write_mag(tmp_path)
    graph = typed_nodes(load_dataset("ogbn-mag", tmp_path), merge_within=True).graph
    parts = partition.build(graph, 3, "hash", out=tmp_path / "parts", report=False).path
    (tables, judged), (nothing, _) = ranks.run(classify_on_parts, 2, str(tmp_path), str(parts))
    assert nothing == {}
    assert "graph_network" in judged
    for name, (ids, rows) in tables.items():
        assert len(ids) == len(rows) == graph.num_nodes[name]
        assert np.isfinite(rows).all()


@pytest.mark.dist
def test_local_negatives_train_other_rows(ranks: Ranks, triples: Path, parts: Path) -> None:
    found = [
        ranks.run(train_on_parts, 2, "rotate", str(triples), str(parts), {"parallel.negatives": scope})[0][1]
        for scope in ("global", "local")
    ]
    assert not np.allclose(*found)


@pytest.mark.usefixtures("warm_starts")
def test_the_command_takes_a_partition(edges: Path, parts: Path, tmp_path: Path, capfd: Any) -> None:
    words = ["train", "deepwalk", "--dataset", str(edges), "--out", str(tmp_path / "run"), "--dim", "8", "--no-eval"]
    assert main([*words, "--partition", str(parts)]) == 2
    assert "partition has no effect on one process" in capfd.readouterr().err
    assert main([*words, "--trainers", "2", "--threads", "1", "--partition", str(parts), "model.num_walks=2"]) == 0
    assert (tmp_path / "run" / "embeddings.npy").is_file()


def nodes_and_cut_of_a_rank(model: str, section: dict[str, Any]) -> tuple[list[int], int]:
    """How many nodes each rank has, and the arcs of this one that lead to another's nodes.

    The graph is a clique of 30 nodes, 30 nodes in a path, and an edge between.
    """
    src, dst = np.triu_indices(30, 1)
    path = np.arange(29, 59)
    edges = np.stack([np.r_[src, path], np.r_[dst, path + 1]], axis=1)
    transport: Any = ge.init(mode="collective", timeout=240)
    try:
        trainers = {"mode": "collective", "trainers": 2, **section}
        config = config_from({"model": model, "dataset": "x", "parallel": trainers})
        graph = Graph.from_edges(edges[:, 0], edges[:, 1], num_nodes=60) if transport.rank == 0 else None
        made = Trainers(transport.group, transport)
        with made.folders:
            share = family_of(config)._share(made, graph)
            bounds = share.policy.book.bounds.numpy()
            low, high = bounds[transport.rank : transport.rank + 2]
            leaving = (share.graph.indices < low) | (share.graph.indices >= high)
            return np.diff(bounds).tolist(), int(leaving.sum())
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_parts_of_walks_share_nodes_evenly_whatever_edges_they_have(ranks: Ranks) -> None:
    """A walk is as much work as another one; of lines of edges each is. A method that is named has its own limits."""
    assert ranks.run(nodes_and_cut_of_a_rank, 2, "deepwalk", {}) == [([30, 30], 1)] * 2
    assert ranks.run(nodes_and_cut_of_a_rank, 2, "node2vec", {}) == [([30, 30], 1)] * 2
    for model, section in (("line", {}), ("deepwalk", {"method": "multilevel"})):
        for _, cut in ranks.run(nodes_and_cut_of_a_rank, 2, model, section):
            assert cut > 100


def test_a_hub_with_most_of_the_edges_is_no_obstacle() -> None:
    star = HeteroGraph({"n": 31}, {("n", "to", "n"): (np.arange(1, 31), np.zeros(30, np.int64))})
    section = {"mode": "collective", "trainers": 3}
    for limits in (None, WALKS):
        found = assigned(star, config_from({"model": "line", "dataset": "x", "parallel": section}), limits=limits)
        assert sorted(np.bincount(found.parts["n"])) == [10, 10, 11]
    named = config_from({"model": "line", "dataset": "x", "parallel": {**section, "method": "multilevel"}})
    with pytest.raises(ge.PartitionError, match="above the limit"):
        assigned(star, named)
