"""Files and folders that take their names when they are complete."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from typing_extensions import Self

from graph_emb.core.errors import ConfigError
from graph_emb.core.json_text import json_text
from graph_emb.core.storage.hidden import HiddenFolder, left_behind, remove_left_behind, remove_marked
from graph_emb.core.storage.output import OutputFile, check_space, named, write_file

EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2): two names swap in one step."""


class _Parents:
    """Folders that were made on the way to a place, to be removed again after a failure."""

    def __init__(self, folder: Path) -> None:
        self._made: list[Path] = []
        try:
            for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
                path.mkdir(exist_ok=True)
                self._made.append(path)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        with suppress(OSError):  # another process uses it by now
            for path in reversed(self._made):
                path.rmdir()


class PendingFolder:
    """A folder under construction beside ``place`` that takes its name on ``publish``. A context manager.

    Its name is ``.<name>.partial-...``; a later run removes the ones that killed processes left. Leaving the context
    without ``publish`` or ``keep`` removes it and the parents made for it.

    Args:
        place: Where the folder will be.
        may_replace: Called with an existing, non-empty place; raises a ConfigError unless it may be replaced.
        what: The word for it in messages.
        name: Of the hidden folder, where other processes must find it.
        is_ours: See ``remove_left_behind``.
    Attributes:
        path: The hidden folder; ``place`` once it is published.
    Raises:
        ConfigError: place is a file or may not be replaced, or another process writes under ``name``.
        OSError: place cannot be written.
    """

    def __init__(
        self,
        place: str | Path,
        may_replace: Callable[[Path], object],
        *,
        what: str = "partition",
        name: str | None = None,
        is_ours: Callable[[Path], bool] | None = None,
    ) -> None:
        self.place = Path(os.path.realpath(Path(place).expanduser()))
        self._may_replace, self._what = may_replace, what
        self._done = False
        self._check()
        remove_left_behind(left_behind(self.place), is_ours)
        if name is not None:
            remove_left_behind([self.place.with_name(name)], is_ours, empty=True)
        self._parents = _Parents(self.place.parent)
        try:
            self._hidden = HiddenFolder(self.place, name)
        except FileExistsError as error:
            raise ConfigError(
                f"{error.filename}: another process writes this {what} (or was killed, where the file system has no "
                "locks); take another name, or remove the folder"
            ) from None
        except OSError:
            self._parents.remove()
            raise
        self.path = self._hidden.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_space(self, num_bytes: int) -> None:
        """Raise an OSError now when the disk has no room for ``num_bytes``, not after hours of work."""
        check_space(self.path, num_bytes, f"the {self._what}")

    def publish(self) -> Path:
        """Put the names on the disk and move the folder to its place; an old one leaves in the same step.

        Raises:
            ConfigError: place was taken meanwhile.
            OSError: the folder could not be moved; or it was, and the message says so.
        """
        for folder, _, _ in os.walk(self.path):
            _sync(Path(folder))
        self._check()
        self._hidden.unmark()
        old = self.path if self.place.is_dir() and any(self.place.iterdir()) else None
        if old is None:
            self.path.rename(self.place)
        elif not swap_names(self.path, self.place):
            old = self._move_aside()
        self._done, self.path = True, self.place
        try:
            if old is not None:
                remove_marked(old)
            _sync(self.place.parent)
        except OSError as error:
            text = f"{error.strerror}; the new {self._what} is complete and in its place"
            raise OSError(error.errno, text, str(self.place)) from error
        return self.place

    def keep(self) -> None:
        """Leave the hidden folder where it is, whatever happens: the work in it is complete."""
        self._hidden.unmark()
        self._done = True

    def close(self) -> None:
        """Let go; a folder that was neither published nor kept is removed. May be repeated."""
        self._hidden.close(remove=not self._done)
        if not self._done:
            self._parents.remove()

    def _move_aside(self) -> Path:
        """Without renameat2: for a moment neither folder has the name, and a kill then leaves the old one aside."""
        aside = self.place.with_name(f".{self.place.name}.old-{secrets.token_hex(4)}")
        self.place.rename(aside)
        try:
            self.path.rename(self.place)
        except BaseException:
            aside.rename(self.place)
            raise
        return aside

    def _check(self) -> None:
        if not os.path.lexists(self.place):
            return
        if not self.place.is_dir():
            raise ConfigError(f"{self.place} is a file; a {self._what} needs a folder of its own")
        if any(self.place.iterdir()):
            self._may_replace(self.place)


