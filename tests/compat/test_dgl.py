"""What graph_emb needs of DGL, on whichever DGL is installed (1.1.3 and 2.1.0 are both tested)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from graph_emb.compat import dgl as compat_dgl
from graph_emb.compat import graphbolt
from graph_emb.core.errors import CompatError
from tests.compat.test_prepare import run_python

dgl = compat_dgl.load()
HAS_GRAPHBOLT_FOLDER = Version(dgl.__version__) >= Version("2.0")


@pytest.fixture
def ring() -> Any:
    """Six nodes in a ring, both directions: 12 arcs."""
    around = torch.arange(6)
    onward = (around + 1) % 6
    graph = dgl.graph((torch.cat([around, onward]), torch.cat([onward, around])))
    graph.ndata["x"] = torch.arange(6.0)
    return graph


def are_neighbours(first: torch.Tensor, second: torch.Tensor) -> bool:
    gap = (first - second).abs()
    return bool(((gap == 1) | (gap == 5)).all())


# --- versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "dgl_version", "torch_version", "problem"),
    [
        ("3.12.1", "1.1.3", "2.13.0+cpu", "dgl 1.x has no build for Python 3.12"),
        ("3.13.0", "2.1.0", "2.13.0+cpu", "no common build for this Python"),
        ("3.9.18", "1.1.3", "2.13.0+cpu", "no common build for this Python"),
        ("3.11.7", "0.9.1", "2.13.0+cpu", "older than 1.0"),
        ("3.11.7", "1.1.3", "2.3.1", "torch is older than 2.4"),
    ],
)
def test_an_impossible_combination_names_itself_and_what_works(
    python: str, dgl_version: str, torch_version: str, problem: str
) -> None:
    with pytest.raises(CompatError) as caught:
        compat_dgl.check_versions(python=python, dgl=dgl_version, torch=torch_version)
    message = str(caught.value)
    assert message.startswith(f"Python {python}, dgl {dgl_version}, torch {torch_version}: ")
    assert problem in message
    assert "Python 3.12 with dgl 2.1.0" in message


@pytest.mark.parametrize(
    ("python", "dgl_version"), [("3.10.0", "1.1.3"), ("3.11.7", "1.1.3"), ("3.11.7", "2.1.0"), ("3.12.9", "2.1.0")]
)
def test_the_tested_combinations_pass(python: str, dgl_version: str) -> None:
    compat_dgl.check_versions(python=python, dgl=dgl_version, torch="2.13.0+cpu")
    compat_dgl.check_versions(python=python, dgl=dgl_version, torch="2.4.0")


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DGLBACKEND", "tensorflow")
    with pytest.raises(CompatError, match="DGLBACKEND is 'tensorflow'"):
        compat_dgl.load()


def test_an_absent_dgl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompatError, match=r"dgl is not installed; run: pip install dgl=="):
        compat_dgl.load()


def test_a_failing_import_keeps_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(CompatError, match=r"`import dgl` fails \(ModuleNotFoundError: .*; works: Python") as caught:
        compat_dgl.load()
    assert isinstance(caught.value.__cause__, ImportError)


# --- features ---------------------------------------------------------------------------------------------


def test_a_graph_keeps_edges_and_features(ring: Any) -> None:
    assert (ring.num_nodes(), ring.num_edges()) == (6, 12)
    assert ring.has_edges_between(5, 0)
    assert ring.in_degrees().tolist() == [2] * 6
    typed = dgl.heterograph({("user", "buys", "item"): ([0, 1], [1, 2])})
    assert dgl.to_homogeneous(typed).num_nodes() == 2 + 3


def test_random_walks_step_to_neighbours(ring: Any) -> None:
    walks, kinds = dgl.sampling.random_walk(ring, torch.arange(6), length=5)
    assert walks.shape == (6, 6)
    assert walks[:, 0].tolist() == list(range(6))
    assert are_neighbours(walks[:, :-1], walks[:, 1:])
    assert kinds.tolist() == [0] * 6


def test_weighted_walks_follow_the_only_possible_edge(ring: Any) -> None:
    source, target = ring.edges()
    ring.edata["p"] = (target == (source + 1) % 6).float()
    walks, _ = dgl.sampling.random_walk(ring, torch.tensor([2]), length=4, prob="p")
    assert walks.tolist() == [[2, 3, 4, 5, 0]]


def test_node2vec_walks_step_to_neighbours(ring: Any) -> None:
    walks = dgl.sampling.node2vec_random_walk(ring, torch.arange(6), p=0.5, q=2.0, walk_length=5)
    assert walks.shape == (6, 6)
    assert are_neighbours(walks[:, :-1], walks[:, 1:])


@pytest.mark.parametrize("workers", [0, 1])
def test_neighbour_sampling_gives_blocks(ring: Any, workers: int) -> None:
    sampler = dgl.dataloading.MultiLayerNeighborSampler([1, 2])
    loader = dgl.dataloading.DataLoader(ring, torch.arange(6), sampler, batch_size=3, num_workers=workers)
    seen = []
    for _, output_nodes, blocks in loader:
        seen += output_nodes.tolist()
        assert [block.in_degrees().tolist() for block in blocks[1:]] == [[2, 2, 2]]
        assert blocks[0].in_degrees().max() == 1
    assert seen == list(range(6))


def test_edge_sampling_gives_negatives(ring: Any) -> None:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([2]), negative_sampler=dgl.dataloading.negative_sampler.Uniform(3)
    )
    batches = list(dgl.dataloading.DataLoader(ring, torch.arange(12), sampler, batch_size=4))
    assert [(positive.num_edges(), negative.num_edges()) for _, positive, negative, _ in batches] == [(4, 12)] * 3


@pytest.mark.parametrize("regularizer", ["basis", "bdd", None])
def test_relational_convolution_passes_gradients(ring: Any, regularizer: str | None) -> None:
    bases = 2 if regularizer else None
    layer = dgl.nn.RelGraphConv(4, 4, 3, regularizer=regularizer, num_bases=bases)
    features = torch.ones(6, 4, requires_grad=True)
    out = layer(ring, features, torch.arange(12) % 3)
    out.sum().backward()
    assert out.shape == (6, 4)
    assert features.grad is not None
    assert features.grad.abs().sum() > 0
    assert all(weight.grad is not None for weight in layer.parameters())


def test_relational_convolution_sums_what_arrives() -> None:
    layer = dgl.nn.RelGraphConv(1, 1, 2, bias=False, self_loop=False)
    with torch.no_grad():
        layer.linear_r.W.copy_(torch.tensor([[[2.0]], [[10.0]]]))
    graph = dgl.graph(([0, 1], [2, 2]))
    out = layer(graph, torch.tensor([[3.0], [5.0], [0.0]]), torch.tensor([0, 1]))
    assert out.flatten().tolist() == [0.0, 0.0, 2 * 3 + 10 * 5]


def test_graphs_survive_a_file(ring: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "ring.bin")
    dgl.save_graphs(path, [ring], {"y": torch.tensor([7])})
    (back,), labels = dgl.load_graphs(path)
    assert torch.equal(torch.stack(back.edges()), torch.stack(ring.edges()))
    assert torch.equal(back.ndata["x"], ring.ndata["x"])
    assert labels["y"].tolist() == [7]


@pytest.mark.parametrize("method", ["metis", "random"])
def test_a_partitioned_graph_loads_back_whole(ring: Any, tmp_path: Path, method: str) -> None:
    dgl.seed(0)  # a random part without nodes would be a KeyError in DGL
    node_map, edge_map = dgl.distributed.partition_graph(
        ring, "ring", 2, str(tmp_path), part_method=method, return_mapping=True
    )
    config = tmp_path / "ring.json"
    features = torch.empty(6)
    owned_edges = 0
    for part in range(2):
        graph, node_feats, _, book, name, node_types, edge_types = dgl.distributed.load_partition(str(config), part)
        inner = graph.ndata["inner_node"].bool()
        owned_edges += int(graph.edata["inner_edge"].sum())
        features[graph.ndata[dgl.NID][inner]] = node_feats["_N/x"]
        assert (name, node_types, edge_types) == ("ring", ["_N"], [("_N", "_E", "_N")])
        assert book.num_partitions() == 2
    assert torch.equal(features, node_map.float())  # row i of the relabelled graph is node node_map[i]
    assert owned_edges == 12
    assert sorted(edge_map.tolist()) == list(range(12))
    assert json.loads(config.read_text())["num_parts"] == 2


def test_partition_policies_place_nodes_and_edges(ring: Any, tmp_path: Path) -> None:
    dgl.distributed.partition_graph(ring, "ring", 2, str(tmp_path), part_method="metis")
    book, *_ = dgl.distributed.load_partition_book(str(tmp_path / "ring.json"), 0)
    books = dgl.distributed.graph_partition_book
    node, edge = books.NodePartitionPolicy(book), books.EdgePartitionPolicy(book)
    assert (node.policy_str, edge.policy_str) == ("node~_N", "edge~_N:_E:_N")
    assert (node.get_size(), edge.get_size()) == (6, 12)
    assert node.to_partid(torch.arange(6)).tolist() == [0, 0, 0, 1, 1, 1]
    assert int(edge.to_partid(torch.arange(12)).sum()) == 6


@pytest.mark.skipif(not HAS_GRAPHBOLT_FOLDER, reason="dgl 1.x has no graphbolt")
def test_asking_for_graphbolt_is_a_clear_error(ring: Any, tmp_path: Path) -> None:
    import dgl.graphbolt as gb

    if not isinstance(gb, graphbolt.StubModule):
        pytest.skip("the installed dgl and torch have a working graphbolt")
    with pytest.raises(CompatError, match=r"use dgl\.dataloading and dgl\.sampling instead"):
        dgl.distributed.partition_graph(ring, "ring", 1, str(tmp_path), part_method="random", use_graphbolt=True)


@pytest.mark.skipif(HAS_GRAPHBOLT_FOLDER, reason="dgl 2.x has graphbolt")
def test_dgl_1_has_no_graphbolt_to_stand_in_for() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dgl\.graphbolt'"):
        __import__("dgl.graphbolt")


STANDALONE = """
import os, sys, warnings, torch, graph_emb
from graph_emb.compat.dgl import load
dgl = load()
out = sys.argv[1]
graph = dgl.graph(([0, 1, 2, 3], [1, 2, 3, 0]))
graph.ndata["x"] = torch.arange(4.0)
dgl.distributed.partition_graph(graph, "ring", 1, out, part_method="random")
os.environ["DGL_DIST_MODE"] = "standalone"
dgl.distributed.initialize("unused.txt")
whole = dgl.distributed.DistGraph("ring", part_config=f"{out}/ring.json")
policy = whole.get_node_partition_policy("_N")
def ones(shape, dtype):
    return torch.ones(shape, dtype=dtype)
table = dgl.distributed.DistEmbedding(4, 2, name="table", init_func=ones, part_policy=policy)
rows = table(torch.tensor([1, 1, 3]))
rows.sum().backward()
loader = dgl.dataloading.DistNodeDataLoader(
    whole, torch.arange(4), dgl.dataloading.NeighborSampler([1]), batch_size=2)
print("RESULT", whole.ndata["x"][torch.arange(4)].tolist(), policy.policy_str, table.weight.shape,
      rows.tolist(), table._trace[0][1].grad.tolist(), [len(nodes) for _, nodes, _ in loader])
"""


def test_the_standalone_mode_of_dgl_distributed_works(tmp_path: Path) -> None:
    """In its own process: dgl.distributed keeps its mode and its fake store for good."""
    script = f"import sys; sys.argv = ['-', {str(tmp_path)!r}]\nimport warnings; warnings.simplefilter('default')\n"
    done = run_python(script + STANDALONE, tmp_path)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    ones = [[1.0, 1.0]] * 3
    assert result == [f"RESULT [0.0, 1.0, 2.0, 3.0] node~_N (4, 2) {ones} {ones} [2, 2]"], done.stderr
