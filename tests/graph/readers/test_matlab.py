"""MATLAB files as the DeepWalk benchmarks use them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from scipy import sparse

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.matrices import check_elements
from tests.graph.readers.compressed import read_csr, read_plain
from tests.graph.readers.samples import WRITERS, symmetric


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


def test_a_name_of_several_lines_is_shown_in_one(tmp_path: Path) -> None:
    path = tmp_path / "g.mat"
    scipy.io.savemat(path, {"some_name": np.ones((3, 3))})
    path.write_bytes(path.read_bytes().replace(b"some_name", b"some\nname"))
    with pytest.raises(DataError, match=r"it holds: 'some\\nname' \(3, 3\)$"):
        read_csr(path)


def test_matlab_7_3_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file, Platform".ljust(600, b" "))
    with pytest.raises(DataError, match="save it with -v7"):
        read_csr(path)


@pytest.fixture
def content(tmp_path: Path) -> bytearray:
    WRITERS["mat"](tmp_path / "g.mat")
    return bytearray((tmp_path / "g.mat").read_bytes())


def put(place: int, value: int) -> Callable[[bytearray], None]:
    return lambda content: content.__setitem__(place, value)


# Offsets in the sample: 128 the matrix, 136 its flags, 184 the tag of the row numbers, 224 of the column pointers.
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(224, 55), "byte 224: unknown data type 55"),
        (put(188, 250), "byte 184: 250 bytes of values, but"),
        (put(140, 107), "byte 136: array flags 060000006b000000, expected type 6 and 8 bytes"),
        (put(133, 9), "byte 128: 2496 bytes of values"),
        (put(126, 7), "the header is damaged"),
        (lambda content: content.extend(b"abc"), "expected a tag of 8 bytes, but 3 are left"),
    ],
)
def test_a_damaged_tag_is_named(change: Callable[[bytearray], None], words: str, content: bytearray) -> None:
    """scipy 1.17 followed a null pointer for the unknown type, and the process died."""
    check_elements(Path("g.mat"), bytes(content))
    change(content)
    with pytest.raises(DataError, match=words):
        check_elements(Path("g.mat"), bytes(content))


def test_damage_inside_a_compressed_variable_is_named(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "g.mat", {"network": symmetric()}, do_compression=True)
    content = bytearray((tmp_path / "g.mat").read_bytes())
    check_elements(Path("g.mat"), bytes(content))
    content[160] ^= 0xFF
    with pytest.raises(DataError, match="byte 128: damaged data"):
        check_elements(Path("g.mat"), bytes(content))


@pytest.mark.parametrize("compressed", [False, True])
def test_elements_nested_thousands_deep_are_one_line(compressed: bool, tmp_path: Path) -> None:
    """Each level was one of Python's stack, in the check and in scipy: RecursionError."""
    inner = b""
    for _ in range(60 if compressed else 3000):
        flags = struct.pack("<IIQ", 6, 8, 0)
        inner = struct.pack("<II", 14, len(flags + inner)) + flags + inner
        if compressed:
            packed = zlib.compress(inner)
            inner = struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "g.mat").write_bytes(b"MATLAB 5.0".ljust(124, b" ") + b"\0\1IM" + inner)
    with pytest.raises(DataError, match=r"g\.mat: byte .*nested deeper than 32"):
        read_graph(tmp_path / "g.mat")
