"""Files of rows beyond memory go to the disk while they are written, and the kernel's copy of them leaves memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core import page_cache as module
from graph_emb.core.page_cache import Drain
from graph_emb.core.storage import OutputFile
from graph_emb.formats.embedding_files import save_embeddings
from graph_emb.formats.gathered_rows import all_rows


def held_pages(path: Path) -> int:
    """Pages of a file that are in memory, by mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        begin = np.frombuffer(mapped, np.uint8)
        there = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        pointers = ctypes.c_void_p(begin.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(there.ctypes.data)
        assert libc.mincore(*pointers) == 0
        del begin
    return int(np.count_nonzero(there & 1))


@pytest.fixture
def on_a_disk(tmp_path: Path) -> Path:
    """A folder whose files can leave memory: not a tmpfs."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if held_pages(probe):
        pytest.skip("the folder for temporary files lies in memory")
    return tmp_path


def test_bytes_leave_memory_whenever_a_turn_is_full(on_a_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_BYTES", 10 * mmap.PAGESIZE)
    path = on_a_disk / "a"
    with path.open("wb", buffering=0) as file:
        drain, held = Drain(file.fileno()), []
        for _ in range(25):
            drain.wrote(file.write(bytes(mmap.PAGESIZE)))
            held.append(held_pages(path))
        assert held[8:11] == [9, 0, 1]
        assert max(held) == 9
        drain.finish()
    assert held_pages(path) == 0


def plain(path: Path, *, drained: bool) -> None:
    file = OutputFile(path, drained=drained)
    file.write(bytes(1 << 20))
    file.close()


def test_a_file_stays_in_memory_unless_it_is_drained(on_a_disk: Path) -> None:
    for drained in (False, True):
        plain(on_a_disk / str(drained), drained=drained)
    assert (on_a_disk / "True").read_bytes() == (on_a_disk / "False").read_bytes()  # both are in memory now
    for drained in (False, True):
        (on_a_disk / str(drained)).unlink()
        plain(on_a_disk / str(drained), drained=drained)
    assert held_pages(on_a_disk / "False") == (1 << 20) // mmap.PAGESIZE
    assert held_pages(on_a_disk / "True") == 0


def exported(folder: Path, rows: torch.Tensor) -> list[Path]:
    return save_embeddings(folder / "rows", rows)


def saved(folder: Path, table: ge.DistEmbedding) -> list[Path]:
    place = ge.save_checkpoint(folder / "1", tables=[table])
    assert isinstance(place, Path)
    return list(place.rglob("*.safetensors"))


def test_exports_and_checkpoints_of_a_table_in_a_file_leave_nothing_in_memory(on_a_disk: Path) -> None:
    table = ge.DistEmbedding(5_000, 16, "t", ge.initializers.Uniform(seed=1), placement=ge.File(on_a_disk, 1 << 16))
    rows = all_rows(table, wanted=True)
    assert rows is not None
    ways: list[Callable[[], list[Path]]] = [lambda: exported(on_a_disk, rows), lambda: saved(on_a_disk, table)]
    for files in (way() for way in ways):
        assert sum(path.stat().st_size for path in files) > 5_000 * 16 * 4
        assert {path.name: held_pages(path) for path in files} == {path.name: 0 for path in files}


def test_a_disk_that_is_full_on_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "SYNC_BYTES", 1 << 20)
    file = OutputFile(tmp_path / "a", expected=3 << 20, drained=True)
    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match=r"\d MiB more are needed"):
        file.write(bytes(3 << 20))
    file.abandon()
