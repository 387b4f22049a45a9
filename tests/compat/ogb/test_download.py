"""Downloads, from a file: address that stands for OGB's server."""

from __future__ import annotations

import dataclasses
import io
import urllib.request
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from graph_emb.compat.ogb import catalog, datasets, read_link_dataset
from graph_emb.core.errors import DataError
from tests.compat.ogb import layout


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The zip file that ogbl-ddi is now fetched from; its folder is called `ddi` inside."""
    source = tmp_path / "server"
    folder = layout.write_ddi(source)
    archive = tmp_path / "ddi.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*"):
            file.write(path, Path("ddi") / path.relative_to(folder))
    real = catalog.metadata

    def local(name: str) -> catalog.Metadata:
        return dataclasses.replace(real(name), url=archive.as_uri())

    monkeypatch.setattr(datasets, "metadata", local)
    return archive


def test_a_set_is_fetched_only_when_asked(server: Path, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    with pytest.raises(DataError, match="download=True"):
        read_link_dataset("ogbl-ddi", root)
    assert not root.exists()
    data = read_link_dataset("ogbl-ddi", root, download=True)
    assert data.edge_index.T.tolist() == layout.TRAIN
    assert [path.name for path in root.iterdir()] == ["ogbl_ddi"]


def test_a_present_set_is_not_fetched_again(server: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    read_link_dataset("ogbl-ddi", root, download=True)
    server.unlink()
    assert read_link_dataset("ogbl-ddi", root, download=True).num_nodes == 5


def test_an_incomplete_folder_is_never_replaced(server: Path, tmp_path: Path) -> None:
    mine = tmp_path / "root" / "ogbl_ddi" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(DataError, match=r"exists without raw/edge\.csv\.gz; move it away"):
        read_link_dataset("ogbl-ddi", tmp_path / "root", download=True)
    assert mine.exists()


@pytest.mark.parametrize("content", [b"<html>gone</html>", None])
def test_a_failed_download_leaves_nothing(server: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        server.unlink()
    else:
        server.write_bytes(content)
    with pytest.raises(DataError, match=r"sent no zip file|cannot download"):
        read_link_dataset("ogbl-ddi", tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []


def test_a_zip_of_something_else_is_refused(server: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(server, "w") as file:
        file.writestr("other/readme.txt", "no graph")
    with pytest.raises(DataError, match=r"has no ddi/raw/edge\.csv\.gz"):
        read_link_dataset("ogbl-ddi", tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []


def test_a_download_that_breaks_off_is_told(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(io.BytesIO):
        headers = Message()

    Half.headers["Content-Length"] = "1000"

    def opened(url: str, timeout: float) -> Any:
        return Half(b"x" * 400)

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    with pytest.raises(DataError, match="broke off after 400 of 1000 bytes; try again"):
        read_link_dataset("ogbl-ddi", tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []
