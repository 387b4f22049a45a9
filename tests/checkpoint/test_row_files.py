"""Files written in pieces are those that safetensors reads, and are read by row ranges; threads work in order."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import graph_emb as ge
from graph_emb.checkpoint import row_files as module
from graph_emb.checkpoint.row_files import (
    CODES,
    Column,
    PieceReader,
    PieceWriter,
    WriterThreads,
    row_pieces,
    write_tensors,
)
from graph_emb.core.errors import DataError
from graph_emb.core.storage import OutputFile


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 2).reshape(shape).to(dtype)


def test_every_dtype_and_shape_is_read_by_safetensors_and_by_us(tmp_path: Path) -> None:
    tensors = {f"{CODES[dtype]}{len(shape)}": some(dtype, *shape) for dtype in CODES for shape in [(), (3,), (3, 5)]}
    num_bytes, _ = write_tensors(tmp_path / "a", tensors)
    assert num_bytes == (tmp_path / "a").stat().st_size
    theirs = load_file(tmp_path / "a")
    save_file(tensors, tmp_path / "b")
    for path in ("a", "b"):
        with PieceReader(tmp_path / path) as reader:
            assert set(reader.columns) == set(tensors)
            for name, tensor in tensors.items():
                assert torch.equal(theirs[name], tensor)
                assert torch.equal(reader.read(name), tensor)


def test_rows_are_written_in_pieces_and_read_by_range(tmp_path: Path) -> None:
    rows, ids = torch.arange(12.0).view(6, 2), torch.arange(6)
    writer = PieceWriter(tmp_path / "a", {"rows": Column(rows.dtype, (6, 2)), "ids": Column(ids.dtype, (6,))})
    assert writer.order == ["ids", "rows"]  # the wider dtype first: everything is aligned
    for name in writer.order:
        for start, stop in row_pieces(6, 8, most=16):
            writer.write({"rows": rows, "ids": ids}[name][start:stop])
    writer.close()
    with PieceReader(tmp_path / "a") as reader:
        assert all(column.offset % 8 == 0 for column in reader.columns.values())
        assert torch.equal(reader.read("rows", 2, 5), rows[2:5])
        out = torch.empty(2, dtype=torch.int64)
        reader.read_into("ids", 3, out)
        assert out.tolist() == [3, 4]


def test_pieces_cover_all_rows_even_when_a_row_is_larger_than_a_piece() -> None:
    assert list(row_pieces(5, 10, most=20)) == [(0, 2), (2, 4), (4, 5)]
    assert list(row_pieces(2, 100, most=20)) == [(0, 1), (1, 2)]
    assert list(row_pieces(0, 10)) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"header of 0 bytes in a file of 0"),
        ((1 << 60).to_bytes(8, "little") + b"{}", r"header of \d+ bytes in a file of 10"),
        ((2).to_bytes(8, "little") + b"[]", r"no safetensors header \(TypeError"),
        ((4).to_bytes(8, "little") + b"nope", r"no safetensors header \(JSONDecodeError"),
    ],
)
def test_a_header_that_is_none_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        PieceReader(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value)


def test_a_tensor_that_reaches_beyond_the_file_is_named(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"t": torch.zeros(100)})
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"tensor 't' lies at bytes \[0, 400\) of 399"):
        PieceReader(tmp_path / "a")


def test_a_file_that_is_cut_while_it_is_open_is_named(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"t": torch.zeros(100)})
    with PieceReader(tmp_path / "a") as reader:
        (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:200])
        with pytest.raises(DataError, match=r"bytes before the rest of 't'; it was cut off"):
            reader.read("t")


def test_rows_of_a_file_do_not_gather_before_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that holds unwritten bytes of a whole table ends a process whose memory is limited."""
    waiting: dict[int, int] = {}
    most, lock = [0], threading.Lock()
    write, sync = OutputFile.write, os.fsync

    def counted(self: OutputFile, data: Any) -> int:
        num = write(self, data)
        with lock:
            number = self._stream.fileno()
            waiting[number] = waiting.get(number, 0) + num
            most[0] = max(most[0], sum(waiting.values()))
        return num

    def slow(descriptor: int) -> None:
        time.sleep(0.01)
        with lock:
            waiting.pop(descriptor, None)
        sync(descriptor)

    table = ge.DistEmbedding(4096, 8, "t", ge.initializers.Uniform(seed=1), placement=ge.File(tmp_path, 1 << 18))
    optimizer = ge.SparseAdagrad([table], lr=0.1)
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(OutputFile, "write", counted)
    monkeypatch.setattr(os, "fsync", slow)
    place = ge.save_checkpoint(tmp_path / "1", tables=[table], optimizers=[optimizer])
    assert isinstance(place, Path)
    files = [file.stat().st_size for file in place.rglob("*.safetensors")]
    assert len(files) == 4096 * 8 * 4 * 2 // (1 << 14)
    assert max(files) < most[0] <= 2 * max(files)


def test_results_and_errors_come_back_and_the_end_waits() -> None:
    with WriterThreads(2) as threads:
        halves = [threads.submit(divmod, 7, k) for k in range(3)]
    assert [half.result() for half in halves[1:]] == [(7, 0), (3, 1)]
    with pytest.raises(ZeroDivisionError):
        halves[0].result()


def test_what_has_not_begun_can_be_cancelled() -> None:
    begun, go = threading.Event(), threading.Event()
    with WriterThreads(1) as threads:
        first = threads.submit(lambda: (begun.set(), go.wait(30)))
        second = threads.submit(threading.Event)
        assert begun.wait(30)
        assert second.cancel()
        assert not first.cancel()
        go.set()
    assert first.result() == (None, True)
    assert second.cancelled()
