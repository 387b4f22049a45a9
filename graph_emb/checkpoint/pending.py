"""A checkpoint's folder while ranks write it, its name when it is complete, and older checkpoints that may go.

The hidden folder ``.<name>.writing`` lies beside the place. Whoever looks under the name finds a complete checkpoint
or none: the manifest is written last, everything is synced, then one rename gives the name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Literal

from graph_emb.checkpoint.manifest import NAME, Manifest
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.log import get_logger
from graph_emb.core.storage import opened, swap_names, sync_folder

WRITING, REMOVED = ".writing", ".removed"
Best = Literal["max", "min"]

log = get_logger("checkpoint")


def hidden(place: Path) -> Path:
    """The folder in which a checkpoint is written before it takes its name; the same on every rank."""
    return place.with_name(f".{place.name}{WRITING}")


class PendingFolder:
    """The first rank's hold of a hidden folder: made, then published or removed.

    Args:
        place: Where the checkpoint will be.
    Raises:
        ConfigError: place is no checkpoint that may be replaced, or another process writes to it.
        OSError: the folder cannot be made.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.path = place, hidden(place)
        check_place(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_behind(place.parent)
        self._lock = self._make()
        self._open = True

    def _make(self) -> int:
        """Make the folder; the descriptor that holds its lock."""
        while True:
            try:
                self.path.mkdir()
            except FileExistsError:
                raise ConfigError(
                    f"{self.path}: another process writes this checkpoint (or was killed, where the file system has no "
                    "locks); take another name, or remove the folder"
                ) from None
            lock = os.open(self.path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: nobody takes the folder for a dead one there
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.path.exists():  # another job may have taken it for a dead one before it was locked
                return lock
            os.close(lock)

    def publish(self) -> None:
        """Put all names on the disk and move the folder to its place; an older checkpoint leaves in the same step.

        Raises:
            OSError: the file system cannot exchange two folders.
        """
        for folder, _, _ in os.walk(self.path):
            sync_folder(Path(folder))
        check_place(self.place)
        if not self.place.exists():
            self.path.rename(self.place)
        elif swap_names(self.path.absolute(), self.place.absolute()):
            _remove(self.path)
        else:
            raise OSError(0, "this file system cannot exchange folders; save under a new name", str(self.place))
        sync_folder(self.place.parent)

    def close(self) -> None:
        """Let go; the folder of a checkpoint that was not published is removed. May be repeated."""
        if self._open:
            self._open = False
            _remove(self.path)
            os.close(self._lock)


def check_place(place: Path) -> None:
    """Raise a ConfigError unless a checkpoint may stand there: nothing is there, or a checkpoint that is no link."""
    if not place.name or place.name.startswith("."):
        raise ConfigError(f"checkpoint {str(place)!r}: give a folder whose name does not begin with a dot")
    if place.is_symlink():
        raise ConfigError(f"{place} is a link to {os.readlink(place)}; save under a name of its own and link to that")
    if os.path.lexists(place) and not (place / NAME).is_file() and not (place.is_dir() and not any(place.iterdir())):
        raise ConfigError(f"{place} exists and is no checkpoint; choose another name")


def checkpoints_in(folder: Path) -> dict[Path, Manifest]:
    """The complete checkpoints of a folder, oldest step first; links and unreadable ones are left out."""
    found: dict[Path, Manifest] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.name.startswith(".") and not path.is_symlink() and (path / NAME).is_file():
            with suppress(DataError, OSError):
                found[path] = Manifest.read(path)
    return dict(sorted(found.items(), key=lambda item: (item[1].step, item[1].created)))


def prune(place: Path, keep_last: int, best: Best | None) -> None:
    """Remove older checkpoints beside ``place``.

    Args:
        place: The newest one; it always stays.
        keep_last: How many stay, by step, itself included.
        best: Besides, the one with the highest or lowest metric stays.
    """
    found = checkpoints_in(place.parent)
    others = [path for path in found if path != place]
    stay = {place, *others[len(others) - (keep_last - 1) :]}
    if best is not None:
        scored = {path: manifest.metric for path, manifest in found.items() if manifest.metric is not None}
        if scored:
            stay.add((max if best == "max" else min)(scored, key=lambda path: scored[path] or 0.0))
    for path in others:
        if path not in stay:
            aside = path.with_name(f".{path.name}{REMOVED}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)  # a kill from here on leaves no half of a checkpoint under a name
            _remove(aside)


def _remove_left_behind(folder: Path) -> None:
    """Remove what killed jobs left; the lock of a process ends with it."""
    for path in [*folder.glob(f".*{WRITING}"), *folder.glob(f".*{REMOVED}")]:
        with suppress(OSError), opened(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.warning("removing %s, which a killed job left", path)
            _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
