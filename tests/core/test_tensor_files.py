"""Files of torch.save: a damaged one is one error, whatever torch's unpickler meets in it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from graph_emb.core.errors import DataError
from graph_emb.core.tensor_files import load_torch


def with_pickle(change: tuple[bytes, bytes], path: Path) -> Path:
    """A file whose pickle was changed in one place."""
    whole = io.BytesIO()
    torch.save({"embeddings": torch.ones(4, 3), "ids": ["a", "b", "c", "d"]}, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("/data.pkl"):
                assert change[0] in content
                content = content.replace(*change, 1)
            new.writestr(entry, content)
    return path


def test_what_torch_saved_is_read(tmp_path: Path) -> None:
    found = load_torch(with_pickle((b"}q", b"}q"), tmp_path / "same.pt"))
    assert torch.equal(found["embeddings"], torch.ones(4, 3))
    assert found["ids"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((b"\x80\x02}q\x00", b"\x80\x02q\x00q\x00"), id="a memo of nothing: an IndexError in torch"),
        pytest.param((b"}q\x00", b"."), id="no value"),
    ],
)
def test_a_damaged_pickle_is_one_error(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = with_pickle(change, tmp_path / "bad.pt")
    with pytest.raises(DataError, match=r"bad\.pt is damaged or no torch file \(.+\); export it again"):
        load_torch(path)


def test_torch_does_not_warn_of_a_number_that_no_protocol_has(tmp_path: Path) -> None:
    """Warnings are errors in these tests."""
    path = with_pickle((b"\x80\x02}", b"\x80\x72}"), tmp_path / "odd.pt")
    assert load_torch(path)["ids"] == ["a", "b", "c", "d"]


def test_the_systems_word_stays(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_torch(tmp_path / "none.pt")
