"""Compiled building blocks of kernels: a cache that sees every change, random bits, the distinct values of a batch.

splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): what a draw is
depends on its stream and its number alone. Its functions take and return ``np.uint64``, ``mix64`` arrays of it as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event

from graph_emb.core.terminal import note

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The distance between the states of a stream: 2^64 divided by the golden ratio, odd."""
UNIT = 2.0**-53
_IMPORT = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)


class FirstCompile(event.Listener):
    """Notes, once a process, that kernels of these packages are compiled: of a first start it is the longest part.

    numba triggers the event where its cache on disk has no machine code of the function and the types.
    """

    def __init__(self) -> None:
        self.told = False

    def on_start(self, event: event.Event) -> None:
        package = event.data["dispatcher"].py_func.__module__.partition(".")[0]
        if not self.told and package in ("graph_emb", "partition"):
            self.told = True
            note("compiling kernels, once for this machine; the next start takes them from numba's cache")

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", FirstCompile())


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit``, whose cache looks at the modules that the function's own one imports, too.

    What a helper or a constant of another module was is part of the machine code, but numba (0.68, caching.py) compiles
    a cached function again where the text of its own file has changed, and only there.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        made = numba.njit(**options)(function)
        if options.get("cache") and hasattr(made, "_cache"):  # without NUMBA_DISABLE_JIT
            index = made._cache._cache_file
            index._source_stamp = index._source_stamp, text_stamp(Path(function.__code__.co_filename))
        return made

    return decorate


@cache
def text_stamp(file: Path) -> str:
    """A digest of the text of a module and of all those of its package, and of this one, that it imports in turn."""
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    packages = {Path(file.relative_to(root)).parts[0], __name__.partition(".")[0]}
    found = {file: ""}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        found[one], imports = _text(one)
        for module, names in imports:
            base = root.joinpath(*module.split("."))
            places = [base.with_suffix(".py"), base / "__init__.py", *(base / f"{name}.py" for name in names)]
            fresh = [p for p in places if module.partition(".")[0] in packages and p not in found and p.is_file()]
            found.update(dict.fromkeys(fresh, ""))
            waiting += fresh
    digests = [found[one] for one in sorted(found)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@cache
def _text(file: Path) -> tuple[str, list[tuple[str, list[str]]]]:
    """The digest of a module's text, and its imports: the modules with the names that they give."""
    text = file.read_bytes() if file.is_file() else b""  # none in a frozen program, which does not change
    imports = [(module, re.findall(r"\w+", names)) for module, names in _IMPORT.findall(text.decode(errors="replace"))]
    return hashlib.sha256(text).hexdigest(), imports


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
def group(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct rows in the order of first occurrence, and for each the chain of its occurrences.

    Returns of B rows distinct (R,), first (R,) and following (B,): the next occurrence of the same row, or -1. Unlike
    after a sort, gradients keep their reading order.
    """
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
