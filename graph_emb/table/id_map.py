"""The map of a growing table from ids to rows: any int64 id, growth in small pieces, exact deletion.

Legend: B asked ids, R distinct ids, S sub-maps.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from graph_emb.core.compiled import mix64, njit
from graph_emb.core.errors import ConfigError
from graph_emb.table.row_memory import prefetch_to_read

SUB_MAPS = 256
FIRST_BITS = 4  # a sub-map begins with 16 places
AHEAD = 12  # ids whose places are asked for before they are read
HUGE = 1 << 21  # bytes of a huge page
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; Python names it from 3.13 on
_GONE = -1  # beside a place whose id was removed, until the sub-map is laid out anew


def reserved(num_bytes: int, what: str, *, huge: bool = True) -> mmap.mmap:
    """Address space whose pages are zeros and take memory when they are first written, aligned to pages.

    Args:
        num_bytes: At least 1 is taken.
        what: The words with which an error begins.
        huge: Whether the kernel may use huge pages, which takes memory for 2 MiB at a time.
    Raises:
        ConfigError: the system gives no such room.
    """
    try:
        found = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"{what}: cannot reserve {num_bytes:,} bytes of address space ({error}); use a smaller max_rows, or allow "
            "overcommitting memory (vm.overcommit_memory=0 or 1) and raise ulimit -v"
        ) from error
    found.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return found


class IdMap:
    """A number for each of a set of ids.

    Open addressing with linear probing (Knuth, TAOCP 6.4) in 256 sub-maps chosen by the hash: each grows by itself,
    so that a growth moves a 256th of the ids. Their limits of load run from 0.60 to 0.80, because sub-maps filled
    evenly would otherwise all grow at nearly the same moment. A place is an id and its number plus one: fresh memory
    is empty places, and no id is reserved.

    Args:
        max_ids: The most that it may hold.
        what: The words with which an error begins, such as the table's.
    """

    def __init__(self, max_ids: int, what: str) -> None:
        self.max_ids, self._what = max_ids, what
        # Hashes spread ids evenly; up to 65,536 ids may even lie in one sub-map.
        most = 2 * max_ids if max_ids <= 1 << 16 else 8 * max_ids // SUB_MAPS
        self._room = max(FIRST_BITS, int(most).bit_length())
        self._memory = reserved(SUB_MAPS * 16 << self._room, f"{what}: map of ids", huge=False)
        self._slots = np.frombuffer(self._memory, np.int64).reshape(-1, 2)
        self._bits = np.full(SUB_MAPS, FIRST_BITS, np.int64)
        self._used = np.zeros(SUB_MAPS, np.int64)
        self._limits = np.linspace(0.60, 0.80, SUB_MAPS)

    def __len__(self) -> int:
        return int(self._used.sum())

    def num_bytes(self) -> int:
        """Bytes of all places."""
        return int((16 << self._bits).sum())

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The number of each id, (B,), -1 for one that is not here; repeats allowed."""
        numbers = np.empty(len(ids), np.int64)
        _find(self._slots, self._bits, self._room, ids, numbers)
        return numbers

    def add(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        """Put distinct ids, (R,), none of them here, with numbers of at least 0.

        Raises:
            ConfigError: more ids than ``max_ids``, or too many of one hash; nothing has changed then.
        """
        if len(self) + len(ids) > self.max_ids:
            raise ConfigError(f"{self._what}: {len(self) + len(ids)} ids; at most {self.max_ids} fit")
        wanted = self._used + _count(ids)
        bits = self._bits.copy()
        while (short := wanted > self._limits * (1 << bits)).any():
            bits[short] += 1
        if (bits > self._room).any():
            raise ConfigError(
                f"{self._what}: {int(wanted.max())} ids have one hash of 8 bits; the map has room for "
                f"{int(0.6 * (1 << self._room))} of them"
            )
        for sub in np.flatnonzero(bits > self._bits).tolist():
            self._relay(sub, int(bits[sub]))
        _add(self._slots, self._bits, self._room, ids, numbers)
        self._used = wanted

    def set(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        """Give ids that are here, (R,), distinct, other numbers of at least 0."""
        _set(self._slots, self._bits, self._room, ids, numbers)

    def remove(self, ids: np.ndarray) -> None:
        """Take distinct ids, (R,), all of them here, out; the sub-maps that lose some are laid out anew."""
        _set(self._slots, self._bits, self._room, ids, np.full(len(ids), _GONE - 1, np.int64))
        lost = _count(ids)
        for sub in np.flatnonzero(lost).tolist():
            self._relay(sub, int(self._bits[sub]))
        self._used -= lost

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """All ids, ascending, and their numbers, (R,) each."""
        found = [self._slots[sub << self._room :][: 1 << self._bits[sub]] for sub in range(SUB_MAPS)]
        places = np.concatenate([part[part[:, 1] > 0] for part in found])
        places = places[np.argsort(places[:, 0])]
        return places[:, 0].copy(), places[:, 1] - 1

    def _relay(self, sub: int, bits: int) -> None:
        """Lay a sub-map out anew in 2**bits places, without what was removed."""
        start, size = (sub << self._room) * 16, 16 << bits
        if bits > self._bits[sub] and size >= HUGE:
            self._memory.madvise(mmap.MADV_HUGEPAGE, start, size)
        _relay(self._slots[sub << self._room :], 1 << int(self._bits[sub]), 1 << bits)
        self._bits[sub] = bits


@njit(cache=True, nogil=True, inline="always")
def _place(bits: Any, room: Any, hashed: Any) -> Any:
    """The first place of a hash and the mask of its sub-map, whose places begin at a multiple of 2**room."""
    sub = np.int64(hashed >> np.uint64(56))
    mask = (np.int64(1) << bits[sub]) - 1
    return (sub << room), np.int64(hashed & np.uint64(mask)), mask


@njit(cache=True, nogil=True)
def _find(slots: np.ndarray, bits: np.ndarray, room: int, ids: np.ndarray, numbers: np.ndarray) -> None:
    num = len(ids)
    for i in range(num + AHEAD):
        # Ask for the first place of a later id.
        if i < num:
            start, place, mask = _place(bits, room, mix64(np.uint64(ids[i])))
            prefetch_to_read(slots, start + place)
        # Probe for an earlier one.
        k = i - AHEAD
        if k >= 0:
            start, place, mask = _place(bits, room, mix64(np.uint64(ids[k])))
            while slots[start + place, 1] != 0 and slots[start + place, 0] != ids[k]:
                place = (place + 1) & mask
            numbers[k] = slots[start + place, 1] - 1


@njit(cache=True, nogil=True)
def _count(ids: np.ndarray) -> np.ndarray:
    """How many ids each sub-map has, (S,)."""
    found = np.zeros(SUB_MAPS, np.int64)
    for i in range(len(ids)):
        found[np.int64(mix64(np.uint64(ids[i])) >> np.uint64(56))] += 1
    return found


@njit(cache=True, nogil=True)
def _add(slots: np.ndarray, bits: np.ndarray, room: int, ids: np.ndarray, numbers: np.ndarray) -> None:
    num = len(ids)
    for i in range(num + AHEAD):
        if i < num:
            start, place, mask = _place(bits, room, mix64(np.uint64(ids[i])))
            prefetch_to_read(slots, start + place)
        k = i - AHEAD
        if k >= 0:
            start, place, mask = _place(bits, room, mix64(np.uint64(ids[k])))
            while slots[start + place, 1] != 0:
                place = (place + 1) & mask
            slots[start + place, 0] = ids[k]
            slots[start + place, 1] = numbers[k] + 1


@njit(cache=True, nogil=True)
def _set(slots: np.ndarray, bits: np.ndarray, room: int, ids: np.ndarray, numbers: np.ndarray) -> None:
    for i in range(len(ids)):
        start, place, mask = _place(bits, room, mix64(np.uint64(ids[i])))
        while slots[start + place, 0] != ids[i] or slots[start + place, 1] == 0:
            place = (place + 1) & mask
        slots[start + place, 1] = numbers[i] + 1


@njit(cache=True, nogil=True)
def _relay(slots: np.ndarray, before: int, after: int) -> None:
    """Put the ids of the first ``before`` places into the first ``after`` ones, of which the new ones are empty."""
    kept = slots[:before].copy()
    slots[:before] = 0
    mask = after - 1
    for i in range(before):
        if kept[i, 1] > 0:
            place = np.int64(mix64(np.uint64(kept[i, 0])) & np.uint64(mask))
            while slots[place, 1] != 0:
                place = (place + 1) & mask
            slots[place] = kept[i]
