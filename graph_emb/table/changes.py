"""Which rows of a growing table changed since a checkpoint, and which ids left it: what a delta saves.

Legend: R rows, N ids.
"""

from __future__ import annotations

import numpy as np

from graph_emb.graph.hash_book import keys_of
from graph_emb.table.id_map import IdMap, reserved
from graph_emb.table.places import distinct_ids

MOST_GONE = 1 << 16
"""Ids that left, at least, before those that left twice or came back are sorted out."""


class Changes:
    """The changes of one owner's rows, known from the first ``track`` on.

    Args:
        rows: The map of the rows that are there.
        num_places: Where rows may lie.
        what: The words with which an error begins.

    Attributes:
        since: The digest of the checkpoint since which changes are known; None: they are not.
        step: The table's at that checkpoint.
    """

    def __init__(self, rows: IdMap, num_places: int, what: str) -> None:
        self.since: str | None = None
        self.step = 0
        self._map, self._num_places, self._what = rows, num_places, what
        self._written: np.ndarray | None = None  # which rows were changed by other calls than updates, by place
        self._gone: list[np.ndarray] = []  # the ids that left
        self._most_gone = MOST_GONE

    def track(self, checkpoint: str | None, step: int, places: np.ndarray) -> None:
        """Begin anew: the rows, whose places are given, are those of a checkpoint."""
        if self._written is None:
            self._written = np.frombuffer(reserved(self._num_places, self._what), bool)[: self._num_places]
        self._written[places] = False
        self._gone.clear()
        self.since, self.step = checkpoint, step

    def mark(self, places: np.ndarray) -> None:
        """Rows, (R,), are changed by another call than an update, whose step is kept beside the row."""
        if self._written is not None:
            self._written[places] = True

    def marks(self, places: np.ndarray) -> np.ndarray:
        """Whether each row was, (R,) bool."""
        return np.zeros(len(places), bool) if self._written is None else self._written[places]

    def set_marks(self, places: np.ndarray, marks: np.ndarray) -> None:
        """Rows that moved to these places, (R,), take along what ``marks`` told of them."""
        if self._written is not None:
            self._written[places] = marks

    def left(self, ids: np.ndarray) -> None:
        """Ids, (N,), left the table."""
        if self._written is None:
            return
        self._gone.append(ids)
        if sum(map(len, self._gone)) > self._most_gone:  # some left again and again
            self._gone = [self.gone()]
            self._most_gone = max(MOST_GONE, 2 * len(self._gone[0]))

    def gone(self) -> np.ndarray:
        """The ids that left and have no row, (N,), ascending."""
        left = distinct_ids(np.concatenate([np.empty(0, np.int64), *self._gone]))
        return left[self._map.find(keys_of(left)) < 0]
