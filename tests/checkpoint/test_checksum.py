"""XXH64 as its specification has it, whatever the pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graph_emb.checkpoint.checksum import XXH64, checksum_of

# From the test vectors of https://github.com/Cyan4973/xxHash and of python-xxhash.
KNOWN = {
    b"": "ef46db3751d8e999",
    b"a": "d24ec4f1a98c6e5b",
    b"abc": "44bc2cf5ad770999",
    b"Nobody inspects the spammish repetition": "fbcea83c8a378bf1",
}


def digest(data: bytes, size: int) -> str:
    made = XXH64()
    for start in range(0, len(data), size):
        made.update(np.frombuffer(data[start : start + size], np.uint8))
    return made.hexdigest()


@pytest.mark.parametrize("data", KNOWN)
def test_known_digests(data: bytes) -> None:
    assert digest(data, 100) == KNOWN[data]


def test_pieces_of_any_size_and_alignment_give_the_digest_of_the_whole(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8).tobytes()
    whole = digest(data, 1000)
    assert {digest(data, size) for size in (1, 7, 31, 32, 33, 100, 999)} == {whole}
    (tmp_path / "file").write_bytes(data)
    assert checksum_of(tmp_path / "file") == whole
    assert digest(data[:-1] + bytes([data[-1] ^ 1]), 100) != whole
