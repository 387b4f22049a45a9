"""XXH64, the checksum of checkpoint files: one core hashes several GB a second, five times what sha256 reaches.

It finds damage; it is no defence against somebody who wants to deceive. ``xxhsum -H64 FILE`` prints the same digits.
Algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (XXH64, seed 0).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numba import njit

STRIPE = 32
"""Bytes that the four accumulators take at a time."""
CACHED_BYTES = 1 << 20
"""Read or written at a time: small enough that hash and copy share the bytes in the processor's cache."""

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)


@njit(inline="always")
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@njit(inline="always")
def _round(accumulator: np.uint64, lane: np.uint64) -> np.uint64:
    return _rotate(accumulator + lane * P2, 31) * P1


@njit(cache=True, nogil=True)
def _stripes(accumulators: np.ndarray, lanes: np.ndarray) -> None:
    a, b, c, d = accumulators[0], accumulators[1], accumulators[2], accumulators[3]
    for i in range(0, len(lanes), 4):
        a = _round(a, lanes[i])
        b = _round(b, lanes[i + 1])
        c = _round(c, lanes[i + 2])
        d = _round(d, lanes[i + 3])
    accumulators[0], accumulators[1], accumulators[2], accumulators[3] = a, b, c, d


@njit(cache=True, nogil=True)
def _finish(accumulators: np.ndarray, total: int, tail: np.ndarray) -> np.uint64:
    if total >= STRIPE:
        digest = _rotate(accumulators[0], 1) + _rotate(accumulators[1], 7)
        digest += _rotate(accumulators[2], 12) + _rotate(accumulators[3], 18)
        for k in range(4):
            digest = (digest ^ _round(np.uint64(0), accumulators[k])) * P1 + P4
    else:
        digest = P5
    digest += np.uint64(total)
    at = 0
    while at + 8 <= len(tail):
        lane = np.uint64(0)
        for k in range(8):
            lane |= np.uint64(tail[at + k]) << np.uint64(8 * k)
        digest = _rotate(digest ^ _round(np.uint64(0), lane), 27) * P1 + P4
        at += 8
    if at + 4 <= len(tail):
        word = np.uint64(0)
        for k in range(4):
            word |= np.uint64(tail[at + k]) << np.uint64(8 * k)
        digest = _rotate(digest ^ (word * P1), 23) * P2 + P3
        at += 4
    while at < len(tail):
        digest = _rotate(digest ^ (np.uint64(tail[at]) * P5), 11) * P1
        at += 1
    digest = (digest ^ (digest >> np.uint64(33))) * P2
    digest = (digest ^ (digest >> np.uint64(29))) * P3
    return digest ^ (digest >> np.uint64(32))


class XXH64:
    """The checksum of bytes that come piece by piece."""

    def __init__(self) -> None:
        with np.errstate(over="ignore"):
            self._accumulators = np.array([P1 + P2, P2, np.uint64(0), np.uint64(0) - P1], dtype=np.uint64)
        self._tail = np.empty(0, np.uint8)
        self._total = 0

    def update(self, data: np.ndarray) -> None:
        """Add bytes, shape (N,), uint8, contiguous."""
        self._total += len(data)
        if len(self._tail):
            missing = min(STRIPE - len(self._tail), len(data))
            self._tail, data = np.concatenate([self._tail, data[:missing]]), data[missing:]
            if len(self._tail) < STRIPE:
                return
            _stripes(self._accumulators, self._tail.view(np.uint64))
        whole = len(data) - len(data) % STRIPE
        if whole:
            stripes = data[:whole]
            aligned = stripes if stripes.ctypes.data % 8 == 0 else stripes.copy()
            _stripes(self._accumulators, aligned.view(np.uint64))
        self._tail = data[whole:].copy()

    def hexdigest(self) -> str:
        """Sixteen hexadecimal digits; more bytes may follow."""
        return f"{int(_finish(self._accumulators, self._total, self._tail)):016x}"


def checksum_of(path: Path) -> str:
    """The checksum of a file, read once in small pieces."""
    buffer, digest = np.empty(CACHED_BYTES, np.uint8), XXH64()
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the kernel reads further ahead
        while count := stream.readinto(buffer.data):
            digest.update(buffer[:count])
    return digest.hexdigest()
