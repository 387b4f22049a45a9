"""Imports of heavy modules without the garbage collector, which looks through their new objects again and again."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Any

OWN = 1000
"""More objects than Python freezes at its own start (375 in 3.12, none before), fewer than any program has then."""
_frozen_by_caller = False


@contextmanager
def paused_collection() -> Iterator[None]:
    """No collection of cyclic garbage inside. Importing and compiling take less time so."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """No collection inside; what was made then counts as old, as the next collection of the young would read it all.

    For imports, whose objects live on: garbage of a compiler would stay until a full collection. So would frames that
    hold themselves (``torch.fx`` looks at its caller's), and with them the variables of all their callers, ours among
    them.
    """
    before, others = len(sys.modules), {id(frame) for frame in _young_frames()}
    with paused_collection():
        yield
        if len(sys.modules) > before:
            _clear_frames(others)
        if len(sys.modules) > before and not has_frozen():  # unfreeze would undo a freeze of the caller's
            gc.freeze()
            gc.unfreeze()  # which puts them into the oldest generation


def has_frozen() -> bool:
    """Whether the program has frozen objects of its own; then it is not asked again, and neither are its forks.

    To count a million frozen objects takes 50 ms.
    """
    global _frozen_by_caller
    _frozen_by_caller = _frozen_by_caller or gc.get_freeze_count() >= OWN
    return _frozen_by_caller


def _young_frames() -> list[FrameType]:
    """Frames that no collection has passed, but those of generators, which may wait."""
    waiting = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
    return [one for one in gc.get_objects(0) if type(one) is FrameType and not one.f_code.co_flags & waiting]


def _clear_frames(others: Container[int]) -> None:
    """Clear the young frames that no longer run, but those of these ids."""
    for frame in _young_frames():
        if id(frame) not in others:
            with suppress(RuntimeError):  # it runs
                frame.clear()


def resolve(place: str) -> Any:
    """The object of ``module:name``, or a module, imported with the collector paused."""
    module, _, name = place.partition(":")
    with importing():
        found = importlib.import_module(module)
    return getattr(found, name) if name else found
