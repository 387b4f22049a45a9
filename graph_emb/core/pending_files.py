"""Files that appear under their names complete or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from graph_emb.core.errors import ConfigError


class PendingFiles:
    """Files under construction: hidden ones in the same folder, which ``publish`` renames.

    Leaving the context without ``publish`` (a full disk, Ctrl-C) removes them and the folders made for them. A killed
    process leaves hidden files named ``.<name>.partial-...``, never a name that somebody would read.

    Args:
        folder: Made when it is absent.
        names: In the order in which they take their names; the last is the one that readers look for.
        overwrite: Replace files that are there.
    Raises:
        ConfigError: a name is taken, or folder is a file.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str | Path, names: Sequence[str], *, overwrite: bool = False) -> None:
        self.folder = Path(folder)
        self.names = tuple(names)
        self.overwrite = overwrite
        self.streams: dict[str, BinaryIO] = {}
        self._hidden: dict[str, Path] = {}
        self._made: list[Path] = []
        self._check_names()

    def __enter__(self) -> PendingFiles:
        try:
            self._make_folder()
            for name in self.names:
                hidden = self.folder / f".{name}.partial-{secrets.token_hex(4)}"
                self.streams[name] = hidden.open("xb")
                self._hidden[name] = hidden
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def publish(self) -> list[Path]:
        """Flush all files to the disk, then give them their names.

        Of several files, the last one's old version goes first and its new one comes last: whoever finds it finds
        files that belong together, whenever the process is killed.

        Returns:
            The paths, in the order of the names.
        """
        for stream in self.streams.values():
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
        self._check_names()
        if len(self.names) > 1:
            (self.folder / self.names[-1]).unlink(missing_ok=True)
        for name in self.names:
            os.replace(self._hidden.pop(name), self.folder / name)
        self._made.clear()
        _sync_folder(self.folder)
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

    def _make_folder(self) -> None:
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
            self._made.append(path)

    def _remove(self) -> None:
        for stream in self.streams.values():
            with suppress(OSError):  # the disk that was full is full for the last buffer too
                stream.close()
        for hidden in self._hidden.values():
            hidden.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else uses the folder by now
            for path in reversed(self._made):
                path.rmdir()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
