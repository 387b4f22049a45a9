"""Bars on terminals and in notebooks; elsewhere, as in a file or under a scheduler, a line a minute."""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Any

from tqdm import TqdmWarning, tqdm

WATCHED = "GRAPH_EMB_WATCHED"
"""Set by a launcher with a terminal: its first trainer's output goes there."""
REFRESH_S, LINE_S = 0.5, 60.0
"""Seconds between two states of a bar, and between two lines."""
_OF_BARS = ("delay", "leave", "miniters")


def on_terminal() -> bool:
    """Whether standard error is a terminal, or a launcher copies it to one."""
    return sys.stderr.isatty() or os.environ.get(WATCHED) == "1"


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process; a library may have imported its modules for another reason."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def bar(items: Any = None, *, shown: bool = True, **options: Any) -> tqdm:
    """A bar over items, or one that its ``update`` moves.

    Args:
        items: Iterated over by iterating over the bar; None: nothing.
        shown: False shows nothing.
        options: As of tqdm, such as ``total``, ``desc`` and ``unit``.
    """
    if on_terminal():
        return tqdm(items, disable=not shown, mininterval=REFRESH_S, **options)
    if in_notebook():
        with warnings.catch_warnings():  # tqdm 4.70 warns where there is no ipywidgets, and shows a bar of text
            warnings.simplefilter("ignore", TqdmWarning)
            from tqdm.auto import tqdm as of_notebook

        return of_notebook(items, disable=not shown, mininterval=REFRESH_S, **options)
    kept = {name: value for name, value in options.items() if name not in _OF_BARS}
    return Lines(items, disable=not shown, ncols=0, miniters=1, mininterval=LINE_S, **kept)


class Lines(tqdm):
    """A bar as lines that stay: one a minute and, where there was one, a last one at the end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._due = time.monotonic() + LINE_S
        self._told = False
        super().__init__(*args, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Print the state as a line where one is due."""
        if time.monotonic() >= self._due:
            self._due, self._told = time.monotonic() + LINE_S, True
            print(self, file=self.fp, flush=True)

    def close(self) -> None:
        """Print the last state if there were others before it."""
        if self.disable:
            return
        if self._told:
            print(self, file=self.fp, flush=True)
        self.disable = True
