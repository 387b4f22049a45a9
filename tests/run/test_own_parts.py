"""Trainers that read their own parts of a partition: the results of one that reads all, and nothing read whole."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.config import config_from
from graph_emb.graph.datasets import load_dataset, read_source
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import plain_dataset, typed_nodes
from graph_emb.models.gnn import part_rows, trainer
from graph_emb.run import own_parts
from graph_emb.run.families.gnn import GNNFamily
from graph_emb.run.own_parts import message_edges
from graph_emb.run.parallel import Trainers
from partition import PartitionedGraph
from tests.ogb_layout import write_arxiv, write_mag
from tests.ranks import Ranks, raised

pytestmark = [pytest.mark.usefixtures("fresh_mode", "warm_starts"), pytest.mark.dist]

OPTIONS: dict[str, Any] = {"hidden_dim": 8, "num_seeds": 1, "epochs": 3, "eval_every": 1, "threads": 1, "dropout": 0.0}


def typed(**columns: Any) -> HeteroGraph:
    """Papers that cite papers and are written by authors; every third paper is for training."""
    rng, papers, authors = np.random.default_rng(3), 60, 20
    split = np.eye(3, dtype=bool)[np.arange(papers) % 3].T
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), split, strict=True))
    edges = {
        ("paper", "cites", "paper"): (rng.integers(0, papers, 150), rng.integers(0, papers, 150)),
        ("author", "writes", "paper"): (rng.integers(0, authors, 120), rng.integers(0, papers, 120)),
    }
    data = {"label": rng.integers(0, 4, papers), "year": np.arange(papers), **masks, **columns}
    names = np.array([f"a{(7 * n) % authors:02}" for n in range(authors)])
    return HeteroGraph({"paper": papers, "author": authors}, edges, {"paper": data}, node_ids={"author": names})


def turned(graph: HeteroGraph, *names: str) -> HeteroGraph:
    """The graph with the reverses of some types behind them."""
    more = {(t, f"rev_{name}", s): (dst, src) for (s, name, t), (src, dst) in graph.edges.items() if name in names}
    return replace(graph, edges={**graph.edges, **more})


def plain(symmetric: bool = False, weighted: bool = False, **more: Any) -> HeteroGraph:
    """Edges of one type, some of them there twice and in both directions, and loops; weights of 1 and above."""
    rng = np.random.default_rng(5)
    src, dst, weights = rng.integers(0, 50, 300), rng.integers(0, 50, 300), rng.integers(2, 9, 300) / 2
    if symmetric:
        src, dst, weights = np.concatenate([src, dst]), np.concatenate([dst, src]), np.concatenate([weights, weights])
    columns = {("thing", "to", "thing"): {"weight": weights.astype(np.float32)}} if weighted else {}
    names = np.array([f"n{(7 * n) % 50:02}" for n in range(50)])
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), np.eye(3, dtype=bool)[np.arange(50) % 3].T, strict=True))
    data = {"thing": {"label": rng.integers(0, 3, 50), **masks, "feat": rng.random((50, 5), np.float32)}}
    edges = {("thing", "to", "thing"): (src, dst)}
    return HeteroGraph({"thing": 50}, edges, data, columns, {"thing": names}, symmetric=symmetric, **more)


GRAPHS = {
    "typed": typed(),
    "features": typed(feat=np.random.default_rng(0).random((60, 6))),
    "several classes": typed(label=(np.random.default_rng(1).random((60, 3)) < 0.5).astype(np.uint8)),
    "one class in a matrix": typed(label=np.eye(4, dtype=np.uint8)[np.arange(60) % 4]),
    "reverses": turned(typed(), "cites", "writes"),
    "a reverse": turned(typed(), "writes"),
    "plain": plain(),
    "symmetric": plain(symmetric=True),
}


def built(folder: Path, graph: HeteroGraph, **options: Any) -> str:
    return str(partition.build(graph, 3, "random", seed=2, out=folder / "parts", report=False, **options).path)


def read_by(folder: str, merge_within: bool) -> Any:
    """Each type's (source, destination, number) of the edges that a rank holds, by original numbers, in its order."""
    transport: Any = ge.init(mode="collective")
    try:
        parts = partition.load(folder)
        own = message_edges(parts, Trainers(transport.group, transport), merge_within=merge_within)
        maps = dict(zip(own.ntypes, map(parts.node_map, parts.ntypes), strict=True))
        found = {}
        for etype, edges in own.edges.items():
            ends = maps[etype[0]][edges.sources], own.names[etype[2]].numpy()[edges.destinations]
            found[etype] = np.stack([*ends, edges.edge_ids])
        return found
    finally:
        ge.shutdown()


