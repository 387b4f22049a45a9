"""Moves of pages between a file and arrays in memory: compiled loops that leave the interpreter lock alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numba import types

from graph_emb.core.compiled import njit
from graph_emb.table.tier.pages import BLOCK, SECTOR

BUFFER_BYTES = 256 << 10
"""Of a thread: neighbouring pages up to this are one call."""
SHORT = -1
"""In place of an errno: the file ended before the page."""
EINTR = 4

_call = types.intp(types.int32, types.intp, types.uintp, types.int64)
_pread: Any = types.ExternalFunction("pread", _call)
_pwrite: Any = types.ExternalFunction("pwrite", _call)
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
_errno_at: Any = types.ExternalFunction("__errno_location", types.intp())
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
DONT_NEED = os.POSIX_FADV_DONTNEED


@njit(cache=True, nogil=True)
def _copy_sections(buffer: Any, frame: Any, sections: Any, to_frame: bool) -> None:
    """Copy the sections of a page between a buffer and a frame; a base of 0 leaves a section out."""
    for s in range(len(sections)):
        base, size, offset = sections[s]
        if base != 0:
            here, there = base + frame * size, buffer + offset
            if to_frame:
                _memcpy(here, there, size)
            else:
                _memcpy(there, here, size)


@njit(cache=True, nogil=True)
def transfer(
    file: Any, pages: Any, frames: Any, sections: Any, page_bytes: int, buffer: Any, write: bool, direct: bool
) -> tuple[int, int]:
    """Move pages, ascending, from or to their frames; (0, 0), or an errno or ``SHORT`` with the offset in the file."""
    number = np.zeros(1, np.int32)
    at = buffer.ctypes.data
    room = max(1, len(buffer) // page_bytes)
    i = 0
    while i < len(pages):
        j = i + 1
        while j < len(pages) and j - i < room and pages[j] == pages[j - 1] + 1:
            j += 1
        if write:
            for k in range(i, j):
                _copy_sections(at + (k - i) * page_bytes, frames[k], sections, False)
        start, want, done = BLOCK + pages[i] * page_bytes, (j - i) * page_bytes, 0
        while done < want:
            if write:
                count = _pwrite(np.int32(file), at + done, np.uint64(want - done), start + done)
            else:
                count = _pread(np.int32(file), at + done, np.uint64(want - done), start + done)
            if count < 0:
                _memcpy(number.ctypes.data, _errno_at(), np.uint64(4))
                if number[0] != EINTR:
                    return np.int64(number[0]), start + done
            elif count == 0 or (direct and not write and count < want - done and count % SECTOR != 0):
                return SHORT, start + done + count
            else:
                done += count
        if not write:
            for k in range(i, j):
                _copy_sections(at + (k - i) * page_bytes, frames[k], sections, True)
        if not direct:
            _fadvise(np.int32(file), start, want, np.int32(DONT_NEED))
        i = j
    return 0, 0


def reason_of(number: int) -> str:
    """What an errno or ``SHORT`` says."""
    return "the file ends there: it was cut off" if number == SHORT else os.strerror(number)
