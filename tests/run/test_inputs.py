"""Data of a run: graphs in memory as good as files, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from scipy import sparse

import graph_emb as ge
from graph_emb.compat import dgl as compat_dgl
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph import Graph
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import digest, plain_dataset
from graph_emb.run.inputs import in_memory, with_validation_edges
from tests import ogb_layout

TINY: dict[str, Any] = {"num_walks": 2, "walk_length": 6, "dim": 4, "threads": 1, "evaluate": False}
SRC, DST = np.array([0, 1, 2, 3, 0, 4]), np.array([1, 2, 3, 0, 2, 5])
WEIGHTS = np.array([1.0, 2.5, 0.5, 4.0, 1.5, 3.0], dtype=np.float32)


def dgl_graph() -> Any:
    import torch

    graph = compat_dgl.load().graph((torch.from_numpy(SRC), torch.from_numpy(DST)))
    graph.edata["weight"] = torch.from_numpy(WEIGHTS)
    return graph


def networkx_graph() -> Any:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(6))
    graph.add_weighted_edges_from(zip(SRC.tolist(), DST.tolist(), WEIGHTS.tolist(), strict=True))
    return graph


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": lambda file: str(file),
    "data set": ge.load_dataset,
    "typed graph": ge.read_graph,
    "compressed rows": lambda file: Graph.from_edges(SRC, DST, weights=WEIGHTS, directed=True),
    "dgl": lambda file: dgl_graph(),
    "networkx": lambda file: networkx_graph(),
    "scipy": lambda file: sparse.coo_array((WEIGHTS, (SRC, DST)), shape=(6, 6)),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = zip(SRC.tolist(), DST.tolist(), WEIGHTS.tolist(), strict=True)
    path = tmp_path / "graph.csv"
    path.write_text("src,dst,weight\n" + "".join(f"{s},{d},{w}\n" for s, d, w in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("model", ["deepwalk", "line"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_in_memory_is_trained_as_its_file_is(kind: str, model: str, file: Path) -> None:
    options = {k: v for k, v in TINY.items() if model == "deepwalk" or not k.startswith(("num_walks", "walk"))}
    expected = ge.pipeline(model, file, **options).embeddings
    found = ge.pipeline(model, KINDS[kind](file), **options).embeddings
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.node_ids.tolist() == expected.node_ids.tolist()


def test_the_run_folder_describes_the_graph_and_asks_for_it_again(file: Path, tmp_path: Path) -> None:
    graph = ge.read_graph(file)
    run = ge.pipeline("deepwalk", graph, out=tmp_path / "run", **TINY)
    assert run.config.dataset.name == "in memory: HeteroGraph of 6 nodes and 6 edges"
    config = tmp_path / "run" / "config.yaml"
    with pytest.raises(ConfigError, match=r"this run was of in memory: HeteroGraph .*; give the same graph"):
        ge.pipeline(config=config)
    again = ge.pipeline(config=config, dataset=graph)
    np.testing.assert_array_equal(again.embeddings.weights, run.embeddings.weights)
    assert ge.pipeline(config=config, dataset=file).config.dataset.digest is None
    with pytest.raises(ConfigError, match="is of a graph in memory, not of cora"):
        config_from({"model": "deepwalk", "dataset": {"name": "cora", "digest": "00"}})


def test_a_run_goes_on_with_the_same_graph_only(file: Path, tmp_path: Path) -> None:
    options = {**TINY, "checkpoint": {"every": "1"}, "rule": "adagrad", "epochs": 2, "out": tmp_path / "run"}
    graph = ge.read_graph(file)
    first = ge.pipeline("deepwalk", graph, **options)
    again = ge.pipeline("deepwalk", graph, **options, resume=True, overwrite=True)
    np.testing.assert_array_equal(again.embeddings.weights, first.embeddings.weights)
    graph.edge_data[graph.etypes[0]]["weight"][0] += 1
    with pytest.raises(ConfigError, match=r"dataset\.digest"):
        ge.pipeline("deepwalk", graph, **options, resume=True, overwrite=True)


def test_options_of_the_reader_apply_to_a_graph_in_memory(file: Path) -> None:
    section = config_from({"model": "deepwalk", "dataset": {"name": "x", "self_loops": "drop"}}).dataset
    assert section.read_options() == {"self_loops": "drop"}
    looped = sparse.coo_array((np.ones(3), ([0, 0, 1], [0, 1, 2])), shape=(3, 3))
    kept = ge.pipeline("deepwalk", looped, **TINY).metrics["dataset"]["edges"]
    dropped = ge.pipeline("deepwalk", looped, self_loops="drop", **TINY).metrics["dataset"]["edges"]
    assert (kept, dropped) == (3, 2)


def test_the_digest_sees_every_array_and_not_how_it_was_read(file: Path) -> None:
    data = ge.load_dataset(ge.read_graph(file))
    _, section = in_memory(data)
    assert section["digest"] == digest(ge.load_dataset(ge.read_graph(file)))
    data.graph.counts["self loops dropped"] = 3
    assert digest(data) == section["digest"]
    ((etype, (src, dst)),) = data.graph.edges.items()
    other = replace(data.graph, edges={etype: (src, np.where(dst == 5, 0, dst))})
    assert digest(replace(data, graph=other)) != section["digest"]


@pytest.mark.parametrize("model", ["transe", "rgcn", "metapath2vec"])
def test_typed_graphs_in_memory_reach_their_models(model: str) -> None:
    people, projects = np.arange(12), np.arange(12) % 2
    edges = {("person", "works_on", "project"): (people, projects), ("person", "knows", "person"): (people, people)}
    data = {"label": projects, "train_mask": people < 8, "test_mask": people >= 8}
    graph = ge.read_graph(typed({"person": 12, "project": 2}, edges, {"person": data}))
    options: dict[str, Any] = {"dim": 4, "epochs": 1, "threads": 1, "evaluate": False}
    if model == "metapath2vec":
        options |= {"metapath": "person-project-person", "num_walks": 1, "walk_length": 5}
    found = ge.pipeline(model, graph, **options)
    assert found.metrics["status"] == "finished"
    assert sum(len(table.weights) for table in found.tables.values()) >= 14


def typed(num_nodes: Any, edges: Any, node_data: Any) -> Any:
    from graph_emb.graph.typed import HeteroGraph

    return HeteroGraph(num_nodes, edges, node_data=node_data)


def test_validation_edges_join_graph_and_training_part(tmp_path: Path) -> None:
    ogb_layout.write_collab(tmp_path)
    data = plain_dataset(load_dataset("ogbl-collab", tmp_path))
    joined = with_validation_edges(data)
    assert data.link_split is not None
    assert joined.link_split is not None
    held = data.link_split["valid"]["edge"]
    assert not data.graph.has_edges(*held.T).any()
    assert joined.graph.has_edges(*held.T).all()
    assert joined.graph.num_edges == data.graph.num_edges + len(held)
    before, after = data.graph.edge_weights(), joined.graph.edge_weights()
    assert before is not None
    assert after is not None
    assert after.sum() == before.sum() + len(held)  # the tiny set's validation edges weigh 1 each
    assert len(joined.link_split["train"]["edge"]) == len(data.link_split["train"]["edge"]) + len(held)
    assert joined.link_split["test"] is data.link_split["test"]


def test_validation_edges_are_asked_for_where_there_are_none() -> None:
    with pytest.raises(DataError, match=r"dataset.validation_edges: digits has no validation edges; leave it out"):
        ge.pipeline("deepwalk", "digits", validation_edges="trained on", **TINY)
