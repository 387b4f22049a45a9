"""A progress bar for what lasts: share, rate, time left and memory, silent in the first two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

SILENT_S = 2.0
"""A read that ends within this many seconds shows nothing."""
REFRESH_S, REFRESH_LOG_S = 0.5, 10.0
"""Seconds between two states of a bar, on a terminal and in a file, where each one is a line that stays."""
_GIGABYTE = 1 << 30
Advance = Callable[[int], None]
_PROGRESS: ContextVar[bool | None] = ContextVar("progress", default=None)


@contextmanager
def progress_shown(progress: bool | None) -> Iterator[None]:
    """Bars inside show always (True), never (False), or where standard error is a terminal (None)."""
    before = _PROGRESS.set(progress)
    try:
        yield
    finally:
        _PROGRESS.reset(before)


@contextmanager
def reading(what: str, total: int | None, unit: str = "B") -> Iterator[Advance]:
    """A bar on standard error that a read moves by calling what this yields with the units done since the last call.

    Args:
        what: Stands before the bar, a file's name for example.
        total: All units; None: not known, no time left is shown.
        unit: What is counted; bytes by default.
    """
    import psutil
    from tqdm import tqdm

    process = psutil.Process()
    progress, is_terminal = _PROGRESS.get(), sys.stderr.isatty()
    with tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        delay=SILENT_S,
        mininterval=REFRESH_S if is_terminal else REFRESH_LOG_S,
        miniters=1,
        leave=False,
        disable=not (is_terminal if progress is None else progress),
    ) as bar:

        def advance(units: int) -> None:
            if bar.total is not None:  # estimates of a gzipped file's text may run over
                units = min(units, max(int(bar.total - bar.n), 0))
            if bar.disable:
                return
            bar.set_postfix_str(f"memory {process.memory_info().rss / _GIGABYTE:.1f} GB", refresh=False)
            bar.update(units)

        yield advance


def text_bytes(file: Path) -> int:
    """Bytes of text in a file; of a gzipped one what its last four bytes say (modulo 4 GiB, RFC 1952)."""
    size = file.stat().st_size
    if not file.name.lower().endswith(".gz") or size < 4:
        return size
    with file.open("rb") as stream:
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), size)
