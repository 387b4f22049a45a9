"""Servers and trainers of a test, on loopback: started together, reaped together, exit codes checked."""

from __future__ import annotations

import contextlib
import multiprocessing
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

from graph_emb.transport import guard
from graph_emb.transport.kvstore.layout import free_ports

LIMIT = 90.0  # seconds; a test that hangs fails
PRELOADED = [
    "graph_emb.transport.kvstore.client",
    "graph_emb.transport.kvstore.server",
    "graph_emb.optimizer",
    "torch._dynamo",
]


class Outcome(NamedTuple):
    """How a process ended."""

    name: str
    exit_code: int
    value: Any
    error: str


def context() -> Any:
    """Forks from a process that imported DGL already: a child starts in milliseconds."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


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
        ports = [free_ports(servers) for _ in range(machines)]
        self.hosts = [f"127.0.0.1:{port}" for port in ports]
        self.processes: dict[str, Any] = {}
        self._pipes: dict[str, Connection] = {}
        self._answers: dict[str, tuple[Any, str]] = {}
        self.folder = tempfile.TemporaryDirectory()

    def start(self, train: Callable[..., Any], *args: Any, part_config: str | None = None) -> None:
        """Start every process; each trainer calls ``train(transport, *args)`` between connect and close."""
        timeouts = {key: self.options[key] for key in ("timeout", "start_timeout") if key in self.options}
        for server in range(self.machines * self.servers):
            options = {"token": self.token, "part_config": part_config, **timeouts}
            self._start(f"server {server}", _serve, (server, self.hosts, self.servers, self.trainers, options))
        for rank in range(self.trainers):
            options = {
                "hosts": self.hosts,
                "num_servers": self.servers,
                "machine": rank % self.machines,
                "rank": rank,
                "token": self.token,
                **self.options,
            }
            self._start(f"trainer {rank}", _train, (options, train, args))

    def _start(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        mine, theirs = context().Pipe()
        process = context().Process(target=_child, args=(theirs, function, args, str(Path(self.folder.name, name))))
        process.start()
        theirs.close()
        self.processes[name], self._pipes[name] = process, mine

    def join(self, limit: float = LIMIT) -> dict[str, Outcome]:
        """Wait for every process; those that outlive the limit are killed, which shows in their exit code."""
        until = time.monotonic() + limit
        open_pipes = dict(self._pipes)
        while open_pipes and time.monotonic() < until:
            for pipe in wait(list(open_pipes.values()), timeout=max(0.0, until - time.monotonic())):
                name = next(name for name, one in open_pipes.items() if one is pipe)
                try:
                    self._answers[name] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    del open_pipes[name]
        outcomes = {}
        for name, process in self.processes.items():
            process.join(max(0.1, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            value, error = self._answers.get(name, (None, ""))
            outcomes[name] = Outcome(name, process.exitcode, value, error)
        for pipe in self._pipes.values():
            pipe.close()
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


def _train(options: dict[str, Any], train: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    from graph_emb.transport import active
    from graph_emb.transport.kvstore import connect

    transport = connect(**options)
    active._active = transport
    value = train(transport, *args)
    active.shutdown()
    return value


def _child(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...], log: str) -> None:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch

    torch.set_num_threads(1)
    code = 0
    try:
        pipe.send_bytes(pickle.dumps((function(*args), "")))
    except BaseException as error:
        traceback.print_exc()
        pipe.send_bytes(pickle.dumps((None, f"{type(error).__name__}: {error}")))
        code = 1
    pipe.close()
    sys.stdout.flush()
    sys.exit(code)


@contextlib.contextmanager
def shared_memory_is_clean() -> Iterator[None]:
    """Fail when shared memory of ours remains."""
    before = set(Path("/dev/shm").glob("graph_emb_*"))
    yield
    left = set(Path("/dev/shm").glob("graph_emb_*")) - before
    assert not left, f"left in shared memory: {left}"
