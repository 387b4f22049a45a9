"""The graph type, on graphs small enough to draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.graph import Graph

#   0 --- 1 --- 2    3 (alone)
#   |           |
#   +-----------+    2 has a self loop


def triangle() -> Graph:
    return Graph.from_edges([0, 2, 1, 2], [1, 1, 0, 2], num_nodes=4, weights=None)


def rows_of(graph: Graph) -> list[list[int]]:
    return [graph.indices[a:b].tolist() for a, b in zip(graph.indptr[:-1], graph.indptr[1:], strict=True)]


def test_an_undirected_graph_stores_both_directions_and_a_self_loop_once() -> None:
    graph = triangle()
    assert rows_of(graph) == [[1], [0, 2], [1, 2], []]
    assert graph.indptr.dtype == np.int64
    assert graph.indices.dtype == np.int32
    assert (graph.num_nodes, graph.num_arcs, graph.num_edges, graph.num_self_loops) == (4, 5, 3, 1)
    assert graph.degrees().tolist() == [1, 2, 2, 0]
    assert graph.edges().tolist() == [[0, 1], [1, 2], [2, 2]]


def test_a_directed_graph_stores_what_it_is_given() -> None:
    graph = Graph.from_edges([2, 0, 2], [0, 1, 1], directed=True)
    assert rows_of(graph) == [[1], [], [0, 1]]
    assert graph.num_edges == graph.num_arcs == 3
    assert graph.edges().tolist() == [[0, 1], [2, 0], [2, 1]]
    assert graph.edges().dtype == np.int64


@pytest.mark.parametrize(
    ("directed", "duplicates", "expected"),
    [
        (True, "first", [[0, 1, 5.0], [1, 0, 7.0]]),
        (True, "sum", [[0, 1, 8.0], [1, 0, 7.0]]),
        (False, "first", [[0, 1, 5.0]]),
        (False, "sum", [[0, 1, 15.0]]),
    ],
)
def test_repeated_edges_keep_the_first_weight_or_add_up(directed: bool, duplicates: str, expected: list) -> None:
    graph = Graph.from_edges([0, 1, 0], [1, 0, 1], weights=[5.0, 7.0, 3.0], directed=directed, duplicates=duplicates)
    assert np.column_stack([graph.edges(), graph.edge_weights()]).tolist() == expected
    graph.validate()


def test_the_first_weight_of_an_undirected_edge_holds_in_both_directions() -> None:
    """Mirroring before merging would give 0-1 the weight 7 and 1-0 the weight 5."""
    graph = Graph.from_edges([1, 0], [0, 1], weights=[7.0, 5.0])
    assert graph.weights is not None
    assert graph.weights.tolist() == [7.0, 7.0]


def test_summing_repeated_edges_without_weights_counts_them() -> None:
    graph = Graph.from_edges([0, 0, 1], [1, 1, 2], duplicates="sum")
    assert graph.edge_weights().tolist() == [2.0, 1.0]
    assert Graph.from_edges([0, 0, 1], [1, 1, 2]).weights is None


def test_weights_that_add_up_past_float32_are_refused() -> None:
    """They became inf, and the error was of negatives of a graph without edges."""
    with pytest.raises(DataError, match=r"add up to 6e\+38, past float32; rescale the weights, or take duplicates"):
        Graph.from_edges([0, 0, 1], [1, 1, 2], weights=[3e38, 3e38, 1.0], duplicates="sum")


def test_weights_that_are_all_one_are_not_stored() -> None:
    assert Graph.from_edges([0], [1], weights=[1.0]).weights is None
    assert Graph.from_edges([0], [1], weights=[2.0]).weights.dtype == np.float32


def test_self_loops_are_dropped_when_asked() -> None:
    graph = Graph.from_edges([0, 1, 1], [1, 1, 0], weights=[2, 9, 3], directed=True, self_loops="drop")
    assert rows_of(graph) == [[1], [0]]
    assert graph.weights.tolist() == [2.0, 3.0]
    assert graph.num_self_loops == 0


def test_dense_ids_stay_as_they_are() -> None:
    graph = Graph.from_edges([2, 0], [1, 2], directed=True)
    assert graph.node_ids is None
    assert rows_of(graph) == [[2], [], [1]]
    assert graph.find_nodes([2, 3, -1]).tolist() == [2, -1, -1]
    assert graph.ids_of([1, 0]).tolist() == [1, 0]


@pytest.mark.parametrize("ids", [[1, 2, 3], [10, 30, 70], [5, 2**40, 2**62], ["a", "b", "c"], ["ant", "bee", "über"]])
def test_other_ids_are_numbered_in_sorted_order_and_kept(ids: list) -> None:
    graph = Graph.from_edges([ids[2], ids[0]], [ids[1], ids[2]], directed=True)
    assert rows_of(graph) == [[2], [], [1]]
    assert graph.node_ids.tolist() == ids
    assert graph.find_nodes([ids[1], ids[2]]).tolist() == [1, 2]
    assert graph.ids_of([2, 0]).tolist() == [ids[2], ids[0]]
    assert graph.find_nodes(["zebra"] if isinstance(ids[0], str) else [4]).tolist() == [-1]
    assert graph.find_nodes([4] if isinstance(ids[0], str) else ["zebra"]).tolist() == [-1]


def test_node_numbers_do_not_depend_on_the_order_of_the_edges() -> None:
    one = Graph.from_edges(["x", "b"], ["a", "x"])
    two = Graph.from_edges(["b", "a"], ["x", "x"])
    assert one.node_ids.tolist() == two.node_ids.tolist() == ["a", "b", "x"]
    assert rows_of(one) == rows_of(two)


def test_num_nodes_keeps_isolated_nodes_between_and_after() -> None:
    graph = Graph.from_edges([0], [2], num_nodes=5)
    assert graph.node_ids is None
    assert graph.degrees().tolist() == [1, 0, 1, 0, 0]
    assert Graph.from_edges([], [], num_nodes=3).degrees().tolist() == [0, 0, 0]
    assert Graph.from_edges([], []).num_nodes == 0


def test_given_node_ids_name_the_positions() -> None:
    graph = Graph.from_edges([0], [1], node_ids=["z", "a", "m"])
    assert graph.num_nodes == 3
    assert graph.find_nodes(["a", "z", "q"]).tolist() == [1, 0, -1]
    assert graph.ids_of([2]).tolist() == ["m"]


def test_has_edges_answers_for_every_pair() -> None:
    graph = triangle()
    matrix = graph.to_scipy().toarray()
    src, dst = np.divmod(np.arange(16), 4)
    assert graph.has_edges(src, dst).tolist() == (matrix[src, dst] > 0).tolist()
    assert graph.has_edges([], []).tolist() == []


def test_to_scipy_has_the_weights_and_is_a_copy() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], weights=[2.0, 3.0], directed=True)
    matrix = graph.to_scipy()
    assert matrix.toarray().tolist() == [[0, 2, 0], [0, 0, 3], [0, 0, 0]]
    matrix.data[:] = 0
    assert graph.weights.tolist() == [2.0, 3.0]


def test_reverse_turns_arcs_with_their_weights() -> None:
    graph = Graph.from_edges([0, 0, 2], [1, 2, 1], weights=[2.0, 3.0, 4.0], directed=True, node_ids=["a", "b", "c"])
    back = graph.reverse()
    assert np.array_equal(back.to_scipy().toarray(), graph.to_scipy().toarray().T)
    assert back.node_ids.tolist() == ["a", "b", "c"]
    assert back.directed
    undirected = triangle()
    assert undirected.reverse() is undirected


@pytest.mark.parametrize(("duplicates", "weights"), [("first", [3.0, 2.0]), ("sum", [10.0, 2.0])])
def test_to_undirected_merges_opposite_arcs(duplicates: str, weights: list[float]) -> None:
    graph = Graph.from_edges([1, 0, 2], [0, 1, 1], weights=[7.0, 3.0, 2.0], directed=True, node_ids=[7, 8, 9])
    both = graph.to_undirected(duplicates)
    assert both.edges().tolist() == [[0, 1], [1, 2]]
    assert both.edge_weights().tolist() == weights
    assert both.node_ids.tolist() == [7, 8, 9]
    assert both.to_undirected() is both
    both.validate()


def test_the_arrays_cannot_be_written_and_the_callers_stay_writable() -> None:
    indptr, indices = np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32)
    graph = Graph(indptr, indices, None, directed=False, node_ids=np.array([4, 5]))
    for array in (graph.indptr, graph.indices, graph.node_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    indptr[0] = 0


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 9)), max_size=40),
    st.booleans(),
    st.sampled_from(["first", "sum"]),
    st.sampled_from(["keep", "drop"]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_edge_list_equals_a_dictionary_of_edges(
    edges: list[tuple[int, int, int]], directed: bool, duplicates: str, self_loops: str
) -> None:
    expected: dict[tuple[int, int], float] = {}
    for u, v, w in edges:
        key = (u, v) if directed else (min(u, v), max(u, v))
        if u == v and self_loops == "drop":
            continue
        expected[key] = expected.get(key, 0) + w if duplicates == "sum" else expected.get(key, w)
    src, dst, weights = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [])
    graph = Graph.from_edges(
        src, dst, 8, weights, directed=directed, duplicates=duplicates, self_loops=self_loops
    ).validate()
    stored = graph.edge_weights()
    found = dict(
        zip(
            map(tuple, graph.edges().tolist()),
            [1.0] * graph.num_edges if stored is None else stored,
            strict=True,
        )
    )
    assert found == expected
    assert graph.num_edges == len(expected)


@pytest.mark.parametrize(
    ("src", "dst", "options", "error", "words"),
    [
        ([0, -3], [1, 1], {}, DataError, "id -3 of edge 1 is negative"),
        ([0, 5], [1, 1], {"num_nodes": 5}, DataError, r"id 5 of edge 1 is outside \[0, 5\)"),
        ([0], [1, 2], {}, ShapeError, "src has 1 ids, dst has 2"),
        ([0.5], [1.0], {}, ShapeError, "dtype float64"),
        ([[0]], [[1]], {}, ShapeError, "one-dimensional"),
        (["a"], [1], {}, ShapeError, "both integers or both strings"),
        (["a"], ["b"], {"num_nodes": 2}, ShapeError, "expected node numbers"),
        (np.array([2**63], dtype=np.uint64), [1], {}, DataError, "9223372036854775808 is above"),
        ([0], [1], {"weights": [-1.0]}, DataError, "value -1.0 of arc 0"),
        ([0], [1], {"weights": [0.0]}, DataError, "value 0.0 of arc 0"),
        ([0, 0], [1, 2], {"weights": [1.0, np.nan]}, DataError, "value nan of arc 1"),
        ([0], [1], {"weights": [1e300]}, DataError, "value 1e"),
        ([0], [1], {"weights": [1.0, 2.0]}, ShapeError, "one for each of 1 arcs"),
        ([0], [1], {"node_ids": ["a", "a"]}, DataError, "given twice"),
        ([0], [1], {"node_ids": ["a", "b"], "num_nodes": 3}, ShapeError, "2 ids for 3 nodes"),
        ([0], [1], {"num_nodes": -1}, ConfigError, "num_nodes -1"),
        ([0], [1], {"num_nodes": 2**31}, ConfigError, "num_nodes 2147483648"),
        ([0], [1], {"duplicates": "frist"}, ConfigError, "did you mean 'first'"),
        ([0], [1], {"self_loops": "kepe"}, ConfigError, "did you mean 'keep'"),
    ],
)
def test_bad_edges_are_refused_by_value_and_limit(src: list, dst: list, options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        Graph.from_edges(src, dst, **options)


@pytest.mark.parametrize(
    ("src", "dst", "error", "words"),
    [
        ([4], [0], DataError, r"id 4 of edge 0 is outside \[0, 4\)"),
        ([0], [-1], DataError, "negative"),
        ([0], [1, 2], ShapeError, "same number"),
    ],
)
def test_has_edges_refuses_nodes_out_of_range(src: list, dst: list, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        triangle().has_edges(src, dst)


@pytest.mark.parametrize(
    ("indptr", "indices", "weights", "directed", "words"),
    [
        ([0, 2, 1, 2], [0, 1], None, True, "never fall"),
        ([0, 1], [3], None, True, r"outside \[0, 1\)"),
        ([0, 0, 2], [1, 0], None, True, "neighbours of node 1"),
        ([0, 0, 2], [1, 1], None, True, "neighbours of node 1"),
        ([0, 1, 1], [1], None, False, "lacks its reverse"),
        ([0, 1, 2], [1, 0], [1.0, 2.0], False, "lacks its reverse"),
        ([0, 1, 2], [1, 0], [1.0, -2.0], True, "value -2.0"),
    ],
)
def test_validate_names_the_broken_promise(
    indptr: list, indices: list, weights: list | None, directed: bool, words: str
) -> None:
    graph = Graph(
        np.array(indptr),
        np.array(indices, dtype=np.int32),
        None if weights is None else np.array(weights, dtype=np.float32),
        directed,
    )
    with pytest.raises(DataError, match=words):
        graph.validate()


def test_validate_accepts_equal_neighbours_in_adjacent_rows() -> None:
    graph = Graph(np.array([0, 2, 2, 4]), np.array([0, 2, 0, 2], dtype=np.int32), None, True)
    assert graph.validate() is graph


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (([0, 1], np.array([0]), None), "indices: dtype int64"),
        (([0, 2], np.array([0], dtype=np.int32), None), r"expected int32, \(2,\)"),
        (([0, 1], np.array([0], dtype=np.int32), np.array([1.0])), "weights: dtype float64"),
        (([], np.array([], dtype=np.int32), None), "indptr"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: tuple, words: str) -> None:
    indptr, indices, weights = arrays
    with pytest.raises(ShapeError, match=words):
        Graph(np.array(indptr, dtype=np.int64), indices, weights, directed=True)
