"""What dead processes left in folders and in shared memory: for ``graph-emb doctor`` and for the next job."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from graph_emb.core.hidden import left_by_the_dead

SHARED_MEMORY = Path("/dev/shm")
_SHARED_NAME = re.compile(r"graph_emb_(?P<process>\d+)_(?P<namespace>\d+)_[0-9a-f]{16}")
_HIDDEN = re.compile(r"\..+\.(partial-[0-9a-f]{8}|writing)")


def shared_name() -> str:
    """A name in shared memory that no other job, part or table of this host has; it tells which process made it."""
    return f"graph_emb_{os.getpid()}_{_process_namespace()}_{secrets.token_hex(8)}"


def shared_names_of(process: int) -> list[Path]:
    """What a process has in shared memory under a name."""
    return sorted(SHARED_MEMORY.glob(f"graph_emb_{process}_*"))


def left_in(folders: Iterable[Path], *, remove: bool) -> Iterator[Path]:
    """What dead processes left in folders, in the folders directly in them, and in shared memory.

    Only hidden folders with our mark that no process holds, and names in shared memory that this user's dead processes
    gave. A container's processes have numbers of their own: names from there are left alone.

    Args:
        folders: Those that cannot be read are passed over; links inside are not followed.
        remove: Remove each before it is yielded.
    """
    seen: set[Path] = set()
    for folder in folders:
        inner = [path for path in _folders_in(folder) if not _HIDDEN.fullmatch(path.name)]
        places = {path.resolve() for path in (folder, *inner)} - seen
        seen |= places
        hidden = [path for place in places for path in _folders_in(place) if _HIDDEN.fullmatch(path.name)]
        yield from left_by_the_dead(hidden, remove=remove)
    yield from left_in_shared_memory(remove=remove)


def left_in_shared_memory(*, remove: bool) -> Iterator[Path]:
    """As ``left_in``, the names in shared memory alone."""
    for path in sorted(SHARED_MEMORY.glob("graph_emb_*")):
        name = _SHARED_NAME.fullmatch(path.name)
        with suppress(OSError):  # gone meanwhile
            if name is None or int(name["namespace"]) != _process_namespace() or path.lstat().st_uid != os.getuid():
                continue
            if not psutil.pid_exists(int(name["process"])):
                if remove:
                    path.unlink()
                yield path


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _process_namespace() -> int:
    """Tells containers apart that share memory but number their processes for themselves; 0 where none is known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