@pytest.mark.parametrize("merge_within", [False, True])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_shares_are_the_messages_of_the_whole_graph(
    ranks: Ranks, tmp_path: Path, kind: str, num_ranks: int, merge_within: bool
) -> None:
    """Types in their order, each edge once, and neighbours of a node in the order that samples follow from."""
    folder = built(tmp_path, GRAPHS[kind])
    expected = typed_nodes(load_dataset(folder), merge_within=merge_within).graph
    found = ranks.run(read_by, num_ranks, folder, merge_within)
    for shares in found:
        assert list(shares) == list(expected.edges)
    for etype, (src, dst) in expected.edges.items():
        together = np.concatenate([shares[etype] for shares in found], axis=1)
        by_node = together[:, np.argsort(together[1], kind="stable")]
        order = np.argsort(dst, kind="stable")
        np.testing.assert_array_equal(by_node[:2], np.stack([src, dst])[:, order])
        if len(expected.ntypes) > 1:
            np.testing.assert_array_equal(by_node[2], order)
        else:
            assert sorted(by_node[2]) == list(range(len(src)))


def test_a_type_with_the_name_of_a_reverse_and_other_edges_is_none(ranks: Ranks, tmp_path: Path) -> None:
    graph = turned(typed(), "writes")
    src, dst = graph.edges["paper", "rev_writes", "author"]
    other = {**graph.edges, ("paper", "rev_writes", "author"): (src, np.roll(dst, 1))}
    folder = built(tmp_path, replace(graph, edges=other))
    errors = "".join(ranks.run(raised, 2, read_by, folder, False))
    assert "edge type paper:rev_writes:author is in the data already" in errors


def run_of(result: Any) -> Any:
    tables = {name: (table.node_ids.tolist(), table.weights) for name, table in result.tables.items()}
    return tables, result.metrics.get("evaluation"), result.metrics.get("dataset")


def refuse(*args: Any, **options: Any) -> Any:
    raise AssertionError("a trainer reads the whole partition")


def train_both(model: str, graph: Any, parts: str, options: dict[str, Any], piece: int = 7) -> Any:
    """Of the data set by the partition, which the first rank reads whole, and of the partition alone.

    Some nodes have more edges than ``piece``, those that an evaluation takes at a time; graphs of many types take more.
    """
    parallel = {"mode": "collective", "trainers": 2, "hogwild": False}
    first = ge.pipeline(model, graph, parallel={**parallel, "partition": parts}, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionedGraph, "to_graph", refuse)
        patch.setattr(own_parts, "EDGES_AT_ONCE", 7)
        patch.setattr(part_rows, "EDGES_AT_ONCE", piece)
        patch.setattr(trainer, "CHUNK_ROWS", 7)
        second = ge.pipeline(model, parts, parallel=parallel, **options)
    return run_of(first), run_of(second)


def assert_same(found: Any, expected: Any) -> None:
    for (name, (ids, rows)), (other, (other_ids, other_rows)) in zip(
        found[0].items(), expected[0].items(), strict=True
    ):
        assert (name, ids) == (other, other_ids)
        np.testing.assert_array_equal(rows, other_rows)
    assert json.dumps(without_times(found[1])) == json.dumps(without_times(expected[1]))
    assert {**found[2], "name": ""} == {**expected[2], "name": ""}


def without_times(scores: Any) -> Any:
    if isinstance(scores, dict):
        # Degrees are known where a process has the whole graph.
        return {key: without_times(v) for key, v in scores.items() if "seconds" not in key and key != "by_degree"}
    return [without_times(value) for value in scores] if isinstance(scores, list) else scores


@pytest.mark.parametrize(
    ("model", "kind", "options"),
    [
        ("rgcn", "typed", {"fanouts": (3, 3), "batch_size": 8}),
        ("rgcn", "features", {"fanouts": (3, 3), "batch_size": 8}),
        ("rgcn", "features", {"features": False}),
        ("rgcn", "typed", {"inputs": "hash", "num_buckets": 9, "own_rows": 7, "dim": 8}),
        ("rgcn", "several classes", {}),
        ("rgcn", "one class in a matrix", {}),
        ("rgcn", "reverses", {"inputs": "basis", "num_bases": 2}),
        ("sage", "plain", {"features": False, "fanouts": (2, 2), "num_layers": 2}),
        ("sage", "symmetric", {"features": False, "batch_size": 5}),
        ("rgcn", "plain", {"features": False}),
    ],
)
def test_two_trainers_learn_what_they_learn_where_the_first_reads_all(
    ranks: Ranks, tmp_path: Path, model: str, kind: str, options: dict[str, Any]
) -> None:
    graph = GRAPHS[kind]
    folder = built(tmp_path, graph)
    source, width = ge.read_graph(folder), {} if "inputs" in options else {"dim": 8}
    piece = 7 if len(graph.edges) == 1 else 40
    both, _ = ranks.run(train_both, 2, model, source, folder, {**OPTIONS, "epochs": 2, **width, **options}, piece)
    assert_same(both[1], both[0])


