"""The map of a growing table from keys to rows: any int64 key, growth in small pieces, exact deletion.

Legend: B asked keys, R distinct keys, S sub-maps.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba import prange

from graph_emb.core.compiled import GOLDEN, njit
from graph_emb.core.errors import ConfigError
from graph_emb.core.threads import SERIAL_ROWS, threads_for
from graph_emb.table.row_memory import ask_at, equal_in_line, lowest_bit, number_at, prefetch

SUB_BITS = 9  # of the hash
SUB_MAPS = 1 << SUB_BITS
FIRST_PLACES = 4  # of a sub-map
GROWTH = 1.5  # of a sub-map that is full
LIMITS = (0.54, 0.80)  # loads at which sub-maps grow: far enough apart that at any time as many are about to
AHEAD = 16  # keys whose places are asked for before they are read
LINE_PLACES = 4  # of a cache line
CHUNK = 128  # places that are laid out at once
KEYS, NUMBERS = 0b01010101, 0b10101010  # among the eight words of a line
HUGE = 1 << 21  # bytes of a huge page
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; Python names it from 3.13 on
_GONE = -1  # beside a place whose key was removed, until the sub-map is laid out anew


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


class _Blocks:
    """Pieces of one range [0, size): the first hole that is large enough, so that what is used lies densely.

    Args:
        size: Of the range; pieces past it are told as well.
        most: Pieces that are taken at once.
    """

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self._holes = np.empty((most + 1, 2), np.int64)  # [low, high) below the end, ascending, none beside another
        self._edge = np.zeros(2, np.int64)  # how many holes there are, and the end

    @property
    def end(self) -> int:
        """Of all pieces."""
        return int(self._edge[1])

    def take(self, nums: np.ndarray) -> np.ndarray:
        """The starts of new pieces, one after the other."""
        starts = np.empty(len(nums), np.int64)
        _take(self._holes, self._edge, nums, starts)
        return starts

    def give(self, starts: np.ndarray, nums: np.ndarray) -> None:
        """Take pieces back."""
        _give(self._holes, self._edge, starts, nums)


@njit(cache=True, nogil=True)
def _take(holes: Any, edge: Any, nums: Any, starts: Any) -> None:
    for k in range(len(nums)):
        h = 0
        while h < edge[0] and holes[h, 1] - holes[h, 0] < nums[k]:
            h += 1
        if h == edge[0]:
            starts[k] = edge[1]
            edge[1] += nums[k]
            continue
        starts[k] = holes[h, 0]
        holes[h, 0] += nums[k]
        if holes[h, 0] == holes[h, 1]:
            _shift(holes, edge, h, -1)


@njit(cache=True, nogil=True)
def _give(holes: Any, edge: Any, starts: Any, nums: Any) -> None:
    for k in range(len(starts)):
        low, high, h = starts[k], starts[k] + nums[k], 0
        while h < edge[0] and holes[h, 0] < low:
            h += 1
        if h < edge[0] and holes[h, 0] == high:  # join the hole after it, then the one before
            high = holes[h, 1]
            _shift(holes, edge, h, -1)
        if h > 0 and holes[h - 1, 1] == low:
            h -= 1
            low = holes[h, 0]
            _shift(holes, edge, h, -1)
        if high == edge[1]:
            edge[1] = low
        else:
            _shift(holes, edge, h, 1)
            holes[h, 0], holes[h, 1] = low, high


@njit(cache=True, nogil=True)
def _shift(holes: Any, edge: Any, h: Any, by: Any) -> None:
    """Take hole h out (-1), or make room for one before it (1)."""
    if by < 0:
        for k in range(h, edge[0] - 1):
            holes[k, 0], holes[k, 1] = holes[k + 1, 0], holes[k + 1, 1]
    else:
        for k in range(edge[0], h, -1):
            holes[k, 0], holes[k, 1] = holes[k - 1, 0], holes[k - 1, 1]
    edge[0] += by


class IdMap:
    """A number for each of a set of keys, which are int64 of any value whose bits are random (``hash_book.key_of``).

    Open addressing with linear probing (Knuth, TAOCP 6.4) by cache lines of four places, each looked through by one
    comparison of vectors, in 512 sub-maps chosen by the hash: each grows by itself, by a half, so that a growth moves
    a 512th of the keys and leaves few places empty. Their limits of load differ by as much, because sub-maps filled
    evenly would otherwise all grow at nearly the same moment. All lie densely in one memory of huge pages. A place is a
    key and its number plus one: fresh memory is empty places, and no key is reserved.

    Args:
        max_ids: The most that it may hold.
        what: The words with which an error begins, such as the table's.
    """

    def __init__(self, max_ids: int, what: str) -> None:
        self.max_ids, self._what = max_ids, what
        # All blocks that a sub-map ever had are together less than four times its last one.
        most = 4 * (SUB_MAPS * FIRST_PLACES + int(GROWTH / LIMITS[0] * max_ids) + 4 * SUB_MAPS)
        self._blocks = _Blocks(most, 2 * SUB_MAPS)
        self._memory = reserved(16 * most, f"{what}: map of ids", huge=16 * most > 8 * HUGE)
        self._slots = np.frombuffer(self._memory, np.int64).reshape(-1, 2)
        self._sizes = np.full(SUB_MAPS, FIRST_PLACES, np.int64)
        self._starts = self._blocks.take(self._sizes)
        self._used = np.zeros(SUB_MAPS, np.int64)
        self._limits = np.geomspace(*LIMITS, SUB_MAPS)

    def __len__(self) -> int:
        return int(self._used.sum())

    def num_bytes(self) -> int:
        """Bytes of all places."""
        return int(16 * self._sizes.sum())

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key, (B,), -1 for one that is not here; repeats allowed."""
        numbers = np.empty(len(keys), np.int64)
        given = self._slots, self._starts, self._sizes, keys, numbers
        if len(keys) < SERIAL_ROWS:
            _visit(*given, 0, len(keys))
        else:
            with threads_for(len(keys)) as parts:
                _find(*given, parts)
        return numbers

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Put distinct keys, (R,), none of them here, with numbers of at least 0.

        Raises:
            ConfigError: more keys than ``max_ids``, or too many of one hash; nothing has changed then.
        """
        if len(self) + len(keys) > self.max_ids:
            raise ConfigError(f"{self._what}: {len(self) + len(keys)} ids; at most {self.max_ids} fit")
        wanted, sizes = self._used + _count(keys), self._sizes.copy()
        while (short := wanted > self._limits * sizes).any():
            sizes[short] = (sizes[short] * GROWTH).astype(np.int64) // 4 * 4 + 4  # whole cache lines
        self._lay_out(np.flatnonzero(sizes > self._sizes), sizes)
        self._put(keys, numbers)
        self._used = wanted

    def set(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Give keys that are here, (R,), distinct, other numbers of at least 0."""
        self._put(keys, numbers)

    def remove(self, keys: np.ndarray) -> None:
        """Take distinct keys, (R,), all of them here, out; the sub-maps that lose some are laid out anew."""
        self._put(keys, np.full(len(keys), _GONE - 1))
        lost = _count(keys)
        self._lay_out(np.flatnonzero(lost), self._sizes)
        self._used -= lost

    def _put(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        _put(self._slots, self._starts, self._sizes, keys, numbers)

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """All keys, in no order, and their numbers, (R,) each."""
        blocks = zip(self._starts.tolist(), self._sizes.tolist(), strict=True)
        places = np.concatenate([self._slots[start : start + size] for start, size in blocks])
        places = places[places[:, 1] > 0]
        return places[:, 0].copy(), places[:, 1] - 1

    def _lay_out(self, subs: np.ndarray, sizes: np.ndarray) -> None:
        """Lay sub-maps out anew, without what was removed; those whose size, of (S,), is another one in a new block."""
        moving = subs[sizes[subs] != self._sizes[subs]]
        starts, before = self._starts.copy(), self._starts
        starts[moving] = self._blocks.take(sizes[moving])
        full = bool((starts[subs] + sizes[subs] > self._blocks.size).any())
        if not full:
            _relay(self._slots, subs, before, self._sizes, starts, sizes)
        of, lengths = (starts, sizes) if full else (before, self._sizes)
        self._blocks.give(of[moving], lengths[moving])
        if full:
            raise ConfigError(f"{self._what}: {int(sizes[subs].max())} places for ids of one hash do not fit")
        self._starts, self._sizes = starts, sizes


@njit(cache=True, nogil=True, inline="always")
def _sub_map(key: Any) -> Any:
    return np.int64((np.uint64(key) * GOLDEN) >> np.uint64(64 - SUB_BITS))


@njit(cache=True, nogil=True, inline="always")
def _home(start: Any, size: Any, key: Any) -> Any:
    """The first place of a key's line: lines ascend with the next 32 bits of the hash."""
    bits = ((np.uint64(key) * GOLDEN) >> np.uint64(32 - SUB_BITS)) & np.uint64(0xFFFFFFFF)
    return start + (np.int64((bits * np.uint64(size // LINE_PLACES)) >> np.uint64(32)) * LINE_PLACES)


@njit(cache=True, nogil=True, inline="always")
def _following(place: Any, start: Any, size: Any) -> Any:
    """The first place of the line after that of ``place``, another first one, in a sub-map."""
    place += LINE_PLACES
    return start if place == start + size else place


@njit(cache=True, nogil=True, inline="always")
def _number(at: Any, key: Any) -> Any:
    """The number of a key in the line at an address, plus one; 0 or that of no key where it has none. No branch.

    A key of 0 equals empty places too, which come last.
    """
    found = equal_in_line(at, key) & KEYS
    number = number_at(at, lowest_bit(found | 1 << 6) + 1)
    return number if found else 0


@njit(cache=True, nogil=True)
def _visit(slots: Any, starts: Any, sizes: Any, keys: Any, numbers: Any, low: Any, high: Any) -> None:
    """Tell the numbers of the keys [low, high).

    A block of keys is told while the lines of the next one arrive. Nearly all keys lie in the first line that they
    could: where they are there no branch depends on the key.
    """
    base = slots.ctypes.data
    homes = np.empty(2 * AHEAD, np.int64)  # addresses
    for block in range(low, high + AHEAD, AHEAD):
        for i in range(block, min(high, block + AHEAD)):
            sub = _sub_map(keys[i])
            homes[i % (2 * AHEAD)] = at = base + 16 * _home(starts[sub], sizes[sub], keys[i])
            ask_at(at, 16)
        for i in range(max(low, block - AHEAD), min(high, block)):
            key, at = keys[i], homes[i % (2 * AHEAD)]
            number = _number(at, key)
            while number == 0 and number_at(at, 7) != 0:
                sub = _sub_map(key)
                at = base + 16 * _following((at - base) // 16, starts[sub], sizes[sub])
                number = _number(at, key)
            numbers[i] = number - 1


@njit(cache=True, nogil=True, inline="always")
def _write(slots: Any, start: Any, size: Any, place: Any, key: Any, number: Any) -> None:
    """Put a key with its number plus one, into its place or the first empty one, from the line at ``place`` on."""
    base = slots.ctypes.data
    found = 0
    while found == 0:
        at = base + 16 * place
        found = equal_in_line(at, key) & KEYS | equal_in_line(at, 0) & NUMBERS
        if found == 0:
            place = _following(place, start, size)
    place += lowest_bit(found) // 2
    slots[place, 0], slots[place, 1] = key, number


@njit(cache=True, nogil=True)
def _put(slots: Any, starts: Any, sizes: Any, keys: Any, numbers: Any) -> None:
    """Put keys with their numbers."""
    num = len(keys)
    homes = np.empty(AHEAD, np.int64)
    for i in range(num + AHEAD):
        k = i - AHEAD
        if k >= 0:
            sub = _sub_map(keys[k])
            _write(slots, starts[sub], sizes[sub], homes[k % AHEAD], keys[k], numbers[k] + 1)
        if i < num:
            sub = _sub_map(keys[i])
            homes[i % AHEAD] = home = _home(starts[sub], sizes[sub], keys[i])
            prefetch(slots, home)


@njit(parallel=True, cache=True, nogil=True)
def _find(slots: Any, starts: Any, sizes: Any, keys: np.ndarray, numbers: np.ndarray, parts: int) -> None:
    num = len(keys)
    for part in prange(parts):
        _visit(slots, starts, sizes, keys, numbers, part * num // parts, (part + 1) * num // parts)


@njit(cache=True, nogil=True)
def _count(keys: np.ndarray) -> np.ndarray:
    """How many keys each sub-map has, (S,)."""
    found = np.zeros(SUB_MAPS, np.int64)
    for i in range(len(keys)):
        found[_sub_map(keys[i])] += 1
    return found


@njit(cache=True, nogil=True)
def _relay(slots: Any, subs: Any, old_starts: Any, old_sizes: Any, starts: Any, sizes: Any) -> None:
    """Put what sub-maps hold into their new blocks, which may be the old ones; both are met in the order of hashes."""
    kept = np.empty((CHUNK + 1, 2), np.int64)
    for sub in subs:
        start, size = starts[sub], sizes[sub]
        old = slots[old_starts[sub] : old_starts[sub] + old_sizes[sub]]
        source = old.copy() if old_starts[sub] == start else old
        if old_starts[sub] == start:
            old[:] = 0
        used = np.zeros(size // LINE_PLACES, np.uint8)  # of each line: places just written make a look at them slow
        for low in range(0, len(source), CHUNK):
            # Without a branch, of which half would be guessed wrongly: an empty place is overwritten by the next one.
            num = 0
            for i in range(low, min(len(source), low + CHUNK)):
                kept[num, 0], kept[num, 1] = source[i, 0], source[i, 1]
                num += source[i, 1] > 0
            for i in range(num):
                place = _home(start, size, kept[i, 0])
                while used[(place - start) // LINE_PLACES] == LINE_PLACES:
                    place = _following(place, start, size)
                line = (place - start) // LINE_PLACES
                place += used[line]
                used[line] += 1
                slots[place, 0], slots[place, 1] = kept[i, 0], kept[i, 1]
        if old_starts[sub] != start:
            old[:] = 0
