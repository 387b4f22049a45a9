"""Bytes are counted and hashed on their way, and a full disk says what it lacks."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from graph_emb.core.storage import OutputFile, sha256_of, size_text, write_file, xxh64_of

# From the test vectors of https://github.com/Cyan4973/xxHash and of python-xxhash.
XXH64 = {
    b"": "ef46db3751d8e999",
    b"a": "d24ec4f1a98c6e5b",
    b"abc": "44bc2cf5ad770999",
    b"Nobody inspects the spammish repetition": "fbcea83c8a378bf1",
}


@pytest.mark.parametrize("data", XXH64)
def test_the_checksum_of_checkpoints_is_xxh64_with_seed_0(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    assert xxh64_of(tmp_path / "x") == XXH64[data]


def test_pieces_of_any_size_give_the_checksum_of_the_whole(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8)
    for k, size in enumerate((999, 1 << 20, len(data))):
        file = OutputFile(tmp_path / str(k), xxhash.xxh64())
        for start in range(0, len(data), size):
            file.write(data[start : start + size])
        assert file.close() == file.close() == xxh64_of(tmp_path / str(k)) == xxhash.xxh64(data).hexdigest()
        assert (tmp_path / str(k)).read_bytes() == data.tobytes()
    assert sha256_of(tmp_path / "0") == hashlib.sha256(data).hexdigest()


def test_a_hashed_file_knows_its_size_and_sum(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "x", hashlib.sha256())
    file.write(b"ab")
    file.write(b"")
    file.write(b"c")
    assert file.close() == hashlib.sha256(b"abc").hexdigest()
    assert (file.num_bytes, (tmp_path / "x").read_bytes()) == (3, b"abc")
    assert write_file(tmp_path / "y", lambda stream: stream.write(b"abc")) == (3, sha256_of(tmp_path / "x"))


def test_a_full_disk_names_the_file_and_the_bytes_needed_and_free(tmp_path: Path) -> None:
    class Full:
        closed = False

        def write(self, data: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    for expected, needed in ((0, r"1\.50 KiB"), (1 << 30, r"1\.00 GiB")):
        file = OutputFile(tmp_path / f"x{needed}", expected=expected)
        file._stream.close()
        file._stream = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match=rf"No space left on device; {needed} more are needed, .* are free: '.*/x"):
            file.write(bytes(1536))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1536, "1.50 KiB"), (3 << 30, "3.00 GiB"), (1 << 42, "4.00 TiB")]
)
def test_sizes_for_people(number: int, text: str) -> None:
    assert size_text(number) == text
