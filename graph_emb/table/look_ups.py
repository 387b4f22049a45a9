"""The look-ups of a growing table since its last update, which needs the places that they found.

Legend: B asked keys.
"""

from __future__ import annotations

import numpy as np

from graph_emb.table.id_map import IdMap

MOST_KNOWN = 1 << 20
"""Keys whose places are kept from their look-up to the update."""


class LookUps:
    """What a map told of keys, until rows may have left their places.

    Args:
        of: The map.

    Attributes:
        outdated: Whether rows were made since the first of the look-ups.
    """

    def __init__(self, of: IdMap) -> None:
        self._map = of
        self.forget()

    def forget(self) -> None:
        """Give up the look-ups that an update could recall."""
        self._known: list[tuple[np.ndarray, np.ndarray]] = []
        self.outdated = False

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The place of each key's row, (B,), -1 where there is none; kept for the update that follows."""
        if self._known and not self.outdated and np.array_equal(self._known[-1][0], keys):
            return self._known[-1][1]
        at = self._map.find(keys)
        while sum(len(known) for known, _ in self._known) > MOST_KNOWN:
            del self._known[0]
        self._known.append((keys.copy(), at))
        return at

    def recalled(self, keys: np.ndarray) -> np.ndarray:
        """``find``, from the look-ups since the last update where they were of the same keys in the same order."""
        found, start = [], 0
        for known, at in self._known:
            if np.array_equal(known, keys[start : start + len(known)]):
                found.append(at)
                start += len(known)
        if start < len(keys):
            found.append(self._map.find(keys[start:]))
        return np.concatenate([np.empty(0, np.int64), *found])
