"""Which folders are checkpoints of ours, which of them a new one replaces, and which older ones it removes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graph_emb.checkpoint.manifest import NAME, CheckpointManifest
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.hidden import remove_folder, remove_left_behind
from graph_emb.core.storage import PendingFolder, foreign_file

Best = Literal["max", "min"]


@dataclass(frozen=True)
class Retention:
    """Which older checkpoints stay; see ``save_checkpoint``."""

    keep_last: int | None
    metric: float | None
    keep_best: Best | None

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
        """Checkpoints beside ``place`` that go once it is complete.

        Raises:
            ConfigError: one of them holds a file that is not its own.
        """
        if self.keep_last is None:
            return []
        found = checkpoints_in(place.parent)
        found.pop(place, None)
        others = list(found)
        stay = set(others[len(others) - (self.keep_last - 1) :])
        if self.keep_best is not None:
            scored = {path: manifest.metric for path, manifest in found.items() if manifest.metric is not None}
            scored[place] = self.metric or 0.0
            stay.add((max if self.keep_best == "max" else min)(scored, key=scored.__getitem__))
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
    """The first rank's hold of the hidden folder.

    Raises:
        ConfigError: place may not be replaced, another process writes to it, or a checkpoint that would be replaced or
            removed holds a file that is not its own.
        OSError: the folder cannot be made.
    """
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
    """Whether a folder holds a checkpoint of ours and nothing else."""
    try:
        return foreign_file(folder, _names(CheckpointManifest.read(folder))) is None
    except (DataError, OSError):
        return False


def checkpoints_in(folder: Path) -> dict[Path, CheckpointManifest]:
    """The complete checkpoints of a folder, oldest step first; links and unreadable ones are left out."""
    found: dict[Path, CheckpointManifest] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.startswith(".") and not path.is_symlink() and (path / NAME).is_file():
            with suppress(DataError, OSError):
                found[path] = CheckpointManifest.read(path)
    return dict(sorted(found.items(), key=lambda item: (item[1].step, item[1].created)))


def _names(manifest: CheckpointManifest) -> Iterator[str]:
    yield NAME
    yield from (file.name for file in manifest.files())
