"""Moves of pages between a file and arrays in memory: compiled loops that leave the interpreter lock alone."""

from __future__ import annotations

import ctypes
import os
import platform
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
DEPTH = 64
"""Runs of neighbouring pages that a thread has on their way at once."""
_SYSTEM = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(platform.machine())
"""The kernel's numbers of io_setup, io_destroy, io_submit and io_getevents."""
SUBMIT, EVENTS = (-1, -1) if _SYSTEM is None else _SYSTEM[2:]

_call = types.intp(types.int32, types.intp, types.uintp, types.int64)
_pread: Any = types.ExternalFunction("pread", _call)
_pwrite: Any = types.ExternalFunction("pwrite", _call)
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
_syscall: Any = types.ExternalFunction("syscall", types.intp(*[types.intp] * 6))
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
def _finished(file: Any, write: bool, direct: bool, at: int, start: int, want: int, done: int) -> tuple[int, int]:
    """Move the bytes [done, want) of a run, one call after the other; as ``transfer``."""
    number = np.zeros(1, np.int32)
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
    return 0, 0


@njit(cache=True, nogil=True)
def _asked(queue: Any, requests: Any, pointers: Any, events: Any, num: int, counts: Any) -> None:
    """Let the kernel make requests at the same time; ``counts`` has the bytes of each, 0 or an error's where it failed.

    What the kernel does not take stays at 0.
    """
    counts[:num] = 0
    taken = 0
    while taken < num:
        found = _syscall(SUBMIT, queue, num - taken, pointers.ctypes.data + 8 * taken, 0, 0)
        if found <= 0:
            break
        taken += found
    ended = 0
    while ended < taken:  # an interrupted wait is taken up again: the buffer is the kernel's until all have ended
        found = _syscall(EVENTS, queue, taken - ended, taken - ended, events.ctypes.data, 0)
        for n in range(max(found, 0)):
            counts[events[n, 0]] = events[n, 2]
        ended += max(found, 0)


@njit(cache=True, nogil=True)
def transfer(
    file: Any, pages: Any, frames: Any, sections: Any, page_bytes: int, buffer: Any, write: bool, direct: bool,
    queue: int,
) -> tuple[int, int]:  # fmt: skip
    """Move pages, ascending, from or to their frames; (0, 0), or an errno or ``SHORT`` with the offset in the file.

    Args:
        queue: Of the kernel, by which the runs of neighbours that the buffer holds are moved at the same time; 0: one
            after the other.
    """
    at = buffer.ctypes.data
    room = max(1, len(buffer) // page_bytes)
    counts = np.zeros(DEPTH, np.int64)
    requests, events = np.zeros((DEPTH, 8), np.int64), np.empty((DEPTH, 4), np.int64)
    pointers = np.int64(requests.ctypes.data) + 64 * np.arange(DEPTH)
    low = 0
    while low < len(pages):
        high, num = low, 0  # as many runs of neighbours as the buffer holds
        while high < len(pages) and high - low < room and num < (DEPTH if queue != 0 else 1):
            first, high = high, high + 1
            while high < len(pages) and high - low < room and pages[high] == pages[high - 1] + 1:
                high += 1
            requests[num, 0], requests[num, 2] = num, (1 if write else 0) | (np.int64(file) << 32)
            requests[num, 3], requests[num, 4] = at + (first - low) * page_bytes, (high - first) * page_bytes
            requests[num, 5] = BLOCK + pages[first] * page_bytes
            num += 1
        if write:
            for k in range(low, high):
                _copy_sections(at + (k - low) * page_bytes, frames[k], sections, False)
        if queue != 0:
            _asked(queue, requests, pointers, events, num, counts)
        for n in range(num):
            here, want, start = requests[n, 3], requests[n, 4], requests[n, 5]
            done = max(0, counts[n])
            number, offset = _finished(file, write, direct, here, start, want, done)
            if number != 0:
                return number, offset
            if not direct:
                _fadvise(np.int32(file), start, want, np.int32(DONT_NEED))
        if not write:
            for k in range(low, high):
                _copy_sections(at + (k - low) * page_bytes, frames[k], sections, True)
        low = high
    return 0, 0


def opened_queue() -> int:
    """A queue of the kernel for one thread; 0 where there is none, as in some containers.

    What the C library calls asynchronous I/O are threads; these are the kernel's own calls (io_submit(2)), with which a
    page takes a third of the processor time of a call that waits for it.
    """
    if _SYSTEM is None:
        return 0
    found, call = ctypes.c_ulong(0), ctypes.CDLL(None).syscall
    if call(_SYSTEM[0], DEPTH, ctypes.byref(found)):
        return 0
    if call(EVENTS, found, 0, 0, None, None):  # whoever forbids this call alone would be waited for without end
        close_queue(found.value)
        return 0
    return found.value


def close_queue(queue: int) -> None:
    """Give a queue back."""
    if queue and _SYSTEM is not None:
        ctypes.CDLL(None).syscall(_SYSTEM[1], ctypes.c_ulong(queue))


def reason_of(number: int) -> str:
    """What an errno or ``SHORT`` says."""
    return "the file ends there: it was cut off" if number == SHORT else os.strerror(number)
