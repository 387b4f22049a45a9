"""The ids of a growing table that wait for a row: how often each was used, and the last step that did.

Legend: R ids.
"""

from __future__ import annotations

import numpy as np

from graph_emb.graph.hash_book import ids_of, keys_of
from graph_emb.table.growth import LOW_WATER, MOST_USES, SeenAtLeast
from graph_emb.table.id_map import IdMap
from graph_emb.table.selection import Sums, lowest

MOST_CANDIDATES = 1 << 26


class Candidates:
    """``SeenAtLeast`` of one owner of a table.

    Uses are the lower half of a candidate's number in the map, its last step the upper one.

    Args:
        rule: Of the table.
        what: The words with which an error names the table.
    """

    def __init__(self, rule: SeenAtLeast, what: str) -> None:
        self.rule = rule
        self._map = IdMap(MOST_CANDIDATES, f"{what}: candidates")

    def used(self, ids: np.ndarray, step: int, times: np.ndarray) -> np.ndarray:
        """The uses of distinct ids, (R,), when a step uses them too, each so many ``times``, (R,); nothing changes."""
        told = self._map.find(keys_of(ids))
        return np.where((told < 0) | (step - (told >> 32) > self.rule.candidate_steps), 0, told & MOST_USES) + times

    def count(self, ids: np.ndarray, uses: np.ndarray, step: int) -> None:
        """Keep what ``used`` told of ids that get no row in this step."""
        keys, number = keys_of(ids), step << 32 | uses
        known = self._map.find(keys) >= 0
        self._map.set(keys[known], number[known])
        self._map.add(keys[~known], number[~known])

    def drop(self, keys: np.ndarray) -> None:
        """Forget those of distinct keys that wait."""
        self._map.remove(keys[self._map.find(keys) >= 0])

    def forget(self, step: int) -> None:
        """Drop those whose last use is ``candidate_steps`` old."""
        keys, told = self._map.items()
        self._map.remove(keys[step - (told >> 32) >= self.rule.candidate_steps])

    def leaving(self) -> Sums[None]:
        """Drop the least recently used of all owners' where they are more than ``max_candidates``."""
        most = self.rule.max_candidates
        if most is None:
            return
        (num,) = (yield np.array([len(self._map)])).tolist()
        if num > most:
            keys, told = self._map.items()
            last = (told >> 32).astype(np.uint32)
            left = yield from lowest(last, ids_of(keys), np.ones(len(keys), bool), num - int(LOW_WATER * most))
            self._map.remove(keys[left])

    def clear(self) -> None:
        """Drop all."""
        self._map.remove(self._map.items()[0])

    def items(self) -> dict[str, np.ndarray]:
        """The ``ids``, ascending, with their ``uses`` and ``last`` steps, (R,) int64 each."""
        keys, told = self._map.items()
        ids = ids_of(keys)
        order = np.argsort(ids)
        return {"ids": ids[order], "uses": (told & MOST_USES)[order], "last": (told >> 32)[order]}

    def restore(self, ids: np.ndarray, uses: np.ndarray, last: np.ndarray) -> None:
        """Let distinct ids that do not wait do so, as ``items`` told of them."""
        self._map.add(keys_of(ids), last << 32 | uses)
