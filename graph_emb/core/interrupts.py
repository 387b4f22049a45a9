"""Ctrl-C and SIGTERM that wait for a place at which a process of several can stop without leaving the others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Deferral:
    """Handlers that note the first signal and then make room for the ones before them: the second signal raises."""

    def __init__(self) -> None:
        self.pressed = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Note signals from here on; a signal that nobody handles in Python keeps its effect."""
        if self._before or self.pressed.is_set():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                self._before[number] = signal.signal(number, self._press)

    def end(self) -> None:
        """Let signals raise again."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed.set()
        self.end()


_held: list[_Deferral] = []


@contextmanager
def deferred_interrupts(deferred: bool = True) -> Iterator[Callable[[], bool]]:
    """Note the first Ctrl-C or SIGTERM inside instead of raising KeyboardInterrupt; the second one raises.

    Args:
        deferred: False changes nothing.
    Yields:
        Whether there was one.
    """
    if not deferred or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    deferral = _held[-1] if _held else _Deferral()
    deferral.begin()
    try:
        yield deferral.pressed.is_set
    finally:
        if not _held:
            deferral.end()


@contextmanager
def held_interrupts(held: bool = True) -> Iterator[Callable[[], bool]]:
    """Keep what ``deferred_interrupts`` begins inside until the end of this context: rows are still to be saved then.

    Args:
        held: False changes nothing.
    Yields:
        Whether a signal was noted.
    """
    if not held or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    deferral = _Deferral()
    _held.append(deferral)
    try:
        yield deferral.pressed.is_set
    finally:
        _held.remove(deferral)
        deferral.end()


@contextmanager
def raising(raised: Callable[[int], BaseException], *numbers: signal.Signals) -> Iterator[None]:
    """Raise ``raised(number)`` where one of these signals comes; of no effect outside the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise raised(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
