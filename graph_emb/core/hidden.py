"""Hidden folders for files under construction: locked, marked, and removed after their process was killed.

::

    mkdir .<name>.partial-<hex> > lock it > still there? > write MARK > files, synced > remove MARK > rename to <name>

The lock (``flock`` on the folder) ends with its process, so a later run tells what a killed one left from what a living
one writes. It removes a folder that is unlocked and marked, by MARK or by a complete manifest, and no other.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("graph_emb.core.storage")

MARK = ".graph_emb"
MARK_FORMAT = "graph_emb files under construction"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_HIDDEN_NAME = re.compile(r"\..+\.partial-[0-9a-f]{8}")
_LOCAL_LOCKS = re.compile(r"\b(local_lock=(flock|all)|localflock)\b")


class HiddenFolder:
    """A folder for files under construction beside ``place``: locked while this process lives, and marked as ours.

    Args:
        place: What the files will become.
        name: Of the folder, where other processes must find it; else a new, unique one.
    Attributes:
        path: The folder.
    Raises:
        FileExistsError: ``name`` is there.
        OSError: the folder cannot be made.
    """

    def __init__(self, place: Path, name: str | None = None) -> None:
        while True:
            self.path = place.with_name(name or hidden_name(place))
            self.path.mkdir()
            lock = _locked(self.path)
            if lock is not None:
                break
        self._lock, self._open = lock, True
        try:
            _write_mark(self.path)
        except OSError:
            self.close()
            raise

    def unmark(self) -> None:
        """Take the mark away: the folder is complete, and from here on no cleaner removes it."""
        (self.path / MARK).unlink(missing_ok=True)

    def close(self, *, remove: bool = True) -> None:
        """Let go of the folder, by default with all that is in it. May be repeated."""
        if self._open:
            self._open = False
            if remove:
                remove_marked(self.path)
            os.close(self._lock)


def hidden_name(place: Path) -> str:
    """A unique hidden name in the folder of ``place``."""
    return f".{place.name}.partial-{secrets.token_hex(4)}"


def remove_folder(place: Path) -> None:
    """Remove a folder that is known to be ours, in one step for whoever looks under its name.

    Raises:
        OSError: it cannot be renamed; it is untouched then.
    """
    remove_left_behind(left_behind(place))
    hidden = place.with_name(hidden_name(place))
    place.rename(hidden)  # a kill from here on leaves no half of it under a name
    remove_marked(hidden)


def remove_marked(folder: Path) -> None:
    """Remove a hidden folder, its mark last: what a kill or an error leaves of it is known to be ours."""
    with suppress(OSError):
        _write_mark(folder)
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARK:
                entry.unlink()
        if [entry.name for entry in folder.iterdir()] == [MARK]:
            (folder / MARK).unlink()
        folder.rmdir()


def remove_left_behind(
    folders: Iterable[Path], is_ours: Callable[[Path], bool] | None = None, *, empty: bool = False
) -> list[Path]:
    """Remove hidden folders that killed processes left, and log each; arguments as ``left_by_the_dead``."""
    removed = []
    for path in left_by_the_dead(folders, is_ours, empty=empty, remove=True):
        log.warning("removed %s, which a killed process left", path)
        removed.append(path)
    return removed


def left_by_the_dead(
    folders: Iterable[Path], is_ours: Callable[[Path], bool] | None = None, *, empty: bool = False, remove: bool
) -> Iterator[Path]:
    """Hidden folders that killed processes left.

    Args:
        folders: Candidates; only unlocked folders with MARK count, and empty ones of a name that only we give.
        is_ours: Whether an unmarked folder holds a complete result of ours, which counts too.
        empty: Empty folders of any name count as well.
        remove: Remove each before it is yielded.
    """
    for path in sorted(folders):
        with suppress(OSError):  # a living process has the lock, no folder, or gone meanwhile
            if _is_dead(path, is_ours, empty, remove):
                yield path


def left_behind(place: Path) -> Iterator[Path]:
    """Hidden folders for ``place``, of living processes too."""
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in place.name)
    found = place.parent.glob(f".{escaped}.partial-*") if place.parent.is_dir() else iter(())
    return (path for path in found if _HIDDEN_NAME.fullmatch(path.name))


@contextmanager
def scratch_folder(place: str | Path) -> Iterator[Path]:
    """A folder for temporary files, removed at the end; leftovers of killed processes for ``place`` go first.

    Args:
        place: Gives the parent and the name; without a parent the folder lies in ``$TMPDIR``.
    """
    place = Path(place)
    if place.parent == Path():
        place = Path(tempfile.gettempdir()) / place
    remove_left_behind(left_behind(place))
    folder = HiddenFolder(place)
    try:
        folder.path.chmod(0o700)
        yield folder.path
    finally:
        folder.close()


def is_marked(folder: Path) -> bool:
    """Whether this library made the folder for files under construction."""
    try:
        text = (folder / MARK).read_text(encoding="utf-8")
        if not text:  # killed while the mark was written: nothing else can be there yet
            return len(list(folder.iterdir())) == 1
        return bool(json.loads(text)["format"] == MARK_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _locked(path: Path) -> int | None:
    """The descriptor that locks a new folder; None where a cleaner took it, still empty, for what a kill left."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    except OSError:
        path.rmdir()
        raise
    with suppress(OSError):  # a file system without locks: no other process can remove the folder there
        fcntl.flock(lock, fcntl.LOCK_EX)
    if _is_still(path, lock):
        return lock
    os.close(lock)
    return None


def _write_mark(folder: Path) -> None:
    text = json.dumps({"format": MARK_FORMAT, "host": os.uname().nodename, "process": os.getpid()})
    try:
        (folder / MARK).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise named(error, folder / MARK, len(text) + 1) from error


def _is_dead(path: Path, is_ours: Callable[[Path], bool] | None, empty: bool, remove: bool) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _locks_reach_all_hosts(descriptor):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(path, descriptor):
            return False
        if is_marked(path) or (is_ours is not None and is_ours(path)):
            if remove:
                remove_marked(path)
            return True
        if any(path.iterdir()) or not (empty or _HIDDEN_NAME.fullmatch(path.name)):
            return False
        if remove:
            path.rmdir()  # killed before the mark was written; raises where a file came meanwhile
        return True
    finally:
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the folder that was opened is the one that has the name."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _locks_reach_all_hosts(descriptor: int) -> bool:
    """False on a mount whose locks other hosts do not see: NFS with local_lock=flock, Lustre with localflock."""
    device = os.fstat(descriptor).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    return not any(line.split()[2] == number and _LOCAL_LOCKS.search(line) for line in mounts.splitlines())


def size_text(num_bytes: float) -> str:
    """Bytes for a person, such as ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"


def named(error: OSError, path: Path, num_bytes: int = 0) -> OSError:
    """The same error with the file's name and, on a full disk, the bytes that it needs and that are free."""
    text = error.strerror or str(error)
    if error.errno in FULL_DISK:
        with suppress(OSError):
            free = size_text(shutil.disk_usage(path.parent).free)
            text += f"; {size_text(num_bytes)} more are needed, {free} are free"
    return OSError(error.errno, text, str(path))


def nameless_file(folder: Path) -> int:
    """A new file without a name in a folder, to be read and written; its room is free when it is closed."""
    with suppress(OSError):  # a file system that has no such files
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    descriptor, name = tempfile.mkstemp(dir=folder)
    os.unlink(name)
    return descriptor
