"""``manifest.json``: what a checkpoint holds, typed and versioned; and which checkpoints are ours, go and stay.

The manifest ends with a checksum of itself, so that a changed digit in it is damage like any other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.hidden import MARK, remove_folder, remove_left_behind
from graph_emb.core.storage import PendingFolder, foreign_file, inside, read_json
from graph_emb.table.composition import Kind, Scope

Best = Literal["max", "min"]
NAME = "manifest.json"
KIND: Literal["graph_emb checkpoint"] = "graph_emb checkpoint"
FORMAT: Literal[1] = 1
SELF = "sha256"
"""The key under which the file keeps the checksum of its other keys."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class FileEntry(_Strict):
    """One file of the folder."""

    name: str  # path inside the folder, with "/"
    bytes: int = Field(ge=0)
    xxh64: str = Field(pattern=r"^[0-9a-f]{16}$")  # seed 0, as ``xxhsum -H64`` prints it

    @field_validator("name")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if "\\" in inside(name):
            raise ValueError(f"file name {name!r} leaves the folder")
        if not name.isprintable():
            raise ValueError(f"file name {name!r} holds characters that no checkpoint writes")
        return name


Word = Annotated[str, Field(pattern=r"^\w+$")]
"""A name out of a manifest that errors quote as it is: no blank and no new line."""


class RowsEntry(FileEntry):
    """A safetensors file with rows of a table, in ascending order of their original ids.

    Its tensors are ``weight`` (rows, D), ``state.<name>`` (rows, D) or (rows,), and, where the ids are no range,
    ``ids`` (rows,) int64.
    """

    rows: int = Field(ge=0)
    start: int | None = None  # the original ids are [start, stop); None where the file has a tensor of ids
    stop: int | None = None
    ids: bool = False  # whether it has one

    @model_validator(mode="after")
    def _one_way(self) -> RowsEntry:
        if self.ids:
            fits = self.start is None and self.stop is None
        else:
            fits = self.start is not None and self.stop is not None and self.stop - self.start == self.rows
        if not fits:
            raise ValueError(f"file {self.name!r}: give ids, or a range [start, stop) of {self.rows} ids")
        return self


class StateEntry(_Strict):
    """One piece of optimizer state."""

    kind: Literal["element", "row", "table"]  # "table" is a clock
    dtype: Word  # as torch spells it: ``float32``
    values: list[int] | list[float] | None = None  # of a clock on each rank; None for state that lies in the files

    @model_validator(mode="after")
    def _fits(self) -> StateEntry:
        if self.dtype == "int64" and any(not isinstance(v, int) or not 0 <= v < 2**63 for v in self.values or ()):
            raise ValueError(f"values {self.values} are outside [0, 2**63)")
        return self


class ParentEntry(_Strict):
    """The checkpoint that a delta follows."""

    name: str = Field(pattern=r"^[^/]+$", max_length=255)  # of its folder, beside the delta's
    digest: str  # of its manifest, which holds the checksums of its files
    base: str  # the digest of the full checkpoint at the beginning of the chain
    sequence: int = Field(ge=1)  # of the delta: 1 follows the base


class DeltaEntry(_Strict):
    """What a delta says of a growing table; its files hold the rows that changed since the parent alone."""

    total: int = Field(ge=0)  # rows of the whole table
    gone: list[FileEntry] = []  # of each rank: ids that left since the parent, (N,) int64, ascending
    halvings: int = Field(default=0, ge=0)  # of the uses of all rows since the parent


class _Lean(_Strict):
    """An entry that does not name what it has not, so that files without it are those of earlier versions."""

    unnamed: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        return {name: value for name, value in found.items() if value is not None or name not in self.unnamed}


class GrowthEntry(_Lean):
    """What a growing table has besides its rows, whose files then have ``growth.<name>`` (rows,) int64 as well."""

    unnamed = ("delta",)
    step: int = Field(ge=0)  # the table's
    candidates: list[FileEntry] = []  # of each rank: ids without a row, their uses and last steps, (N,) int64
    delta: DeltaEntry | None = None


class TableEntry(_Lean):
    """One table."""

    unnamed = ("growth", "changed_of")
    num_rows: int = Field(ge=0)  # in the files
    dim: int = Field(ge=1)
    dtype: Word
    rule: Word | None = None  # that trains it; None where no optimizer was saved with it
    options: dict[str, Any] = {}  # of that rule
    numbers: dict[str, Any] = {}
    state: dict[Word, StateEntry] = {}  # by name
    files: list[RowsEntry] = []  # every row is in exactly one file
    growth: GrowthEntry | None = None  # None of a table of a fixed size, whose entry does not name it
    changed_of: int | None = None  # in a delta of such a table: its rows, of which the files have those that changed

    @property
    def total(self) -> int:
        """Rows of the whole table, those of a delta's parents included."""
        if self.changed_of is not None:
            return self.changed_of
        return self.num_rows if self.growth is None or self.growth.delta is None else self.growth.delta.total

    @property
    def is_delta(self) -> bool:
        """Whether the files have those rows alone that changed since another checkpoint."""
        return self.changed_of is not None or (self.growth is not None and self.growth.delta is not None)

    @model_validator(mode="after")
    def _complete(self) -> TableEntry:
        found = sum(file.rows for file in self.files)
        if found != self.num_rows:
            raise ValueError(f"the files hold {found} rows, the table has {self.num_rows}")
        return self


