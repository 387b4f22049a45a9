"""Compiled building blocks of kernels: a cache that sees every change, random bits, the distinct values of a batch.

splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): what a draw is
depends on its stream and its number alone. Its functions take and return ``np.uint64``, ``mix64`` arrays of it as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import prange
from numba.core import event

from graph_emb.core.imports import paused_collection
from graph_emb.core.terminal import note
from graph_emb.core.threads import threads_for

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The distance between the states of a stream: 2^64 divided by the golden ratio, odd."""
UNIT = 2.0**-53
PATIENCE = 60.0
"""Seconds that a process waits for another one to compile what it needs, too, before it does so itself."""
AT_MOST = 5.0
"""Seconds that reading or writing a cache takes; longer, and the process that holds it was stopped."""
INSIDE: Any = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of a helper that is put into compiled functions: without wrappers for Python and C it compiles faster."""
_IMPORT = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)


class FirstCompile(event.Listener):
    """Notes, once a process, that kernels of these packages are compiled: of a first start it is the longest part.

    numba triggers the event where its cache on disk has no machine code of the function and the types.
    """

    def __init__(self) -> None:
        self.told, self.kept = False, True

    def on_start(self, event: event.Event) -> None:
        package = event.data["dispatcher"].py_func.__module__.partition(".")[0]
        if not self.told and package in ("graph_emb", "partition"):
            self.told = True
            if self.kept:
                note("compiling kernels, once for this machine; the next start takes them from numba's cache")
            else:
                note("compiling kernels, at each start: no folder can keep them; NUMBA_CACHE_DIR names one")

    def on_end(self, event: event.Event) -> None:
        pass


FIRST = FirstCompile()
event.register("numba:compile", FIRST)


class CompileClock:
    """Seconds in which a thread of this process compiles, or waits for another process that does."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._total = self._since = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._since = time.perf_counter() if self._inside == 0 else self._since
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            self._total += time.perf_counter() - self._since if self._inside == 0 else 0.0

    def seconds(self) -> float:
        """Since the process began; a start that finds all kernels in the cache has none."""
        with self._lock:
            return self._total + (time.perf_counter() - self._since if self._inside else 0.0)


COMPILING = CompileClock()


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit``, whose cache looks at the modules that the function's own one imports, too.

    What a helper or a constant of another module was is part of the machine code, but numba (0.68, caching.py) compiles
    a cached function again where the text of its own file has changed, and only there. What is only put into others
    (``forceinline``, no cache) cannot be called from Python.

    A parallel function may not reorder sums: numba (0.68) optimizes what is inside its loops once for the process that
    compiles it and once more for those that load it, and the order differs. Loops of ``core.addresses`` may.
    """
    assert not (options.get("parallel") and options.get("fastmath")), "sums in parallel loops: see core.addresses"
    if options.get("forceinline") and not options.get("cache"):
        options |= INSIDE

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            made = numba.njit(**options)(function)
        except RuntimeError:  # numba may write neither beside the package nor in the home
            FIRST.kept = _cached_in_temporary_folder()
            made = numba.njit(**{**options, "cache": FIRST.kept})(function)
        if hasattr(getattr(made, "_cache", None), "_cache_file"):  # with NUMBA_DISABLE_JIT there is none
            index = made._cache._cache_file
            index._source_stamp = index._source_stamp, text_stamp(Path(function.__code__.co_filename))
            _SharedCache(made)
        return made

    return decorate


@cache
def _cached_in_temporary_folder() -> bool:
    """Let numba keep machine code in a temporary folder that this user alone can write; whether there is one."""
    try:
        folder = Path(tempfile.gettempdir(), f"graph-emb-kernels-{os.geteuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if own:  # what others put there would be run
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return own


class _SharedCache:
    """numba's cache of one function on disk, among processes that compile at the same time.

    numba (0.68, caching.py) writes the index of a function before the machine code and locks neither: a process may
    find the code of another signature or of an earlier version under a name that another process has just given away,
    and loses names that were written since it read the index. Here one process at a time writes into a folder, nobody
    reads meanwhile, and those that need the same code at the same time wait for the first one to compile it.
    """

    def __init__(self, dispatcher: Any) -> None:
        index = dispatcher._cache._cache_file
        self._folder, self._name = index._cache_path, index._index_name
        self._load, self._save, self._compile = index.load, index.save, dispatcher.compile
        self._turns = threading.local()
        index.load, index.save, dispatcher.compile = self.load, self.save, self.compile

    def load(self, key: Any) -> Any:
        """The code under a key; None makes this process compile it, in its turn."""
        found, turn = self._read(key), getattr(self._turns, "mine", None)
        if found is None and turn is not None:
            turn.enter_context(COMPILING)
            file = Path(self._folder, f"{self._name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.lock")
            turn.enter_context(_locked(file, fcntl.LOCK_EX, PATIENCE))
            turn.callback(file.unlink, missing_ok=True)  # those that wait for it find the code in the cache
            found = self._read(key)
        return found

    def save(self, key: Any, data: Any) -> None:
        """As numba's; what a full disk does not take is compiled again by the next process."""
        with contextlib.suppress(OSError), _locked(Path(self._folder), fcntl.LOCK_EX, AT_MOST):
            self._save(key, data)

    def compile(self, signature: Any) -> Any:
        """numba's ``compile``, which loads, or compiles and saves; then this process's turn is over."""
        with contextlib.ExitStack() as turn:
            before = getattr(self._turns, "mine", None)
            self._turns.mine = turn
            try:
                with paused_collection():
                    return self._compile(signature)
            finally:
                self._turns.mine = before

    def _read(self, key: Any) -> Any:
        with _locked(Path(self._folder), fcntl.LOCK_SH, AT_MOST):
            return self._load(key)


