"""Imports of heavy modules without the garbage collector, which looks through their new objects again and again."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OWN = 1000
"""More objects than Python freezes at its own start (375 in 3.12, none before), fewer than any program has then."""


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

    For imports, whose objects live on: garbage of a compiler would stay until a full collection.
    """
    before = len(sys.modules)
    with paused_collection():
        yield
        # To count a million frozen objects takes 50 ms. More than OWN: unfreeze would undo a freeze of the caller's.
        if len(sys.modules) > before and gc.get_freeze_count() < OWN:
            gc.freeze()
            gc.unfreeze()  # which puts them into the oldest generation


def resolve(place: str) -> Any:
    """The object of ``module:name``, or a module, imported with the collector paused."""
    module, _, name = place.partition(":")
    with importing():
        found = importlib.import_module(module)
    return getattr(found, name) if name else found
