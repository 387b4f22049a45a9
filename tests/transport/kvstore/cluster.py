"""Servers and trainers of a test, on loopback: started together, reaped together, exit codes checked."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from graph_emb.core.left_behind import shared_names_of
from graph_emb.transport import guard
from graph_emb.transport.kvstore.layout import free_ports
from tests.ranks import context

LIMIT = 240.0  # seconds; a test that hangs fails, one whose processes compile on a busy machine does not


class Outcome(NamedTuple):
    """How a process did its part: 0, or the exit code with which it ended."""

    name: str
    exit_code: int
    value: Any
    error: str


class Worker(NamedTuple):
    """A process that does one job after the other; an error or a signal ends it."""

    process: Any
    pipe: Connection


_idle: list[Worker] = []
"""Processes that did their last job well: they have compiled and imported everything already."""

_pids: set[int] = set()
"""Every process that was ever started."""


def close_idle() -> None:
    """End the waiting processes; each must end with 0."""
    codes = []
    while _idle:
        process, pipe = _idle.pop()
        pipe.close()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
        codes.append(process.exitcode)
    assert not any(codes), f"waiting processes ended with {codes}"


# Before multiprocessing's own, which waits for all children and would wait for those that wait for us.
atexit.register(close_idle)


class Cluster:
    """One job: servers on ``num_machines`` pretended machines, trainers in turn on them.

    Args:
        trainers: Number of trainers.
        machines: Parts.
        servers: Servers per machine.
        options: For ``connect`` and ``serve``: timeouts; for ``connect`` alone: staleness, hogwild.
    """

    def __init__(self, trainers: int = 1, machines: int = 1, servers: int = 1, **options: Any) -> None:
        self.trainers, self.machines, self.servers = trainers, machines, servers
        self.options = options
        self.token = guard.new_token()
        first = free_ports(machines * servers)
        self.hosts = [f"127.0.0.1:{first + machine * servers}" for machine in range(machines)]
        self.workers: dict[str, Worker] = {}
        self.logs: dict[str, str] = {}
        self.folder = tempfile.TemporaryDirectory()

    def start(self, train: Callable[..., Any], *args: Any, part_config: str | None = None) -> None:
        """Start every process; each trainer calls ``train(transport, *args)`` between connect and close."""
        self.start_servers(part_config)
        self.start_trainers(train, args=args)

    def start_servers(self, part_config: str | None = None) -> None:
        """Start the servers, which wait for ``trainers`` trainers."""
        timeouts = {key: self.options[key] for key in ("timeout", "start_timeout") if key in self.options}
        for server in range(self.machines * self.servers):
            options = {"token": self.token, "part_config": part_config, **timeouts}
            self.add(f"server {server}", _serve, (server, self.hosts, self.servers, self.trainers, options))

    def start_trainers(self, train: Callable[..., Any], prefix: str = "", args: tuple[Any, ...] = ()) -> None:
        """Start the trainers, each with its rank and machine."""
        for rank in range(self.trainers):
            options = {
                "hosts": self.hosts,
                "num_servers": self.servers,
                "machine": rank % self.machines,
                "rank": rank,
                "token": self.token,
                **self.options,
            }
            self.add(f"{prefix}trainer {rank}", _train, (options, train, args))

    def add(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Let a process call a function of a module."""
        if _idle:
            worker = _idle.pop()
        else:
            mine, theirs = context().Pipe()
            process = context().Process(target=_work, args=(theirs,))
            process.start()
            theirs.close()
            _pids.add(process.pid)
            worker = Worker(process, mine)
        worker.pipe.send_bytes(pickle.dumps((function, args, str(Path(self.folder.name, name)))))
        self.workers[name] = worker

    def join(self, limit: float = LIMIT) -> dict[str, Outcome]:
        """Wait for every process; those that outlive the limit are killed, which shows in their exit code."""
        until = time.monotonic() + limit
        waiting = {worker.pipe: name for name, worker in self.workers.items()}
        answers: dict[str, tuple[Any, str]] = {}
        while waiting and time.monotonic() < until:
            for pipe in wait(list(waiting), timeout=max(0.0, until - time.monotonic())):
                assert isinstance(pipe, Connection)
                name = waiting.pop(pipe)
                with contextlib.suppress(EOFError, ConnectionResetError):
                    answers[name] = pickle.loads(pipe.recv_bytes())
        outcomes = {}
        for name, worker in self.workers.items():
            value, error = answers.get(name, (None, "no answer"))
            if not error:
                _idle.append(worker)
                outcomes[name] = Outcome(name, 0, value, "")
                continue
            worker.process.join(max(1.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
            outcomes[name] = Outcome(name, worker.process.exitcode or 1, value, error)
        self.logs = {name: Path(self.folder.name, name).read_text(errors="replace") for name in self.workers}
        self.folder.cleanup()
        return outcomes

    def run(self, train: Callable[..., Any], *args: Any, part_config: str | None = None) -> list[Any]:
        """What ``train`` returned on each trainer; raises unless every process ended with 0."""
        self.start(train, *args, part_config=part_config)
        outcomes = self.join()
        bad = [f"{o.name} ended with {o.exit_code}: {o.error}" for o in outcomes.values() if o.exit_code != 0]
        assert not bad, "\n".join(bad)
        return [outcomes[f"trainer {rank}"].value for rank in range(self.trainers)]


def _serve(server: int, hosts: list[str], servers: int, trainers: int, options: dict[str, Any]) -> None:
    from graph_emb.transport.kvstore import serve

    serve(server, hosts, servers, trainers, **options)
    if options.get("part_config") is not None:
        gc.collect()  # DGL's graph, whose names in shared memory the next test's servers use too


def _train(options: dict[str, Any], train: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    from graph_emb.transport import runtime
    from graph_emb.transport.kvstore import connect

    transport = connect(**options)
    runtime._active = transport
    value = train(transport, *args)
    runtime.shutdown()
    return value


def _work(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, args, log = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            answer = (function(*args), "")
        except BaseException as error:
            traceback.print_exc()
            pipe.send_bytes(pickle.dumps((None, f"{type(error).__name__}: {error}")))
            pipe.close()
            sys.stdout.flush()
            sys.exit(1)
        pipe.send_bytes(pickle.dumps(answer))


@contextlib.contextmanager
def shared_memory_is_clean() -> Iterator[None]:
    """Fail when shared memory that our processes made still has a name; other jobs of this host do not count.

    What was there before does not count: other tests kill processes of this one, whose names stay.
    """
    before = {path for pid in (*_pids, os.getpid()) for path in shared_names_of(pid)}
    yield
    left = [path for pid in (*_pids, os.getpid()) for path in shared_names_of(pid) if path not in before]
    assert not left, f"left in shared memory: {[path.name for path in left]}"