class PendingFiles:
    """Files under construction in a hidden folder beside them, which ``publish`` renames. A context manager.

    Leaving the context without ``publish`` (a full disk, Ctrl-C) removes them and the folders made for them.

    Args:
        folder: Made when it is absent.
        names: In the order in which they take their names; the last is the one that readers look for.
        overwrite: Replace files that are there.
    Raises:
        ConfigError: a name is taken, or folder is a file.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path, names: Sequence[str], *, overwrite: bool = False) -> None:
        self.folder, self.names, self.overwrite = Path(folder), tuple(names), overwrite
        self._streams: list[OutputFile] = []
        self._check_names()

    def __enter__(self) -> PendingFiles:
        remove_left_behind(left_behind(self.folder / self.names[-1]))
        self._parents = _Parents(self.folder)
        try:
            self._hidden = HiddenFolder(self.folder / self.names[-1])
        except OSError:
            self._parents.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.abandon()
        self._hidden.close()
        self._parents.remove()

    def path(self, name: str) -> Path:
        """Where one of the files is written, for a library that opens it by itself."""
        return self._hidden.path / name

    def open(self, name: str) -> OutputFile:
        """Begin one of the files; ``publish`` closes it."""
        self._streams.append(OutputFile(self.path(name)))
        return self._streams[-1]

    def publish(self) -> list[Path]:
        """Put all files on the disk, then give them their names.

        Of several files, the last one's old version goes first and its new one comes last: whoever finds it finds
        files that belong together, whenever the process is killed.

        Returns:
            The paths, in the order of the names.
        Raises:
            OSError: a name could not be given; the old files have theirs again.
        """
        for stream in self._streams:
            stream.close()
        for name in self.names:
            _sync(self.path(name))
        self._check_names()
        old = [name for name in reversed(self.names) if os.path.lexists(self.folder / name) and len(self.names) > 1]
        try:
            for name in old:
                os.replace(self.folder / name, self.path(f"{name}.old"))
            for name in self.names:
                os.replace(self.path(name), self.folder / name)
        except OSError:
            for name in reversed(old):
                if os.path.lexists(self.path(f"{name}.old")):
                    os.replace(self.path(f"{name}.old"), self.folder / name)
            raise
        _sync(self.folder)
        return [self.folder / name for name in self.names]

    def _check_names(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; give a folder")
        for name in self.names:
            path = self.folder / name
            if path.is_dir():
                raise ConfigError(f"{path} is a folder; a file of this name is to be written, give another folder")
            if os.path.lexists(path) and not self.overwrite:
                raise ConfigError(f"{path} exists; pass overwrite to replace it, or give another folder")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A hidden name to write a file under, which becomes ``path`` at the end; an older file gives way in that step.

    After an error in the block nothing has changed.
    """
    path = Path(path)
    remove_left_behind(left_behind(path))
    hidden = HiddenFolder(path)
    try:
        draft = hidden.path / path.name
        yield draft
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)
    finally:
        hidden.close()


def replace_text(path: str | Path, text: str) -> None:
    """Write a text file that appears complete or not at all, see ``replacing``."""
    with replacing(path) as draft:
        write_file(draft, lambda stream: stream.write(text.encode()))


def replace_json(path: str | Path, content: Any) -> None:
    """``replace_text`` of ``json_text``."""
    replace_text(path, json_text(content))


def foreign_file(folder: Path, ours: Iterable[str]) -> str | None:
    """The first file of a folder that is not one of ours, by its path inside; None where there is none."""
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}
    return min(found - set(ours), default=None)


def swap_names(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here = -100  # AT_FDCWD; both paths are absolute
    return rename(here, os.fsencode(first), here, os.fsencode(second), EXCHANGE) == 0


def _sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise named(error, path) from error
    finally:
        os.close(descriptor)
