"""What a disk may hold after a cut of power, after the model of ALICE (Pillai et al. 2014, "All file systems are not
created equal").

``PowerCuts`` looks at a folder at each call that work makes to the system, C code's files included, and notes what
changed and what was put on the disk by fsync. Of what was not, a cut keeps any part: blocks of 512 bytes of any version
since, any length, names given, taken and removed in any order; an exchange of names is one step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.faults.shim import Faults

BLOCK = 512


class Names(NamedTuple):
    """Entries of folders that changed in one step: (folder, name): what has the name after it, or None."""

    entries: dict[tuple[int, str], int | None]


class Data(NamedTuple):
    """A file has another content."""

    file: int
    content: bytes


class Sync(NamedTuple):
    """A file or folder is on the disk as it is."""

    what: int


class PowerCuts(Faults):
    """The changes below a folder while work runs inside ``counting``.

    Attributes:
        log: What happened, in order.
    """

    def __init__(self, here: Path) -> None:
        super().__init__(here)
        self._lock = threading.Lock()
        self.log: list[Names | Data | Sync] = []
        self._numbers, self._next = {os.stat(here).st_ino: 0}, count(1)  # inodes are used again
        self._entries, self._contents = self._look()
        self._first = dict(self._entries), dict(self._contents)

    def _look(self) -> tuple[dict[tuple[int, str], int], dict[int, bytes]]:
        """Entries and contents now."""
        entries, contents, seen = {}, {}, {os.stat(self.here).st_ino}
        for folder, folders, files in os.walk(self.here):
            own = self._numbers[os.stat(folder).st_ino]
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                inode = os.stat(path).st_ino
                seen.add(inode)
                number = entries[own, name] = self._numbers.setdefault(inode, next(self._next))
                if name in files:
                    contents[number] = Path(path).read_bytes()
        self._numbers = {inode: number for inode, number in self._numbers.items() if inode in seen}
        return entries, contents

    def _meets(self, name: str, target: Any) -> None:
        if name in ("scandir", "listdir", "open", "statvfs"):  # looking changes nothing, and this class looks
            return
        with self._lock:  # threads write files
            self._note()
            if name in ("fsync", "fdatasync"):
                number = self._numbers.get(os.fstat(target).st_ino)
                if number is not None:
                    self.log.append(Sync(number))

    def _note(self) -> None:
        """Note what changed since the last call."""
        entries, contents = self._look()
        for number, content in contents.items():
            if content != self._contents.get(number, b""):
                self.log.append(Data(number, content))
        keys = self._entries.keys() | entries.keys()
        changed = {key: entries.get(key) for key in sorted(keys) if entries.get(key) != self._entries.get(key)}
        moved = set(changed.values()) & {self._entries.get(key) for key in changed} - {None}
        one = {k: v for k, v in changed.items() if v in moved or self._entries.get(k) in moved}
        steps = [one] if one else []
        self.log += [Names(step) for step in [*steps, *({k: v} for k, v in changed.items() if k not in one)]]
        self._entries, self._contents = entries, contents

    @contextmanager
    def counting(self) -> Iterator[PowerCuts]:
        """Note what work inside changes."""
        with super().counting():
            yield self
        self._note()

    def cut(self, after: int, place: Path, rng: np.random.Generator) -> None:
        """Make the folder as it may be found when power went after so many entries of the log."""
        log, (entries, contents) = self.log[:after], (dict(self._first[0]), dict(self._first[1]))
        synced = {one.what: k for k, one in enumerate(log) if isinstance(one, Sync)}
        versions: dict[int, list[bytes]] = {}
        for k, one in enumerate(log):
            if isinstance(one, Data):
                if k < synced.get(one.file, -1):
                    contents[one.file] = one.content
                else:
                    versions.setdefault(one.file, [contents.get(one.file, b"")]).append(one.content)
            elif isinstance(one, Names):
                durable = any(k < synced.get(folder, -1) for folder, _ in one.entries)  # a step is kept whole or not
                if durable or rng.random() < 0.5:
                    for key, number in one.entries.items():
                        entries.pop(key, None)
                        if number is not None:
                            entries[key] = number
        for number, some in versions.items():
            contents[number] = torn(some, rng)
        self._build(0, place, entries, contents)

    def _build(self, folder: int, place: Path, entries: dict[tuple[int, str], int], contents: dict[int, bytes]) -> None:
        place.mkdir()
        for (own, name), number in entries.items():
            if own == folder and number in self._files:
                (place / name).write_bytes(contents.get(number, b""))
            elif own == folder:
                self._build(number, place / name, entries, contents)

    @property
    def _files(self) -> set[int]:
        """Everything that is no folder, whether or not it holds something."""
        of_log = {one.file for one in self.log if isinstance(one, Data)}
        return of_log | set(self._first[1]) | set(self._contents)


def torn(versions: list[bytes], rng: np.random.Generator) -> bytes:
    """Blocks of any of some versions of a file, as long as one of them."""
    size = len(versions[rng.integers(len(versions))])
    whole = bytearray(size)
    for start in range(0, size, BLOCK):
        piece = versions[rng.integers(len(versions))][start : min(start + BLOCK, size)]
        whole[start : start + len(piece)] = piece
    return bytes(whole)
