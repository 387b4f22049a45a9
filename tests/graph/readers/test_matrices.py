"""scipy matrices in memory, ``.npz`` and ``.mat`` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import io, sparse

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE
from tests.graph.readers.compressed import read_csr

MATRIX = sparse.csr_array(np.array([[0, 2.5, 0], [1, 0, 0], [0, 0, 4]]))


def pairs_of(graph, etype=EDGE_TYPE) -> list[tuple[int, int]]:
    return sorted(zip(*(ends.tolist() for ends in graph.edges[etype]), strict=True))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok"])
def test_a_matrix_of_any_format_gives_its_entries(kind: str) -> None:
    graph = read_graph(MATRIX.asformat(kind))
    assert pairs_of(graph) == [(0, 1), (1, 0), (2, 2)]
    assert sorted(graph.edge_data[EDGE_TYPE]["weight"].tolist()) == [1.0, 2.5, 4.0]


def test_zeros_are_no_edges_and_ones_no_weights() -> None:
    matrix = sparse.coo_array((np.array([1, 0, 1]), ([0, 1, 2], [1, 2, 0])), shape=(4, 4))
    graph = read_graph(matrix)
    assert pairs_of(graph) == [(0, 1), (2, 0)]
    assert graph.edge_data == {}
    assert graph.counts == {"explicit zeros dropped": 1}
    assert graph.num_nodes == {NODE_TYPE: 4}


def test_a_matrix_that_is_not_square_needs_two_types() -> None:
    matrix = sparse.csr_array(np.array([[0, 1, 0], [1, 0, 1]]))
    with pytest.raises(DataError, match=r"shape \(2, 3\); expected a square one, or edge_type="):
        read_graph(matrix)
    graph = read_graph(matrix, edge_type="user:buys:item")
    assert graph.num_nodes == {"user": 2, "item": 3}
    assert pairs_of(graph, ("user", "buys", "item")) == [(0, 1), (1, 0), (1, 2)]


@pytest.mark.parametrize(
    ("values", "message"),
    [([1.0, np.nan], "holds nan in row 1"), (np.array([1, 1j]), "expected real numbers")],
)
def test_values_that_are_no_numbers_are_refused(values: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(sparse.coo_array((values, ([0, 1], [1, 0])), shape=(2, 2)))


def test_rows_bring_labels_masks_ids_and_direction(tmp_path: Path) -> None:
    arrays = {
        "indptr": [0, 2, 2, 3],
        "indices": [1, 1, 2],
        "label": np.array([2, -1, 0]),
        "train_idx": np.array([0, 2]),
        "node_ids": np.array(["x", "y", "z"]),
    }
    np.savez(tmp_path / "graph.npz", **arrays)
    graph = read_graph(tmp_path / "graph.npz")
    # nothing below the diagonal: each edge means both directions; parallel edges stay
    assert pairs_of(graph) == [(0, 1), (0, 1), (1, 0), (1, 0), (2, 2)]
    assert graph.node_data[NODE_TYPE]["label"].tolist() == [2, -1, 0]
    assert graph.node_data[NODE_TYPE]["train_mask"].tolist() == [True, False, True]
    assert graph.node_ids[NODE_TYPE].tolist() == ["x", "y", "z"]
    assert graph.name == tmp_path.name
    np.savez(tmp_path / "g.npz", **arrays, directed=True)
    assert pairs_of(read_graph(tmp_path / "g.npz")) == [(0, 1), (0, 1), (2, 2)]


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 2, 3, 3], [1, 2, 2]),  # above the diagonal
        ([0, 0, 1, 3], [0, 0, 1]),  # below it
        ([0, 1, 1, 3], [1, 0, 1]),  # some above, some below
        ([0, 2, 4, 6], [1, 2, 0, 2, 0, 1]),  # both directions of each
    ],
)
def test_undirected_rows_mean_both_directions_wherever_they_lie(
    tmp_path: Path, indptr: list[int], indices: list[int]
) -> None:
    # the flag counted only with nothing below the diagonal; other files kept the directions that they store
    file = tmp_path / "g.npz"
    np.savez(file, indptr=indptr, indices=indices, directed=False)
    assert pairs_of(read_graph(file)) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert read_csr(file).num_arcs == 6
    assert read_graph(file, directed=True).total_edges == len(indices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": [1, 1, 3]}, r"g.npz: indices holds 3 in row 2, outside \[0, 3\)"),
        ({"indptr": [0, 2, 1, 3]}, "indptr falls from 2 to 1 at row 1"),
        ({"train_idx": np.array([0, 3])}, r"row 1: train_idx 3 is outside \[0, 3\)"),
        ({"train_idx": np.array([0.5])}, "train_idx has shape"),
        ({"weights": np.ones(2)}, r"g.npz: weights has shape \(2,\), but indices has \(3,\)"),
        ({"label": np.zeros(2, int)}, "g.npz"),
        ({"directed": np.ones(2)}, "directed has shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict, message: str) -> None:
    np.savez(tmp_path / "g.npz", **({"indptr": [0, 2, 2, 3], "indices": [1, 1, 2]} | changes))
    with pytest.raises(DataError, match=message):
        read_graph(tmp_path / "g.npz")


def test_a_file_of_scipy_takes_two_types_and_rows_do_not(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "m.npz", sparse.csr_array(np.array([[0, 1, 0]])))
    assert read_graph(tmp_path / "m.npz", edge_type="a:b:c").num_nodes == {"a": 1, "c": 3}
    np.savez(tmp_path / "g.npz", indptr=[0, 1], indices=[0])
    with pytest.raises(ConfigError, match=r"edge_type= is for matrices of scipy.sparse"):
        read_graph(tmp_path / "g.npz", edge_type="a:b:c")
    np.savez(tmp_path / "x.npz", a=[0])
    with pytest.raises(DataError, match=r"x.npz: no arrays 'indptr' and 'indices'; it holds: a"):
        read_graph(tmp_path / "x.npz")


def test_an_archive_cut_short_is_named(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "m.npz", MATRIX)
    (tmp_path / "m.npz").write_bytes((tmp_path / "m.npz").read_bytes()[:200])
    with pytest.raises(DataError, match=r"m.npz: is no .npz archive or was cut off"):
        read_graph(tmp_path / "m.npz")


def test_a_matlab_file_brings_its_labels(tmp_path: Path) -> None:
    group = sparse.csc_array(np.array([[1, 1], [0, 0], [0, 1]]))
    io.savemat(tmp_path / "blog.mat", {"network": MATRIX.tocsc(), "group": group})
    graph = read_graph(tmp_path / "blog.mat")
    assert pairs_of(graph) == [(0, 1), (1, 0), (2, 2)]
    assert sorted(graph.edge_data[EDGE_TYPE]["weight"].tolist()) == [1.0, 2.5, 4.0]
    assert graph.node_data[NODE_TYPE]["label"].tolist() == [[1, 1], [0, 0], [0, 1]]
    assert graph.name == "blog"


@pytest.mark.data
def test_real_files_have_their_published_counts(shared_data: Path) -> None:
    cora = read_graph(shared_data / "cora" / "graph.npz")
    assert (cora.total_nodes, cora.total_edges, cora.name) == (2708, 2 * 5278, "cora")
    web = read_graph(shared_data / "web_notredame" / "graph.npz")
    assert (web.total_nodes, web.total_edges) == (325729, 1497134)
