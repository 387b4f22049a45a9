"""A job of one or many machines: the store that brings its processes together, and the processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.core.left_behind import left_in_shared_memory
from graph_emb.core.storage import replace_text
from graph_emb.core.terminal import postponed_interrupts
from graph_emb.run.launch import plan, watch
from graph_emb.run.launch.plan import LOOPBACK, Host
from graph_emb.transport.guard import TOKEN_VARIABLE, new_token, token_or_environment

log = logging.getLogger("graph_emb.launch")

PORT = 29_417
"""Where the first machine's launcher listens when several machines take part and no port is given."""
TOGETHER = timedelta(seconds=300)
LAST_WORD = timedelta(seconds=15)
LISTEN, SILENCE, TELL = 0.2, 15.0, 5.0
"""Seconds between two looks at the store, until its silence is an error, and for a last message to it."""


def run_local(
    command: Sequence[str],
    trainers: int,
    logs: Path,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    servers: int = 0,
    oversubscribe: bool = False,
) -> None:
    """Run a command as ``trainers`` processes of this machine, with kvstore servers if asked for, over loopback.

    Raises:
        ProcessFailure: one failed; all were ended.
    """
    hosts, spare = [Host(LOOPBACK, trainers, servers)], oversubscribe
    run_host(command, hosts, 0, logs=logs, threads=threads, environment=environment, oversubscribe=spare)


def run_host(
    command: Sequence[str],
    hosts: Sequence[Host],
    index: int,
    *,
    logs: Path,
    port: int = 0,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    oversubscribe: bool = False,
    partition: str | Path | None = None,
) -> None:
    """Run this machine's share of a job and return when all machines have ended theirs.

    Args:
        command: What each trainer runs.
        hosts: All machines, the same list on each.
        index: This machine's place among them.
        logs: Folder of the log files.
        port: Of the store on the first machine; 0 takes a free one (one machine only).
        threads: Of each trainer and server; None shares the cores evenly among the trainers, and once more among the
            servers, which work while trainers wait for them.
        environment: Further variables of every trainer.
        oversubscribe: Take more than four trainers or servers for each core.
        partition: Folder of a partition whose graph the servers hold, a part a machine, for DGL's ``DistGraph``.
    Raises:
        ConfigError: too many processes, the port cannot be had, several machines have no token in common, or the
            partition has another number of parts.
        DataError: no partition.
        PeerError: the machines did not come together, or one of them failed.
    """
    plan.check_processes(hosts[index], oversubscribe)
    if len(hosts) > 1 and port == 0:
        raise ConfigError("several hosts need a port that all of them know; give --port")
    part_config = None if partition is None else _part_config(partition, hosts)
    token = _token(hosts)
    store = _meeting_point(hosts[0].address, port, here=index == 0)
    cores = os.cpu_count() or 1
    per_trainer = threads or max(1, cores // hosts[index].trainers)
    variables = {**(environment or {}), TOKEN_VARIABLE: token}
    processes = []
    if hosts[index].servers:
        for path in left_in_shared_memory(remove=True):
            log.warning("removed %s, which a killed process left", path)
        hosts_file = logs / "servers.txt"
        variables |= _kvstore_variables(hosts, index, port, hosts_file)
        per_server = threads or max(1, cores // hosts[index].servers)
        serving = {**variables, **_modules_of(command)}
        processes = plan.servers(hosts, index, hosts_file, logs, per_server, serving, part_config)
    processes += plan.trainers(command, hosts, index, store.port, logs, per_trainer, variables)
    meeting = _Meeting(store, hosts, index)
    try:
        watch.run(processes, stop=meeting.failure)
    except BaseException as error:
        meeting.leave(failed=str(error) or type(error).__name__)
        raise
    meeting.leave()


def _part_config(folder: str | Path, hosts: Sequence[Host]) -> Path:
    """DGL's JSON of a partition that the servers can hold."""
    import partition

    held = partition.load(folder)
    if not hosts[0].servers:
        raise ConfigError(f"the graph of {folder} is held by servers, and there are none; give --servers")
    if held.num_parts != len(hosts):
        raise ConfigError(
            f"{folder} has {held.num_parts} parts, and DGL's servers hold one on each of {len(hosts)} machines; "
            f"cut it anew (graph-emb partition repartition), or give as many hosts"
        )
    return held.config_path.absolute()


def _modules_of(command: Sequence[str]) -> dict[str, str]:
    """Where servers find the modules beside a script, as its trainers do: handlers and initializers come from them."""
    if len(command) < 2 or not command[1].endswith(".py"):
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(Path(command[1]).resolve().parent), *([before] if before else [])])}


def _meeting_point(address: str, port: int, here: bool) -> Any:
    """The store of a job; its server listens on the first machine's address alone."""
    from torch.distributed import TCPStore

    if not here:
        try:
            return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=TOGETHER)
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise PeerError(f"nobody meets at {address}:{port}: {said}; start the first host's launcher") from None
    try:
        server = socket.create_server((address, port), backlog=1024)
    except OSError as error:
        raise PeerError(f"cannot listen on {address}:{port}: {error.strerror}; give another --port") from None
    port = server.getsockname()[1]
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, timeout=TOGETHER, master_listen_fd=server.detach()
    )


