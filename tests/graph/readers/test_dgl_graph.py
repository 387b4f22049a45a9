"""DGL graphs with types and data, in memory and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.compat.dgl import load
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def typed() -> Any:
    graph = load().heterograph(
        {WRITES: ([1, 0, 1], [2, 0, 0]), CITES: ([0, 0], [1, 1])}, num_nodes_dict={"author": 3, "paper": 3}
    )
    graph.nodes["paper"].data["feat"] = torch.arange(6.0).reshape(3, 2)
    graph.nodes["author"].data["train_mask"] = torch.tensor([True, False, True])
    graph.edges[CITES].data["year"] = torch.tensor([1999, 2001])
    return graph


def check_typed(graph: Any) -> None:
    assert graph.num_nodes == {"author": 3, "paper": 3}
    assert sorted(graph.etypes) == [WRITES, CITES]
    assert [ends.tolist() for ends in graph.edges[WRITES]] == [[1, 0, 1], [2, 0, 0]]
    assert [ends.tolist() for ends in graph.edges[CITES]] == [[0, 0], [1, 1]]
    assert graph.node_data["paper"]["feat"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert graph.node_data["author"]["train_mask"].tolist() == [True, False, True]
    assert {etype: list(columns) for etype, columns in graph.edge_data.items()} == {CITES: ["year"]}
    assert graph.edge_data[CITES]["year"].tolist() == [1999, 2001]


def test_types_and_data_of_a_graph_in_memory() -> None:
    check_typed(read_graph(typed()))


def test_types_and_data_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.bin"
    load().save_graphs(str(path), [typed(), load().graph(([0], [1]))])
    check_typed(read_graph(path, index=0))
    second = read_graph(path, index=1)
    assert (second.num_nodes, second.name) == ({NODE_TYPE: 2}, "shop")
    with pytest.raises(DataError, match=r"shop.bin: holds 2 graphs, expected 1; choose one with index="):
        read_graph(path)
    with pytest.raises(ConfigError, match=r"index=2 is outside \[0, 2\)"):
        read_graph(path, index=2)


def test_a_subgraph_keeps_where_its_nodes_came_from() -> None:
    whole = load().graph(([0, 3, 4], [3, 4, 0]))
    graph = read_graph(whole.subgraph([4, 3]))
    assert graph.node_ids[NODE_TYPE].tolist() == [4, 3]
    assert [ends.tolist() for ends in graph.edges[EDGE_TYPE]] == [[1], [0]]
    assert "_ID" not in graph.node_data.get(NODE_TYPE, {})


def test_32_bit_ids_become_64_bit() -> None:
    src, _ = read_graph(load().graph(([0], [1])).int()).edges[EDGE_TYPE]
    assert src.dtype == np.int64


def test_index_means_nothing_to_a_graph_in_memory() -> None:
    with pytest.raises(ConfigError, match="means nothing to a graph in memory"):
        read_graph(typed(), index=0)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.dgl"
    load().save_graphs(str(path), [load().graph((torch.arange(500), torch.arange(500)))])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"g.dgl: cut short: 4104 bytes are needed, the file has 100"):
        read_graph(path)
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match=r"g.dgl: not a DGL graph file"):
        read_graph(path)
