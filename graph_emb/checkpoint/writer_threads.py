"""Threads that write files: they take work as long as somebody gives it, after the program's end too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """So many threads, which do what they are given in that order. A context manager: its end waits for all of it.

    ``ThreadPoolExecutor`` takes nothing any more once the main thread has ended, and a checkpoint in the background is
    written then as at any other time.
    """

    def __init__(self, number: int) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"checkpoint files {k}") for k in range(number)]

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this when a thread is free; the future may be cancelled until then."""
        future: Future[T] = Future()
        self._work.put((future, partial(function, *args, **kwargs)))
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
