"""Files for what is kept out of memory: what was written is read, and a disk that fails is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.core import scratch_file
from graph_emb.core.errors import StorageError
from graph_emb.core.scratch_file import ScratchFile


def test_values_are_read_as_written_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By calls that write and read less than they are asked to."""
    file, folder = ScratchFile(tmp_path / "new", 800, "rows"), tmp_path / "new"
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda descriptor, view, at: write(descriptor, view[:7], at))
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, at: read(descriptor, [views[0][:9]], at))
    values = np.random.default_rng(0).random(100)
    file.write(0, values[:60])
    file.write(480, values[60:])
    file.flush()
    assert np.array_equal(file.read(80, np.empty(90)), values[10:])
    assert list(folder.iterdir()) == []
    held = file._descriptor
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path, 800, "rows")
    os.ftruncate(file._descriptor, 90)
    file.read(0, np.empty(11))
    with pytest.raises(StorageError, match=r"rows, 800 B: the file was cut off at byte 90") as error:
        file.read(0, np.empty(12))
    assert error.value.errno == errno.EIO
    assert error.value.filename == str(tmp_path)


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        ("posix_fallocate", errno.ENOSPC, "choose another train.scratch, or make room"),
        ("pwrite", errno.EDQUOT, "choose another train.scratch, or make room"),
        ("pwrite", errno.EIO, "Input/output error"),
        ("fsync", errno.EIO, "Input/output error"),
        ("preadv", errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    def use() -> None:
        file = ScratchFile(tmp_path, 80, "rows")
        file.write(0, np.zeros(10))
        file.flush()
        file.read(0, np.zeros(10))

    use()
    monkeypatch.setattr(scratch_file.os, call, fail)
    with pytest.raises(StorageError, match=f"rows, 80 B: .*{said}"):
        use()
    assert list(tmp_path.iterdir()) == []
