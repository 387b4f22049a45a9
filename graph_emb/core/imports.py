"""Imports of heavy modules without the garbage collector, which looks through their new objects again and again."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def paused_collection() -> Iterator[None]:
    """No collection of cyclic garbage inside. Importing torch, numba and pandas takes less time so."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def resolve(place: str) -> Any:
    """The object of ``module:name``, or a module, imported with the collector paused."""
    module, _, name = place.partition(":")
    with paused_collection():
        found = importlib.import_module(module)
    return getattr(found, name) if name else found
