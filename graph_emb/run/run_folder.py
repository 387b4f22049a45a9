"""The folder of a run: written beside its place and moved there when complete, so that nothing is half there."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from graph_emb.core.errors import ConfigError

CONFIG, METRICS, LOG = "config.yaml", "metrics.json", "metrics.jsonl"
FREE_BYTES_MARGIN = 1 << 20


class RunFolder:
    """A run under construction: a hidden folder beside ``place`` that takes its name on ``publish``.

    Leaving the context without ``publish`` removes the hidden folder and the parents that were made for it.

    Args:
        place: Where the run will be.
        overwrite: Replace a run that is there. Only a folder that holds nothing but the files of a run of this
            library is ever replaced, and only when the new run is complete.
    Raises:
        ConfigError: place is taken and may not be replaced.
        OSError: place cannot be written.
    """

    def __init__(self, place: str | Path, *, overwrite: bool = False) -> None:
        self.place = Path(os.path.realpath(Path(place).expanduser()))
        self.overwrite = overwrite
        self._made: list[Path] = []
        self._log: TextIO | None = None
        self._complete = False
        check_place(self.place, overwrite)
        try:
            self._make_parents(self.place.parent)
            self.path = Path(tempfile.mkdtemp(prefix=f".{self.place.name}.partial-", dir=self.place.parent))
            self.path.chmod(0o777 & ~_umask())
        except OSError:
            self._remove_parents()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_log()
        if not self._complete:
            shutil.rmtree(self.path, ignore_errors=True)
            self._remove_parents()

    def check_space(self, num_bytes: int) -> None:
        """Raise an OSError now when the disk has no room for ``num_bytes``, not after hours of training."""
        free = shutil.disk_usage(self.path).free
        if num_bytes + FREE_BYTES_MARGIN > free:
            text = f"the run needs about {_size(num_bytes)}, the disk has {_size(free)} free; give another --out"
            raise OSError(errno.ENOSPC, text, str(self.place))

    def write_text(self, name: str, text: str) -> None:
        """Put a small text file into the run."""
        (self.path / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Any) -> None:
        """Put JSON into the run; numbers that JSON lacks (NaN, infinities) become null."""
        self.write_text(name, json_text(content))

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl; it is on its way to the disk when this returns."""
        if self._log is None:
            self._log = (self.path / LOG).open("a", encoding="utf-8")
        self._log.write(json.dumps(_plain(record), allow_nan=False) + "\n")
        self._log.flush()

    def publish(self, metrics: dict[str, Any]) -> Path:
        """Write metrics.json with the list of files and move the run to its place.

        Returns:
            The place.
        Raises:
            ConfigError: the place was taken meanwhile; the complete run stays where the message says.
        """
        if self._log is None:
            (self.path / LOG).touch()
        self._close_log()
        files = sorted({str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file()} | {METRICS})
        self.write_json(METRICS, {**metrics, "files": files})
        self._complete = True  # from here on the work is kept, whatever happens
        try:
            check_place(self.place, self.overwrite)
            with _moved_aside(self.place):
                self.path.rename(self.place)
        except (ConfigError, OSError) as error:
            raise ConfigError(f"{error}; the complete run is in {self.path}") from error
        self.path = self.place
        return self.place

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _make_parents(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir()
            self._made.append(path)

    def _remove_parents(self) -> None:
        for path in reversed(self._made):
            try:
                path.rmdir()
            except OSError:
                return  # somebody else uses it by now


def check_place(place: Path, overwrite: bool) -> None:
    """Raise a ConfigError unless a run may be written to ``place``: absent, empty, or a run with ``overwrite``."""
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise ConfigError(f"{place} is a file; a run needs a folder of its own")
    if not any(place.iterdir()):
        return
    if not is_run(place):
        raise ConfigError(f"{place} holds files but no run of graph-emb; give another --out")
    if not overwrite:
        raise ConfigError(f"{place} holds a run; give another --out, or --overwrite to replace it")
    foreign = sorted(_files(place) - set(read_metrics(place)["files"]))
    if foreign:
        raise ConfigError(f"{place} holds {foreign[0]}, which the run did not write; move it before --overwrite")


def is_run(folder: str | Path) -> bool:
    """Whether ``folder`` is a run that this library wrote."""
    try:
        folder = Path(folder)
        return (folder / CONFIG).is_file() and isinstance(read_metrics(folder)["files"], list)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_metrics(folder: Path) -> dict[str, Any]:
    """The content of a run's metrics.json."""
    return json.loads((folder / METRICS).read_text(encoding="utf-8"))


@contextmanager
def _moved_aside(place: Path) -> Iterator[None]:
    """Keep the old run under another name until the new one is in place; bring it back on failure."""
    if not place.is_dir() or not any(place.iterdir()):
        yield  # rename() replaces an empty folder by itself
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.old-", dir=place.parent))
    place.rename(aside)
    try:
        yield
    except BaseException:
        if not place.exists():
            aside.rename(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


def json_text(content: Any) -> str:
    """JSON with null for the numbers that JSON lacks (NaN, infinities); numpy numbers and arrays are fine."""
    return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch numbers and arrays
        return _plain(value.tolist())
    return value


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