def train_by_levels(source: Any, levels: Any, options: dict[str, Any], **parallel: Any) -> Any:
    """A network whose inputs are rows of parts alone, so that its rows tell the levels; and the levels kept."""
    inputs = {"dim": 8, "inputs": "position", "model.levels": levels, "eval_every": 3}
    given: dict[str, Any] = {**OPTIONS, **options, **inputs}
    result = ge.pipeline("rgcn", source, parallel=parallel, **given)
    kept = getattr(result.config.model, "levels", None)
    return {name: table.weights for name, table in result.tables.items()}, kept


def train_by_levels_in_turn(folder: str, levels: Any, options: dict[str, Any], graph: Any) -> Any:
    """From the partition alone, from its data set beside it, and from the data set cut for the trainers."""
    both = {"mode": "collective", "trainers": 2}
    own = train_by_levels(folder, levels, options, **both)
    beside = train_by_levels(graph, levels, options, **both, partition=folder)
    return own, beside, train_by_levels(graph, (3, 9), options, **both)


@pytest.mark.parametrize("kind", ["typed", "plain"])
def test_levels_do_not_depend_on_the_number_of_trainers(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    """One process cut its own by ``model.levels`` where two trainers took those of the partition."""
    folder, options = built(tmp_path, GRAPHS[kind], levels=[3, 6]), {"features": False}
    graph = ge.read_graph(folder)
    alone, cut = train_by_levels(folder, None, options), train_by_levels(graph, (3, 9), options)
    (own, beside, cut_of_two), _ = ranks.run(train_by_levels_in_turn, 2, folder, None, options, graph)
    assert (alone[1], own[1], beside[1]) == ((3, 6),) * 3
    assert cut[1] == cut_of_two[1] == (3, 9)
    for name, rows in alone[0].items():
        assert len(np.unique(rows.round(5), axis=0)) <= 6
        for found in (own, beside):
            np.testing.assert_allclose(found[0][name], rows, rtol=0, atol=2e-3)
        np.testing.assert_allclose(cut_of_two[0][name], cut[0][name], rtol=0, atol=2e-3)
        assert np.abs(rows - cut[0][name]).max() > 0.1


def test_levels_that_the_partition_lacks_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    folder = built(tmp_path, GRAPHS["plain"], levels=[3, 6])
    expected = r"model.levels = \[4, 8\]: the partition .*parts has the levels \[3, 6\]; leave it out, or change them"
    with pytest.raises(ge.ConfigError, match=expected):
        train_by_levels(folder, (4, 8), {"features": False})
    given = (4, 8), {"features": False}, GRAPHS["plain"]
    errors = "".join(ranks.run(raised, 2, train_by_levels_in_turn, folder, *given))
    assert re.search(expected, errors), errors
    bare = built(tmp_path / "bare", GRAPHS["plain"])
    errors = "".join(ranks.run(raised, 2, train_by_levels_in_turn, bare, *given))
    assert re.search(r"has no levels, and no trainer .* partition.refine\(.*, \[4, 8\]\)", errors), errors


@pytest.mark.parametrize(
    ("model", "graph", "options"),
    [
        ("deepwalk", {}, {}),
        ("deepwalk", {"symmetric": True}, {}),
        ("node2vec", {"weighted": True}, {"p": 0.5, "q": 2.0}),
        ("node2vec", {"weighted": True, "repeats": "sum"}, {}),
        ("line", {"weighted": True, "symmetric": True}, {}),
        ("line", {}, {"model.duplicates": "sum"}),
    ],
)
def test_two_trainers_walk_as_where_the_first_reads_all(
    ranks: Ranks, tmp_path: Path, model: str, graph: dict[str, Any], options: dict[str, Any]
) -> None:
    """The same neighbours with the same weights, merged as those of the whole graph are."""
    folder = built(tmp_path, plain(**graph))
    few = {"draws_per_edge": 2} if model == "line" else {"num_walks": 2}
    both, _ = ranks.run(train_both, 2, model, ge.read_graph(folder), folder, {"threads": 1, "dim": 8, **few, **options})
    assert_same(both[1], both[0])


@pytest.mark.parametrize("model", ["deepwalk", "node2vec"])
def test_two_trainers_begin_with_the_rows_of_their_parts(ranks: Ranks, tmp_path: Path, model: str) -> None:
    """Each makes the graph of the parts of its own nodes, whether it has read them itself or was given them."""
    folder = built(tmp_path, plain(weighted=True), levels=[3, 12])
    options = {"threads": 1, "dim": 8, "num_walks": 2, "model.multilevel": True}
    both, _ = ranks.run(train_both, 2, model, ge.read_graph(folder), folder, options)
    assert_same(both[1], both[0])
    flat, _ = ranks.run(train_both, 2, model, ge.read_graph(folder), folder, {**options, "model.multilevel": False})
    assert np.abs(flat[0][0]["node"][1] - both[0][0]["node"][1]).max() > 0.1


def train_with_files(folder: str, labels: str, split: str) -> Any:
    dataset = {"name": folder, "labels": labels, "split": split, "label_type": "author"}
    parallel = {"mode": "collective", "trainers": 2}
    options: dict[str, Any] = {**OPTIONS, "dim": 8, "dataset": dataset}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionedGraph, "to_graph", refuse)
        return run_of(ge.pipeline("rgcn", parallel=parallel, **options))


