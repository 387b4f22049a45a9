"""Processes that stand for ranks: started once, used by many tests; a child's failure fails the test."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import pytest

from graph_emb.transport.process_group import SHARED_VARIABLE
from tests import warm

with_shared_memory = pytest.mark.skipif(
    os.environ.get(SHARED_VARIABLE) == "0", reason=f"ranks take sockets: {SHARED_VARIABLE}=0"
)
"""Of tests that need ranks to share memory, for runs of the others without it (``make test-sockets``)."""
PATIENCE = 400.0
"""Seconds until a rank that does not answer fails its test: two that compile on a busy machine took more than 120."""


def context() -> Any:
    """Forks from a process that imported torch and DGL already: a child starts in milliseconds."""
    theirs: Any = forkserver._forkserver
    if "ensure_running" not in vars(theirs):
        theirs.ensure_running = warm.ForkServer(theirs).ensure_running
    return multiprocessing.get_context("forkserver")


def raised(function: Callable[..., Any], *args: Any) -> str:
    """The error of a function that has to fail on every rank; unlike an error of ``run``, it leaves the processes."""
    from graph_emb.transport.runtime import shutdown

    try:
        function(*args)
    except Exception:
        shutdown()
        return traceback.format_exc()
    raise AssertionError(f"{function.__name__} raised nothing")


class Ranks:
    """Up to four processes; ``run(function, world_size, *args)`` calls it once in each of the first ones.

    A function is a module-level one and finds torchrun's variables in its environment.
    """

    def __init__(self) -> None:
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, function: Callable[..., Any], world_size: int, *args: Any, timeout: float = PATIENCE) -> list[Any]:
        """What the function returned on each rank; raises when one raised, died or did not answer in time."""
        self._grow(world_size)
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a free port, held from the start
        for rank in range(world_size):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            self._workers[rank][1].send((environment, function, args))
        answers = [self._answer(rank, timeout) for rank in range(world_size)]
        del store
        failed = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failed:
            self.close()
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def _answer(self, rank: int, timeout: float) -> tuple[bool, Any]:
        process, pipe = self._workers[rank]
        try:
            if pipe.poll(timeout):
                return pipe.recv()
        except EOFError:
            process.join()
            return False, f"died with exit code {process.exitcode}"
        return False, f"no answer within {timeout} s"

    def _grow(self, size: int) -> None:
        while len(self._workers) < size:
            mine, theirs = context().Pipe()
            process = context().Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, mine))

    def close(self) -> None:
        """End the processes; the next ``run`` starts new ones."""
        for process, pipe in self._workers:
            pipe.close()
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            environment, function, args = pipe.recv()
        except EOFError:
            return
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            answer = True, function(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        os.environ.clear()
        os.environ.update(before)
        pipe.send(answer)
