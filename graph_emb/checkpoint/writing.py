"""From a snapshot to a folder: each rank writes its part, the first one puts the parts together and gives the name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graph_emb.checkpoint.manifest import NAME, CheckpointManifest, FileEntry, TableEntry
from graph_emb.checkpoint.retention import hidden
from graph_emb.checkpoint.safetensors_file import write_tensors
from graph_emb.checkpoint.snapshot import Snapshot
from graph_emb.checkpoint.table_writer import write_shares
from graph_emb.core.errors import DataError
from graph_emb.core.storage import PendingFolder, write_file

DENSE = "dense.safetensors"
PARTS = "ranks"
"""Folder in the hidden folder: what each rank wrote, until the first rank has put it into the manifest."""


def part_file(place: Path, rank: int) -> Path:
    """The file that appears when a rank has written everything."""
    return hidden(place) / PARTS / f"{rank}.json"


def write_part(snapshot: Snapshot) -> None:
    """Write this rank's files, then the list of them.

    Raises:
        OSError: the disk is full.
        DataError: the folder that the first rank made is not here.
    """
    folder = hidden(snapshot.place)
    if not folder.is_dir():
        raise DataError(
            f"{folder}: rank {snapshot.rank} does not see it; a checkpoint needs a folder that all ranks share"
        )
    files = write_shares(folder, snapshot.shares, snapshot.rank)
    dense = None
    if snapshot.tensors:
        num_bytes, checksum = write_tensors(folder / DENSE, snapshot.tensors)
        dense = FileEntry(name=DENSE, bytes=num_bytes, xxh64=checksum).model_dump()
    part = {
        "files": {name: [entry.model_dump() for entry in entries] for name, entries in files.items()},
        "clocks": {share.name: share.clocks for share in snapshot.shares},
        "dense": dense,
        "generators": snapshot.generators,
        "extra": snapshot.extra,
    }
    target = part_file(snapshot.place, snapshot.rank)
    target.parent.mkdir(exist_ok=True)
    _write_text(target.with_suffix(".new"), json.dumps(part))
    target.with_suffix(".new").rename(target)


def finish(snapshot: Snapshot, folder: PendingFolder) -> None:
    """Write the manifest from all ranks' parts, give the checkpoint its name, remove older ones; the first rank's.

    Raises:
        DataError: a rank's part is not here.
        OSError: the disk is full.
    """
    parts = [_read_part(snapshot.place, rank) for rank in range(snapshot.ranks)]
    tables = {name: _table(name, entry, parts) for name, entry in snapshot.tables.items()}
    extras = [part["extra"] for part in parts]
    manifest = CheckpointManifest(
        **snapshot.about,
        tables=tables,
        dense=parts[0]["dense"],
        generators={name: _once([part["generators"][name] for part in parts]) for name in snapshot.generators},
        extra=extras[0],
        extras=extras if len(_once(extras)) > 1 else None,
    )
    for rank in range(snapshot.ranks):
        part_file(snapshot.place, rank).unlink()
    (folder.path / PARTS).rmdir()
    _write_text(folder.path / NAME, manifest.to_json())
    folder.publish()
    snapshot.retention.apply(snapshot.place)


def _read_part(place: Path, rank: int) -> dict[str, Any]:
    file = part_file(place, rank)
    if not file.is_file():
        raise DataError(f"{file}: rank {rank} wrote elsewhere; a checkpoint needs a folder that all ranks share")
    part: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return part


def _table(name: str, entry: dict[str, Any], parts: list[dict[str, Any]]) -> TableEntry:
    state = {}
    for key, about in entry["state"].items():
        clocks = [part["clocks"][name][key] for part in parts] if about["kind"] == "table" else None
        state[key] = {**about, "values": clocks}
    files = [file for part in parts for file in part["files"][name]]
    return TableEntry(**{**entry, "state": state, "files": files})


def _once(values: list[Any]) -> list[Any]:
    """One value where all are equal."""
    return values[:1] if all(value == values[0] for value in values) else values


def _write_text(path: Path, text: str) -> None:
    write_file(path, lambda stream: stream.write(text.encode()))
