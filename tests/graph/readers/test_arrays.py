"""``.npz`` files: compressed rows, scipy's own, labels and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.io import savemat

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from tests.graph.readers.compressed import read_csr, read_plain

Put = Callable[..., Path]
# Each edge once, smaller node first: 0-1, 0-2, 1-2; node 3 alone.
HALF = {"indptr": np.array([0, 2, 3, 3, 3]), "indices": np.array([2, 1, 2])}
# 0 -> 1, 1 -> 2, 2 -> 0
CYCLE = {"indptr": np.array([0, 1, 2, 3]), "indices": np.array([1, 2, 0])}


def test_a_half_matrix_is_an_undirected_graph(put: Put) -> None:
    graph = read_csr(put("g.npz", **HALF))
    assert not graph.directed
    assert graph.edges().tolist() == [[0, 1], [0, 2], [1, 2]]
    assert graph.degrees().tolist() == [2, 2, 2, 0]


def test_another_matrix_is_a_directed_graph(put: Put) -> None:
    assert read_csr(put("g.npz", **CYCLE)).edges().tolist() == [[0, 1], [1, 2], [2, 0]]
    assert read_csr(put("g.npz", **CYCLE), directed=False).num_arcs == 6
    assert read_csr(put("g.npz", **HALF), directed=True).num_arcs == 3


def test_the_file_may_say_the_direction_and_the_caller_overrules_it(put: Put) -> None:
    path = put("g.npz", **HALF, directed=np.array(True))
    assert read_csr(path).directed
    assert not read_csr(path, directed=False).directed
    assert not read_csr(put("h.npz", **CYCLE, directed=np.array([0]))).directed


def test_weights_and_ids_follow_their_arcs(put: Put) -> None:
    path = put("g.npz", **HALF, weights=np.array([5.0, 4.0, 3.0]), node_ids=np.array(["a", "b", "c", "d"]))
    graph = read_csr(path)
    assert graph.edge_weights().tolist() == [4.0, 5.0, 3.0]
    assert graph.node_ids.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(DataError, match="has no weight, but weight=True"):
        read_csr(put("h.npz", **HALF), weight=True)


def test_summing_does_not_count_a_stored_mirror_twice(put: Put) -> None:
    indptr, indices = np.array([0, 1, 2]), np.array([1, 0])
    path = put("g.npz", indptr=indptr, indices=indices, weights=np.array([3.0, 3.0]))
    assert read_csr(path, duplicates="sum").edge_weights().tolist() == [3.0]
    path = put("h.npz", indptr=indptr, indices=indices, weights=np.array([3.0, 4.0]))
    assert read_csr(path).directed
    assert read_csr(path, directed=False, duplicates="sum").edge_weights().tolist() == [7.0]


def test_zeros_are_no_arcs(put: Put) -> None:
    path = put("g.npz", **CYCLE, weights=np.array([1.0, 0.0, 2.0]))
    assert read_csr(path).edges().tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
def test_every_scipy_format_is_read(format: str, tmp_path: Path) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 3], [0, 0, 4.0]])
    sparse.save_npz(tmp_path / "g.npz", sparse.csr_matrix(dense).asformat(format))
    graph = read_csr(tmp_path / "g.npz")
    assert graph.directed
    assert np.array_equal(graph.to_scipy().toarray(), dense)


def test_single_labels_and_splits_are_read(put: Put) -> None:
    arrays = {"label": np.array([1, -1, 0, 1], dtype=np.int8), "train_idx": [0, 3], "val_idx": [2], "test_idx": [1]}
    read = read_plain(put("g.npz", **HALF, **arrays))
    assert read.labels.to_single().tolist() == [1, -1, 0, 1]
    assert {part: nodes.tolist() for part, nodes in read.node_split.items()} == {
        "train": [0, 3],
        "valid": [2],
        "test": [1],
    }


def test_several_labels_are_read(put: Put) -> None:
    read = read_plain(
        put("g.npz", **HALF, label_indptr=np.array([0, 2, 2, 3, 3]), label_indices=np.array([2, 0, 1], dtype=np.int16))
    )
    assert read.labels.indptr.tolist() == [0, 2, 2, 3, 3]
    assert read.labels.indices.tolist() == [0, 2, 1]
    assert read.node_split is None


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros(3)}, "no arrays 'indptr' and 'indices'; it holds: x"),
        ({"indptr": np.array([0, 2, 1, 3]), "indices": np.arange(3)}, "indptr falls from 2 to 1 at row 1"),
        ({"indptr": np.array([1, 2]), "indices": np.array([0])}, "indptr must start with 0"),
        ({"indptr": np.array([], dtype=int), "indices": np.array([0])}, "indptr must start with 0"),
        ({"indptr": np.array([0, 2]), "indices": np.array([0])}, "indptr ends at 2, but indices has 1 entries"),
        (
            {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 2])},
            r"indices holds 2 in row 1, outside \[0, 2\)",
        ),
        ({"indptr": np.array([0, 0, 1]), "indices": np.array([-1])}, r"indices holds -1 in row 1, outside \[0, 2\)"),
        ({"indptr": np.array([0.0, 1.0]), "indices": np.array([0])}, "indptr has shape .* dtype float64"),
        ({**CYCLE, "weights": np.ones(2)}, r"weights has shape \(2,\), but indices has \(3,\)"),
        ({**CYCLE, "weights": np.array([1, np.nan, 1])}, "value nan of arc 1"),
        ({**CYCLE, "weights": np.array([1, -2.0, 1])}, "value -2.0 of arc 1"),
        ({**CYCLE, "weights": np.array(["a", "b", "c"])}, "expected real numbers"),
        ({**CYCLE, "directed": np.array([1, 0])}, "directed has shape"),
        ({**CYCLE, "node_ids": np.array([1, 1, 2])}, "id .* is given twice"),
        ({**CYCLE, "node_ids": np.array([1, 2])}, "2 ids for 3 nodes"),
        ({**CYCLE, "label": np.array([1, 2])}, "labels of 2 nodes, but the graph has 3"),
        ({**CYCLE, "label": np.array([1.5, 2, 3])}, "label has shape .* dtype float64"),
        ({**CYCLE, "label": np.array([1, -7, 3])}, "class -7 at position 1"),
        ({**CYCLE, "label": np.array([1, 2**40, 3])}, "label 1099511627776 is outside"),
        ({**CYCLE, "label_indptr": np.array([0, 1]), "label_indices": np.array([0])}, "labels of 1 nodes"),
        (
            {**CYCLE, "label_indptr": np.array([0, 1, 1, 1]), "label_indices": np.array([-4])},
            "label_indices holds -4 in row 0",
        ),
        ({**CYCLE, "test_idx": np.array([0, 3])}, r"row 1: test_idx 3 is outside \[0, 3\)"),
        ({**CYCLE, "train_idx": np.array([0.5])}, "train_idx has shape"),
        (
            {**CYCLE, "label": np.array([None, "x", 1], dtype=object)},
            "cannot be read as an .npz archive: Object arrays",
        ),
    ],
)
def test_what_does_not_fit_is_named(arrays: dict, words: str, put: Put) -> None:
    path = put("g.npz", **arrays)
    with pytest.raises(DataError, match=words) as caught:
        read_csr(path)
    assert str(path) in str(caught.value)


def test_a_file_without_edges_is_a_graph(put: Put) -> None:
    graph = read_csr(put("g.npz", indptr=np.array([0, 0]), indices=np.array([], dtype=int)))
    assert (graph.num_nodes, graph.num_arcs) == (1, 0)


def test_a_matrix_that_is_not_square_is_refused(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "g.npz", sparse.csr_array(np.ones((2, 3))))
    with pytest.raises(DataError, match=r"g.npz: the matrix has shape \(2, 3\); expected a square one"):
        read_csr(tmp_path / "g.npz")


def test_a_matrix_too_large_for_int32_neighbours_is_refused(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "g.npz", sparse.coo_array(([1.0], ([0], [1])), shape=(2**31, 2**31)))
    with pytest.raises(DataError, match=r"g.npz.: num_nodes 2147483648 is outside \[0, 2147483647\]"):
        read_csr(tmp_path / "g.npz")


def test_row_pointers_that_lie_do_not_reach_native_code(put: Put) -> None:
    """scipy's tocoo() trusted indptr and wrote past its arrays: the process died."""
    parts = {"format": np.array("csr"), "shape": np.array([3, 3]), "data": np.ones(3), "indices": np.array([1, 2, 0])}
    for pointers, first in (([0, 90000, 2, 3], "2 at row 2"), ([0, 2, 3, 0], "0 at row 3")):
        with pytest.raises(DataError, match=rf"g.npz: indptr of a sparse matrix is {first}; .* not fall"):
            read_csr(put("g.npz", **parts, indptr=np.array(pointers)))
    with pytest.raises(DataError, match="cannot be read as a s"):
        read_csr(put("h.npz", **{**parts, "indices": np.array([1, 70000, 0])}, indptr=np.array([0, 1, 2, 3])))


