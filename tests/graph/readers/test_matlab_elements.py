"""Tags of MATLAB files, before scipy sees them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from graph_emb.core.errors import DataError
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.matlab_elements import check_elements

from .samples import WRITERS


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
    import scipy.io

    from .samples import symmetric

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
