"""How many threads our compiled functions take: as many as torch, fewer for small work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from numba import get_num_threads, set_num_threads

SERIAL_ROWS = 256  # below this, starting threads costs more than they save


@contextmanager
def threads_for(num_rows: int) -> Iterator[int]:
    """How many threads so many rows are worth; compiled functions that run inside wake no more than those.

    A woken thread looks for more work for some milliseconds, and takes a core from whoever waits for these rows. numba
    would take every core whatever ``torch.set_num_threads`` and ``OMP_NUM_THREADS`` say, and ranks that share a
    machine would wait for each other's threads.
    """
    before = get_num_threads()
    threads = 1 if num_rows < SERIAL_ROWS else min(before, torch.get_num_threads())
    if threads == before:
        yield threads
        return
    set_num_threads(threads)
    try:
        yield threads
    finally:
        set_num_threads(before)