def _kvstore_variables(hosts: Sequence[Host], index: int, port: int, hosts_file: Path) -> dict[str, str]:
    """Write down where the servers listen, and what servers and trainers read of it.

    Raises:
        ConfigError: the machines differ in servers.
    """
    from graph_emb.transport import kvstore
    from graph_emb.transport.kvstore.layout import free_ports

    counts = {host.servers for host in hosts}
    if len(counts) > 1:
        raise ConfigError(f"hosts have {sorted(counts)} servers; give every host the same number")
    first = port + 1 if len(hosts) > 1 else free_ports(hosts[0].servers, hosts[0].address)
    hosts_file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(hosts_file, "".join(f"{host.address} {first}\n" for host in hosts))  # hosts may share the folder
    return {
        kvstore.HOSTS_VARIABLE: str(hosts_file.absolute()),
        kvstore.SERVERS_VARIABLE: str(hosts[0].servers),
        kvstore.MACHINE_VARIABLE: str(index),
    }


def _token(hosts: Sequence[Host]) -> str:
    """The token of a job, which every process proves before anything else: the environment's, or on one machine a new
    one.

    Raises:
        ConfigError: several machines have no token in common.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None and len(hosts) > 1:
        raise ConfigError(
            f"several hosts need a token in common; set {TOKEN_VARIABLE} to the same value on each "
            "(docs/guides/security.md)"
        )
    return new_token() if token is None else token_or_environment(token)


class _Meeting:
    """Messages between the launchers of several machines through the store; a single launcher sends none.

    A thread listens, because a call to a store behind a cut cable does not return.
    """

    def __init__(self, store: Any, hosts: Sequence[Host], index: int) -> None:
        self._store, self._hosts, self._index = store, hosts, index
        self._others = [number for number in range(len(hosts)) if number != index]
        self._reason: str | None = None
        self._heard = time.monotonic()
        self._over = threading.Event()
        if self._others:
            threading.Thread(target=self._listen, daemon=True).start()

    def failure(self) -> str | None:
        """Why the job must end, if another machine's share failed or the first machine is silent."""
        if self._others and not self._reason and time.monotonic() - self._heard > SILENCE:
            return f"the launcher of host {self._hosts[0].address} has not answered for {SILENCE:g} s"
        return self._reason

    def _listen(self) -> None:
        first_left = False
        while not self._over.wait(LISTEN):
            try:
                first_left = first_left or self._store.check(["left/0"])
                failed = [number for number in self._others if self._store.check([f"failed/{number}"])]
                if failed:
                    text = self._store.get(f"failed/{failed[0]}").decode()
                    self._reason = f"host {self._hosts[failed[0]].address}: {text}"
                    return
            except RuntimeError:
                if not first_left:
                    self._reason = f"the launcher of host {self._hosts[0].address} is gone"
                    return
            self._heard = time.monotonic()

    def leave(self, failed: str | None = None) -> None:
        """Tell the others. The first machine holds the store until they have heard, for LAST_WORD at most."""
        self._over.set()
        if self._others:
            telling = threading.Thread(target=self._tell, args=(failed,), daemon=True)
            telling.start()
            telling.join(LAST_WORD.total_seconds() if self._index == 0 else TELL)

    def _tell(self, failed: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, or a launcher never answers: none is left to tell
            if failed is not None:
                self._store.set(f"failed/{self._index}", failed)
            self._store.set(f"left/{self._index}", "")
            if self._index == 0:
                self._store.wait([f"left/{number}" for number in self._others], LAST_WORD)


@contextmanager
def other_hosts(hosts: Sequence[Host], own: int, arguments: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ``graph-emb launch`` on every other host by ssh, in the same folder, with the same interpreter.

    The job's token goes through ssh's standard input: arguments are visible to all users of a machine. What still runs
    at the end of the context is ended.

    Args:
        hosts: All machines.
        own: This one's place.
        arguments: Of ``graph-emb launch`` without ``--ssh`` and ``--host-index``.
    """
    folder, python = shlex.quote(os.getcwd()), shlex.quote(sys.executable)
    token = os.environ.setdefault(TOKEN_VARIABLE, new_token())
    started: list[subprocess.Popen[bytes]] = []
    try:
        for index, host in enumerate(hosts):
            if index == own:
                continue
            words = ["launch", "--host-index", str(index), *arguments]
            take = f"IFS= read -r {TOKEN_VARIABLE} && export {TOKEN_VARIABLE}"
            remote = f"{take} && cd {folder} && exec {python} -m graph_emb {shlex.join(words)}"
            command = ["ssh", "-o", "BatchMode=yes", host.address, remote]
            with postponed_interrupts():
                started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            pipe = started[-1].stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code says why
                pipe.write(f"{token}\n".encode())
                pipe.close()
        yield started
    finally:
        for process in started:
            process.terminate()
            process.wait()