class ComposedEntry(_Strict):
    """A composed table: by which of the checkpoint's tables, and how, its rows are made."""

    kind: Kind
    num_rows: int = Field(ge=1)
    num_hashes: int = Field(ge=0)
    num_buckets: int = Field(ge=1)
    seed: int
    scope: Scope
    num_coarsest: int = Field(ge=0)
    shared: list[str]  # tables whose rows are terms, in their order
    weights: str | None = None  # the table of the hashes' weights
    own: str | None = None  # the table of the nodes that have a row of their own
    file: FileEntry | None = None  # tensors ``finest``, ``above`` and ``ids``, those of ``Composition`` that it has


class GroupEntry(_Strict):
    """A parameter group of a sparse optimizer: its tables and its numbers."""

    tables: list[str]
    numbers: dict[str, Any]


class OptimizerEntry(_Strict):
    """A sparse optimizer: its rule's class, the options that fix its state, and its groups."""

    rule: str
    options: dict[str, Any]
    groups: list[GroupEntry]


class WorldEntry(_Strict):
    """The job that wrote the checkpoint: nothing that a load needs, but what a reader of it wants to know."""

    mode: str
    ranks: int = Field(ge=1)
    library: str


class CheckpointManifest(_Lean):
    """Everything about a checkpoint but the rows."""

    unnamed = ("parent", "composed")
    format: Literal[1] = FORMAT
    kind: Literal["graph_emb checkpoint"] = KIND
    step: int  # after which it was taken
    created: str  # ISO 8601, UTC
    world: WorldEntry
    metric: float | None = None  # the number by which ``keep_best`` chooses
    tables: dict[str, TableEntry]  # by name
    composed: dict[str, ComposedEntry] | None = None  # by name; None where no table is, and in a delta
    optimizers: list[OptimizerEntry] = []  # the sparse ones, in the order given
    dense: FileEntry | None = None  # the tensors of model, torch optimizers and generators, where there are any
    model: Any = None  # this and the next two: state dicts as ``graph_emb.core.json_codec`` writes them
    torch_optimizers: list[Any] = []
    schedulers: list[Any] = []
    generators: dict[str, list[Any]] = {}  # by name, on each rank; one state where it is the same on all
    extra: dict[str, Any] = {}  # what the caller gave on the first rank
    extras: list[dict[str, Any]] | None = None  # what it gave on each rank, where that differs
    parent: ParentEntry | None = None  # of a delta

    def files(self) -> list[FileEntry]:
        """Every file but the manifest itself."""
        rows: list[FileEntry] = [file for table in self.tables.values() for file in table.files]
        for growth in (table.growth for table in self.tables.values() if table.growth):
            rows += growth.candidates + (growth.delta.gone if growth.delta else [])
        rows += [entry.file for entry in (self.composed or {}).values() if entry.file]
        return rows + ([self.dense] if self.dense else [])

    def renamed(self, names: Mapping[str, str]) -> CheckpointManifest:
        """The same with other names of tables, by those that they have."""

        def of(group: GroupEntry) -> GroupEntry:
            return group.model_copy(update={"tables": [names.get(name, name) for name in group.tables]})

        tables = {names.get(name, name): table for name, table in self.tables.items()}
        groups = [[of(group) for group in optimizer.groups] for optimizer in self.optimizers]
        pairs = zip(self.optimizers, groups, strict=True)
        optimizers = [optimizer.model_copy(update={"groups": own}) for optimizer, own in pairs]
        return self.model_copy(update={"tables": tables, "optimizers": optimizers})

    def to_json(self) -> str:
        """The file's text, its own checksum included."""
        content = self.model_dump(mode="json")
        return json.dumps({**content, SELF: _digest(content)}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: str | Path) -> CheckpointManifest:
        """The manifest of a checkpoint.

        Raises:
            DataError: there is none, it is damaged or changed, or of a version that this library does not read.
        """
        path = Path(folder) / NAME
        if not path.is_file():
            raise DataError(f"{path}: no such file; {folder} is no complete checkpoint")
        content = read_json(path)
        if content.get("kind") != KIND:
            raise DataError(f"{path}: kind {content.get('kind')!r}; expected {KIND!r}")
        if content.get("format") != FORMAT:
            raise DataError(f"{path}: format {content.get('format')!r}; this version of graph_emb reads {FORMAT}")
        stated = content.pop(SELF, None)
        if stated != (found := _digest(content)):
            raise DataError(f"{path}: says its checksum is {stated!r}, it is {found!r}; it was changed or is damaged")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "manifest"
            where = where if where.isprintable() else repr(where)
            raise DataError(f"{path}: {where}: {first['msg']}") from None


def digest_of(folder: str | Path) -> str:
    """The digest by which a delta names its parent: that of the manifest, which ``CheckpointManifest.read`` checks."""
    return str(read_json(Path(folder) / NAME)[SELF])


