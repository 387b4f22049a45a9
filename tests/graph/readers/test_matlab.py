"""MATLAB files as the DeepWalk benchmarks use them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
from scipy import sparse

from graph_emb.core.errors import DataError
from tests.graph.readers.compressed import read_csr, read_plain
from tests.graph.readers.samples import symmetric


def save(path: Path, **variables: object) -> Path:
    scipy.io.savemat(path, variables, do_compression=True)
    return path


def test_network_and_group_are_read(tmp_path: Path) -> None:
    group = sparse.csc_array(np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 1, 0]]))
    read = read_plain(save(tmp_path / "g.mat", network=symmetric(), group=group))
    assert read.graph.num_edges == 4
    assert not read.graph.directed
    assert read.labels.num_classes == 3
    assert read.labels.indptr.tolist() == [0, 1, 3, 3, 4]
    assert read.labels.indices.tolist() == [0, 1, 2, 1]


def test_a_column_of_classes_gives_single_labels(tmp_path: Path) -> None:
    read = read_plain(save(tmp_path / "g.mat", network=symmetric(), label=np.array([[3], [1], [3], [2]])))
    assert read.labels.to_single().tolist() == [2, 0, 2, 1]
    assert read.labels.class_names == ("1", "2", "3")


def test_direction_is_by_symmetry(tmp_path: Path) -> None:
    path = save(tmp_path / "g.mat", adj=sparse.csc_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0.0]])))
    assert read_csr(path).directed
    assert read_csr(path, directed=False).num_arcs == 6


def test_the_only_square_sparse_variable_or_a_dense_network_is_taken(tmp_path: Path) -> None:
    other = sparse.csc_array(np.ones((4, 2)))
    assert read_csr(save(tmp_path / "a.mat", whatever=symmetric(), features=other)).num_edges == 4
    assert read_csr(save(tmp_path / "b.mat", A=np.array([[0, 1], [1, 0]]))).num_edges == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"x": symmetric(), "y": symmetric()}, "2 square sparse variables, expected 1 or one called 'network'"),
        ({"x": np.ones((3, 3))}, r"0 square sparse variables.*it holds: x \(3, 3\)"),
        ({"network": sparse.csc_array(np.ones((2, 3)))}, r"shape \(2, 3\); expected a square one"),
        ({"network": symmetric() * -1}, "value -2.0 of arc 0"),
        ({"network": symmetric() * 1j}, "a matrix of complex128.*expected real numbers"),
        ({"network": symmetric(), "group": np.ones((3, 2))}, "labels of 3 nodes, but the graph has 4"),
        ({"network": symmetric(), "label": np.array(["a", "b", "c", "d"])}, "no matrix of numbers"),
    ],
)
def test_what_does_not_fit_is_named(variables: dict, words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "g.mat", **variables)
    with pytest.raises(DataError, match=words) as caught:
        read_csr(path)
    assert str(path) in str(caught.value)


def test_matlab_7_3_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file, Platform".ljust(600, b" "))
    with pytest.raises(DataError, match="save it with -v7"):
        read_csr(path)