@contextlib.contextmanager
def _locked(place: Path, how: int, seconds: float) -> Iterator[None]:
    """Hold a folder, or a file that is made for it; go on without after so long, as the holder may be stopped.

    A place that cannot be opened, or a file system without locks, is passed over.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | (0 if place.is_dir() else os.O_CREAT), 0o666)
            held.callback(os.close, file)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    fcntl.flock(file, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        yield


@cache
def text_stamp(file: Path) -> str:
    """A digest of the text of a module and of all those of its package, and of this one, that it imports in turn."""
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    packages = frozenset({file.relative_to(root).parts[0], __name__.partition(".")[0]})
    found: dict[Path, str] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one], imported = _text(one, root, packages)
            waiting += imported
    digests = [found[one] for one in sorted(found)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@cache
def _text(file: Path, root: Path, packages: frozenset[str]) -> tuple[str, list[Path]]:
    """The digest of a module's text, and the files of these packages that it imports, which lie below root."""
    text = file.read_bytes() if file.is_file() else b""  # none in a frozen program, which does not change
    places = []
    for module, names in _IMPORT.findall(text.decode(errors="replace")):
        if module.partition(".")[0] in packages:
            base = root.joinpath(*module.split("."))
            places += [base.with_suffix(".py"), base / "__init__.py"]
            places += [base / f"{name}.py" for name in re.findall(r"\w+", names)]
    return hashlib.sha256(text).hexdigest(), [place for place in places if place.is_file()]


@njit(cache=True, nogil=True, inline="always")
def mix64(x: Any) -> Any:
    """The output of a state: a bijection of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def unit(bits: np.uint64) -> float:
    """Random bits as a float64 in [0, 1) on a grid of 2^-53."""
    return np.float64(bits >> np.uint64(11)) * UNIT


@njit(cache=True, nogil=True, inline="always")
def unit_draw(key: np.uint64, number: int) -> float:
    """Draw ``number`` of the stream ``key``, see ``unit``."""
    return unit(mix64(key + np.uint64(number) * GOLDEN))


@njit(cache=True, nogil=True)
def numbered(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of ids (I,), in the order in which they first occur, and the place of each id among them.

    A hash table of at least twice I slots beats a sort.
    """
    num = ids.shape[0]
    bits = 4
    while (1 << bits) < 2 * num:
        bits += 1
    slots = np.full(1 << bits, -1, np.int32)
    shift = np.uint64(64 - bits)
    mask = (1 << bits) - 1
    distinct = np.empty(num, np.int64)
    places = np.empty(num, np.int64)
    found = 0
    for i in range(num):
        slot = np.int64((np.uint64(ids[i]) * GOLDEN) >> shift)
        while slots[slot] >= 0 and distinct[slots[slot]] != ids[i]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = found
            distinct[found] = ids[i]
            found += 1
        places[i] = slots[slot]
    return distinct[:found], places


