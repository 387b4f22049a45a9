"""What ranks know of an interval in which they train copies of each other's rows, as ``LocalSGDRows`` exchanges them.

Legend: T tables, W ranks, N nodes, S copied rows of all tables, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from graph_emb.core.compiled import njit


class Nodes(NamedTuple):
    """The nodes of a message, in whose order their rows lie there.

    Attributes:
        ids: Shape (N,), int64.
        group: Of each the first table of which it has a row; it has one of all tables behind that, (N,).
        last: Where the row of the last table lies, (N,).
    """

    ids: np.ndarray
    group: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, ids: Tensor, counts: np.ndarray) -> Nodes:
        """Nodes of each rank and group, by (W, T) of their numbers."""
        tables = counts.shape[1]
        group = np.repeat(np.tile(np.arange(tables), len(counts)), counts.ravel())
        return cls(ids.numpy(), group, np.cumsum(tables - group) - 1)

    def part(self, low: int, high: int) -> Nodes:
        """The nodes [low, high)."""
        return Nodes(*(each[low:high] for each in self))


@dataclass
class Interval:
    """The copies of an interval.

    Attributes:
        number: From 0.
        asks, wanted: Nodes of each group from and for each rank, (W, T).
        asked: Ids that the others ask of this rank, rank after rank and group by group.
        sent: Ids that this rank asks for, likewise.
        places: As of ``Copies``.
        came: The rows as they came; the copies themselves where they are exact and nothing overlaps.
        arriving: Waits for them.
        gone: Own changes that were under way when the rows were laid out, and where that of each row is among them.
    """

    number: int
    asks: np.ndarray
    wanted: np.ndarray
    asked: Tensor
    sent: Tensor
    places: Tensor
    came: Tensor
    arriving: Callable[[], None]
    gone: tuple[np.ndarray | None, np.ndarray | None] = (None, None)


class Copies(NamedTuple):
    """Rows of other ranks, to be trained in place.

    Attributes:
        rows: Memory of each table, (S, D).
        places: Shape (N,), int64: the row of each id asked for, group after group, in the memory of each table of
            which it is copied.
    """

    rows: list[Tensor]
    places: Tensor


@njit(cache=True, nogil=True)
def find(place_of, ids, asked, out):  # type: ignore[no-untyped-def]
    """``out[i]`` becomes the place of asked[i] among ids, where it is; ``place_of`` is -1, before and after."""
    for i in range(len(ids)):
        place_of[ids[i]] = i
    for i in range(len(asked)):
        out[i] = place_of[asked[i]]
    for i in range(len(ids)):
        place_of[ids[i]] = -1
