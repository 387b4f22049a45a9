"""Raw files one after the other read as one array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partition.streaming.files import FileArray, append, append_groups, write


def array_of(folder: Path) -> FileArray:
    np.arange(3, dtype=np.int32).tofile(folder / "a")
    np.arange(3, 8, dtype=np.int32).tofile(folder / "c")
    return FileArray((folder / "a", folder / "missing", folder / "c"), np.dtype(np.int32), 2)


def test_slices_cross_files(tmp_path: Path) -> None:
    values = array_of(tmp_path)
    assert values.shape == (8,)
    for start in range(9):
        for stop in range(start, 10):
            assert values[start:stop].tolist() == list(range(8))[start:stop]
    assert [chunk.tolist() for chunk in values.chunks()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    values = array_of(tmp_path)
    assert len(values) == 8
    (tmp_path / "c").write_bytes(b"\0" * 8)
    with pytest.raises(EOFError, match="12 bytes early"):
        values[:]


def test_groups_keep_the_order_within(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    rows = np.array([(1, 0.5), (2, 1.5), (3, 2.5), (4, 3.5)], [("x", np.int32), ("y", np.float64)])
    append_groups(rows, np.array([1, 0, 1, 1]), paths)
    append(paths[0], rows[:1])
    assert FileArray((paths[0],), rows.dtype, 8)[:]["x"].tolist() == [2, 1]
    assert FileArray((paths[1],), rows.dtype, 8)[:].tolist() == [(1, 0.5), (3, 2.5), (4, 3.5)]


def test_a_full_disk_names_the_file_and_the_bytes(tmp_path: Path) -> None:
    """numpy's tofile said "1000 requested and 512 written" and an append named no file."""
    for make in (append, write):
        with pytest.raises(OSError, match=r"No space left .*; 7\.81 KiB more are needed, .* are free: ./dev/full"):
            make(Path("/dev/full"), np.zeros(1000))
    write(tmp_path / "x", np.arange(3))
    write(tmp_path / "x", np.arange(2))
    append(tmp_path / "x", np.arange(1))
    assert np.fromfile(tmp_path / "x", np.int64).tolist() == [0, 1, 0]
