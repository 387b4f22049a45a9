"""splitmix64 as a counter-based generator: what a draw is depends on its stream and its number alone.

Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. All functions are compiled; they
take and return ``np.uint64``, and ``mix64`` arrays of it as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The distance between the states of a stream: 2^64 divided by the golden ratio, odd."""
UNIT = 2.0**-53


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
