"""The tables of each transport that programs hold, by name: a second object of a name is the same table."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

from graph_emb.transport.base import Transport

_unnamed: weakref.WeakKeyDictionary[Transport, Iterator[int]] = weakref.WeakKeyDictionary()
_objects: weakref.WeakKeyDictionary[Transport, dict[str, weakref.WeakSet[Any]]] = weakref.WeakKeyDictionary()


class Lifetime:
    """What the objects of one table share: it ends with the last of them, and the table with it."""

    def __init__(self, transport: Transport, table: str) -> None:
        weakref.finalize(self, transport.destroy, table)


def next_name(transport: Transport) -> str:
    """A name for a table without one: the trainers of a job count alike, whatever they made before."""
    return f"embedding_{next(_unnamed.setdefault(transport, itertools.count()))}"


def objects_of(transport: Transport, table: str) -> weakref.WeakSet[Any]:
    """The objects of a table that are alive; a new one is added to them."""
    return _objects.setdefault(transport, {}).setdefault(table, weakref.WeakSet())
