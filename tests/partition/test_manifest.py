"""The manifest says what a partition holds and refuses what it does not know."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from graph_emb.core.errors import DataError
from graph_emb.core.storage import read_json, sha256_of
from partition.manifest import NAME, FileSet, PartitionManifest, write_listed
from tests.core.test_storage import PendingFolder, refuse


def a_manifest() -> PartitionManifest:
    return PartitionManifest("g.json", "destination", "dgl", 1, {"method": "random"})


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(a_manifest().to_json())
    assert PartitionManifest.read(tmp_path) == a_manifest()


def test_others_have_none(tmp_path: Path) -> None:
    assert PartitionManifest.read(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "zip"}, "format 'zip'; expected 'graph_emb partition'"),
        ({"num_hops": "many"}, "num_hops: Input should be a valid integer"),
        ({"files": {"x": {"bytes": 3}}}, r"files\.x\.sha256: Field required"),
        ({"files": {"../x": {"bytes": 3, "sha256": ""}}}, "file name '../x' leaves the folder"),
        ({"files": {"x" * 256: {"bytes": 3, "sha256": ""}}}, "is longer than file systems take"),
        ({"version": 3}, "version 3; this library reads versions 1 and 2"),
        ({"more": 1}, "more: Unexpected keyword argument"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / NAME).write_text(json.dumps({**json.loads(a_manifest().to_json()), **change}))
    with pytest.raises(DataError, match=message):
        PartitionManifest.read(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "no valid JSON"), ("[1]", "holds a list"), ("\xff", "no valid")])
def test_a_damaged_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=rf"x\.json: {message}"):
        read_json(path)


def test_files_are_noted_with_size_and_sum(tmp_path: Path) -> None:
    manifest = a_manifest()
    with PendingFolder(tmp_path / "out", refuse) as folder:
        files = FileSet(folder, manifest)
        files.write_text("deep/er/x", "abc")
        files.expect_text("y", "é")
        place = folder.publish()
    assert manifest.files["deep/er/x"] == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    assert manifest.files["y"]["bytes"] == 2
    assert sha256_of(place / "deep/er/x") == manifest.files["deep/er/x"]["sha256"]


def test_a_killed_write_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"half of")
    assert write_listed(tmp_path, "file", lambda stream: stream.write(b"whole"))["bytes"] == 5
    assert (tmp_path / "file").read_bytes() == b"whole"
