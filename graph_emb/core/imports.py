"""Imports of heavy modules without the garbage collector, which looks through their new objects again and again."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def paused_collection() -> Iterator[None]:
    """No collection of cyclic garbage inside. Importing torch, numba and pandas takes less time so.

    What was made inside then counts as old: the next collection of young objects would look through all of it.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if gc.get_freeze_count() == 0:  # else unfreeze would undo a freeze of the caller's
                gc.freeze()
                gc.unfreeze()  # which puts them into the oldest generation
            gc.enable()


def resolve(place: str) -> Any:
    """The object of ``module:name``, or a module, imported with the collector paused."""
    module, _, name = place.partition(":")
    with paused_collection():
        found = importlib.import_module(module)
    return getattr(found, name) if name else found
