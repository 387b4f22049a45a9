"""One failing call of the operating system at a time, after SQLite's way of testing I/O errors.

``Faults`` counts the calls that a piece of work makes to open, write, sync, rename, make or remove files, and lets the
call with a given number fail once. Calls that C code makes without Python (Arrow's, torch's) are not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = (
    "open", "write", "writev", "pwrite", "fsync", "fdatasync", "rename", "replace", "unlink", "remove", "mkdir",
    "rmdir", "posix_fallocate", "ftruncate", "truncate", "link", "sendfile", "copy_file_range", "statvfs", "scandir",
    "listdir",
)  # fmt: skip
OPENING = {"open", "mkdir", "scandir", "listdir"}


class Faults:
    """The calls of the work inside ``counting``, of which number ``fail_at`` raises an OSError.

    Args:
        fail_at: From 1; 0: none.
        code: Its error number.
        here: Only calls whose first argument, or whose file, lies below this folder count.
    """

    def __init__(self, here: Path, fail_at: int = 0, code: int = errno.ENOSPC) -> None:
        self.here, self.fail_at, self.code = os.path.realpath(here), fail_at, code
        self.calls: list[str] = []

    def _meets(self, name: str, target: Any) -> None:
        try:
            place = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
        except (OSError, TypeError):
            return
        if isinstance(place, bytes) or not os.path.abspath(place).startswith(self.here):
            return
        self.calls.append(name)
        if len(self.calls) == self.fail_at:
            raise OSError(self.code, os.strerror(self.code), place)

    def _call(self, name: str, real: Callable) -> Callable:
        def call(target: Any = ".", *args: Any, **options: Any) -> Any:
            self._meets(name, target)
            return real(target, *args, **options)

        return call

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *more: Any, **options: Any
    ) -> Any:
        """As ``open``; what is written reaches a raw file that may fail."""
        self._meets("open", file)
        if buffering == 0 or not set("wxa+") & set(mode) or any(more) or options:
            return REAL_OPEN(file, mode, buffering, encoding, *more, **options)
        raw = _Raw(self, file, mode.replace("b", "").replace("t", ""))
        made: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return made if "b" in mode else io.TextIOWrapper(made, encoding)

    @contextmanager
    def counting(self) -> Iterator[Faults]:
        """Count, and let fail, what runs inside."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._call(name, getattr(os, name)))
            for module in (builtins, io):
                patch.setattr(module, "open", self._open)
            yield self


class _Raw(io.FileIO):
    def __init__(self, faults: Faults, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._faults = faults

    def write(self, data: Any, /) -> int:
        self._faults._meets("write", self.fileno())
        return super().write(data)


REAL_OPEN = builtins.open


def every_call(work: Callable[[], Any], here: Path) -> list[str]:
    """The names of the calls below ``here`` that a piece of work makes when none fails."""
    with Faults(here).counting() as faults:
        work()
    return faults.calls


def code_for(call: str, position: int) -> int:
    """An error that the call may really give: of a full disk, a broken one, or a process with too many files."""
    return errno.EMFILE if call in OPENING and position % 2 else (errno.ENOSPC, errno.EIO)[position % 2]