def test_row_pointers_that_fall_to_0_at_the_end_do_not_reach_native_code(tmp_path: Path) -> None:
    """scipy's check_format() looks at them only where there are entries; the last pointer says that there are none."""
    matrix = sparse.csc_matrix(np.eye(3))
    savemat(tmp_path / "g.mat", {"network": matrix})
    content, whole, torn = (
        (tmp_path / "g.mat").read_bytes(),
        *(np.array(p, np.int32) for p in ([0, 1, 2, 3], [0, 1, 2, 0])),
    )
    assert content.count(whole.tobytes()) == 1
    (tmp_path / "g.mat").write_bytes(content.replace(whole.tobytes(), torn.tobytes()))
    with pytest.raises(DataError, match=r"g.mat: indptr of a sparse matrix is 0 at row 3;"):
        read_graph(tmp_path / "g.mat")
    for pointers, first in (([0, 1, 2, 0], "0 at row 3"), ([1, 1, 2, 3], "1 at row 0")):
        matrix.indptr[:] = pointers
        with pytest.raises(DataError, match=f"indptr of a sparse matrix is {first};"):
            read_graph(matrix)


def test_an_array_file_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.zeros(3))
    (tmp_path / "g.npy").rename(tmp_path / "g.npz")
    with pytest.raises(DataError, match=r"is no \.npz archive or was cut off"):
        read_csr(tmp_path / "g.npz")
