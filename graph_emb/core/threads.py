"""Threads of compiled loops: how many they take, and a pool whose results do not depend on their number."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np

from graph_emb.core.errors import ConfigError

SERIAL_ROWS = 256  # below this, starting threads costs more than they save
MOST_THREADS = int(getattr(numba.config, "NUMBA_NUM_THREADS"))  # noqa: B009  set at run time, unknown to mypy


@cache
def start_numba() -> None:
    """Start numba's threads without a change of torch's number of threads; call it before numba is asked for its own.

    numba's OpenMP layer shares libgomp with torch and sets the calling thread's number to all cores (numba 0.68,
    omppool.cpp: launch_threads), whatever ``torch.set_num_threads`` or ``OMP_NUM_THREADS`` said. Here the calling
    thread is one that ends at once. Not at import: a process that forks after the start may not use numba's threads.
    """
    starter = threading.Thread(target=numba.get_num_threads)
    starter.start()
    starter.join()


def thread_count(num_threads: int | None) -> int:
    """Threads to use: as asked, else what numba may use and the process can have.

    Raises:
        ConfigError: fewer than 1.
    """
    if num_threads is None:
        start_numba()
        return max(1, min(numba.get_num_threads(), len(os.sched_getaffinity(0))))
    if num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; at least 1 is needed")
    return num_threads


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[int]:
    """Run torch on ``thread_count(num_threads)`` threads inside, and with it every loop under ``threads_for``; yields
    their number.
    """
    import torch  # here, so that a partitioner starts without it

    threads, before = thread_count(num_threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def counting_threads(num_threads: int, num_nodes: int, num_edges: int) -> int:
    """Threads that count ends of edges; their (num_nodes,) arrays together stay no larger than the edges."""
    return max(1, min(num_threads, num_edges // max(1, num_nodes)))


@contextmanager
def threads_for(num_rows: int) -> Iterator[int]:
    """Limit numba's threads, inside, to what num_rows rows are worth; yields their number.

    A woken thread spins for some milliseconds and keeps a core from whoever waits for these rows. numba takes every
    core whatever ``torch.set_num_threads`` and ``OMP_NUM_THREADS`` say, so ranks that share a machine would wait for
    each other's threads.
    """
    import torch  # here, so that a partitioner starts without it

    start_numba()
    before = numba.get_num_threads()
    threads = 1 if num_rows < SERIAL_ROWS else min(before, torch.get_num_threads())
    if threads == before:
        yield threads
        return
    numba.set_num_threads(threads)
    try:
        yield threads
    finally:
        numba.set_num_threads(before)


class ThreadPool:
    """A pool for loops that release the interpreter lock and write disjoint ranges.

    Args:
        num_threads: At least 1; with 1 everything runs in the caller.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1) if num_threads > 1 else None

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def ranges(self, size: int, weights: np.ndarray | None = None) -> list[tuple[int, int]]:
        """[0, size) in one range a thread, even by length or by ascending cumulative ``weights``, (size + 1,)."""
        if weights is None:
            cuts = np.linspace(0, size, self.num_threads + 1).astype(np.int64)
        else:
            cuts = np.searchsorted(weights, np.linspace(0, weights[-1], self.num_threads + 1)[1:-1])
            cuts = np.concatenate([[0], np.minimum(cuts, size), [size]])
        return [(int(a), int(b)) for a, b in pairwise(cuts)]

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run all calls, the caller being one of the threads; results in their order.

        The first error, in the order of the calls, is raised once all have ended.
        """
        if self._pool is None or len(calls) == 1:
            return [call() for call in calls]
        results: list[Any] = [None] * len(calls)
        errors: dict[int, BaseException] = {}
        waiting = iter(range(len(calls)))

        def work() -> None:
            for i in waiting:
                try:
                    results[i] = calls[i]()
                except BaseException as error:
                    errors[i] = error
                    if not isinstance(error, Exception):
                        return  # Ctrl-C: this thread takes no more

        others = [self._pool.submit(work) for _ in range(min(self.num_threads, len(calls)) - 1)]
        work()
        for other in others:
            other.result()
        if errors:
            raise errors[min(errors)]
        return results
