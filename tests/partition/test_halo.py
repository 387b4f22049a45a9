"""What a part stores equals a brute-force definition, and DGL's own where DGL has the layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment
from partition.relabel import PartArrays, PartBuilder, Relabelled, relabel
from tests.partition.made_graphs import heterogeneous, homogeneous, random_parts


def all_edges(made: Relabelled) -> list[tuple[int, int]]:
    """(source, destination) by homogeneous edge id."""
    _, types, typed = made.edges.split(np.arange(made.edges.total))
    found = []
    for r, i in zip(types, typed, strict=True):
        etype = made.graph.etypes[r]
        position = made.edge_order[etype][i]
        src, dst = (side[position] for side in made.graph.edges[etype])
        found.append((int(made.node_ids[etype[0]][src]), int(made.node_ids[etype[2]][dst])))
    return found


def brute_force(made: Relabelled, part: int, halo: str, num_hops: int) -> set[int]:
    """Edges that a part must store, from the definition alone."""
    edges = all_edges(made)
    inner = set(range(*made.nodes.of_part(part)))
    kept = set(range(*made.edges.of_part(part)))
    reached = set(inner)
    for _ in range(num_hops):
        incoming = {i for i, (_, dst) in enumerate(edges) if dst in reached}
        kept |= incoming
        reached |= {edges[i][0] for i in incoming}
    if halo == "dgl":
        kept |= {i for i, (src, _) in enumerate(edges) if src in inner}
    return kept


def check_shape(made: Relabelled, part: int, arrays: PartArrays) -> None:
    """Inner nodes and edges first, in order; ends, owners and types are those of the whole graph."""
    edges = all_edges(made)
    assert arrays.node_ids[: arrays.num_inner_nodes].tolist() == list(range(*made.nodes.of_part(part)))
    assert arrays.edge_ids[: arrays.num_inner_edges].tolist() == list(range(*made.edges.of_part(part)))
    ends = zip(arrays.node_ids[arrays.src].tolist(), arrays.node_ids[arrays.dst].tolist(), strict=True)
    assert list(ends) == [edges[i] for i in arrays.edge_ids]
    assert len(set(arrays.node_ids.tolist())) == len(arrays.node_ids)
    assert set(arrays.node_ids.tolist()) == {n for i in arrays.edge_ids for n in edges[i]} | set(
        range(*made.nodes.of_part(part))
    )
    owners, types, _ = made.nodes.split(arrays.node_ids)
    assert np.array_equal(arrays.node_parts, owners)
    assert np.array_equal(arrays.node_types, types)
    assert np.array_equal(arrays.edge_types, made.edges.split(arrays.edge_ids)[1])


@pytest.mark.parametrize("num_hops", [1, 2, 3])
@pytest.mark.parametrize("halo", ["dgl", "inbound"])
@pytest.mark.parametrize("edge_owner", ["destination", "source", "balanced"])
def test_a_part_stores_what_the_layout_says(edge_owner: Any, halo: Any, num_hops: int) -> None:
    for graph in (homogeneous(), heterogeneous()):
        made = relabel(graph, random_parts(graph, 4), edge_owner)
        builder = PartBuilder(made, halo=halo, num_hops=num_hops)
        for part in range(4):
            arrays = builder.build(part)
            check_shape(made, part, arrays)
            assert sorted(arrays.edge_ids.tolist()) == sorted(brute_force(made, part, halo, num_hops))


@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_dgl_stores_the_same_nodes_and_edges(num_hops: int) -> None:
    compat_dgl.load()
    from dgl import graph as dgl_graph
    from dgl.partition import partition_graph_with_halo

    graph = homogeneous(num_nodes=60, num_edges=90)
    assignment = random_parts(graph, 3)
    made = relabel(graph, assignment)
    src, dst = (torch.tensor(side) for side in graph.edges[EDGE_TYPE])
    theirs, node_order, edge_order = partition_graph_with_halo(
        dgl_graph((src, dst), num_nodes=60), torch.tensor(assignment.parts[NODE_TYPE]).long(), num_hops, reshuffle=True
    )
    builder = PartBuilder(made, num_hops=num_hops)
    for part in range(3):
        arrays = builder.build(part)
        nodes, edges = theirs[part].ndata["_ID"], theirs[part].edata["_ID"]
        assert set(made.node_order[NODE_TYPE][arrays.node_ids]) == set(node_order[nodes].tolist())
        assert set(made.edge_order[EDGE_TYPE][arrays.edge_ids]) == set(edge_order[edges].tolist())
        assert arrays.num_inner_edges == int(theirs[part].edata["inner_edge"].sum())


def test_inbound_by_destination_stores_every_edge_once() -> None:
    graph = homogeneous()
    builder = PartBuilder(relabel(graph, random_parts(graph, 3)), halo="inbound")
    assert sum(len(builder.build(part).edge_ids) for part in range(3)) == graph.total_edges


def test_a_part_of_isolated_nodes_has_no_edges() -> None:
    graph = HeteroGraph({NODE_TYPE: 3}, {EDGE_TYPE: (np.array([0]), np.array([1]))})
    builder = PartBuilder(relabel(graph, Assignment({NODE_TYPE: np.array([0, 0, 1], np.int32)}, 2)), num_hops=2)
    arrays = builder.build(1)
    assert (arrays.node_ids.tolist(), arrays.edge_ids.tolist()) == ([2], [])


def test_unknown_layouts_are_refused() -> None:
    graph = homogeneous()
    made = relabel(graph, random_parts(graph, 2))
    with pytest.raises(ConfigError, match=r"unknown halo 'inbond'.*did you mean 'inbound'"):
        PartBuilder(made, halo="inbond")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_hops is 0; at least 1"):
        PartBuilder(made, num_hops=0)