@njit(cache=True, nogil=True)
def _chained(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``group`` by a hash table, of any ids."""
    distinct, places = numbered(rows)
    first = np.full(len(distinct), -1, np.int64)
    last = np.empty(len(distinct), np.int64)
    following = np.full(len(rows), -1, np.int64)
    for i in range(len(rows)):
        k = places[i]
        if first[k] < 0:
            first[k] = i
        else:
            following[last[k]] = i
        last[k] = i
    return distinct, first, following


Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What ``group`` returns."""
DIGIT = 11
"""Bits of a digit of ``group``'s sort: counts of all digits stay in the first cache."""
POSITION = 30
"""Bits of a position in a batch, below a row of at most 3 digits in a word that ``group`` sorts."""


@njit(cache=True, nogil=True)
def group(rows: np.ndarray) -> Groups:
    """Distinct rows, and for each the chain of its occurrences.

    Positions, of at most 33 bits, ascend, so that memory is met in its order: a radix sort from the lowest digit up,
    which takes no longer than a hash table. Other ids come in the order of first occurrence.

    Args:
        rows: Shape (B,), int64.
    Returns:
        distinct (R,), first (R,) and following (B,): the next occurrence of the same row, or -1.
    """
    num = len(rows)
    # How many digits the rows have, and how often each occurs.
    together = np.int64(0)
    for i in range(num):
        together |= rows[i]
    bits = 0
    while together >> bits > 0:
        bits += 1
    if together < 0 or bits > 3 * DIGIT or num >= 1 << POSITION:
        return _chained(rows)
    passes = max(1, (bits + DIGIT - 1) // DIGIT)
    width = (bits + passes - 1) // passes
    mask = (1 << width) - 1
    counts = np.zeros((passes, 1 << width), np.int64)
    words, others = np.empty(num, np.int64), np.empty(num, np.int64)  # a row, and below it where it occurs
    for i in range(num):
        words[i] = rows[i] << POSITION | i
        for p in range(passes):
            counts[p, (rows[i] >> (p * width)) & mask] += 1
    # Sort by one digit after the other; equal digits keep their order.
    for p in range(passes):
        places = counts[p]
        start = 0
        for digit in range(len(places)):
            start, places[digit] = start + places[digit], start
        shift = POSITION + p * width
        for i in range(num):
            word = words[i]
            digit = (word >> shift) & mask
            at = places[digit]
            places[digit] = at + 1
            others[at] = word
        words, others = others, words
    # Chain the occurrences of each row.
    distinct, first, following = np.empty(num, np.int64), np.empty(num, np.int64), np.full(num, -1)
    found, last, before = 0, np.int64(-1), np.int64(-1)
    for i in range(num):
        row, position = words[i] >> POSITION, words[i] & ((1 << POSITION) - 1)
        if row == last:
            following[before] = position
        else:
            distinct[found], first[found] = row, position
            found += 1
        last, before = row, position
    return distinct[:found], first[:found], following


@njit(parallel=True, cache=True, nogil=True)
def _group_each(rows, starts, distinct, first, following, found):  # type: ignore[no-untyped-def]
    for part in prange(len(found)):
        low, high = starts[part], starts[part + 1]
        rows_of, first_of, following[low:high] = group(rows[low:high])
        found[part] = len(rows_of)
        distinct[low : low + len(rows_of)] = rows_of
        first[low : low + len(rows_of)] = first_of


def group_each(batches: Sequence[np.ndarray]) -> list[Groups]:
    """``group`` of several batches, by one call for all, in parallel."""
    if len(batches) < 2:
        return [group(rows) for rows in batches]
    rows, starts = np.concatenate(batches), np.cumsum([0, *map(len, batches)])
    distinct, first, following, found = *np.empty((3, len(rows)), np.int64), np.empty(len(batches), np.int64)
    with threads_for(len(rows)):
        _group_each(rows, starts, distinct, first, following, found)
    cuts = zip(starts[:-1], starts[1:], starts[:-1] + found, strict=True)
    return [(distinct[low:stop], first[low:stop], following[low:high]) for low, high, stop in cuts]