def _digest(content: dict[str, Any]) -> str:
    """The checksum of the content in one spelling: keys sorted, no blanks."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Retention:
    """Which older checkpoints stay; see ``save_checkpoint``."""

    keep_last: int | None
    metric: float | None
    keep_best: Best | None
    parent: str | None = None  # the name of the one that the new checkpoint follows, if it is a delta

    def __post_init__(self) -> None:
        last = self.keep_last
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 1):
            raise ConfigError(f"keep_last={last!r} must be an integer of at least 1, or None to keep all")
        if self.metric is not None and not math.isfinite(self.metric):
            raise ConfigError(f"metric={self.metric!r} must be a finite number")
        if self.keep_best not in (None, "max", "min"):
            raise ConfigError(f"keep_best={self.keep_best!r} must be 'max', 'min' or None")
        if self.keep_best is not None and (last is None or self.metric is None):
            raise ConfigError(
                f"keep_best={self.keep_best!r} needs keep_last (which ones go) and metric (which one is best)"
            )

    def outdated(self, place: Path) -> list[Path]:
        """Checkpoints beside ``place`` that go once it is complete."""
        if self.keep_last is None:
            return []
        read: dict[Path, CheckpointManifest] = {}  # complete ones; links and unreadable ones are left out
        for path in sorted(place.parent.iterdir()) if place.parent.is_dir() else []:
            if path != place and not path.name.startswith(".") and not path.is_symlink() and (path / NAME).is_file():
                with suppress(DataError, OSError):
                    read[path] = CheckpointManifest.read(path)
        found = dict(sorted(read.items(), key=lambda item: (item[1].step, item[1].created)))
        others = list(found)  # oldest step first
        stay = set(others[len(others) - (self.keep_last - 1) :])
        if self.keep_best is not None:
            scored = {path: manifest.metric for path, manifest in found.items() if manifest.metric is not None}
            scored[place] = self.metric or 0.0
            stay.add((max if self.keep_best == "max" else min)(scored, key=scored.__getitem__))
        waiting = [*stay, *([place.with_name(self.parent)] if self.parent else [])]
        while waiting:  # what a delta follows stays with it
            path = waiting.pop()
            stay.add(path)
            if path in found and (parent := found[path].parent):
                waiting.append(path.with_name(parent.name))
        gone = [path for path in others if path not in stay]
        for path in gone:
            check_no_foreign_file(path, found[path])
        return gone

    def apply(self, place: Path) -> None:
        """Remove older checkpoints, now that the one at ``place`` is complete.

        Raises:
            ConfigError, OSError: one cannot be removed; the message says that the new one is in its place.
        """
        try:
            for path in self.outdated(place):
                remove_folder(path)
        except ConfigError as error:
            raise ConfigError(f"{error}; the new checkpoint {place} is complete and in its place") from error
        except OSError as error:
            text = f"{error.strerror}, so it was not removed; the new checkpoint {place} is complete and in its place"
            raise OSError(error.errno, text, error.filename) from error


def hidden(place: Path) -> Path:
    """The folder in which a checkpoint is written before it takes its name; the same on every rank."""
    return place.with_name(f".{place.name}.writing")


def pending_checkpoint(place: Path, retention: Retention) -> PendingFolder:
    """The first rank's hold of the hidden folder."""
    if not place.name or place.name.startswith("."):
        raise ConfigError(f"checkpoint {str(place)!r}: give a folder whose name does not begin with a dot")
    if os.path.lexists(place):
        check_replaceable(place)
    retention.outdated(place)
    patterns = (".*.writing", ".*.removed", ".*.partial-*")  # ".removed": of older versions
    remove_left_behind((path for pattern in patterns for path in place.parent.glob(pattern)), is_checkpoint)
    return PendingFolder(place, check_replaceable, what="checkpoint", name=hidden(place).name, is_ours=is_checkpoint)


def check_replaceable(place: Path) -> None:
    """Raise a ConfigError unless the place is empty, or a checkpoint without foreign files and no link."""
    if place.is_symlink():
        raise ConfigError(f"{place} is a link to {os.readlink(place)}; save under a name of its own and link to that")
    if place.is_dir() and not any(place.iterdir()):
        return
    try:
        manifest = CheckpointManifest.read(place)
    except (DataError, OSError) as error:
        raise ConfigError(f"{place} exists and is no checkpoint; choose another name ({error})") from None
    check_no_foreign_file(place, manifest)


def check_no_foreign_file(place: Path, manifest: CheckpointManifest) -> None:
    """Raise a ConfigError that names the first file of a checkpoint that its manifest does not list."""
    foreign = foreign_file(place, _names(manifest))
    if foreign is not None:
        raise ConfigError(
            f"checkpoint {place} holds {foreign}, which is no part of it; move it before the checkpoint is removed"
        )


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint of ours and nothing else but the mark, empty where a kill met its writing."""
    try:
        return foreign_file(folder, (*_names(CheckpointManifest.read(folder)), MARK)) is None
    except (DataError, OSError):
        return False


def _names(manifest: CheckpointManifest) -> Iterator[str]:
    yield NAME
    yield from (file.name for file in manifest.files())
