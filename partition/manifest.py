"""``manifest.json``: what a partition holds, how it was made, and the checksum of each file.

It is written after every file but the JSON that DGL opens, so a folder with both is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from graph_emb.core.errors import DataError
from graph_emb.core.storage import PendingFolder, inside, json_text, read_json, write_file
from partition.assignment import Assignment, EdgeOwner, Halo

NAME, TIMINGS = "manifest.json", "timings.json"
UNLISTED = frozenset({NAME, TIMINGS})
"""Files of a partition that no manifest lists: itself, and times and memory, which differ from run to run."""
FORMAT, VERSIONS = "graph_emb partition", (1, 2)
"""The second has a file of what is held out; a partition without one is of the first."""
FORMS = ("to_original", "to_partition", "parquet")
"""Of an id map."""

FileName = Annotated[str, AfterValidator(inside)]
"""Path of a file, relative to the folder."""


class FileFacts(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    sha256: str


@dataclass
class PartitionManifest:
    """The facts of a partition.

    Attributes:
        config: Name of the JSON that DGL opens.
        made: How: method, seed, options, counts of the reader, balance of the assignment.
        id_maps: Paths of the id maps by kind ("node", "edge"), type and form.
        relation_names: Path of the names of a knowledge graph's relations, where it has some.
        held_out: Path of what rows are judged by, see ``graph_emb.graph.typed.HeldOut``, where there is some.
        files: Size and checksum by path; all files but those in ``UNLISTED``.
        edge_owner, halo, num_hops: How edges and halo were chosen.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    config: FileName
    edge_owner: EdgeOwner
    halo: Halo
    num_hops: int
    made: dict[str, Any] = field(default_factory=dict)
    id_maps: dict[str, dict[str, dict[str, FileName]]] = field(default_factory=dict)
    relation_names: FileName | None = None
    held_out: FileName | None = None
    files: dict[FileName, FileFacts] = field(default_factory=dict)

    def to_json(self) -> str:
        """The file's text."""
        content = {**asdict(self), "files": dict(sorted(self.files.items()))}  # threads write them in any order
        version = VERSIONS[content["held_out"] is not None]
        if version == VERSIONS[0]:
            del content["held_out"]
        return json_text({"format": FORMAT, "version": version, **content})

    @classmethod
    def read(cls, folder: Path) -> PartitionManifest | None:
        """The manifest of a partition; None for one that another program wrote.

        Raises:
            DataError: the manifest is damaged or of a later version.
        """
        path = folder / NAME
        if not path.is_file():
            return None
        content = read_json(path)
        if content.get("format") != FORMAT:
            raise DataError(f"{path}: format {content.get('format')!r}; expected {FORMAT!r}")
        if content.get("version") not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise DataError(f"{path}: version {content.get('version')}; this library reads versions {known}")
        fields = {name: value for name, value in content.items() if name not in ("format", "version")}
        try:
            return TypeAdapter(cls).validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise DataError(f"{path}: {place}: {first['msg']}; the file was changed after it was written") from error


def facts_of(
    assignment: Assignment,
    num_nodes: Mapping[str, int],
    num_edges: Mapping[str, int],
    counts: Mapping[str, int],
    *,
    symmetric: bool = False,
    repeats: str | None = None,
) -> dict[str, Any]:
    """How a partition was made; no times, so that equal partitions have equal bytes.

    Args:
        num_nodes, num_edges: By type.
        counts: Edges that the reader dropped, merged or added.
        symmetric, repeats: As of a ``HeteroGraph``; written where they are set.
    """
    return {
        "method": assignment.method,
        "why": assignment.why,
        "seed": assignment.seed,
        "num_parts": assignment.num_parts,
        "balance": {key: float(value) for key, value in assignment.balance.items()},
        "num_nodes": dict(num_nodes),
        "num_edges": dict(num_edges),
        "reader": dict(counts),
        **({"extended": assignment.extended} if assignment.extended else {}),
        **({"symmetric": True} if symmetric else {}),
        **({"repeats": repeats} if repeats is not None else {}),
    }


def write_listed(folder: Path, name: str, write: Callable[[Any], object]) -> FileFacts:
    """Make a file by ``write(stream)`` and put it on the disk: its facts. What a killed run left of it is replaced."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    num_bytes, checksum = write_file(path, write)
    return {"bytes": num_bytes, "sha256": checksum}


class FileSet:
    """The files of a folder under construction, hashed while they are written.

    Args:
        folder: Where they go.
        manifest: Receives the size and checksum of each.
    """

    def __init__(self, folder: PendingFolder, manifest: PartitionManifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def write(self, name: str, write: Callable[[Any], object]) -> None:
        """Make a file by ``write(stream)``, put it on the disk and note its checksum."""
        self.manifest.files[name] = write_listed(self.folder.path, name, write)

    def write_text(self, name: str, text: str) -> None:
        """Make a text file."""
        self.write(name, lambda stream: stream.write(text.encode()))

    def write_unlisted(self, name: str, text: str) -> None:
        """Make a text file whose checksum is not noted."""
        write_listed(self.folder.path, name, lambda stream: stream.write(text.encode()))

    def expect_text(self, name: str, text: str) -> None:
        """Note the checksum of a text file that is written later."""
        data = text.encode()
        self.manifest.files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@dataclass
class WrittenFiles:
    """The files of a complete partition; its manifest is replaced last."""

    path: Path
    manifest: PartitionManifest

    def write(self, name: str, write: Callable[[Any], object]) -> None:
        """As ``FileSet.write``."""
        self.manifest.files[name] = write_listed(self.path, name, write)