def test_labels_of_a_file_are_of_nodes_by_their_ids(ranks: Ranks, tmp_path: Path) -> None:
    graph = typed()
    names = graph.node_ids["author"]
    labels, split = tmp_path / "labels.csv", tmp_path / "split.csv"
    labels.write_text("node,label\n" + "".join(f"{name},{int(name[1:]) % 2}\n" for name in names))
    words = ("train", "valid", "test")
    split.write_text("node,split\n" + "".join(f"{name},{words[n % 3]}\n" for n, name in enumerate(names)))
    folder = built(tmp_path, graph)
    (tables, judged, _), _ = ranks.run(train_with_files, 2, folder, str(labels), str(split))
    assert sorted(tables["author"][0]) == sorted(names.tolist())
    dataset = {"name": folder, "labels": str(labels), "split": str(split), "label_type": "author"}
    alone = run_of(ge.pipeline("rgcn", dataset=dataset, **OPTIONS, dim=8))
    assert judged["graph_network"]["seeds"] == alone[1]["graph_network"]["seeds"]
    np.testing.assert_allclose(tables["author"][1], alone[0]["author"][1], rtol=0, atol=2e-3)


@pytest.mark.parametrize(("model", "kind"), [("rgcn", "features"), ("deepwalk", "plain")])
def test_trainers_beside_servers_read_their_own_parts(tmp_path: Path, model: str, kind: str) -> None:
    folder, run = built(tmp_path, GRAPHS[kind]), tmp_path / "run"
    words = ["train", model, "--dataset", folder, "--out", str(run), "--dim", "8", "--threads", "1"]
    words += ["model.hidden_dim=8", "train.epochs=2"] if model == "rgcn" else ["model.num_walks=2"]
    assert main([*words, "--mode", "kvstore", "--trainers", "2"]) == 0
    found = json.loads((run / "metrics.json").read_text())
    expected = 540 if model == "rgcn" else load_plain(folder).num_edges
    assert (found["status"], found["dataset"]["edges"]) == ("finished", expected)
    name = "graph_network" if model == "rgcn" else "split_accuracy"
    assert found["evaluation"][name]


def load_plain(folder: str) -> Any:
    return plain_dataset(load_dataset(folder)).graph


def train_edges_of_sources(folder: str) -> Any:
    return run_of(ge.pipeline("rgcn", folder, parallel={"mode": "collective", "trainers": 2}, **OPTIONS, dim=8))


def test_edges_that_lie_with_their_sources_are_read_by_the_first(ranks: Ranks, tmp_path: Path) -> None:
    folder = built(tmp_path, GRAPHS["typed"], edge_owner="source")
    (tables, _, described), _ = ranks.run(train_edges_of_sources, 2, folder)
    assert described["edges"] == 540  # with their reverses
    assert len(tables["author"][0]) == 20


def test_without_labels_the_error_says_what_to_do(tmp_path: Path) -> None:
    graph = replace(typed(), node_data={})
    folder = built(tmp_path, graph)
    config = config_from({"model": "rgcn", "dataset": folder, "parallel": {"mode": "collective", "trainers": 2}})
    with pytest.raises(ge.GraphEmbError, match=r"has no labels; node classification needs labels and a split"):
        GNNFamily(config).load()


@pytest.mark.parametrize("data", ["ogbn-arxiv", "ogbn-mag"])
def test_ogb_by_parts(ranks: Ranks, tmp_path: Path, data: str) -> None:
    write_arxiv(tmp_path)
    write_mag(tmp_path)
    out = tmp_path / "parts"
    partition.build(read_source(data, tmp_path), 2, "hash", out=out, report=False)
    model = "sage" if data == "ogbn-arxiv" else "rgcn"
    options = {**OPTIONS, "epochs": 2, "dim": 8, **({"features": False} if model == "sage" else {})}
    both, _ = ranks.run(train_both, 2, model, ge.read_graph(out), str(out), options, 40)
    assert_same(both[1], both[0])
