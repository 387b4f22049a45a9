"""ogb's own classes and Evaluator, after graph_emb.compat.ogb.load()."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.compat import ogb
from graph_emb.core.errors import ConfigError, DataError
from tests.compat.ogb import layout
from tests.compat.test_prepare import run_python


@pytest.fixture(scope="module")
def package() -> Any:
    return ogb.load()


def test_loading_starts_no_thread_and_opens_no_socket(tmp_path: Path) -> None:
    """In a new process: ogb's look-up of a newer version starts when ogb/version.py is first run."""
    code = (
        "import socket, threading\n"
        "started = []\n"
        "real = threading.Thread.start\n"
        "threading.Thread.start = lambda thread: (started.append(thread.name), real(thread))\n"
        "socket.getaddrinfo = lambda *args, **kwargs: started.append(args)\n"
        "from graph_emb.compat import ogb\n"
        "ogb.load()\n"
        "import sys; print(started, 'outdated' in sys.modules)"
    )
    done = run_python(code, tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[] False", "")
    assert list(tmp_path.iterdir()) == []


def test_outdated_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType("outdated")
    monkeypatch.setitem(sys.modules, "outdated", mine)
    ogb.load()
    assert sys.modules["outdated"] is mine


def test_the_link_class_works_twice_and_writes_nothing(package: Any, tmp_path: Path) -> None:
    layout.write_ddi(tmp_path)  # has no processed/, which ogb 1.3.6 needs
    before = layout.contents(tmp_path)
    for _ in range(2):
        data = package.linkproppred.LinkPropPredDataset("ogbl-ddi", root=str(tmp_path))
        assert data[0]["edge_index"].tolist() == [[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]]
        assert data[0]["num_nodes"] == 5
        assert data.get_edge_split()["valid"]["edge_neg"].tolist() == layout.VALID_NEG
    assert layout.contents(tmp_path) == before


def test_the_node_class_works_twice_and_writes_nothing(package: Any, tmp_path: Path) -> None:
    layout.write_arxiv(tmp_path)
    before = layout.contents(tmp_path)
    for _ in range(2):
        graph, labels = package.nodeproppred.NodePropPredDataset("ogbn-arxiv", root=str(tmp_path))[0]
        assert graph["edge_index"].tolist() == [[0, 2, 3], [1, 1, 0]]
        assert graph["node_year"].tolist() == [[2017], [2018], [2019], [2020]]
        assert labels.tolist() == [[7], [0], [7], [39]]
    assert layout.contents(tmp_path) == before


def test_edge_tables_are_repeated_with_the_inverse_edges(package: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ogbl_collab"
    layout.write_graph(folder, [[0, 1], [1, 2]], num_nodes=3)
    layout.write_csv(folder / "raw" / "edge_weight.csv.gz", [[5], [6]])
    layout.write_csv(folder / "raw" / "edge_year.csv.gz", [[2001], [2002]])
    graph = package.linkproppred.LinkPropPredDataset("ogbl-collab", root=str(tmp_path))[0]
    assert graph["edge_weight"].tolist() == [[5], [5], [6], [6]]
    assert graph["edge_index"].tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def test_the_typed_node_class_works(package: Any, tmp_path: Path) -> None:
    layout.write_mag(tmp_path)
    data = package.nodeproppred.NodePropPredDataset("ogbn-mag", root=str(tmp_path))
    graph, labels = data[0]
    assert graph["num_nodes_dict"] == {"author": 2, "paper": 3}
    assert labels["paper"].tolist() == [[4], [5], [6]]
    assert data.get_idx_split()["test"]["paper"].tolist() == [2]


def test_the_dgl_classes_work_and_write_nothing(package: Any, tmp_path: Path) -> None:
    layout.write_ddi(tmp_path)
    layout.write_arxiv(tmp_path)
    layout.write_mag(tmp_path)
    before = layout.contents(tmp_path)
    links = package.linkproppred.DglLinkPropPredDataset("ogbl-ddi", root=str(tmp_path))
    assert (links[0].num_nodes(), links[0].num_edges()) == (5, 8)
    assert torch.equal(links.get_edge_split()["test"]["edge"], torch.tensor(layout.TEST))
    graph, labels = package.nodeproppred.DglNodePropPredDataset("ogbn-arxiv", root=str(tmp_path))[0]
    assert graph.ndata["year"][:, 0].tolist() == [2017, 2018, 2019, 2020]
    assert graph.ndata["feat"].shape == (4, 2)
    assert (labels.dtype, labels[:, 0].tolist()) == (torch.int64, [7, 0, 7, 39])
    typed, typed_labels = package.nodeproppred.DglNodePropPredDataset("ogbn-mag", root=str(tmp_path))[0]
    assert typed.num_edges("writes") == 2
    assert typed.nodes["paper"].data["year"][:, 0].tolist() == [2010, 2011, 2012]
    assert typed.edges["writes"].data["reltype"].tolist() == [[1], [1]]
    assert typed_labels["paper"].dtype == torch.int64
    assert layout.contents(tmp_path) == before


def test_the_classes_never_download_or_ask(package: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="download=True"):
        package.linkproppred.LinkPropPredDataset("ogbl-ddi", root=str(tmp_path))
    folder = layout.write_arxiv(tmp_path)
    (folder / "RELEASE_v1.txt").unlink()
    with pytest.raises(DataError, match="Will you update the dataset now"):
        package.nodeproppred.NodePropPredDataset("ogbn-arxiv", root=str(tmp_path))
    assert folder.exists()


def test_the_evaluator_counts_hits() -> None:
    """hits@20 with 20 negatives: a positive counts when it beats the lowest of them."""
    negative = torch.arange(20.0)
    result = ogb.evaluator("ogbl_ddi", "link").eval(
        {"y_pred_pos": torch.tensor([0.5, -1.0, 30.0, 0.0]), "y_pred_neg": negative}
    )
    assert result == {"hits@20": 0.5}


def test_the_evaluator_of_a_node_set_gives_accuracy() -> None:
    judge = ogb.evaluator("ogbn-arxiv")
    assert judge.eval({"y_true": np.array([[1], [2]]), "y_pred": np.array([[1], [3]])}) == {"acc": 0.5}


def test_an_evaluator_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="ogbl-ddi is a link data set, not 'node'"):
        ogb.evaluator("ogbl-ddi", "node")


@pytest.mark.data
def test_ogbs_own_class_reads_the_real_ddi(package: Any, shared_data: Path) -> None:
    data = package.linkproppred.LinkPropPredDataset("ogbl-ddi", root=str(shared_data))
    assert data[0]["edge_index"].shape == (2, 2135822)
    assert data.get_edge_split()["test"]["edge_neg"].shape == (95599, 2)
