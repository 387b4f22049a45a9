"""New ids are contiguous by part and type, keep the input's order, and can be undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import partition
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from partition.assignment import Assignment
from partition.relabel import Ranges, inverse, relabel
from tests.partition.made_graphs import CITES, heterogeneous, homogeneous, random_parts


def a_path() -> tuple[HeteroGraph, Assignment]:
    """0 -> 1 -> 2 -> 3 -> 0, nodes 1 and 3 in part 0."""
    src = np.array([0, 1, 2, 3])
    graph = HeteroGraph({NODE_TYPE: 4}, {EDGE_TYPE: (src, (src + 1) % 4)})
    return graph, Assignment({NODE_TYPE: np.array([1, 0, 1, 0], np.int32)}, 2)


def test_nodes_of_a_part_keep_their_order() -> None:
    made = relabel(*a_path())
    assert made.node_order[NODE_TYPE].tolist() == [1, 3, 0, 2]
    assert made.node_ids[NODE_TYPE].tolist() == [2, 0, 3, 1]
    assert made.nodes.as_json(["_N"]) == {"_N": [[0, 2], [2, 4]]}


def test_edges_follow_their_destination_by_default() -> None:
    made = relabel(*a_path())
    assert made.edge_order[EDGE_TYPE].tolist() == [0, 2, 3, 1]  # into 1, into 3 | into 0, into 2
    assert made.edges.as_json(["e"]) == {"e": [[0, 2], [2, 4]]}


def test_edges_follow_their_source_when_asked() -> None:
    made = relabel(*a_path(), "source")
    assert made.edge_order[EDGE_TYPE].tolist() == [1, 3, 0, 2]


def test_balanced_gives_cut_edges_to_the_lighter_part() -> None:
    ends = np.array([0, 0, 0, 0]), np.array([1, 1, 1, 1])  # four edges into part 1, all from part 0
    graph = HeteroGraph({NODE_TYPE: 2}, {EDGE_TYPE: ends})
    assignment = Assignment({NODE_TYPE: np.array([0, 1], np.int32)}, 2)
    assert relabel(graph, assignment).edges.sizes.tolist() == [[0], [4]]
    assert relabel(graph, assignment, "balanced").edges.sizes.tolist() == [[2], [2]]


@pytest.mark.parametrize("edge_owner", ["destination", "source", "balanced"])
@pytest.mark.parametrize("num_parts", [1, 3, 7])
def test_edges_lie_in_the_order_of_their_end_inside(edge_owner: str, num_parts: int) -> None:
    graph = heterogeneous()
    made = relabel(graph, random_parts(graph, num_parts), edge_owner)
    for r, etype in enumerate(graph.etypes):
        src, dst = graph.edges[etype]
        order, starts = made.edge_order[etype], made.edges.typed_starts[:, r]
        assert sorted(order.tolist()) == list(range(len(src)))
        for part in range(num_parts):
            low, high = made.nodes.of_part(part)
            own = order[starts[part] : starts[part + 1]]
            ends = made.node_ids[etype[2]][dst[own]], made.node_ids[etype[0]][src[own]]
            first, second = reversed(ends) if edge_owner == "source" else ends
            inside = np.where((first >= low) & (first < high), first, second)
            assert ((inside >= low) & (inside < high)).all()
            places = list(zip(inside.tolist(), own.tolist(), strict=True))
            assert places == sorted(places)


def test_ids_and_orders_undo_each_other() -> None:
    graph = heterogeneous()
    made = relabel(graph, random_parts(graph, 4))
    for t, ntype in enumerate(graph.ntypes):
        parts, types, typed = made.nodes.split(made.node_ids[ntype])
        assert np.array_equal(parts, made.parts[ntype])
        assert set(types) == {t}
        assert np.array_equal(made.node_order[ntype][typed], np.arange(graph.num_nodes[ntype]))
        assert np.array_equal(inverse(made.node_order[ntype]), typed)


def test_ranges_split_ids_around_empty_ranges() -> None:
    ranges = Ranges.of_sizes(np.array([[0, 2], [0, 0], [3, 0], [1, 1]]))
    assert ranges.total == 7
    parts, types, typed = ranges.split(np.arange(7))
    assert parts.tolist() == [0, 0, 2, 2, 2, 3, 3]
    assert types.tolist() == [1, 1, 0, 0, 0, 0, 1]
    assert typed.tolist() == [0, 1, 0, 1, 2, 3, 2]
    assert ranges.as_json(["a", "b"]) == {"a": [[0, 0], [2, 2], [2, 5], [5, 6]], "b": [[0, 2], [2, 2], [5, 5], [6, 7]]}


def test_a_graph_without_edge_types_is_relabelled_and_refused_where_dgl_reads_it(tmp_path: Path) -> None:
    # ranges of no type had no first id either, so the total of their ids was looked up in nothing
    assert Ranges.of_sizes(np.zeros((2, 0), np.int64)).starts.tolist() == [[0], [0]]
    graph = HeteroGraph({"n": 4}, {})
    made = relabel(graph, Assignment({"n": np.array([1, 0, 1, 0], np.int32)}, 2))
    assert (made.edges.total, made.edges.sizes.shape, made.edges.of_part(1)) == (0, (2, 0), (0, 0))
    with pytest.raises(DataError, match="has no edge type, and DGL cannot load such parts"):
        partition.build(graph, 2, out=tmp_path / "o")


def test_a_wrong_assignment_or_owner_is_refused() -> None:
    graph = homogeneous()
    with pytest.raises(PartitionError, match=r"shape \(3,\)"):
        relabel(graph, Assignment({NODE_TYPE: np.zeros(3, np.int32)}, 1))
    with pytest.raises(ConfigError, match=r"unknown .*'target'"):
        relabel(graph, random_parts(graph, 2), "target")  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match=r"part 2 is outside \[0, 2\)"):
        relabel(graph, Assignment({NODE_TYPE: np.arange(40, dtype=np.int32) % 3}, 2))


def test_a_type_without_edges_has_empty_ranges() -> None:
    graph = heterogeneous()
    graph.edges[CITES] = (np.empty(0, np.int64), np.empty(0, np.int64))
    made = relabel(graph, random_parts(graph, 3))
    assert made.edges.sizes[:, 1].tolist() == [0, 0, 0]
