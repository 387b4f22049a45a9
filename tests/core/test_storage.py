"""Files are hashed on their way; a folder takes its name complete or not at all; dead runs leave nothing."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from graph_emb.core import storage as module
from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.core.storage import OutputFile, PendingFolder, replace_json, sha256_of, write_file, xxh64_of


def refuse(place: Path) -> None:
    raise ConfigError(f"{place} is taken")


def allow(place: Path) -> None:
    """Anything may be replaced."""


def test_the_name_appears_on_publish(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "a" / "out", refuse) as folder:
        (folder.path / "x").write_text("1")
        assert not (tmp_path / "a" / "out").exists()
        assert folder.publish() == tmp_path / "a" / "out"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["out"]


def test_a_failure_leaves_nothing_not_even_the_parents(tmp_path: Path) -> None:
    def fail() -> None:
        with PendingFolder(tmp_path / "a" / "b" / "out", refuse) as folder:
            (folder.path / "x").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_taken_place_is_refused_at_once_and_again_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        PendingFolder(tmp_path / "file", allow)
    with PendingFolder(tmp_path / "out", refuse) as folder:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("")
        with pytest.raises(ConfigError, match="is taken"):
            folder.publish()
    with pytest.raises(ConfigError, match="is taken"):
        PendingFolder(tmp_path / "out", refuse)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["theirs"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_old_folder_gives_way_to_the_whole_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(module, "swap_names", lambda first, second: False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("")
    with PendingFolder(tmp_path / "out", allow) as folder:
        (folder.path / "new").write_text("")
        folder.publish()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_old_folder_returns_when_the_new_one_cannot_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "swap_names", lambda first, second: False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="broken"), PendingFolder(tmp_path / "out", allow) as folder:
        folder.publish()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["old"]


def test_folders_of_killed_runs_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    script = f"""
import os, signal
from graph_emb.core.hidden import size_text
from graph_emb.core.storage import OutputFile, PendingFolder, replace_json, sha256_of, write_file, xxh64_of
folder = PendingFolder({str(tmp_path / "out")!r}, print)
(folder.path / "x").write_text("1")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    (dead,) = tmp_path.glob(".out.partial-*")
    with PendingFolder(tmp_path / "out", refuse) as living:
        assert not dead.exists()
        with PendingFolder(tmp_path / "out", refuse):
            assert living.path.is_dir()


def test_other_hidden_folders_stay(tmp_path: Path) -> None:
    for name in (".out2.partial-aa", ".out.old-aa", "out.partial-aa", ".out.partial-aa", ".out.partial-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "theirs").touch()
    with PendingFolder(tmp_path / "out", refuse) as folder:
        folder.publish()
    assert len(list(tmp_path.iterdir())) == 6


def test_an_error_after_the_folder_is_in_place_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, folder = module._sync, PendingFolder(tmp_path / "out", refuse)

    def broken(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    monkeypatch.setattr(module, "_sync", broken)
    with folder, pytest.raises(OSError, match=r"Input/output error; the new partition is complete and in its place"):
        folder.publish()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_work_that_is_kept_stays_for_every_later_run(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "out", refuse) as folder:
        (folder.path / "x").write_text("1")
        folder.keep()
    with PendingFolder(tmp_path / "out", refuse):
        assert (folder.path / "x").exists()


def test_a_replaced_file_is_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_json(tmp_path / "a.json", {"x": float("nan")})
    assert (tmp_path / "a.json").read_text() == '{\n  "x": null\n}\n'

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left; 0 B more are needed, .* are free: '.*/a.json'"):
            replace_json(tmp_path / "a.json", {"x": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "x": null\n}\n'
    with pytest.raises(FileNotFoundError):
        replace_json(tmp_path / "none" / "a.json", {})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_too_little_space_is_known_before_the_work(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "out", refuse) as folder:
        folder.check_space(1)
        with pytest.raises(OSError, match=r"needs about 1024\.00 TiB, the disk has"):
            folder.check_space(1 << 50)


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
